//! A command that a daemon has begun.

use anyhow::{Context, anyhow};
use clap::Args;
use rustix::process::{Signal, getppid, set_parent_process_death_signal, setpriority_process};

use crate::failure::Failure;

/// Nice value of what a daemon begins, that of contrib/lunway-backup@.service: it yields to what serves.
const NICE: i32 = 10;

/// The daemon that a command belongs to.
#[derive(Debug, Args)]
pub(crate) struct BegunBy {
    /// Process id of the daemon: the command yields to it, and is asked to end when it ends
    #[arg(long, value_name = "PID", hide = true)]
    begun_by: Option<i32>,
}

impl BegunBy {
    /// Returns `true` if a daemon has begun the command.
    pub(crate) fn is_daemon(&self) -> bool {
        self.begun_by.is_some()
    }

    /// To be called before anything is begun. It counts for the threads that this one starts, and lasts as long as it.
    pub(crate) fn obey(&self) -> Result<(), Failure> {
        let Some(daemon) = self.begun_by else { return Ok(()) };
        // A sandbox may forbid it, and the backup is wanted all the same.
        let _ = setpriority_process(None, NICE);
        set_parent_process_death_signal(Some(Signal::TERM)).context("asking to end with the daemon")?;
        // It may have ended before that.
        match getppid() {
            Some(parent) if parent.as_raw_nonzero().get() == daemon => Ok(()),
            _ => Err(Failure::failed(anyhow!("the daemon that began this has ended"))),
        }
    }
}
