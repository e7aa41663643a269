//! `lunway lab`.

use std::env;
use std::process;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use lunway_bench::Cancel;
use lunway_block::duration::parse_duration;
use lunway_lab::experiment::{
    self, Experiment, ExperimentError, Options, Progress, ResultRow, Results, SHIPPED,
};
use lunway_lab::{Network, Rate, Sandbox, SandboxError, Side};
use serde_json::json;

use crate::command::doctor;
use crate::failure::Failure;
use crate::output::Files;
use crate::{interrupt, progress, terminal};

/// Build networks on this machine and measure them, without root
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway lab list
  lunway lab run control
  lunway lab run cable-pull --html-file cable-pull.html
  # An experiment of your own:
  lunway lab show control > mine.toml
  lunway lab run mine.toml --rate 100Mbit --repeat 5")]
pub(crate) struct Lab {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    List(List),
    /// Print the file of an experiment
    Show(Show),
    /// Build the network of an experiment, run it, and show the results
    Run(Run),
}

/// List the built-in experiments
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway lab list
  lunway lab list --json | jq -r '.[].name'")]
struct List {
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway lab show control > mine.toml")]
struct Show {
    /// A built-in experiment, or a file
    #[arg(value_name = "NAME|FILE.toml")]
    experiment: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway lab run cable-pull --html-file cable-pull.html
  lunway lab run mine.toml --rate 100Mbit --repeat 5
  lunway lab run two-lanes --dry-run > build.sh")]
struct Run {
    /// A built-in experiment, or a file
    #[arg(value_name = "NAME|FILE.toml")]
    experiment: String,
    /// Rate of the fastest cable (1Gbit, 100Mbit); the other cables keep their proportion
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// Duration of each measurement; events move in proportion
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    time: Option<Duration>,
    /// Number of times that everything is measured
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: Option<u32>,
    #[command(flatten)]
    files: Files,
    /// Build nothing; print the steps as a shell script
    #[arg(long)]
    dry_run: bool,
}

impl Lab {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::List(list) => list.run(),
            Command::Show(show) => terminal::print(open(&show.experiment)?.text.trim_end()),
            Command::Run(run) => run.run(),
        }
    }
}

impl List {
    fn run(self) -> Result<(), Failure> {
        let experiments: Vec<_> = SHIPPED.iter().filter_map(|shipped| shipped.experiment().ok()).collect();
        if self.json {
            let list = experiments.iter().map(|experiment| {
                let seconds = experiment.cost().as_secs();
                json!({ "name": experiment.name, "title": experiment.title, "about_s": seconds })
            });
            return terminal::print_json(&list.collect::<Vec<_>>());
        }
        let rows = experiments.iter().map(|experiment| {
            let time = format!("about {}", progress::rough(experiment.cost()));
            [experiment.name.clone(), time, experiment.title.clone()]
        });
        terminal::print(&terminal::table(["EXPERIMENT", "TAKES", "TITLE"], &rows.collect::<Vec<_>>(), "none"))
    }
}

/// Wrong files are wrong usage; files that cannot be read are not.
fn open(name: &str) -> Result<Experiment, Failure> {
    Experiment::open(name).map_err(|error| match error {
        ExperimentError::Read { .. } => Failure::failed(error),
        error => Failure::Usage(error.to_string()),
    })
}

impl Run {
    fn run(self) -> Result<(), Failure> {
        // What is wrong is said before anything is built.
        let experiment = open(&self.experiment)?;
        if self.time.is_some_and(|time| time < Duration::from_millis(100)) {
            return Err(Failure::Usage("--time is too short: a measurement takes 100ms at least".to_owned()));
        }
        if self.dry_run {
            return self.show_script(&experiment);
        }
        self.files.check(&[])?;
        match Sandbox::enter(env::args_os().skip(1)) {
            Ok(Side::Inside(_)) => self.run_inside(&experiment),
            // All has been said inside.
            Ok(Side::Outside(code)) => process::exit(code.into()),
            Err(error @ SandboxError::Marked) => Err(Failure::Usage(error.to_string())),
            Err(error) => Err(Failure::failed(error)),
        }
    }

    fn show_script(&self, experiment: &Experiment) -> Result<(), Failure> {
        let changed = experiment.changed(&self.options()?).map_err(Failure::failed)?;
        let script = Network::script(&changed.topology).map_err(Failure::failed)?;
        terminal::print(script.trim_end())
    }

    fn options(&self) -> Result<Options, Failure> {
        let program = env::current_exe().context("cannot find this program itself")?;
        Ok(Options { rate: self.rate, time: self.time, repeat: self.repeat, program })
    }

    fn run_inside(&self, experiment: &Experiment) -> Result<(), Failure> {
        let cancel = interrupt::watch();
        let options = self.options()?;
        let results = measure(experiment, &options, &cancel)?;
        self.show(&results)?;
        judge(&results)
    }

    fn show(&self, results: &Results) -> Result<(), Failure> {
        self.files.write(
            || format!("{}\n\n{results}\n", terminal::heading(&results.experiment.title)),
            || results.to_json(),
            || {
                let mut document = results.document();
                document.environment.push(doctor::of_place());
                lunway_report::html(&document)
            },
        )
    }
}

fn measure(experiment: &Experiment, options: &Options, cancel: &Cancel) -> Result<Results, Failure> {
    let bar = progress::fraction();
    let mut lines = progress::Lines::new();
    let mut watcher = |progress: &Progress<'_>| {
        lines.tell(progress.doing, progress.fraction, progress.left);
        progress::set_fraction(&bar, progress.fraction);
        bar.set_prefix(progress.doing.to_owned());
        let left = progress::left(progress.left);
        bar.set_message(match progress.rates {
            Some((iops, bytes)) => format!("{iops:.0} IOPS  {:.1} MB/s  {left}", bytes / 1e6),
            None => left,
        });
    };
    let results = experiment::run(experiment, options, &mut watcher, cancel);
    bar.finish_and_clear();
    results.map_err(Failure::failed)
}

/// Results are shown whatever they are; whether they are good is the exit code.
fn judge(results: &Results) -> Result<(), Failure> {
    let wrong: u64 = results.rows.iter().filter_map(ResultRow::wrong_blocks).sum();
    if wrong > 0 {
        return Err(Failure::failed(anyhow!("{wrong} blocks did not hold what was written")));
    }
    if results.interrupted {
        return Err(Failure::failed(anyhow!("interrupted: the figures cover the completed part")));
    }
    Ok(())
}
