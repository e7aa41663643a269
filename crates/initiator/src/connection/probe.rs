//! TCP state of a connection, as the kernel tells it.
#![expect(unsafe_code, reason = "TCP_INFO is filled by address: see `ask`")]

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use tokio::net::TcpStream;

/// TCP state of a connection (TCP_INFO, linux/tcp.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// TCP's smoothed round trip; `None` before the first measurement.
    pub(crate) round_trip: Option<Duration>,
    /// Bytes that the peer's kernel has acknowledged since the connection began.
    pub(crate) acknowledged: u64,
    /// Age of its last packet that was more than data.
    pub(crate) last_packet: Duration,
    /// Data are under way without an acknowledgement; or the peer's window is closed, and several probes of it in a row
    /// were not answered. One may stay unanswered: Linux answers such packets at most twice a second.
    pub(crate) waits_for_acknowledgement: bool,
    /// Time that the kernel waits before its first retransmission, as it has learned from the path.
    pub(crate) retransmission_timeout: Duration,
}

/// Unanswered probes of a closed window from which on the peer seems to be dead.
const PROBES_MIN: u8 = 3;

/// A second handle of a connection's socket, to ask the kernel about it while the driver has the first.
#[derive(Debug)]
pub(crate) struct Probe(OwnedFd);

impl Probe {
    /// An error means that the process has no descriptor left; the connection works without.
    pub(crate) fn of(stream: &TcpStream) -> io::Result<Self> {
        socket2::SockRef::from(stream).try_clone().map(|socket| Self(socket.into()))
    }

    /// `None` where the kernel does not tell.
    pub(crate) fn ask(&self) -> Option<Kernel> {
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
        let micros = |micros: u32| Duration::from_micros(micros.into());
        // `tcpi_rto` has been doubled for each timeout since the last acknowledgement, but for probes of a closed
        // window.
        let doublings = if info.tcpi_unacked > 0 { u32::from(info.tcpi_backoff).min(16) } else { 0 };
        Some(Kernel {
            round_trip: (info.tcpi_rtt > 0).then(|| micros(info.tcpi_rtt)),
            acknowledged: info.tcpi_bytes_acked,
            last_packet: Duration::from_millis(info.tcpi_last_ack_recv.into()),
            waits_for_acknowledgement: info.tcpi_unacked > 0 || info.tcpi_probes >= PROBES_MIN,
            retransmission_timeout: micros(info.tcpi_rto >> doublings),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kernel_knows_how_far_away_the_other_end_is_and_what_it_has_taken() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (near, far) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        let near = near.unwrap();
        let probe = Probe::of(&near).unwrap();
        let before = probe.ask().unwrap();
        let trip = before.round_trip.unwrap();
        assert!(trip < Duration::from_secs(1), "{trip:?}");
        near.try_write(&[0; 1000]).unwrap();
        while probe.ask().unwrap().waits_for_acknowledgement {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(probe.ask().unwrap().acknowledged - before.acknowledged, 1000);
        drop(far);
    }
}
