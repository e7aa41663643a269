//! One page for a browser.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::chart::{Bar, Curve, SERIES_MAX, Tone, bars, escape, latency_curves, over_time};
use crate::cpu::CpuTime;
use crate::fio;
use crate::outcome::{Direction, End, Outcome};
use crate::score::{REFERENCE_VERSION, Score};
use crate::series::Point;
use crate::table::{Table, figure};

/// What a page shows: the results of a profile, or of single jobs, and where they were got.
#[derive(Clone, Debug)]
pub struct Report {
    /// Heading.
    pub title: String,
    /// What was measured, as the user named it. Must hold no secret.
    pub device: String,
    /// Facts about the place: host, kernel, versions, geometry. Shown in order.
    pub environment: Vec<(String, String)>,
    /// What a reader must know of how it was measured.
    pub notes: Vec<String>,
    /// The results, in order.
    pub outcomes: Vec<Outcome>,
    /// When.
    pub created: SystemTime,
}

impl Report {
    /// A report made now, without facts or notes.
    pub fn new(title: impl Into<String>, device: impl Into<String>, outcomes: Vec<Outcome>) -> Self {
        Self {
            title: title.into(),
            device: device.into(),
            environment: Vec::new(),
            notes: Vec::new(),
            outcomes,
            created: SystemTime::now(),
        }
    }
}

/// The page: complete in itself, with nothing to fetch and no script to run; light or dark as the reader's system is, and printable.
/// The figures are in it as JSON too (`script#data`), in fio's layout under `results`.
pub fn html(report: &Report) -> String {
    let mut page = String::with_capacity(128 << 10);
    let title = escape(&report.title);
    let created = fio::utc(report.created.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs());
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n\
         <h1>{title}</h1>\n<p class=\"where\">{} · {created} UTC</p>\n",
        include_str!("report.css"),
        escape(&report.device),
    );
    tiles(&mut page, &report.outcomes);
    warnings(&mut page, &report.outcomes);
    figures(&mut page, report);
    throughput(&mut page, &report.outcomes);
    response(&mut page, &report.outcomes);
    time(&mut page, &report.outcomes);
    facts(&mut page, report);
    let _ = write!(
        page,
        "<footer>Made by lunway {}. Response time is from submission to completion of each I/O; where a rate was set, from \
         the time at which the I/O was due. MB is 1,000,000 bytes.</footer>\n</main>\n",
        env!("CARGO_PKG_VERSION")
    );
    let data = json!({
        "title": report.title,
        "device": report.device,
        "environment": report.environment,
        "notes": report.notes,
        "results": fio::to_json(&report.outcomes),
    });
    // Within a script element only "<" can end it or begin a comment; in JSON it is only ever inside a string.
    let data = data.to_string().replace('<', "\\u003c");
    let _ = write!(page, "<script type=\"application/json\" id=\"data\">{data}</script>\n</body>\n</html>\n");
    page
}

fn tone(direction: &str) -> Tone {
    if direction == "write" { Tone::Write } else { Tone::Read }
}

/// A direction of an outcome that moved something, with its name as in the table.
struct Line<'a> {
    name: String,
    tone: Tone,
    outcome: &'a Outcome,
    figures: &'a Direction,
}

fn lines(outcomes: &[Outcome]) -> Vec<Line<'_>> {
    let lines = outcomes.iter().flat_map(|outcome| {
        let both = outcome.job.mix.reads() && outcome.job.mix.writes();
        outcome.directions().map(move |(direction, figures)| Line {
            name: if both { format!("{} ({direction})", outcome.job.name) } else { outcome.job.name.clone() },
            tone: tone(direction),
            outcome,
            figures,
        })
    });
    lines.filter(|line| line.figures.ios > 0).collect()
}

/// One figure to see first.
struct Tile {
    what: String,
    value: String,
    unit: &'static str,
    of: String,
}

fn tiles(page: &mut String, outcomes: &[Outcome]) {
    let tiles: Vec<Tile> = score_tile(outcomes).into_iter().chain(best_tiles(&lines(outcomes))).collect();
    if tiles.is_empty() {
        return;
    }
    page.push_str("<dl class=\"tiles\">\n");
    for Tile { what, value, unit, of } in tiles {
        let (what, of) = (escape(&what), escape(&of));
        let _ = writeln!(
            page,
            "<div><dt>{what}</dt><dd>{value} <small>{unit}</small></dd><dd class=\"of\">{of}</dd></div>"
        );
    }
    page.push_str("</dl>\n");
}

fn score_tile(outcomes: &[Outcome]) -> Option<Tile> {
    let score = Score::of(outcomes);
    let round = |value: f64| if value < 1000.0 { format!("{value:.0}") } else { figure(value) };
    let read = round(score.read?);
    let tile = |what: &str, value, of| Tile { what: what.into(), value, unit: "", of };
    Some(match (score.total(), score.write) {
        (Some(total), Some(write)) => {
            tile("Score", round(total), format!("read\u{a0}{read} · write\u{a0}{}", round(write)))
        }
        _ => tile("Read score", read, "no writes measured".into()),
    })
}

fn best_tiles(lines: &[Line<'_>]) -> Vec<Tile> {
    let mut tiles = Vec::new();
    for (word, tone) in [("read", Tone::Read), ("write", Tone::Write)] {
        let best = |of: &dyn Fn(&Line<'_>) -> f64| {
            lines.iter().filter(|line| line.tone == tone).max_by(|a, b| of(a).total_cmp(&of(b)))
        };
        if let Some(line) = best(&|line| line.figures.bytes_per_second()) {
            tiles.push(Tile {
                what: format!("Fastest {word}"),
                value: figure(line.figures.bytes_per_second() / 1e6),
                unit: "MB/s",
                of: line.name.clone(),
            });
        }
        if let Some(line) = best(&|line| line.figures.iops()) {
            tiles.push(Tile {
                what: format!("Most {word} IOPS"),
                value: figure(line.figures.iops()),
                unit: "",
                of: line.name.clone(),
            });
        }
    }
    tiles
}

fn warnings(page: &mut String, outcomes: &[Outcome]) {
    let mut said = Vec::new();
    for outcome in outcomes {
        let name = &outcome.job.name;
        if outcome.errors() > 0 {
            let first = outcome.read.first_error.as_ref().or(outcome.write.first_error.as_ref());
            let first = first.map_or("", String::as_str);
            said.push(format!("{name}: {} I/Os failed; the first: {first}.", outcome.errors()));
        }
        if let Some(found) = outcome.verification.as_ref().filter(|found| found.faulty > 0) {
            let first = found.faults.first().map(ToString::to_string).unwrap_or_default();
            let (faulty, checked) = (found.faulty, found.checked);
            said.push(format!("{name}: {faulty} of {checked} blocks came back wrong; the first: {first}."));
        }
        match outcome.end {
            End::Limit => {}
            End::Cancelled => {
                said.push(format!("{name}: cancelled; the figures are of what was done until then."));
            }
            End::Failing => said.push(format!("{name}: ended early, nothing but errors came.")),
        }
        if outcome.rate_missed() {
            said.push(format!(
                "{name}: the rate asked for was not reached; response times are those of an overload."
            ));
        }
    }
    if said.is_empty() {
        return;
    }
    page.push_str("<div class=\"warnings\" role=\"note\">\n");
    for sentence in said {
        let _ = writeln!(page, "<p>{}</p>", escape(&sentence));
    }
    page.push_str("</div>\n");
}

fn figures(page: &mut String, report: &Report) {
    page.push_str(
        "<h2>Results</h2>\n<div class=\"card\"><table class=\"figures\">\n<thead><tr><th>Test</th><th>Response<br>ms</th>\
         <th class=\"wide\">p99<br>ms</th><th class=\"wide\">p99.9<br>ms</th><th>MB</th><th>IOPS</th><th>MB/s</th>\
         <th class=\"wide\">CPU<br>%</th></tr></thead>\n<tbody>\n",
    );
    let lines = lines(&report.outcomes);
    for (index, line) in lines.iter().enumerate() {
        let turn = index > 0
            && lines[index - 1].tone != line.tone
            && lines[index - 1].outcome.job.name != line.outcome.job.name;
        let cpu = line.outcome.cpu;
        let _ = writeln!(
            page,
            "<tr{}><th><span class=\"dot {}\"></span>{}</th><td>{}</td><td class=\"wide\">{}</td><td class=\"wide\">{}</td>\
             <td>{}</td><td>{}</td><td>{}</td><td class=\"wide\">{:.0}</td></tr>",
            if turn { " class=\"turn\"" } else { "" },
            line.tone.class(),
            escape(&line.name),
            figure(line.figures.latency.mean() / 1e6),
            figure(line.figures.latency.percentile(99.0) as f64 / 1e6),
            figure(line.figures.latency.percentile(99.9) as f64 / 1e6),
            figure(line.figures.bytes as f64 / 1e6),
            figure(line.figures.iops()),
            figure(line.figures.bytes_per_second() / 1e6),
            CpuTime::percent(cpu.user + cpu.system, line.outcome.elapsed),
        );
    }
    page.push_str("</tbody></table></div>\n");
    let _ = write!(page, "<p class=\"small\">{} CPU: of this process, 100 % is one core.", Table::UNITS);
    if Score::of(&report.outcomes) != Score::default() {
        let _ = write!(
            page,
            " Score: 1000 × the geometric mean of IOPS over the reference table {REFERENCE_VERSION}; our own measure, \
             comparable only with itself."
        );
    }
    page.push_str("</p>\n");
    for note in &report.notes {
        let _ = writeln!(page, "<p class=\"small\">{}</p>", escape(note));
    }
}

fn card(page: &mut String, title: &str, detail: &str, chart: &str) {
    let (title, detail) = (escape(title), escape(detail));
    let _ = writeln!(page, "<div class=\"card\"><h3>{title} <span>{detail}</span></h3>{chart}</div>");
}

fn throughput(page: &mut String, outcomes: &[Outcome]) {
    let lines = lines(outcomes);
    if lines.is_empty() {
        return;
    }
    let chart = |what: &str, of: &dyn Fn(&Direction) -> f64| {
        let bar =
            |line: &Line<'_>| Bar { label: line.name.clone(), value: of(line.figures), tone: line.tone };
        bars(what, &lines.iter().map(bar).collect::<Vec<_>>())
    };
    page.push_str("<h2>Throughput</h2>\n<div class=\"charts\">\n");
    card(page, "IOPS", "", &chart("IOPS", &Direction::iops));
    card(page, "MB/s", "", &chart("MB/s", &|figures| figures.bytes_per_second() / 1e6));
    page.push_str("</div>\n");
}

fn response(page: &mut String, outcomes: &[Outcome]) {
    let lines = lines(outcomes);
    if lines.is_empty() {
        return;
    }
    page.push_str("<h2>Response time</h2>\n<div class=\"charts\">\n");
    for (word, title, tone) in [("read ", "Reads", Tone::Read), ("write ", "Writes", Tone::Write)] {
        let of_tone: Vec<&Line<'_>> = lines.iter().filter(|line| line.tone == tone).collect();
        for part in of_tone.chunks(SERIES_MAX) {
            // The chart's title says the direction already.
            let named: Vec<(&str, &Direction)> =
                part.iter().map(|line| (line.name.trim_start_matches(word), line.figures)).collect();
            let curves: Vec<Curve<'_>> =
                named.iter().map(|&(label, figures)| Curve { label, latency: &figures.latency }).collect();
            card(page, title, "by percentile", &latency_curves(title, &curves));
        }
    }
    page.push_str("</div>\n");
}

fn time(page: &mut String, outcomes: &[Outcome]) {
    // Two points make a line, not a picture.
    let lines: Vec<Line<'_>> =
        lines(outcomes).into_iter().filter(|line| line.outcome.series.points().len() > 2).collect();
    if lines.is_empty() {
        return;
    }
    page.push_str("<h2>Over time</h2>\n<div class=\"charts\">\n");
    for line in lines {
        let series = &line.outcome.series;
        let per_second = series.interval().as_secs_f64().recip();
        let of = |point: &Point| match line.tone {
            Tone::Read => (point.read_ios, point.read_bytes),
            Tone::Write => (point.write_ios, point.write_bytes),
        };
        // Large blocks are about volume, small ones about number.
        let large = line.outcome.job.block_size >= 64 << 10;
        let values = series.points().iter().map(|point| match (of(point), large) {
            ((_, bytes), true) => bytes as f64 * per_second / 1e6,
            ((ios, _), false) => ios as f64 * per_second,
        });
        let unit = if large { "MB/s" } else { "IOPS" };
        let chart = over_time(unit, series.interval(), &values.collect::<Vec<_>>(), line.tone);
        card(page, &line.name, unit, &chart);
    }
    page.push_str("</div>\n");
}

fn facts(page: &mut String, report: &Report) {
    if report.environment.is_empty() {
        return;
    }
    page.push_str("<h2>Where it was measured</h2>\n<div class=\"card\"><table class=\"facts\"><tbody>\n");
    for (name, value) in &report.environment {
        let _ = writeln!(page, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(value));
    }
    page.push_str("</tbody></table></div>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Job, Mix};
    use crate::latency::Latency;
    use crate::series::Series;

    fn outcome(name: &str, mix: Mix) -> Outcome {
        let mut latency = Latency::default();
        (1..=1000).for_each(|n| latency.record(n * 1000));
        let moved = Direction {
            ios: 1000,
            bytes: 4_096_000,
            elapsed: Duration::from_secs(1),
            latency,
            ..Direction::default()
        };
        Outcome {
            job: Job { mix, ..Job::new(name) },
            read: if mix.reads() { moved.clone() } else { Direction::default() },
            write: if mix.writes() { moved } else { Direction::default() },
            elapsed: Duration::from_secs(1),
            series: Series::default(),
            cpu: CpuTime::default(),
            depth_mean: 1.0,
            depth_max: 1,
            end: End::Limit,
            abandoned: 0,
            verification: None,
        }
    }

    #[test]
    fn text_from_outside_stays_text_and_nothing_is_fetched() {
        let evil = "</script><script>alert('x')</script><img src=x>";
        let mut failed = outcome(evil, Mix { read_percent: 50 });
        failed.read.errors = 1;
        failed.read.first_error = Some(evil.into());
        let mut report = Report::new(evil, evil, vec![failed]);
        report.environment.push((evil.into(), evil.into()));
        report.notes.push(evil.into());
        let page = html(&report);
        assert_eq!(page.matches("<script").count(), 1, "only the data");
        assert_eq!(page.matches("</script").count(), 1);
        assert!(!page.contains("<img"));
        assert!(!page.contains("src=\"") && !page.contains("href="));
    }

    #[test]
    fn the_embedded_data_is_the_results_again() {
        let report = Report::new("A & B", "ram:1G <x>", vec![outcome("read 4K", Mix::READ)]);
        let page = html(&report);
        let (_, data) = page.split_once("id=\"data\">").unwrap();
        let (data, _) = data.split_once("</script>").unwrap();
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["device"], "ram:1G <x>");
        assert_eq!(data["results"]["jobs"][0]["read"]["total_ios"], 1000);
    }

    #[test]
    fn a_report_of_nothing_is_still_a_page() {
        let page = html(&Report::new("Nothing", "null:1G", Vec::new()));
        assert!(page.contains("<h1>Nothing</h1>") && page.ends_with("</html>\n"));
        assert!(!page.contains("NaN"));
    }
}
