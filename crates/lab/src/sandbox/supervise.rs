//! Supervisor: a process that stands for another, passes signals in, and the exit code out.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::SandboxError;
use super::apart::Start;

/// Offset that shells add to the number of the signal that ended a process.
const KILLED: i32 = 128;

/// Starts a child and waits for its end.
pub(super) fn run(start: Start, command: Command) -> Result<u8, SandboxError> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(SandboxError::Watch)?;
    runtime.block_on(async {
        let watch = |kind| signal(kind).map_err(SandboxError::Watch);
        // Before the child: a signal that comes while it starts is kept, not fatal.
        let mut interrupt = watch(SignalKind::interrupt())?;
        let mut terminate = watch(SignalKind::terminate())?;
        let mut hangup = watch(SignalKind::hangup())?;
        let mut quit = watch(SignalKind::quit())?;
        let (started, mut ended) = start_and_wait(start, command);
        let child = started.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
        let child = child.map_err(|error| match start {
            Start::Apart if error.kind() != io::ErrorKind::NotFound => SandboxError::forbidden(error),
            _ => SandboxError::Start(error),
        })?;
        loop {
            let passed = tokio::select! {
                status = &mut ended => return status
                    .unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
                    .map(code)
                    .map_err(SandboxError::Watch),
                _ = interrupt.recv() => Signal::INT,
                _ = terminate.recv() => Signal::TERM,
                _ = hangup.recv() => Signal::HUP,
                _ = quit.recv() => Signal::QUIT,
            };
            // It may have ended just now, which the next round sees.
            let _ = kill_process(child, passed);
        }
    })
}

/// Messages of the thread that starts a child and waits for it: the child, then its exit status.
type Told = (oneshot::Receiver<io::Result<Pid>>, oneshot::Receiver<io::Result<ExitStatus>>);

/// On a thread of its own, with whose end the child would end.
fn start_and_wait(start: Start, mut command: Command) -> Told {
    let (tell_started, started) = oneshot::channel();
    let (tell_ended, ended) = oneshot::channel();
    thread::spawn(move || match start.spawn(&mut command) {
        Ok(mut child) => {
            let _ = tell_started.send(Ok(Pid::from_child(&child)));
            let _ = tell_ended.send(child.wait());
        }
        Err(error) => {
            let _ = tell_started.send(Err(error));
        }
    });
    (started, ended)
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| KILLED + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(u8::MAX)
}
