//! Commands that freeze and thaw the guest of a disk.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::Args;
use lunway_block::duration::parse_duration;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::failure::Failure;
use crate::interrupt;

/// Interval at which a command is polled for its end.
const COMMAND_POLL: Duration = Duration::from_millis(20);

/// Least deadline: shorter ones end commands that had no time to start.
const LEAST_DEADLINE: Duration = Duration::from_secs(1);

/// Time that a thaw has at least, whatever the deadline: a guest that stays frozen is worse than one that is frozen for
/// longer. Half of the time after which Linux gives up a machine that does not answer (`tcp_syn_retries`).
const THAW_TIME: Duration = Duration::from_secs(60);

fn deadline(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(time) if time < LEAST_DEADLINE => Err("at least 1s: a command needs time to start".to_owned()),
        other => other.map_err(|error| error.to_string()),
    }
}

/// Method of freezing the file systems of the guest, so that what is on the disk is whole.
#[derive(Debug, Args)]
pub(crate) struct Freezing {
    /// Command that freezes the file systems of the guest, run here by sh
    #[arg(long, value_name = "COMMAND", requires = "thaw")]
    freeze: Option<String>,
    /// Command that thaws them; always run after --freeze
    #[arg(long, value_name = "COMMAND", requires = "freeze")]
    thaw: Option<String>,
    /// Maximum time for which they are frozen
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = deadline, requires = "freeze")]
    deadline: Duration,
}

impl Freezing {
    /// Returns `true` if anything is frozen.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.freeze.is_some()
    }

    /// Does something while the guest is frozen, with the time that is left; `None`: nothing is frozen. What comes of
    /// it after the deadline is undone.
    ///
    /// The guest is thawed whatever comes of it: when the work has ended, at the deadline while it still hangs, and
    /// before a second Ctrl-C ends the process. The first one is waited out.
    pub(crate) fn around<T>(
        &self,
        work: impl FnOnce(Option<Duration>) -> Result<T, Failure>,
        undo: impl FnOnce(T),
    ) -> Result<T, Failure> {
        let (Some(freeze), Some(thaw)) = (&self.freeze, &self.thaw) else { return work(None) };
        let limit = self.deadline;
        let begun = Instant::now();
        let cancel = interrupt::watch();
        let frozen = Frozen::begin(thaw.clone(), limit.max(THAW_TIME));
        let done = carry_out(freeze, limit, &freezes).and_then(|()| {
            if cancel.is_cancelled() {
                return Err(Failure::failed(anyhow!(
                    "interrupted while the guest was frozen; it was thawed"
                )));
            }
            let left = limit.saturating_sub(begun.elapsed());
            frozen.thaw_after(left);
            work(Some(left))
        });
        let (was_late, thawed) = frozen.end();
        match (done, thawed) {
            (Ok(late), Ok(())) if was_late => {
                undo(late);
                Err(Failure::failed(anyhow!(
                    "the guest was thawed at the deadline of {} s, before this was done: nothing is kept",
                    limit.as_secs_f64()
                )))
            }
            (Ok(done), Ok(())) => Ok(done),
            (Ok(done), Err(error)) if was_late => {
                undo(done);
                Err(error)
            }
            (Err(error), Ok(())) | (Ok(_), Err(error)) => Err(error),
            (Err(error), Err(thawing)) => {
                // One sentence each: what went wrong first, and that the guest may be frozen still.
                thawing.report();
                Err(error)
            }
        }
    }
}

/// The thaw that is owed to a guest, until it was run. One at a time: a process freezes one guest.
static OWED: Mutex<Option<Owed>> = Mutex::new(None);

struct Owed {
    command: String,
    limit: Duration,
    /// The command that freezes, while it runs.
    freezes: Option<Pid>,
}

/// Result of a thaw; `None`: none was owed any more.
type Thawed = Option<Result<(), Failure>>;

fn owed() -> MutexGuard<'static, Option<Owed>> {
    OWED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the thaw that is owed, if one is; a caller that comes second waits until it has run. A command that freezes is
/// ended before: it would freeze the guest after it was thawed.
pub(crate) fn thaw_owed() -> Thawed {
    let mut owed = owed();
    let Owed { command, limit, freezes } = owed.take()?;
    if let Some(freezes) = freezes {
        let _ = kill_process_group(freezes, Signal::KILL);
    }
    Some(carry_out(&command, limit, &|_| ()))
}

/// Notes which process freezes.
fn freezes(process: Option<Pid>) {
    if let Some(owed) = &mut *owed() {
        owed.freezes = process;
    }
}

/// A guest that is, or is being, frozen.
struct Frozen {
    /// Of the thread that thaws at the deadline: its end, and what came of it.
    late: Mutex<Option<(mpsc::Sender<()>, JoinHandle<Thawed>)>>,
}

impl Frozen {
    /// From now on the thaw is owed.
    fn begin(command: String, limit: Duration) -> Self {
        *owed() = Some(Owed { command, limit, freezes: None });
        Self { late: Mutex::new(None) }
    }

    /// Thaws after `left`, unless that was done before.
    fn thaw_after(&self, left: Duration) {
        let (end, ended) = mpsc::channel();
        let waits = move || match ended.recv_timeout(left) {
            Err(RecvTimeoutError::Timeout) => thaw_owed(),
            _ => None,
        };
        *self.late.lock().unwrap_or_else(PoisonError::into_inner) = Some((end, thread::spawn(waits)));
    }

    /// Thaws now, unless that was done before: whether it was, and what came of it.
    fn end(self) -> (bool, Result<(), Failure>) {
        let now = thaw_owed();
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner).take();
        let late = late.and_then(|(end, thread)| {
            drop(end);
            thread.join().unwrap_or_default()
        });
        match (now, late) {
            (Some(now), _) => (false, now),
            (None, late) => (true, late.unwrap_or(Ok(()))),
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // Work that panicked: a guest that stays frozen is the worst.
        if let Some(Err(error)) = thaw_owed() {
            error.report();
        }
    }
}

/// Runs a command of the user's, for as long as `limit`: then all of its processes are ended, as one that goes on would
/// freeze the guest after it was thawed. They are a group of their own, which Ctrl-C does not reach. `note` is told its
/// process, and when it has ended.
fn carry_out(command: &str, limit: Duration, note: &dyn Fn(Option<Pid>)) -> Result<(), Failure> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null()).process_group(0);
    let mut child = shell.spawn().with_context(|| format!("cannot run `{command}`"))?;
    note(Some(Pid::from_child(&child)));
    let status = wait_for(&mut child, limit);
    note(None);
    match status.with_context(|| format!("cannot wait for `{command}`"))? {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(Failure::failed(anyhow!("`{command}` failed ({status})"))),
        None => {
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
            let _ = child.wait();
            Err(Failure::failed(anyhow!(
                "`{command}` did not end within {} s and was killed; what it has begun on other machines may go on: look \
                 whether the guest is frozen",
                limit.as_secs()
            )))
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
