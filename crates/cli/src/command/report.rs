//! `lunway report`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use lunway_bench::{fio, report};
use lunway_block::small_file;
use lunway_occupancy::is_same_file;
use lunway_report::{
    Difference, Document, FILE_MAX, Measure, Saved, SavedError, data, figure, html, readable, utc,
};

use crate::failure::Failure;
use crate::output::Files;
use crate::{percent, terminal};

/// Show a saved report, or the changes between two
#[derive(Debug, Args)]
pub(crate) struct Report {
    #[command(subcommand)]
    command: ReportCommand,
}

#[derive(Debug, Subcommand)]
enum ReportCommand {
    Show(Show),
    Diff(Diff),
}

impl Report {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.command {
            ReportCommand::Show(show) => show.run(),
            ReportCommand::Diff(diff) => diff.run(),
        }
    }
}

/// Show a saved report: a lunway page, lunway JSON, or fio JSON
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway report show before.html
  lunway report show fio.json --html-file fio.html   # charts of fio results")]
struct Show {
    /// The report
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    files: Files,
}

/// Show the changes between two reports, and which of them are real.
///
/// Reads lunway pages, lunway JSON and fio JSON. Measures are matched by name and unit. One report is one sample: a
/// verdict on one row needs four reports of each side, on up to six rows five, on up to 23 rows six. Add more reports
/// with --old and --new.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway report diff before.html after.html
  lunway report diff a1.json b1.json --old a2.json --old a3.json --old a4.json \\
      --new b2.json --new b3.json --new b4.json
  lunway report diff fio-old.json fio-new.json --html-file changed.html")]
struct Diff {
    /// The report before the change
    #[arg(value_name = "OLD")]
    before: PathBuf,
    /// The report after the change
    #[arg(value_name = "NEW")]
    after: PathBuf,
    /// Another report before the change; may be repeated
    #[arg(long, value_name = "FILE")]
    old: Vec<PathBuf>,
    /// Another report after the change; may be repeated
    #[arg(long, value_name = "FILE")]
    new: Vec<PathBuf>,
    /// Differences up to this percentage count as none
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0, value_parser = percent::margin)]
    margin: f64,
    #[command(flatten)]
    files: Files,
}

impl Show {
    fn run(self) -> Result<(), Failure> {
        let (saved, drawn) = read(&self.file)?;
        self.files.check(&[])?;
        self.files.write(|| shown(&saved), || data(&drawn), || html(&drawn))
    }
}

impl Diff {
    fn run(self) -> Result<(), Failure> {
        let mut runs = Runs::default();
        let old = runs.read(&self.before, &self.old)?;
        let new = runs.read(&self.after, &self.new)?;
        let difference = Difference::of(&old, &new, self.margin);
        let document = difference.document(&side(&self.before, &self.old), &side(&self.after, &self.new));
        self.files.check(&[])?;
        self.files.write(|| changed(&difference), || data(&document), || html(&document))
    }
}

/// Name of a side: that of its first file.
fn side(first: &Path, more: &[PathBuf]) -> String {
    match more.len() {
        0 => first.display().to_string(),
        more => format!("{} and {more} more", first.display()),
    }
}

/// The runs of both sides, each of which counts once: a copy of a run would show that runs do not differ.
#[derive(Default)]
struct Runs(Vec<(PathBuf, Saved)>);

impl Runs {
    /// A side: the samples of all its runs.
    fn read(&mut self, first: &Path, more: &[PathBuf]) -> Result<Saved, Failure> {
        let mut side: Option<Saved> = None;
        for path in std::iter::once(first).chain(more.iter().map(PathBuf::as_path)) {
            let (saved, _) = read(path)?;
            let is_it =
                |(other, run): &&(PathBuf, Saved)| is_same_file(other, path) || run.is_same_run(&saved);
            if let Some((other, _)) = self.0.iter().find(is_it) {
                return Err(Failure::Usage(format!(
                    "{} and {} are the same run, which is one sample: name each run once",
                    other.display(),
                    path.display()
                )));
            }
            self.0.push((path.to_owned(), saved.clone()));
            match &mut side {
                Some(side) => side.join(saved),
                None => side = Some(saved),
            }
        }
        side.ok_or_else(|| Failure::Usage("no report is named".to_owned()))
    }
}

/// A file, and how it is drawn.
fn read(path: &Path) -> Result<(Saved, Document), Failure> {
    let name = path.display();
    let bytes = match small_file::read(path, FILE_MAX) {
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            return Err(Failure::failed(anyhow!(
                "{name} is larger than any report ({} MiB)",
                FILE_MAX >> 20
            )));
        }
        read => read.with_context(|| format!("cannot read {name}"))?,
    };
    let text = String::from_utf8_lossy(&bytes);
    match Saved::parse(&text) {
        Ok(saved) => {
            let mut drawn = saved.document();
            // A page of bench holds fio's JSON: percentiles, too, and so more than its measures alone.
            if let Ok(results) = fio::import(&saved.results) {
                drawn.sections = report::imported("", "", &results).sections;
            }
            Ok((saved, drawn))
        }
        Err(error @ (SavedError::Json { .. } | SavedError::Shape)) => {
            let results = fio::parse(&text).map_err(|other| match other {
                fio::ImportError::Json { .. } | fio::ImportError::NoJobs => anyhow!("{name}: {error}"),
                other => anyhow!("{name}: {other}"),
            })?;
            let mut drawn = report::imported("Results in fio's JSON", &name.to_string(), &results);
            drawn.created = fs::metadata(path).and_then(|file| file.modified()).unwrap_or(drawn.created);
            Ok((Saved::from(drawn.clone()), drawn))
        }
        Err(error) => Err(Failure::failed(anyhow!("{name}: {error}"))),
    }
}

fn shown(saved: &Saved) -> String {
    let mut text = terminal::heading(&saved.title);
    let when = saved.created.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let when = when.filter(|when| *when > Duration::ZERO).map(|when| format!("{} UTC", utc(when.as_secs())));
    let where_and_when: Vec<&str> = [Some(saved.subject.as_str()), when.as_deref()]
        .into_iter()
        .flatten()
        .filter(|text| !text.is_empty())
        .collect();
    text += &format!("\n{}\n", where_and_when.join(" · "));
    for verdict in &saved.verdicts {
        text += &format!("\n- {}", verdict.text);
    }
    for warning in &saved.warnings {
        text += &format!("\n! {warning}");
    }
    if !saved.verdicts.is_empty() || !saved.warnings.is_empty() {
        text.push('\n');
    }
    let rows = saved.measures.iter().map(|measure| {
        let (factor, unit) = readable(&measure.unit, measure.median());
        let interval = measure.interval();
        let interval = interval.map_or("-".into(), |(low, high)| {
            format!("{} to {}", figure(low * factor), figure(high * factor))
        });
        let samples = measure.samples.len().to_string();
        [measure.name.clone(), right(&figure(measure.median() * factor)), unit.to_owned(), interval, samples]
    });
    let headings = ["Measure", "    Median", "Unit", "95 % interval", "Samples"];
    text += &format!("\n{}", terminal::table(headings, &rows.collect::<Vec<_>>(), "No measures."));
    if !saved.environment.is_empty() {
        let facts = saved.environment.iter().map(|fact| (fact.name.as_str(), fact.value.clone()));
        text += &format!("\n\n{}\n{}", terminal::heading("Where it was measured"), terminal::columns(facts));
    }
    text
}

fn changed(difference: &Difference) -> String {
    let percent = |value: f64| if value.is_finite() { format!("{value:+.2}") } else { "-".into() };
    let rows = difference.rows.iter().map(|row| {
        let interval = row.interval;
        let interval =
            interval.map_or("-".into(), |(low, high)| format!("{} to {}", percent(low), percent(high)));
        let verdict = row.verdict.name().to_owned();
        let (factor, unit) = row.readable();
        let (old, new) = (right(&figure(row.old * factor)), right(&figure(row.new * factor)));
        [
            row.name.clone(),
            unit.to_owned(),
            old,
            new,
            format!("{:>7}", percent(row.percent)),
            interval,
            verdict,
        ]
    });
    let headings = ["Measure", "Unit", "       Old", "       New", " Diff %", "95 % interval", "Verdict"];
    let mut text = terminal::table(headings, &rows.collect::<Vec<_>>(), "No measure is in both.");
    text.push('\n');
    for verdict in difference.verdicts() {
        text += &format!("\n- {}", verdict.text);
    }
    for (measures, side) in [(&difference.only_old, "old"), (&difference.only_new, "new")] {
        if !measures.is_empty() {
            text += &format!("\nOnly in the {side} one: {}.", names(measures));
        }
    }
    if !difference.environment.is_empty() {
        let rows: Vec<[String; 3]> = difference
            .environment
            .iter()
            .map(|(name, old, new)| {
                let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".into());
                [name.clone(), value(old), value(new)]
            })
            .collect();
        text += &format!(
            "\n\n{}\n{}",
            terminal::heading("What differs between these systems"),
            terminal::table(["Fact", "Old", "New"], &rows, "")
        );
    }
    text
}

/// Figures are set to the right.
fn right(figure: &str) -> String {
    format!("{figure:>10}")
}

fn names(measures: &[Measure]) -> String {
    const MOST: usize = 12;
    let mut names: Vec<String> =
        measures.iter().take(MOST).map(|m| format!("{} ({})", m.name, m.unit)).collect();
    if measures.len() > MOST {
        names.push(format!("and {} more", measures.len() - MOST));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use lunway_report::{Better, ChangeVerdict};

    use super::*;

    fn document(iops: f64) -> Document {
        let mut document = Document::new("bench", "t", "ram:1G");
        document.measures = vec![Measure {
            name: "read 4K".into(),
            unit: "IOPS".into(),
            better: Better::Higher,
            samples: vec![iops],
        }];
        document
    }

    fn side_of(paths: &[PathBuf]) -> Saved {
        Runs::default().read(&paths[0], &paths[1..]).unwrap()
    }

    /// Four copies of one run had an interval of no width, and so a verdict.
    #[test]
    fn a_run_counts_once_by_whatever_name_and_on_whatever_side() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for (name, iops) in [("a", 1000.0), ("b", 1001.0)] {
            fs::write(path(name), html(&document(iops))).unwrap();
        }
        fs::copy(path("a"), path("copy")).unwrap();
        fs::hard_link(path("a"), path("link")).unwrap();
        let refused = |old: &[&str], new: &[&str]| {
            let paths = |names: &[&str]| names.iter().map(|name| path(name)).collect::<Vec<_>>();
            let (old, new) = (paths(old), paths(new));
            let mut runs = Runs::default();
            let read = runs.read(&old[0], &old[1..]).and_then(|_| runs.read(&new[0], &new[1..]));
            matches!(read, Err(Failure::Usage(said)) if said.contains("are the same run"))
        };
        assert!(!refused(&["a"], &["b"]));
        for again in ["a", "copy", "link"] {
            assert!(refused(&["a", again], &["b"]) && refused(&["b"], &["a", again]), "{again}");
            assert!(refused(&["a"], &[again]), "{again}");
        }
    }

    #[test]
    fn runs_given_beside_the_first_are_further_samples() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, iops: f64| {
            let path = folder.path().join(name);
            fs::write(&path, html(&document(iops))).unwrap();
            path
        };
        let old: Vec<PathBuf> = (0..4).map(|n| file(&format!("old{n}"), 1000.0 + f64::from(n))).collect();
        let new: Vec<PathBuf> = (0..4).map(|n| file(&format!("new{n}"), 1200.0 + f64::from(n))).collect();
        let alone = Difference::of(&side_of(&old[..1]), &side_of(&new[..1]), 3.0);
        assert_eq!(alone.rows[0].verdict.name(), "cannot tell");
        let all = Difference::of(&side_of(&old), &side_of(&new), 3.0);
        assert_eq!(all.rows[0].verdict, ChangeVerdict::Faster);
        assert!(changed(&all).contains("read 4K  IOPS       1,002       1,202   +19.9"), "{}", changed(&all));
        assert_eq!(side(&old[0], &old[1..]).rsplit_once('/').unwrap().1, "old0 and 3 more");
    }

    #[test]
    fn fios_json_and_our_page_of_the_same_figures_do_not_differ() {
        let folder = tempfile::tempdir().unwrap();
        let fio = serde_json::json!({ "jobs": [{ "jobname": "read 4K", "read": {
            "total_ios": 1000, "iops": 1000.0, "bw_bytes": 4_096_000, "runtime": 1000, "lat_ns": { "mean": 5e5, "N": 1000 } } }] });
        let (json, page) = (folder.path().join("fio.json"), folder.path().join("page.html"));
        fs::write(&json, format!("fio: this is what fio says first\n{fio}")).unwrap();
        fs::write(&page, html(&document(1000.0))).unwrap();
        let difference = Difference::of(&read(&page).unwrap().0, &read(&json).unwrap().0, 3.0);
        assert_eq!((difference.rows[0].percent, difference.rows.len()), (0.0, 1));
        assert_eq!(names(&difference.only_new), "read 4K (ms)");
        assert!(shown(&read(&json).unwrap().0).contains("read 4K       1,000  IOPS"));
    }

    #[test]
    fn a_file_that_is_no_report_is_named_with_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        for (text, expected) in
            [("<html>", "script#data"), ("hello", "nor JSON"), ("{}", "nothing to compare"), ("", "nor JSON")]
        {
            let path = folder.path().join("file");
            fs::write(&path, text).unwrap();
            let Failure::Failed(error) = read(&path).unwrap_err() else { panic!("{text}") };
            assert!(error.to_string().contains(expected), "{text}: {error}");
        }
    }
}
