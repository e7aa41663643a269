//! Network namespace: a network stack of its own.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::resume_unwind;
use std::process::{Child, Command};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crate::sandbox::{self, STAGE, TIE};

/// A network namespace: it lives as long as this handle, a thread that is in it, a process that was started in it, or a
/// socket that was made in it. It has no name, so nothing keeps it when those are gone.
///
/// A thread that enters never leaves; work is done on threads made for it.
#[derive(Clone, Debug)]
pub(crate) struct Namespace(Arc<OwnedFd>);

impl Namespace {
    /// An empty one: a loopback interface that is down.
    pub(crate) fn new() -> io::Result<Self> {
        let made = thread::spawn(sandbox::new_network).join().unwrap_or_else(|panic| resume_unwind(panic))?;
        Ok(Self(Arc::new(made)))
    }

    /// A descriptor of it, for a program that is to put something there.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Does `work` on a thread that is in it, and waits for the end.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let worker = thread::Builder::new().spawn_scoped(scope, || {
                sandbox::enter_network(&self.0)?;
                Ok(work())
            })?;
            worker.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Does `work` on a thread of that name, and does not wait.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        name: String,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<io::Result<T>>> {
        let namespace = self.0.clone();
        thread::Builder::new().name(name).spawn(move || {
            sandbox::enter_network(&namespace)?;
            Ok(work())
        })
    }

    /// Starts a program in it. The program is not told that it is in a sandbox.
    pub(crate) fn spawn(&self, mut command: Command) -> io::Result<Child> {
        command.env_remove(STAGE).env_remove(TIE);
        self.run(move || command.spawn())?
    }
}
