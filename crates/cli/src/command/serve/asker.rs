//! A process that asks what may hang with its share.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use serde::de::DeserializeOwned;

/// Time within which an answer comes from a share, which may hang: as `lunway doctor`, and as long again for an object
/// store.
pub(super) const ANSWER: Duration = Duration::from_secs(4);

/// A command that prints each answer as a line of JSON.
///
/// It is killed when this is dropped, and not waited for: the kernel keeps a process until the share that it waits for
/// answers. A thread that waits so would keep its process from ending.
pub(super) struct Asker {
    /// Taken when this is dropped.
    child: Option<Child>,
    lines: Receiver<io::Result<String>>,
}

impl Asker {
    /// Begins it, with this as its input.
    ///
    /// # Errors
    ///
    /// Where it cannot be started, or does not read its input.
    pub(super) fn begin(mut command: Command, input: &str) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let (told, lines) = mpsc::channel();
        let (to, printed) = (child.stdin.take(), child.stdout.take());
        let asker = Self { child: Some(child), lines };
        if let Some(printed) = printed {
            let read = move || BufReader::new(printed).lines().try_for_each(|line| told.send(line));
            thread::Builder::new().spawn(read)?;
        }
        to.map_or(Ok(()), |mut to| to.write_all(input.as_bytes()))?;
        Ok(asker)
    }

    /// The next answer; `None`: there is none within [`ANSWER`].
    ///
    /// # Errors
    ///
    /// Where the command has ended without one, or its answer cannot be read.
    pub(super) fn next<T: DeserializeOwned>(&self) -> io::Result<Option<T>> {
        match self.lines.recv_timeout(ANSWER) {
            Ok(line) => serde_json::from_str(&line?).map(Some).map_err(io::Error::other),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                Err(io::Error::other("the command ended without an answer"))
            }
        }
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            // Without a thread it stays on the list of processes until this one ends.
            drop(thread::Builder::new().spawn(move || child.wait()));
        }
    }
}
