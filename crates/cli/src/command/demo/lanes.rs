//! The second act: two lanes, one of which is pulled out in mid-write.

use std::env;
use std::fs;
use std::path::Path;

use anyhow::{Context, anyhow};
use lunway_bench::Cancel;
use lunway_lab::experiment::{self, Experiment, Options, Progress};
use lunway_lab::{Sandbox, Side};
use serde_json::{Value, json};

use super::act::Act;
use super::proxies;
use super::volumes::Volumes;
use crate::failure::Failure;
use crate::{device, interrupt, progress, terminal};

/// The network, and what is done on it.
const LANES: &str = include_str!("lanes.toml");
/// Its disk, for which the volume stands in, and that one's size.
const DEVICE: &str = "ram:64M";
const SIZE: u64 = 64 << 20;

/// Shows the act: on a network of this machine's own where the kernel allows one, else over proxies that stand for
/// cables.
pub(super) fn show(volumes: &Volumes, cancel: &Cancel, may_have_namespaces: bool) -> Result<Act, Failure> {
    terminal::print(&format!(
        "\n{}",
        terminal::heading("Two lanes: a cable is pulled out in mid-write, and plugged in again")
    ))?;
    let on_cables = match may_have_namespaces {
        true => on_cables(volumes)?,
        false => Err("namespaces are not wanted".to_owned()),
    };
    let act = match on_cables {
        Ok(act) => act,
        Err(reason) => device::run(proxies::act(volumes, &reason, cancel))?,
    };
    terminal::print(&indented(&format!("{}\n{}\n{}", act.lanes, act.strips(), act.closing())))?;
    Ok(act)
}

/// The act in a sandbox: this program once more, which leaves what it has seen in a file. The reason where there is no
/// sandbox, or nothing can be built in it.
fn on_cables(volumes: &Volumes) -> Result<Result<Act, String>, Failure> {
    let file = tempfile::NamedTempFile::new().context("cannot make a file for the second act")?;
    // What it is to use, for the other side to read.
    let device = volumes.device("lanes", SIZE, 512)?;
    fs::write(file.path(), &device).context("cannot prepare the second act")?;
    let arguments = ["demo".as_ref(), "--second-act".as_ref(), file.path().as_os_str()];
    match Sandbox::enter(arguments) {
        // That side has its own arguments, and is in `inside`.
        Ok(Side::Inside(_)) => Ok(Err("it is already inside".to_owned())),
        Ok(Side::Outside(0)) => {
            let text =
                fs::read_to_string(file.path()).context("cannot read the results of the second part")?;
            let left: Value = serde_json::from_str(&text).unwrap_or_default();
            Ok(Act::from_json(&left).ok_or_else(|| {
                left["failed"].as_str().unwrap_or("the second act left nothing behind").to_owned()
            }))
        }
        Ok(Side::Outside(_)) => Err(Failure::failed(anyhow!("interrupted"))),
        Err(error) => Ok(Err(error.to_string())),
    }
}

/// The side in the sandbox: measures, and leaves what came of it in `file`.
pub(super) fn inside(file: &Path) -> Result<(), Failure> {
    match Sandbox::enter(env::args_os().skip(1)).map_err(Failure::failed)? {
        Side::Inside(_) => {}
        Side::Outside(code) => std::process::exit(code.into()),
    }
    let cancel = interrupt::watch();
    let device = fs::read_to_string(file).context("cannot read what the second act is to use")?;
    let left = match measure(&device, &cancel) {
        _ if cancel.is_cancelled() => return Err(Failure::failed(anyhow!("interrupted"))),
        Ok(act) => act.to_json(),
        Err(error) => json!({ "failed": error.to_string() }),
    };
    fs::write(file, left.to_string()).context("cannot write the results of the second part")?;
    Ok(())
}

fn measure(device: &str, cancel: &Cancel) -> Result<Act, anyhow::Error> {
    let experiment = Experiment::parse("lanes.toml", &LANES.replace(DEVICE, device))?;
    let program = env::current_exe().context("cannot find this program itself")?;
    let options = Options { rate: None, time: None, repeat: None, program };
    let bar = progress::fraction();
    let mut watcher = |progress: &Progress<'_>| {
        progress::set_fraction(&bar, progress.fraction);
        bar.set_prefix(progress.doing.to_owned());
        bar.set_message(progress::left(progress.left));
    };
    let results = experiment::run(&experiment, &options, &mut watcher, cancel);
    bar.finish_and_clear();
    let results = results?;
    let sample = results.rows.first().and_then(|row| row.samples.first());
    let sample = sample.ok_or_else(|| anyhow!("nothing was measured"))?;
    let rates: Vec<String> = results
        .links
        .iter()
        .map(|link| format!("{} carries {:.1} MB/s", link.name, link.calibrated_mb_s))
        .collect();
    Ok(Act {
        lanes: format!("Two cables between two hosts on this machine, without root: {}.", rates.join(", ")),
        interval: sample.timeline.interval,
        lines: sample.timeline.paths.clone(),
        events: sample.timeline.events.iter().map(|event| (event.at, event.what.clone())).collect(),
        mb: sample.mb,
        longest_ms: sample.longest_ms,
        errors: sample.errors,
        verified: sample.verified.unwrap_or_default(),
    })
}

fn indented(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(|line| format!("  {line}")).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_act_is_an_experiment_that_can_be_run() {
        let experiment = Experiment::parse("lanes.toml", LANES).unwrap();
        assert_eq!(experiment.runs.len(), 1);
        assert!(LANES.contains(&format!("1={DEVICE}\"")));
        // Beside the first act it must leave the whole under a minute.
        assert!(experiment.cost().as_secs() < 25, "{:?}", experiment.cost());
    }
}
