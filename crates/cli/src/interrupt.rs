//! Ctrl-C, and the other signals that ask for something.

use std::io;
use std::process;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use lunway_bench::Cancel;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{freezing, screen};

/// Exit code of the process after a second Ctrl-C: the one that shells use for SIGINT.
const KILLED_BY_INTERRUPT: i32 = 130;

/// Time within which a further request counts as the same one. A sender that signals a process and its group, as
/// timeout(1) does, asks once; the two signals arrive as far apart as a busy machine delays the sender.
const ECHO: Duration = Duration::from_millis(500);

/// SIGINT and SIGTERM, which ask for an orderly end. From the moment this exists they no longer end the process.
pub(crate) struct Requests {
    interrupt: Signal,
    terminate: Signal,
    /// Time of the last one.
    last: Option<Instant>,
}

impl Requests {
    /// Must be called inside a runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        Ok(Self { interrupt, terminate, last: None })
    }

    /// Waits for the next one; one that comes within half a second of the last is no other.
    pub(crate) async fn next(&mut self) {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => {}
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

/// From now on the first Ctrl-C (or SIGTERM) asks for an orderly end, and the second ends the process.
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
            requests.next().await;
            screen::leave();
            if let Some(Err(error)) = freezing::thaw_owed() {
                error.report();
            }
            process::exit(KILLED_BY_INTERRUPT);
        });
    });
    // From here on no request ends the process: what the caller begins now is ended in order.
    let _ = begun.recv();
}
