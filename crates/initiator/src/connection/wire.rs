//! Between a socket and a connection core: moves bytes as far as they go, never waits but where the name says so.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use lunway_iscsi::initiator::InitiatorConnection;
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// Most pieces of one vectored write: 32 commands with data, and half of what the kernel takes.
const SLICES_MAX: usize = 128;

/// Most vectored calls in one direction before the other one has its turn.
const CALLS_MAX: usize = 8;

/// Reads what is there. True if something was. `watching`: without asking the runtime first whether it knows of
/// something.
pub(crate) fn receive(
    stream: &TcpStream,
    core: &mut InitiatorConnection,
    watching: bool,
) -> io::Result<bool> {
    for call in 0..CALLS_MAX {
        let mut space = core.receive_space();
        let room: usize = space.iter().map(|slice| slice.len()).sum();
        let got = match watching {
            true => rustix::io::readv(stream, &mut space).map_err(io::Error::from),
            false => stream.try_read_vectored(&mut space),
        };
        match got {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the target closed it")),
            Ok(bytes) => {
                core.received(bytes);
                // A short read has drained the socket: asking again would cost a call to hear so.
                if bytes < room {
                    return Ok(true);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(call > 0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Sends what is queued, as far as the socket takes it. True if something went.
pub(crate) fn send(stream: &TcpStream, core: &mut InitiatorConnection) -> io::Result<bool> {
    for call in 0..CALLS_MAX {
        if core.unsent() == 0 {
            return Ok(call > 0);
        }
        let mut slices = Vec::with_capacity(SLICES_MAX);
        core.gather(&mut slices, SLICES_MAX);
        match stream.try_write_vectored(&slices) {
            Ok(bytes) => core.sent(bytes),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(call > 0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// A timer that is set anew only when it must ring earlier; ringing too early is harmless, as no part trusts it without
/// looking at the clock.
pub(crate) struct Alarm {
    sleep: Pin<Box<Sleep>>,
    set: bool,
}

impl Alarm {
    pub(crate) fn new() -> Self {
        Self { sleep: Box::pin(tokio::time::sleep(std::time::Duration::ZERO)), set: false }
    }

    /// Ready when `deadline` may have come.
    pub(crate) fn poll_until(&mut self, cx: &mut Context<'_>, deadline: Option<Instant>) -> Poll<()> {
        let Some(deadline) = deadline else { return Poll::Pending };
        let deadline = tokio::time::Instant::from_std(deadline);
        if !self.set || deadline < self.sleep.deadline() {
            self.sleep.as_mut().reset(deadline);
            self.set = true;
        }
        let ready = self.sleep.as_mut().poll(cx);
        self.set = ready.is_pending();
        ready
    }
}

/// Waits until the socket can be read, can be written where that is wanted, or `deadline` may have come.
pub(crate) async fn wait(stream: &TcpStream, to_send: bool, alarm: &mut Alarm, deadline: Option<Instant>) {
    poll_fn(|cx| poll_wait(cx, stream, to_send, alarm, deadline)).await;
}

/// [`wait`] for callers that wait for more.
pub(crate) fn poll_wait(
    cx: &mut Context<'_>,
    stream: &TcpStream,
    to_send: bool,
    alarm: &mut Alarm,
    deadline: Option<Instant>,
) -> Poll<()> {
    // An error is readiness: the next call will tell it.
    let readable = stream.poll_read_ready(cx).is_ready();
    let writable = to_send && stream.poll_write_ready(cx).is_ready();
    if readable || writable || alarm.poll_until(cx, deadline).is_ready() {
        return Poll::Ready(());
    }
    Poll::Pending
}
