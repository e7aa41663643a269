//! Probe that issues one I/O at a time.

use std::time::{Duration, Instant};

use lunway_block::{ALIGNMENT, BlockDevice, BlockError, Buf, Durability, Io, SharedBuf};

use crate::load::random::Random;
use crate::run::cancel::Cancel;

/// A cancel is looked after this often while an I/O is under way.
const TURN: Duration = Duration::from_millis(50);
/// Longest time that an I/O in flight is waited for after a cancel.
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// The runtime gets its turn this often from a device that answers inline.
const SLICE: Duration = Duration::from_micros(500);
/// Failures in a row, without a success, after which it is no use to go on.
const FAILURES_MAX: u32 = 16;

/// Reason why there is no answer.
#[derive(Debug)]
pub(super) enum Stop {
    /// Asked to end, or nothing but failures came.
    End,
    /// This I/O failed; others may not.
    Failed,
}

/// Issues one I/O at a time and measures each from the call to the answer: for measurements whose addresses no job can
/// describe.
///
/// It counts failures, and ends by itself after sixteen of them with no success between.
pub(super) struct Probe<'a> {
    device: &'a dyn BlockDevice,
    cancel: &'a Cancel,
    buf: Buf,
    yielded: Instant,
    failures: u32,
    /// I/Os that failed.
    pub(super) errors: u64,
    /// Error of the first of them.
    pub(super) first_error: Option<String>,
}

impl<'a> Probe<'a> {
    pub(super) fn new(device: &'a dyn BlockDevice, cancel: &'a Cancel) -> Self {
        Self {
            device,
            cancel,
            buf: Buf::empty(),
            yielded: Instant::now(),
            failures: 0,
            errors: 0,
            first_error: None,
        }
    }

    /// Reads `len` bytes at `offset`, and how long that took.
    pub(super) async fn read(&mut self, offset: u64, len: usize) -> Result<(&[u8], Duration), Stop> {
        let mut buf = std::mem::take(&mut self.buf);
        if buf.len() != len {
            buf = Buf::for_overwrite(len);
        }
        let (buf, took) = self.wait(|device| device.read(offset, buf)).await?;
        self.buf = buf;
        Ok((&self.buf, took))
    }

    /// Writes `data` at `offset`, and how long that took.
    pub(super) async fn write(&mut self, offset: u64, data: SharedBuf) -> Result<Duration, Stop> {
        let ((), took) = self.wait(|device| device.write(offset, data, Durability::Volatile)).await?;
        Ok(took)
    }

    /// Makes durable what was written.
    pub(super) async fn flush(&mut self) -> Result<(), Stop> {
        self.wait(BlockDevice::flush).await.map(|_| ())
    }

    /// Unmaps `len` bytes at `offset`, and how long that took.
    pub(super) async fn unmap(&mut self, offset: u64, len: u64) -> Result<Duration, Stop> {
        self.wait(|device| device.unmap(offset, len)).await.map(|((), took)| took)
    }

    async fn wait<T: Unpin>(
        &mut self,
        issue: impl FnOnce(&'a dyn BlockDevice) -> Io<Result<T, BlockError>>,
    ) -> Result<(T, Duration), Stop> {
        if self.cancel.is_cancelled() || self.failures >= FAILURES_MAX {
            return Err(Stop::End);
        }
        if self.yielded.elapsed() >= SLICE {
            tokio::task::yield_now().await;
            self.yielded = Instant::now();
        }
        let started = Instant::now();
        let answer = match issue(self.device) {
            Io::Ready(answer) => answer,
            Io::Pending(mut future) => {
                let mut asked: Option<Instant> = None;
                loop {
                    if let Ok(answer) = tokio::time::timeout(TURN, &mut future).await {
                        break answer;
                    }
                    if self.cancel.is_cancelled()
                        && asked.get_or_insert_with(Instant::now).elapsed() >= DRAIN_MAX
                    {
                        return Err(Stop::End);
                    }
                }
            }
        };
        let took = started.elapsed();
        match answer {
            Ok(value) => {
                self.failures = 0;
                Ok((value, took))
            }
            Err(error) => {
                self.failures += 1;
                self.errors += 1;
                self.first_error.get_or_insert_with(|| error.to_string());
                Err(Stop::Failed)
            }
        }
    }
}

/// Incompressible data that costs a count to take: slices of one random buffer, so that neighbouring writes differ.
pub(super) struct Incompressible {
    data: SharedBuf,
    len: usize,
    next: usize,
}

/// Bytes beyond the longest write from which slices are taken.
const SPREAD: usize = 1 << 20;

impl Incompressible {
    /// For writes of up to `len` bytes.
    pub(super) fn new(seed: u64, len: usize) -> Self {
        let mut data = Buf::for_overwrite(len + SPREAD);
        Random::new(seed ^ 0x7072_6f62).fill(&mut data);
        Self { data: data.freeze(), len, next: 0 }
    }

    /// `len` bytes, no more than it was made for.
    pub(super) fn next(&mut self, len: usize) -> SharedBuf {
        let start = self.next;
        self.next = if start + ALIGNMENT + self.len > self.data.len() { 0 } else { start + ALIGNMENT };
        self.data.slice(start..start + len)
    }
}
