//! From what a file says to an experiment that can be run: defaults filled in, names looked up, limits held.
//!
//! | file | room of |
//! |---|---|
//! | `mod.rs` | the whole file; figures and verdicts |
//! | `run.rs` | a run: hosts, paths, team, policies |
//! | `measure.rs` | what a run measures |
//! | `at.rs` | where something is wrong, and limits |

mod at;
mod measure;
mod run;

use std::collections::BTreeSet;

use self::at::At;
use self::run::run;
use super::error::{ExperimentError, Problem};
use super::expression::{Condition, Expression, Others};
use super::figures::{Figure, Template, Verdict};
use super::file::{FigureTable, FileTable, OneOrMore, VerdictTable};
use crate::experiment::Experiment;
use crate::topology::Topology;

/// The most runs, figures and verdicts.
const COUNT_MAX: usize = 200;
/// The most repeats.
const REPEAT_MAX: u32 = 100;

/// Checks a whole file.
pub(super) fn experiment(file: &str, text: &str, table: FileTable) -> Result<Experiment, ExperimentError> {
    let at = At { file, table: "its head".to_owned() };
    at.name("name", &table.name)?;
    at.range("repeat", table.repeat, 1..=REPEAT_MAX)?;
    for (key, count) in
        [("run", table.runs.len()), ("figure", table.figures.len()), ("verdict", table.verdicts.len())]
    {
        at.range(key, count, usize::from(key == "run")..=COUNT_MAX)?;
    }
    let topology = Topology { hosts: table.hosts, switches: table.switches, cables: table.cables };
    topology.check().map_err(|source| ExperimentError::Topology { file: file.to_owned(), source })?;
    let mut experiment = Experiment {
        title: table.title.unwrap_or_else(|| table.name.clone()),
        name: table.name,
        about: table.about,
        repeat: table.repeat,
        topology,
        runs: Vec::new(),
        figures: Vec::new(),
        verdicts: Vec::new(),
        text: text.to_owned(),
    };
    for table in table.runs {
        let at = At { file, table: format!("[[run]] {}", table.test) };
        if experiment.runs.iter().any(|run| run.test == table.test) {
            return Err(at.wrong("test", Problem::Twice(table.test)));
        }
        let run = run(&at, &experiment.topology, table)?;
        if let Some(control) = experiment.control().filter(|_| run.is_control) {
            return Err(at.wrong("control", Problem::TwoControls(control.test.clone())));
        }
        experiment.runs.push(run);
    }
    let mut known: BTreeSet<String> = experiment.values().into_iter().collect();
    for table in table.figures {
        let at = At { file, table: format!("[[figure]] {}", table.name) };
        let figure = figure(&at, &mut known, table, &|name| experiment.others(name))?;
        experiment.figures.push(figure);
    }
    for (number, table) in table.verdicts.into_iter().enumerate() {
        let at = At { file, table: format!("[[verdict]] {}", number + 1) };
        let verdicts = verdicts(&at, &experiment, &known, &table, number)?;
        experiment.verdicts.extend(verdicts);
    }
    Ok(experiment)
}

/// A figure may be made of those before it.
fn figure(
    at: &At<'_>,
    known: &mut BTreeSet<String>,
    table: FigureTable,
    others: &dyn Fn(&str) -> Option<Others>,
) -> Result<Figure, ExperimentError> {
    at.name("name", &table.name)?;
    let mut value = Expression::parse(&table.value).map_err(|error| at.wrong("value", error))?;
    names(at, "value", known, value.names())?;
    value.look_up(others);
    if !known.insert(table.name.clone()) {
        return Err(at.wrong("name", Problem::Twice(table.name)));
    }
    Ok(Figure { name: table.name, value })
}

/// The verdict of a table, or one for each policy of a run.
fn verdicts(
    at: &At<'_>,
    experiment: &Experiment,
    known: &BTreeSet<String>,
    table: &VerdictTable,
    number: usize,
) -> Result<Vec<Verdict>, ExperimentError> {
    let Some(test) = &table.each else { return Ok(vec![verdict(at, experiment, known, table, number)?]) };
    let tests = experiment.runs.iter().map(|run| run.test.as_str());
    let run = experiment.runs.iter().find(|run| run.test == *test);
    let run = run.ok_or_else(|| at.no_such("each", "run", test, tests))?;
    let of = |policy: &String| {
        // Names of a run with one policy have no brackets.
        let bracket = if run.policies.len() == 1 { String::new() } else { format!("[{policy}]") };
        let filled = |text: &String| text.replace("[*]", &bracket).replace("{*}", policy);
        let table = VerdictTable {
            each: None,
            when: OneOrMore(table.when.0.iter().map(filled).collect()),
            good: filled(&table.good),
            bad: filled(&table.bad),
        };
        verdict(at, experiment, known, &table, number)
    };
    run.policies.iter().map(of).collect()
}

fn verdict(
    at: &At<'_>,
    experiment: &Experiment,
    known: &BTreeSet<String>,
    table: &VerdictTable,
    number: usize,
) -> Result<Verdict, ExperimentError> {
    let when = table.when.0.iter().map(|text| Condition::parse(text)).collect::<Result<Vec<_>, _>>();
    let mut when = when.map_err(|error| at.wrong("when", error))?;
    if when.is_empty() {
        return Err(at.wrong("when", Problem::Missing("a verdict has at least one condition")));
    }
    let mut good = Template::parse(&table.good).map_err(|error| at.wrong("good", error))?;
    let mut bad = Template::parse(&table.bad).map_err(|error| at.wrong("bad", error))?;
    names(at, "when", known, when.iter().flat_map(Condition::names))?;
    names(at, "good", known, good.names())?;
    names(at, "bad", known, bad.names())?;
    let others = |name: &str| experiment.others(name);
    when.iter_mut().for_each(|condition| condition.look_up(&others));
    good.look_up(&others);
    bad.look_up(&others);
    Ok(Verdict { table: number, when, good, bad })
}

fn names<'a>(
    at: &At<'_>,
    key: &'static str,
    known: &BTreeSet<String>,
    names: impl IntoIterator<Item = &'a str>,
) -> Result<(), ExperimentError> {
    for name in names {
        if !known.contains(name) {
            // Those of the same thing help more than the first of all.
            let head = name.split(['.', '[']).next().unwrap_or_default();
            let alike: Vec<_> = known.iter().filter(|known| known.starts_with(head)).collect();
            let pool: Vec<_> = if alike.is_empty() { known.iter().collect() } else { alike };
            let shown: Vec<_> = pool.iter().take(6).map(|name| name.as_str()).collect();
            let known = format!("there is for example {}", shown.join(", "));
            return Err(at.wrong(key, Problem::NoValue { name: name.to_owned(), known }));
        }
    }
    Ok(())
}
