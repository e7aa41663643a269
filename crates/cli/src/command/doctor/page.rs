//! The page of `lunway doctor`.

use lunway_doctor::{Diagnosis, RULES, Verdict};
use lunway_report::{
    Block, Cell, Column, Conclusion, Document, Fact, Grid, Mark, Row, Section, Tile, VerdictTone, environment,
};

use super::verdicts::{Verdicts, undo};

/// Returns the tone in which a verdict is marked.
fn tone(verdict: Verdict) -> VerdictTone {
    match verdict {
        Verdict::Ok => VerdictTone::Good,
        Verdict::Unknown => VerdictTone::Unknown,
        Verdict::Warn => VerdictTone::Even,
        Verdict::Bad => VerdictTone::Bad,
    }
}

/// `elsewhere`: where the facts come from, if it is not this machine.
pub(super) fn document(verdicts: &Verdicts, elsewhere: Option<String>) -> Document {
    let mut document = Document::new("doctor", "Checks of the set-up", &verdicts.subject);
    document.verdicts = vec![Conclusion { text: verdicts.sentence(), tone: tone(verdicts.worst()) }];
    document.tiles = Verdict::ALL
        .into_iter()
        .rev()
        .map(|verdict| Tile {
            what: verdict.to_string(),
            value: verdicts.count(verdict).to_string(),
            unit: String::new(),
            of: "places".to_owned(),
        })
        .collect();
    for (verdict, heading) in [
        (Verdict::Bad, "Bad: data or availability is at risk"),
        (Verdict::Warn, "Warn: costs performance or redundancy"),
        (Verdict::Unknown, "Unknown: could not be seen"),
        (Verdict::Ok, "Ok"),
    ] {
        document.sections.extend(section(verdicts, verdict, heading));
    }
    document.environment = match elsewhere {
        None => environment(),
        // What this machine is like says nothing of another.
        Some(from) => vec![Fact::new("lunway", env!("CARGO_PKG_VERSION")), Fact::new("Facts of", from)],
    };
    document.results = verdicts.document();
    document
}

fn section(verdicts: &Verdicts, verdict: Verdict, heading: &str) -> Option<Section> {
    let found: Vec<&Diagnosis> = verdicts.found.iter().filter(|found| found.verdict == verdict).collect();
    if found.is_empty() {
        return None;
    }
    let broken = verdict >= Verdict::Warn;
    let mut columns = vec![Column::words("Rule"), Column::words("What")];
    if broken {
        columns.extend([
            Column::words("Why").wide_only(),
            Column::words("Do"),
            Column::words("Undo").wide_only(),
        ]);
    }
    let mut grid = Grid::new(columns);
    for diagnosis in found {
        let finding = &diagnosis.finding;
        let mut cells =
            vec![Cell::marked(finding.id, Mark::Verdict(tone(verdict))), finding.what.as_str().into()];
        if broken {
            cells.extend([finding.why.as_str(), finding.remedy.as_str(), undo(diagnosis)].map(Cell::from));
        }
        grid.rows.push(Row::new(cells));
    }
    let mut section = Section::new(heading);
    section.blocks.push(Block::Table(grid));
    Some(section)
}

/// A page of all rules.
pub(super) fn rules() -> Document {
    let mut document = Document::new("doctor", "Rules of lunway doctor", "all groups");
    let columns = ["Rule", "Group", "Demands", "Why", "Source"].map(Column::words);
    let mut grid = Grid::new(columns.into());
    for rule in RULES.into_iter().flatten() {
        let cells = [rule.id, rule.group.name(), rule.title, rule.why, rule.source].map(Cell::from);
        grid.rows.push(Row::new(cells));
    }
    let mut section = Section::new("Rules");
    section.blocks.push(Block::Table(grid));
    document.sections.push(section);
    document
}
