//! Ctrl-C, and the other signals that ask for something.

use std::fmt::Display;
use std::io;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use lunway_bench::Cancel;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;
use crate::{freezing, screen, terminal};

/// Exit code of the process after a second Ctrl-C: the one that shells use for SIGINT.
const KILLED_BY_INTERRUPT: i32 = 130;

/// Time within which a further request counts as the same one. A sender that signals a process and its group, as
/// timeout(1) does, asks once; the two signals arrive as far apart as a busy machine delays the sender.
const ECHO: Duration = Duration::from_millis(500);

/// Interval of looking for a request while something is waited for: as that of a benchmark's end.
const LOOK: Duration = Duration::from_millis(100);

/// Messages of a command that was asked to end: a process has one, whichever part of it waits for signals.
static WORDS: Mutex<Words> = Mutex::new(Words { waits_for: None, leaves: String::new(), patience: None });

struct Words {
    waits_for: Option<Box<dyn Fn() -> String + Send>>,
    leaves: String,
    patience: Option<Duration>,
}

/// `true` if what is waited for was said.
static SAID: AtomicBool = AtomicBool::new(false);

fn words() -> MutexGuard<'static, Words> {
    WORDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on, a request to end that is not met at once is answered with what the command waits for.
pub(crate) fn waits_for(what: impl Fn() -> String + Send + 'static) {
    words().waits_for = Some(Box::new(what));
}

/// From now on, a request to end at once is answered with what that leaves; empty: nothing that needs a hand.
pub(crate) fn leaves(what: impl Into<String>) {
    words().leaves = what.into();
}

/// From now on, a request to end that is not met within this time is met at once: for a command that leaves nothing
/// that another one would not go on with, and may wait for a share that does not answer.
pub(crate) fn waits_at_most(patience: Duration) {
    words().patience = Some(patience);
}

/// Says what is waited for, once.
fn say_what_is_waited_for() {
    if screen::is_entered() || SAID.swap(true, Ordering::SeqCst) {
        return;
    }
    let waits_for = words().waits_for.as_ref().map_or_else(|| "what is under way".to_owned(), |what| what());
    terminal::say(&format!("stopping; waiting for {waits_for}; Ctrl-C again ends at once"));
}

/// Signals that ask for an orderly end: SIGINT, SIGTERM, SIGQUIT, and SIGHUP, which comes when the terminal or its SSH
/// session is lost. From the moment this exists they no longer end the process. SIGQUIT and SIGHUP that the process was
/// started to ignore, as by nohup(1), stay ignored.
pub(crate) struct Requests {
    interrupt: Signal,
    terminate: Signal,
    quit: Option<Signal>,
    hangup: Option<Signal>,
    /// Time of the last one.
    last: Option<Instant>,
}

/// The next signal of one that is listened to.
async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// Listens to a signal, unless the process was started to ignore it.
fn unless_ignored(kind: SignalKind) -> io::Result<Option<Signal>> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    (!is_ignored(&status, kind.as_raw_value())).then(|| signal(kind)).transpose()
}

/// Returns `true` if a signal is in the set SigIgn of `/proc/PID/status`, 64 bits in hexadecimal digits (proc(5)).
fn is_ignored(status: &str, number: i32) -> bool {
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let set = set.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0);
    (1..=64).contains(&number) && set >> (number - 1) & 1 == 1
}

impl Requests {
    /// Must be called inside a runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let hangup = unless_ignored(SignalKind::hangup())?;
        Ok(Self { hangup, ..Self::of_daemon()? })
    }

    /// The same without SIGHUP, which asks a daemon for something else: see [`Reloads`].
    pub(crate) fn of_daemon() -> io::Result<Self> {
        Ok(Self {
            quit: unless_ignored(SignalKind::quit())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: None,
            last: None,
        })
    }

    /// Waits for the next one; one that comes within half a second of the last is no other.
    pub(crate) async fn next(&mut self) {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => {}
                () = received(&mut self.quit) => {}
                () = received(&mut self.hangup) => {}
            }
            let now = Instant::now();
            if self.last.is_none_or(|last| now - last >= ECHO) {
                self.last = Some(now);
                return;
            }
        }
    }
}

/// SIGHUP, which asks a daemon to read its configuration again.
pub(crate) struct Reloads(Signal);

impl Reloads {
    /// Must be called inside a runtime.
    pub(crate) fn new() -> io::Result<Self> {
        signal(SignalKind::hangup()).map(Self)
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        self.0.recv().await;
    }
}

/// From now on the first Ctrl-C, or another of [`Requests`], asks for an orderly end, and the second ends the process.
/// Who may wait for something that does not answer tells [`waits_for`] what that is.
pub(crate) fn watch() -> Cancel {
    let cancel = Cancel::new();
    let asked = cancel.clone();
    on_request(move || asked.cancel());
    cancel
}

/// The same, where `ask` is how to ask.
///
/// A thread of its own waits for the signals, because the runtime's may be busy with I/O that is always ready.
pub(crate) fn on_request(ask: impl FnOnce() + Send + 'static) {
    let (begin, begun) = mpsc::channel();
    thread::spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            let Ok(mut requests) = Requests::new() else { return };
            let _ = begin.send(());
            requests.next().await;
            ask();
            let again = requests.next();
            tokio::pin!(again);
            // One that comes this late is another request.
            if tokio::time::timeout(ECHO, &mut again).await.is_err() {
                say_what_is_waited_for();
                let patience = words().patience;
                match patience {
                    Some(patience) => _ = tokio::time::timeout(patience, again).await,
                    None => again.await,
                }
            }
            screen::leave();
            let leaves = words().leaves.clone();
            if !leaves.is_empty() {
                terminal::say(&format!("ended at once: {leaves}"));
            }
            if let Some(Err(error)) = freezing::thaw_owed() {
                error.report();
            }
            process::exit(KILLED_BY_INTERRUPT);
        });
    });
    // From here on no request ends the process: what the caller begins now is ended in order.
    let _ = begun.recv();
}

/// Waits for a device that is being opened, unless the process is asked to end before: then that is the error.
pub(crate) async fn unless_asked<T>(
    cancel: &Cancel,
    device: &impl Display,
    opening: impl Future<Output = T>,
) -> Result<T, Failure> {
    tokio::pin!(opening);
    let mut looks = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            opened = &mut opening => return Ok(opened),
            _ = looks.tick() => if cancel.is_cancelled() {
                return Err(Failure::failed(anyhow!("interrupted before {device} was open")));
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_the_process_was_started_to_ignore_are_those_of_the_set() {
        // nohup(1): SIGHUP. A background command of a shell without job control: SIGINT and SIGQUIT.
        for (set, ignored) in [("0", &[][..]), ("0000000000001001", &[1, 13]), ("6", &[2, 3])] {
            let status = format!("Name:\tlunway\nSigBlk:\tffff\nSigIgn:\t{set}\nSigCgt:\tffff\n");
            let found: Vec<i32> = (1..=15).filter(|number| is_ignored(&status, *number)).collect();
            assert_eq!(found, ignored, "{set}");
        }
        assert!(!is_ignored("", 1));
    }
}
