//! Output of `lunway bench`: a table, JSON, a page, a stream.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::anyhow;
use clap::Args;
use lunway_bench::profile::ProfileResult;
use lunway_bench::score::Score;
use lunway_bench::{End, NO_STAMPS, Outcome, Table, fio, report};
use lunway_block::BlockDevice;
use lunway_block::size::HumanSize;
use lunway_block::spec::DeviceSpec;
use lunway_report::{Fact, html};
use serde_json::{Value, json};

use super::plan::Measured;
use crate::failure::Failure;
use crate::output::{Files, is_stdout};

/// Destinations of results.
#[derive(Debug, Args)]
pub(super) struct Outputs {
    #[command(flatten)]
    files: Files,
    /// Write JSON in fio's layout with all latency buckets (fio's json+) to this file
    #[arg(long, value_name = "FILE", visible_alias = "json-plus")]
    json_plus_file: Option<PathBuf>,
    /// Write one line of JSON per second, and one for each finished job, to this file
    #[arg(long, value_name = "FILE")]
    stream: Option<PathBuf>,
}

impl Outputs {
    /// Refuses what cannot be written, before anything is measured for it.
    pub(super) fn check(&self, device: &DeviceSpec) -> Result<(), Failure> {
        self.files.check_with(self.more(), &[device])
    }

    /// The files that other commands do not have.
    fn more(&self) -> impl Iterator<Item = &PathBuf> {
        self.json_plus_file.iter().chain(&self.stream)
    }

    /// Destination of the stream.
    pub(super) fn open_stream(&self) -> Result<Option<Box<dyn Write>>, Failure> {
        let Some(path) = &self.stream else { return Ok(None) };
        if is_stdout(path) {
            return Ok(Some(Box::new(io::stdout())));
        }
        Ok(Some(Box::new(self.files.report_file(path).create()?)))
    }

    /// A stream that could not be written on, as a failure of the command.
    pub(super) fn stream_failure(&self, error: io::Error) -> Failure {
        match &self.stream {
            Some(path) if !is_stdout(path) => {
                Failure::failed(anyhow!(error).context(format!("cannot write {}", path.display())))
            }
            _ => Failure::Output(error),
        }
    }

    /// Shows and writes the results, whatever they are.
    pub(super) fn write(&self, device: &str, measured: &Measured) -> Result<(), Failure> {
        let mut output = self.files.output(self.more());
        output.text(|| format!("{}\n", measured.text()))?;
        let outcomes = &measured.outcomes;
        let json = || json_document(device, measured, fio::to_json(outcomes));
        let page = || {
            let mut document = match &measured.profile {
                Some(profile) => profile.document("lunway bench", device),
                None => report::document("lunway bench", device, outcomes),
            };
            document.environment.extend(measured.environment.iter().cloned());
            document.notes.clone_from(&measured.notes);
            document.warnings.extend(measured.warnings.iter().cloned());
            document.results = json_document(device, measured, document.results);
            html(&document)
        };
        output.files(&self.files, json, page)?;
        let json_plus = || json_document(device, measured, fio::to_json_plus(outcomes));
        output.json(&self.files, false, self.json_plus_file.as_ref(), json_plus)?;
        output.written(self.stream.as_ref());
        output.end()
    }
}

/// fio's document with what fio has no place for in objects of its own.
fn json_document(device: &str, measured: &Measured, mut document: Value) -> Value {
    let environment: Vec<_> =
        measured.environment.iter().map(|fact| json!([fact.name, fact.value])).collect();
    document["lunway"] = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "schema": 1,
        "kind": "bench",
        "device": device,
        "complete": measured.complete,
        "environment": environment,
        "notes": measured.notes,
        "warnings": measured.warnings,
    });
    if let Some(profile) = &measured.profile {
        document["profile"] = profile.to_json();
    }
    measured.wire.add_to(&mut document);
    document
}

impl Measured {
    /// Tables, verification, score and notes.
    fn text(&self) -> String {
        let mut text = match &self.profile {
            Some(profile) => profile.to_string(),
            None => Table::of(&self.outcomes).to_string(),
        };
        text += &findings(&self.outcomes);
        text.extend(self.warnings.iter().map(|warning| format!("\nWarning: {warning}")));
        text.extend(self.notes.iter().map(|note| format!("\n{note}")));
        text
    }

    /// Results are shown whatever they are; whether they are good is the exit code.
    pub(super) fn judge(&self) -> Result<(), Failure> {
        judge(&self.outcomes)?;
        match self.profile.as_ref().map(ProfileResult::failures).unwrap_or_default().first() {
            Some(failure) => Err(Failure::failed(anyhow!("{failure}"))),
            None if !self.complete => Err(interrupted()),
            None => Ok(()),
        }
    }
}

/// Table, verification, score and notes.
pub(crate) fn result_text(outcomes: &[Outcome], notes: &[String]) -> String {
    let mut text = Table::of(outcomes).to_string() + &findings(outcomes);
    let score = Score::of(outcomes);
    if score.total().is_some() {
        text += &format!("\n{score}");
    }
    text.extend(notes.iter().map(|note| format!("\n{note}")));
    text
}

/// Findings that a table has no column for, each on a line of its own.
fn findings(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        let name = &outcome.job.name;
        if let Some(found) = &outcome.verification {
            text += &format!("\n{name}: {} blocks verified, {} wrong.", found.checked, found.faulty);
            match found.found_no_stamp() {
                true => text += &format!("\n  {NO_STAMPS}"),
                false => text.extend(found.faults.iter().take(3).map(|fault| format!("\n  {fault}"))),
            }
        }
        for (direction, figures) in outcome.directions() {
            if let Some(error) = &figures.first_error {
                text += &format!("\n{name}, first {direction} error: {error}");
            }
        }
        if outcome.rate_missed() {
            text +=
                &format!("\n{name}: the rate was not reached; its response times are those of an overload.");
        }
        if outcome.overdue > 0 {
            let overdue = outcome.overdue;
            text += &format!(
                "\n{name}: {overdue} I/Os were scheduled but not submitted when it ended; no figure includes them."
            );
        }
    }
    text
}

/// Facts for a report. The device's name is not among them: it stands in the heading.
pub(crate) fn environment(device: &dyn BlockDevice) -> Vec<Fact> {
    let geometry = device.geometry();
    let sectors =
        format!("{} bytes logical, {} bytes physical", geometry.logical_sector, geometry.physical_sector);
    let mut facts =
        vec![Fact::new("Size", HumanSize(geometry.size).to_string()), Fact::new("Sectors", sectors)];
    facts.extend(lunway_report::environment());
    facts.push(crate::command::doctor::of_place());
    facts
}

/// Results are shown whatever they are; whether they are good is the exit code.
pub(crate) fn judge(outcomes: &[Outcome]) -> Result<(), Failure> {
    let faulty: u64 = outcomes.iter().filter_map(|outcome| Some(outcome.verification.as_ref()?.faulty)).sum();
    let errors: u64 = outcomes.iter().map(Outcome::errors).sum();
    let checked = outcomes.iter().filter_map(|outcome| outcome.verification.as_ref());
    let wrong: Vec<_> = checked.filter(|found| found.faulty > 0).collect();
    if !wrong.is_empty() && wrong.iter().all(|found| found.found_no_stamp()) {
        return Err(Failure::failed(anyhow!("{NO_STAMPS}")));
    }
    if faulty > 0 {
        return Err(Failure::failed(anyhow!("{faulty} blocks did not hold what was written")));
    }
    let first = outcomes.iter().find_map(|outcome| {
        let of_all = [&outcome.read.first_error, &outcome.write.first_error];
        of_all.into_iter().flatten().next()
    });
    let first = first.map_or_else(String::new, |error| format!("; the first error: {error}"));
    if outcomes.iter().any(|outcome| outcome.end == End::Failing) {
        return Err(Failure::failed(anyhow!("ended early: the device returned only errors{first}")));
    }
    if errors > 0 {
        return Err(Failure::failed(anyhow!("{errors} I/Os failed{first}")));
    }
    if outcomes.iter().any(|outcome| outcome.end == End::Cancelled) {
        return Err(interrupted());
    }
    Ok(())
}

fn interrupted() -> Failure {
    Failure::failed(anyhow!("interrupted: the figures cover the completed part"))
}
