//! One page for a browser.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::chart::escape;
use crate::document::{Block, Card, Cell, Conclusion, Document, Fact, Grid, Measure, Section, Tile};
use crate::figure::{glued, utc};

/// Version of the shape of [`data`].
pub(crate) const SCHEMA: u32 = 1;

/// The page: complete in itself, with nothing to fetch and no script to run; light or dark as the reader's system is,
/// and printable. Its [`data`] is in it too (`script#data`).
pub fn html(document: &Document) -> String {
    let mut page = String::with_capacity(128 << 10);
    let title = escape(&document.title);
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n\
         <h1>{title}</h1>\n<p class=\"where\">{} · {} UTC</p>\n",
        include_str!("page.css"),
        escape(&document.subject),
        utc(created(document)),
    );
    verdicts(&mut page, &document.verdicts);
    tiles(&mut page, &document.tiles);
    warnings(&mut page, &document.warnings);
    for section in &document.sections {
        draw_section(&mut page, section);
    }
    facts(&mut page, &document.environment);
    notes(&mut page, &document.notes);
    let _ = write!(
        page,
        "<footer>Made by lunway {}. MB is 1,000,000 bytes. The raw data is in this file, in \
         <code>script#data</code>.</footer>\n</main>\n",
        env!("CARGO_PKG_VERSION")
    );
    // Within a script element only "<" can end it or begin a comment; in JSON it is only ever inside a string.
    let data = data(document).to_string().replace('<', "\\u003c");
    let _ = write!(page, "<script type=\"application/json\" id=\"data\">{data}</script>\n</body>\n</html>\n");
    page
}

/// The document's data, as pages embed it: what a later comparison needs, and the producer's own results.
pub fn data(document: &Document) -> Value {
    let pair = |fact: &Fact| json!([fact.name, fact.value]);
    let verdict = |verdict: &Conclusion| json!({ "text": verdict.text, "tone": verdict.tone.name() });
    let measure = |measure: &Measure| {
        json!({
            "name": measure.name,
            "unit": measure.unit,
            "better": measure.better.name(),
            "samples": measure.samples,
        })
    };
    json!({
        "lunway": { "version": env!("CARGO_PKG_VERSION"), "schema": SCHEMA, "kind": document.kind },
        "title": document.title,
        "device": document.subject,
        "created": created(document),
        "verdicts": document.verdicts.iter().map(verdict).collect::<Vec<_>>(),
        "warnings": document.warnings,
        "environment": document.environment.iter().map(pair).collect::<Vec<_>>(),
        "notes": document.notes,
        "measures": document.measures.iter().map(measure).collect::<Vec<_>>(),
        "results": document.results,
    })
}

/// Seconds since 1970.
fn created(document: &Document) -> u64 {
    document.created.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

fn verdicts(page: &mut String, verdicts: &[Conclusion]) {
    if verdicts.is_empty() {
        return;
    }
    page.push_str("<ul class=\"verdicts\">\n");
    for Conclusion { text, tone } in verdicts {
        let _ = writeln!(
            page,
            "<li><span class=\"mark {}\"></span><span>{}</span></li>",
            tone.name(),
            escape(text)
        );
    }
    page.push_str("</ul>\n");
}

fn tiles(page: &mut String, tiles: &[Tile]) {
    if tiles.is_empty() {
        return;
    }
    page.push_str("<dl class=\"tiles\">\n");
    for Tile { what, value, unit, of } in tiles {
        let (what, value, unit, of) = (escape(what), escape(value), escape(unit), escape(of));
        let _ = writeln!(
            page,
            "<div><dt>{what}</dt><dd>{value} <small>{unit}</small></dd><dd class=\"of\">{of}</dd></div>"
        );
    }
    page.push_str("</dl>\n");
}

fn warnings(page: &mut String, warnings: &[String]) {
    if warnings.is_empty() {
        return;
    }
    page.push_str("<div class=\"warnings\" role=\"note\">\n");
    for said in warnings {
        let _ = writeln!(page, "<p>{}</p>", sentence(said));
    }
    page.push_str("</div>\n");
}

fn draw_section(page: &mut String, section: &Section) {
    let _ = writeln!(page, "<section>\n<h2>{}</h2>", escape(&section.heading));
    for said in &section.prose {
        let _ = writeln!(page, "<p class=\"prose\">{}</p>", sentence(said));
    }
    let mut side_by_side = false;
    for block in &section.blocks {
        let narrow = matches!(block, Block::Chart(card) if !card.wide);
        if narrow != side_by_side {
            page.push_str(if narrow { "<div class=\"charts\">\n" } else { "</div>\n" });
            side_by_side = narrow;
        }
        match block {
            Block::Table(grid) => table(page, grid),
            Block::Chart(card) => chart(page, card),
        }
    }
    if side_by_side {
        page.push_str("</div>\n");
    }
    page.push_str("</section>\n");
}

fn chart(page: &mut String, card: &Card) {
    let (title, detail) = (escape(&card.title), escape(&card.detail));
    let _ = writeln!(
        page,
        "<div class=\"card{}\"><h3>{title} <span>{detail}</span></h3>{}</div>",
        if card.wide { " broad-card" } else { "" },
        card.svg
    );
}

fn table(page: &mut String, grid: &Grid) {
    page.push_str("<div class=\"card\"><table class=\"figures\">\n<thead><tr>");
    let class = |index: usize| {
        grid.columns.get(index).map_or("", |column| match (column.numeric, column.wide_only) {
            (true, false) => "",
            (true, true) => " class=\"wide\"",
            (false, false) => " class=\"words\"",
            (false, true) => " class=\"words wide\"",
        })
    };
    for (index, column) in grid.columns.iter().enumerate() {
        let _ = write!(page, "<th scope=\"col\"{}>{}", class(index), escape(&column.name));
        if !column.unit.is_empty() {
            let _ = write!(page, "<br>{}", escape(&column.unit));
        }
        page.push_str("</th>");
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for row in &grid.rows {
        page.push_str(if row.group { "<tr class=\"turn\">" } else { "<tr>" });
        for (index, cell) in row.cells.iter().enumerate() {
            let _ = match index {
                0 => write!(page, "<th scope=\"row\"{}>{}</th>", class(index), content(cell)),
                _ => write!(page, "<td{}>{}</td>", class(index), content(cell)),
            };
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
    if !grid.caption.is_empty() {
        let _ = writeln!(page, "<p class=\"small\">{}</p>", sentence(&grid.caption));
    }
}

fn content(cell: &Cell) -> String {
    let text = escape(&cell.text);
    match cell.mark {
        Some(mark) => format!("<span class=\"mark {}\"></span>{text}", mark.class()),
        None => text,
    }
}

fn facts(page: &mut String, facts: &[Fact]) {
    if facts.is_empty() {
        return;
    }
    page.push_str(
        "<section>\n<h2>Where it was measured</h2>\n<div class=\"card\"><table class=\"facts\"><tbody>\n",
    );
    for Fact { name, value } in facts {
        let _ =
            writeln!(page, "<tr><th scope=\"row\">{}</th><td>{}</td></tr>", breakable(name), escape(value));
    }
    page.push_str("</tbody></table></div>\n</section>\n");
}

fn notes(page: &mut String, notes: &[String]) {
    if notes.is_empty() {
        return;
    }
    page.push_str("<section>\n<h2>How it was measured</h2>\n");
    for note in notes {
        let _ = writeln!(page, "<p class=\"prose\">{}</p>", sentence(note));
    }
    page.push_str("</section>\n");
}

/// A sentence, escaped.
fn sentence(text: &str) -> String {
    escape(&glued(text))
}

/// A name, escaped, that may be broken at its dots and underscores.
fn breakable(name: &str) -> String {
    escape(name).replace('.', ".<wbr>").replace('_', "_<wbr>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Better, Column, Mark, Row, VerdictTone};

    /// A document with `text` wherever text can be.
    fn full(text: &str) -> Document {
        let mut document = Document::new("bench", text, text);
        document.verdicts = vec![Conclusion { text: text.into(), tone: VerdictTone::Good }];
        document.tiles =
            vec![Tile { what: text.into(), value: text.into(), unit: text.into(), of: text.into() }];
        document.warnings = vec![text.into()];
        let mut grid = Grid::new(vec![Column::words(text), Column::figures(text, text)]);
        grid.rows = vec![Row::new([Cell::marked(text, Mark::Read), text.into()])];
        grid.caption = text.into();
        let card = Card { title: text.into(), detail: text.into(), svg: String::new(), wide: false };
        document.sections = vec![Section {
            heading: text.into(),
            prose: vec![text.into()],
            blocks: vec![Block::Table(grid), Block::Chart(card)],
        }];
        document.environment = vec![Fact::new(text, text)];
        document.notes = vec![text.into()];
        document.measures = vec![Measure {
            name: text.into(),
            unit: text.into(),
            better: Better::Higher,
            samples: vec![1.0],
        }];
        document.results = json!({ text: [text] });
        document
    }

    #[test]
    fn text_from_outside_stays_text_and_nothing_is_fetched() {
        let page = html(&full("</script><script>alert('x')</script><img src=x><!--"));
        assert_eq!(page.matches("<script").count(), 1, "only the data");
        assert_eq!(page.matches("</script").count(), 1);
        assert!(!page.contains("<img") && !page.contains("<!--"));
        assert!(!page.contains("src=\"") && !page.contains("href="));
    }

    #[test]
    fn the_embedded_data_is_the_document_again() {
        let page = html(&full("a < b & \"c\""));
        let (_, data) = page.split_once("id=\"data\">").unwrap();
        let (data, _) = data.split_once("</script>").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["device"], "a < b & \"c\"");
        assert_eq!(data["lunway"]["kind"], "bench");
        assert_eq!(data["environment"][0][1], "a < b & \"c\"");
        assert_eq!(data["measures"][0]["samples"][0], 1.0);
        assert_eq!(data["results"]["a < b & \"c\""][0], "a < b & \"c\"");
    }

    #[test]
    fn a_document_of_nothing_is_still_a_page() {
        let page = html(&Document::new("net", "Nothing", "nobody"));
        assert!(page.contains("<h1>Nothing</h1>") && page.ends_with("</html>\n"));
    }

    #[test]
    fn only_neighbouring_narrow_charts_stand_side_by_side() {
        let card =
            |wide| Block::Chart(Card { title: "t".into(), detail: String::new(), svg: String::new(), wide });
        let mut document = Document::new("lab", "t", "s");
        document.sections = vec![Section {
            blocks: vec![card(false), card(false), card(true), card(false)],
            ..Section::new("h")
        }];
        let page = html(&document);
        assert_eq!(page.matches("<div class=\"charts\">").count(), 2);
        assert_eq!(page.matches("<div").count(), page.matches("</div>").count());
    }

    #[test]
    fn a_long_name_may_be_broken_at_its_dots() {
        assert_eq!(breakable("net.tcp_x"), "net.<wbr>tcp_<wbr>x");
    }
}
