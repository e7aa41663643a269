//! Contents of unverified writes.

use lunway_block::{ALIGNMENT, Buf, SharedBuf};

use crate::load::job::{Fill, Job};
use crate::load::random::Random;

/// Bytes beyond one block from which slices are taken, so that neighbouring writes differ. 4 MiB gives 1024 different
/// starts, and small blocks do not all come from one cache line.
const SPREAD: usize = 4 << 20;

/// Prepared data: each write is a slice of it, which costs a count and no copy.
#[derive(Debug)]
pub(crate) struct Payload {
    data: SharedBuf,
    next: usize,
}

impl Payload {
    pub(crate) fn new(job: &Job) -> Self {
        let block = job.block_sizes.largest(job.mix) as usize;
        // A job that only reads, or stamps its data, needs none.
        let data = if !job.mix.writes() || job.verify {
            SharedBuf::default()
        } else if job.fill == Fill::Zero {
            Buf::zeroed(block).freeze()
        } else {
            let mut buf = Buf::for_overwrite(block + SPREAD);
            Random::new(job.seed ^ 0x6461_7461).fill(&mut buf);
            buf.freeze()
        };
        Self { data, next: 0 }
    }

    /// The next `len` bytes to write, at most the job's largest block.
    #[inline]
    pub(crate) fn next(&mut self, len: usize) -> SharedBuf {
        let start = if self.next + len > self.data.len() { 0 } else { self.next };
        self.next = start + ALIGNMENT;
        self.data.slice(start..start + len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::access::Mix;

    #[test]
    fn neighbouring_writes_differ_and_are_incompressible() {
        let mut job = Job::new("x");
        job.mix = Mix::WRITE;
        let mut payload = Payload::new(&job);
        let (a, b) = (payload.next(4096), payload.next(4096));
        assert_eq!((a.len(), b.len()), (4096, 4096));
        assert_ne!(&a[..], &b[..]);
        let mut counts = [0u32; 256];
        a.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
        assert!(counts.iter().all(|&count| count < 48), "bytes are about equally frequent");
    }

    #[test]
    fn zero_fill_is_zero_and_never_runs_out() {
        let mut job = Job::new("x");
        job.mix = Mix::WRITE;
        job.fill = Fill::Zero;
        let mut payload = Payload::new(&job);
        assert!((0..3).all(|_| payload.next(4096).iter().all(|&byte| byte == 0)));
    }
}
