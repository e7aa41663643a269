//! Socket of a connection: one read and one vectored write at a time, and whether it is worth while to ask for them.

use std::io::{self, IoSlice, IoSliceMut};
use std::net;
use std::task::Context;

use lunway_iscsi::target::TargetConnection;
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Slices of one vectored write: at depth 32 with 4 KiB reads, 32 headers and 32 data segments; with digests twice
/// that. The kernel takes 1024.
const SLICES_MAX: usize = 256;

/// Socket, and what is known of it without asking the kernel.
pub(super) struct Socket {
    stream: TcpStream,
    /// Memory for the slices of a write.
    slices: Vec<IoSlice<'static>>,
    readable: bool,
    writable: bool,
}

impl Socket {
    pub(super) fn new(stream: net::TcpStream) -> io::Result<Self> {
        // Answers are complete when they are written: nothing to gain from waiting for more.
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let stream = TcpStream::from_std(stream)?;
        Ok(Self { stream, slices: Vec::new(), readable: true, writable: true })
    }

    /// There may be something to read.
    pub(super) fn is_readable(&self) -> bool {
        self.readable
    }

    /// Returns `true` if it may take something.
    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Has the task woken once there is something to read, unless there may be something now.
    pub(super) fn poll_readable(&mut self, cx: &mut Context<'_>) -> bool {
        self.readable = self.readable || self.stream.poll_read_ready(cx).is_ready();
        self.readable
    }

    /// Has the task woken once it takes something, unless it may now.
    pub(super) fn poll_writable(&mut self, cx: &mut Context<'_>) -> bool {
        self.writable = self.writable || self.stream.poll_write_ready(cx).is_ready();
        self.writable
    }

    /// Makes one read; `Some(0)`: the peer has closed. A read shorter than the space has emptied the socket: the
    /// runtime is told so, which saves the system call that would only say "nothing".
    pub(super) fn read(&mut self, space: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        let room: usize = space.iter().map(|slice| slice.len()).sum();
        let mut got = None;
        let result = self.stream.try_io(Interest::READABLE, || {
            let bytes = rustix::io::readv(&self.stream, space)?;
            got = Some(bytes);
            if bytes < room { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        match (got, result) {
            (Some(_), result) => self.readable = result.is_ok(),
            (None, Err(error)) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
            (None, Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            (None, Err(error)) => return Err(error),
            (None, Ok(())) => {}
        }
        Ok(got)
    }

    /// Makes one read without asking the runtime first whether there is something: what has just come is found sooner
    /// than by its round of all sockets. The runtime learns of it as well and says later that there may be something,
    /// which costs one read in vain.
    pub(super) fn look(&mut self, space: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        let room: usize = space.iter().map(|slice| slice.len()).sum();
        match rustix::io::readv(&self.stream, space) {
            Ok(bytes) => {
                self.readable = bytes == room;
                Ok(Some(bytes))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes one write of what the core has to send, of so many bytes at most, and tells it what was taken. Returns the
    /// bytes.
    pub(super) fn write(&mut self, core: &mut TargetConnection, bytes_max: usize) -> io::Result<usize> {
        if core.has_lent() {
            return core.send_lent(SLICES_MAX, bytes_max, &mut |slices| self.write_slices(slices));
        }
        let mut slices = recycle(std::mem::take(&mut self.slices));
        core.gather_bytes(&mut slices, SLICES_MAX, bytes_max);
        let taken = self.write_slices(&slices);
        self.slices = recycle(slices);
        core.sent(*taken.as_ref().unwrap_or(&0));
        taken
    }

    /// Makes one write.
    fn write_slices(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        let mut taken = 0;
        let result = self.stream.try_io(Interest::WRITABLE, || {
            taken = rustix::io::writev(&self.stream, slices)?;
            if taken < total { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        match result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            Ok(()) | Err(_) => {}
        }
        Ok(taken)
    }

    pub(super) fn into_stream(self) -> TcpStream {
        self.stream
    }
}

/// Empties a list of slices and keeps its memory for slices of another lifetime: collecting into the same type in place
/// does not allocate.
fn recycle<'to>(mut slices: Vec<IoSlice<'_>>) -> Vec<IoSlice<'to>> {
    slices.clear();
    slices.into_iter().map(|_| IoSlice::new(&[])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recycled_list_of_slices_keeps_its_memory() {
        let text = String::from("gone soon");
        let mut slices = Vec::with_capacity(64);
        slices.push(IoSlice::new(text.as_bytes()));
        let before = slices.as_ptr().addr();
        let slices: Vec<IoSlice<'static>> = recycle(slices);
        assert_eq!((slices.as_ptr().addr(), slices.len(), slices.capacity()), (before, 0, 64));
    }
}
