//! One-way stream: the loops of both ends.

use std::net::Shutdown;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::NetError;
use crate::line::Line;
use crate::option::clamp_window;
use crate::protocol::Report;

/// Size of one send, bytes: the size that common tools send, and 10 ms of a 100 Mb/s link.
const SEND: usize = 128 << 10;
/// Maximum size of one receive, bytes.
const RECEIVE: usize = 512 << 10;
/// Pieces received in which a connection gets to know its segments.
const FIRST_PIECES: u64 = 16;
/// Nothing is sampled more often.
const STEP: Duration = Duration::from_millis(100);
/// Samples per measurement at most.
const SAMPLES_MAX: u32 = 600;

/// Bytes to send: random, so that no device on the way compresses them.
pub(crate) static SOURCE: LazyLock<Box<[u8]>> = LazyLock::new(|| {
    let mut bytes = vec![0xa5; 1 << 20];
    // Without a source of randomness the bytes are poor, not wrong.
    let _ = getrandom::fill(&mut bytes);
    bytes.into_boxed_slice()
});

/// CPU time of this thread, user and system. What the kernel does for the connection in interrupts is charged to
/// the task that runs then, so this is a lower limit on a busy machine.
pub(crate) fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Sampling schedule, for the duration of a measurement.
pub(crate) struct Sampler {
    step: Duration,
    next: Duration,
}

impl Sampler {
    pub(crate) fn new(duration: Duration) -> Self {
        let step = STEP.max(duration / SAMPLES_MAX);
        Self { step, next: step }
    }

    pub(crate) fn due(&mut self, now: Duration) -> bool {
        let due = now >= self.next;
        if due {
            self.next = now + self.step;
        }
        due
    }
}

/// Sends for `duration`, or until a stop is asked for, calling `sent` with the time and the bytes so far after each
/// piece.
pub(crate) fn give(
    line: &mut Line<'_>,
    duration: Duration,
    mut sent: impl FnMut(Duration, u64),
) -> Result<u64, NetError> {
    let origin = Instant::now();
    let mut bytes = 0;
    loop {
        match line.write(&SOURCE[..SEND]) {
            Ok(piece) => bytes += piece as u64,
            Err(NetError::Stopped) => return Ok(bytes),
            Err(error) => return Err(error),
        }
        let now = origin.elapsed();
        sent(now, bytes);
        if now >= duration || line.is_stopped() {
            return Ok(bytes);
        }
    }
}

/// Result of [`take`].
pub(crate) struct Taken {
    pub(crate) bytes: u64,
    /// Until the last byte.
    pub(crate) elapsed: Duration,
    /// The last bytes of the stream, if there were so many; where a report follows the data, this is it, and it is in
    /// `bytes`.
    pub(crate) tail: Option<[u8; Report::SIZE]>,
}

/// Receives until the other end closes or a stop is asked for, calling `received` with the time and the bytes so far.
///
/// Keeps the receive window at `window` bytes where that is given: since 6.6 Linux lets it grow to what fits into the
/// buffer whenever it learns that segments are longer than it had seen, which is mostly at the start.
pub(crate) fn take(
    line: &mut Line<'_>,
    window: Option<u32>,
    mut received: impl FnMut(Duration, u64),
) -> Result<Taken, NetError> {
    let mut buffer = vec![0; RECEIVE];
    let origin = Instant::now();
    let mut tail = [0; Report::SIZE];
    let mut clamping = Sampler::new(Duration::ZERO);
    let mut pieces = 0u64;
    let mut taken = Taken { bytes: 0, elapsed: Duration::ZERO, tail: None };
    loop {
        let piece = match line.read(&mut buffer) {
            Ok(0) => {
                taken.tail = (taken.bytes >= Report::SIZE as u64).then_some(tail);
                return Ok(taken);
            }
            Ok(piece) => piece,
            Err(NetError::Stopped) => return Ok(taken),
            Err(error) => return Err(error),
        };
        let kept = piece.min(Report::SIZE);
        tail.copy_within(kept.., 0);
        tail[Report::SIZE - kept..].copy_from_slice(&buffer[piece - kept..piece]);
        taken.bytes += piece as u64;
        taken.elapsed = origin.elapsed();
        pieces += 1;
        if let Some(window) = window
            && (pieces <= FIRST_PIECES || clamping.due(taken.elapsed))
        {
            clamp_window(line.stream(), window)?;
        }
        received(taken.elapsed, taken.bytes);
        if line.is_stopped() {
            return Ok(taken);
        }
    }
}

/// Says that nothing more comes, and reads what is still under way, so that closing does not reset the connection
/// before the peer has read everything.
pub(crate) fn close(line: &mut Line<'_>, patience: Duration) {
    line.extend(patience);
    let mut buffer = [0; 4096];
    if line.stream().shutdown(Shutdown::Write).is_ok() {
        while line.read(&mut buffer).is_ok_and(|bytes| bytes > 0) {}
    }
}
