//! What has gone over a session, and how far away its target is.
#![expect(unsafe_code, reason = "TCP_INFO is filled by address: see `round_trip`")]

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use tokio::net::TcpStream;

use crate::slots::Effect;

/// What has gone over a session since it was opened, reconnections included.
///
/// Plain numbers: they are counted where the session's lock is held anyway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) read_ios: u64,
    pub(crate) read_bytes: u64,
    pub(crate) write_ios: u64,
    pub(crate) write_bytes: u64,
    pub(crate) errors: u64,
}

impl Traffic {
    /// A command was answered with GOOD after that many bytes in and out.
    #[inline]
    pub(crate) fn count(&mut self, effect: Effect, received: usize, sent: usize) {
        match effect {
            Effect::Read => {
                self.read_ios += 1;
                self.read_bytes += received as u64;
            }
            Effect::Write | Effect::WriteThrough => {
                self.write_ios += 1;
                self.write_bytes += sent as u64;
            }
            Effect::Query | Effect::WriteRange | Effect::Flush | Effect::Unknown => {}
        }
    }
}

/// A second handle of a connection's socket, to ask the kernel about it while the driver has the first.
#[derive(Debug)]
pub(crate) struct Probe(OwnedFd);

impl Probe {
    /// An error means that the process has no descriptor left; the connection works without.
    pub(crate) fn of(stream: &TcpStream) -> io::Result<Self> {
        socket2::SockRef::from(stream).try_clone().map(|socket| Self(socket.into()))
    }

    /// TCP's smoothed round trip; `None` before the first measurement.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
        let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
        // SAFETY: `info` is `len` writable bytes, and any bytes, so also what a kernel with a shorter structure leaves
        // as zeroes, are a valid `tcp_info`: it has only integers.
        let info = unsafe {
            let socket = self.0.as_raw_fd();
            let answer = info.as_mut_ptr().cast();
            if libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO, answer, &raw mut len) != 0 {
                return None;
            }
            info.assume_init()
        };
        (info.tcpi_rtt > 0).then(|| Duration::from_micros(info.tcpi_rtt.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_are_counted_and_questions_are_not() {
        let mut traffic = Traffic::default();
        traffic.count(Effect::Read, 4096, 0);
        traffic.count(Effect::Write, 0, 512);
        traffic.count(Effect::WriteThrough, 0, 512);
        traffic.count(Effect::Query, 96, 0);
        traffic.count(Effect::WriteRange, 0, 512);
        let wanted = Traffic { read_ios: 1, read_bytes: 4096, write_ios: 2, write_bytes: 1024, errors: 0 };
        assert_eq!(traffic, wanted);
    }

    #[tokio::test]
    async fn the_kernel_knows_how_far_away_the_other_end_is() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (near, far) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        let trip = Probe::of(&near.unwrap()).unwrap().round_trip().unwrap();
        assert!(trip < Duration::from_secs(1), "{trip:?}");
        drop(far);
    }
}
