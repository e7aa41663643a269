//! Commands that freeze and thaw the guest of a disk.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::Args;
use lunway_block::duration::parse_duration;

use crate::failure::Failure;

/// How often it is seen whether a command has ended.
const COMMAND_POLL: Duration = Duration::from_millis(20);

/// How the file systems of the guest are frozen, so that what is on the disk is whole.
#[derive(Debug, Args)]
pub(crate) struct Freezing {
    /// Command that freezes the file systems of the guest, run here by sh
    #[arg(long, value_name = "COMMAND", requires = "thaw")]
    freeze: Option<String>,
    /// Command that thaws them; always run after --freeze
    #[arg(long, value_name = "COMMAND", requires = "freeze")]
    thaw: Option<String>,
    /// Maximum time for which they are frozen
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration, requires = "freeze")]
    deadline: Duration,
}

impl Freezing {
    /// Whether anything is frozen.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.freeze.is_some()
    }

    /// Does something while the guest is frozen, with the time that is left; `None`: nothing is frozen. The guest is
    /// thawed whatever comes of it.
    pub(crate) fn around<T>(
        &self,
        work: impl FnOnce(Option<Duration>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (Some(freeze), Some(thaw)) = (&self.freeze, &self.thaw) else { return work(None) };
        let limit = self.deadline;
        let begun = Instant::now();
        let done = carry_out(freeze, limit).and_then(|()| work(Some(limit.saturating_sub(begun.elapsed()))));
        // Whatever came before: a guest that stays frozen is the worst.
        let thawed = carry_out(thaw, limit);
        match (done, thawed) {
            (Ok(done), Ok(())) => Ok(done),
            (Err(error), Ok(())) | (Ok(_), Err(error)) => Err(error),
            (Err(error), Err(thawing)) => {
                // One sentence each: what went wrong first, and that the guest may be frozen still.
                thawing.report();
                Err(error)
            }
        }
    }
}

/// Runs a command of the user's, for as long as `limit`.
fn carry_out(command: &str, limit: Duration) -> Result<(), Failure> {
    let child = Command::new("sh").args(["-c", command]).stdin(Stdio::null()).spawn();
    let mut child = child.with_context(|| format!("cannot run `{command}`"))?;
    let status = wait_for(&mut child, limit).with_context(|| format!("cannot wait for `{command}`"))?;
    match status {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(Failure::failed(anyhow!("`{command}` failed ({status})"))),
        None => {
            // What it has started may go on; it is no longer waited for.
            let _ = child.kill();
            let _ = child.wait();
            Err(Failure::failed(anyhow!("`{command}` did not end within {} s", limit.as_secs())))
        }
    }
}

fn wait_for(child: &mut Child, limit: Duration) -> std::io::Result<Option<std::process::ExitStatus>> {
    let begun = Instant::now();
    loop {
        match child.try_wait()? {
            Some(status) => return Ok(Some(status)),
            None if begun.elapsed() >= limit => return Ok(None),
            None => thread::sleep(COMMAND_POLL),
        }
    }
}
