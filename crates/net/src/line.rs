//! A connection with time limits: no peer can make it wait for ever.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::NetError;

/// Interval at which a blocked call checks whether it should still wait.
const TICK: Duration = Duration::from_millis(100);
/// A connection on which nothing moves for this long is given up.
pub(crate) const STALL: Duration = Duration::from_secs(10);

/// Busy-polling time of a socket before a blocking call: the same as in the initiator's driver, which round trips
/// limit. Waking a sleeping core takes 20–40 µs, more than a round trip on one machine.
const WATCH: Duration = Duration::from_micros(50);
/// Number of waits that sleep at once after polling in vain: polling then costs a hundredth of the time.
const SLEEPS: u32 = 64;

/// Asks measurements and responders to end; clones ask the same ones.
#[derive(Clone, Debug, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// No request yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks. What was measured until now is kept.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if a stop was requested.
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Blocking calls on a connection, each of which ends when it is done, nothing moves for [`STALL`], the deadline
/// passes, or a stop is asked for: whatever the peer does.
pub(crate) struct Line<'a> {
    stream: &'a TcpStream,
    stop: &'a StopFlag,
    deadline: Instant,
    /// Waits that sleep at once, as watching was in vain.
    sleeps: u32,
}

impl<'a> Line<'a> {
    /// A line that is given up after `patience`.
    pub(crate) fn new(stream: &'a TcpStream, stop: &'a StopFlag, patience: Duration) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TICK))?;
        stream.set_write_timeout(Some(TICK))?;
        Ok(Self { stream, stop, deadline: Instant::now() + patience, sleeps: 0 })
    }

    /// Puts the deadline `patience` from now.
    pub(crate) fn extend(&mut self, patience: Duration) {
        self.deadline = Instant::now() + patience;
    }

    pub(crate) fn stream(&self) -> &'a TcpStream {
        self.stream
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.is_stopped()
    }

    /// Reads the bytes that are available, at least one; 0 at the end of the stream.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> Result<usize, NetError> {
        let mut stream = self.stream;
        self.patiently(|| stream.read(into))
    }

    /// The same, and watches the socket before it sleeps, as long as that pays. In between others may have the core:
    /// the other end may need it.
    pub(crate) fn read_watching(&mut self, into: &mut [u8]) -> Result<usize, NetError> {
        let since = Instant::now();
        while self.keeps_watching(since) {
            if let Some(bytes) = self.read_now(into)? {
                return Ok(bytes);
            }
            thread::yield_now();
        }
        self.read(into)
    }

    /// Reads the bytes that are available now; `None`: nothing.
    pub(crate) fn read_now(&self, into: &mut [u8]) -> Result<Option<usize>, NetError> {
        now(rustix::net::recv(self.stream, into, RecvFlags::DONTWAIT).map(|(bytes, _)| bytes))
    }

    /// Writes the bytes that there is room for now; `None`: not a byte.
    pub(crate) fn write_now(&self, from: &[u8]) -> Result<Option<usize>, NetError> {
        now(rustix::net::send(self.stream, from, SendFlags::DONTWAIT | SendFlags::NOSIGNAL))
    }

    /// Returns `true` if a wait that began at `since` polls the socket once more, `false` if it sleeps: after polling
    /// in vain, [`SLEEPS`] waits sleep at once.
    pub(crate) fn keeps_watching(&mut self, since: Instant) -> bool {
        if self.sleeps > 0 {
            self.sleeps -= 1;
            return false;
        }
        let watches = since.elapsed() < WATCH;
        if !watches {
            self.sleeps = SLEEPS;
        }
        watches
    }

    /// The same as [`write`](Self::write), and watches the socket before it sleeps, as
    /// [`read_watching`](Self::read_watching) does.
    pub(crate) fn write_watching(&mut self, from: &[u8]) -> Result<usize, NetError> {
        let since = Instant::now();
        while self.keeps_watching(since) {
            if let Some(bytes) = self.write_now(from)? {
                return Ok(bytes);
            }
            thread::yield_now();
        }
        self.write(from)
    }

    /// As much as there is room for, at least one byte.
    pub(crate) fn write(&mut self, from: &[u8]) -> Result<usize, NetError> {
        let mut stream = self.stream;
        self.patiently(|| stream.write(from))
    }

    pub(crate) fn read_exact(&mut self, mut into: &mut [u8]) -> Result<(), NetError> {
        while !into.is_empty() {
            match self.read(into)? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                bytes => into = &mut into[bytes..],
            }
        }
        Ok(())
    }

    pub(crate) fn write_all(&mut self, mut from: &[u8]) -> Result<(), NetError> {
        while !from.is_empty() {
            let bytes = self.write(from)?;
            from = &from[bytes..];
        }
        Ok(())
    }

    /// Checks that the call should go on waiting, having waited since `since`.
    pub(crate) fn keep_waiting(&self, since: Instant) -> Result<(), NetError> {
        let now = Instant::now();
        if self.stop.is_stopped() {
            Err(NetError::Stopped)
        } else if now >= self.deadline {
            Err(NetError::Overdue)
        } else if now - since >= STALL {
            Err(NetError::Stalled(STALL))
        } else {
            Ok(())
        }
    }

    fn patiently(&self, mut call: impl FnMut() -> io::Result<usize>) -> Result<usize, NetError> {
        let since = Instant::now();
        if since >= self.deadline {
            return Err(NetError::Overdue);
        }
        loop {
            match call() {
                Ok(bytes) => return Ok(bytes),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What a socket says when its time is over.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.keep_waiting(since)?,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The result of a call that does not wait; `None`: it would have.
fn now(done: rustix::io::Result<usize>) -> Result<Option<usize>, NetError> {
    match done {
        Ok(bytes) => Ok(Some(bytes)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(io::Error::from(error).into()),
    }
}
