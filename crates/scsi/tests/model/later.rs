//! A device that answers later: each block of each operation is done at a moment that the test chooses.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use lunway_block::{BlockDevice, BlockError, Buf, Durability, Geometry, Io, SharedBuf, Unmap, Zeroing};

use crate::random::Random;

/// Bytes of a block.
pub(crate) const BLOCK: usize = 512;

type Job = Box<dyn FnOnce(&mut [u8]) + Send>;

#[derive(Default)]
struct Inner {
    bytes: Vec<u8>,
    /// What is still to be done, one block each.
    jobs: Vec<Job>,
}

/// A small disk whose operations wait for [`step`](Self::step). Nothing about them is atomic but a single block.
#[derive(Clone)]
pub(crate) struct Later(Arc<Mutex<Inner>>);

impl Later {
    pub(crate) fn new(blocks: usize) -> Self {
        Self(Arc::new(Mutex::new(Inner { bytes: vec![0; blocks * BLOCK], jobs: Vec::new() })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does one block of one operation; says whether there was any.
    pub(crate) fn step(&self, random: &mut Random) -> bool {
        let mut inner = self.lock();
        if inner.jobs.is_empty() {
            return false;
        }
        let index = random.below(inner.jobs.len() as u64) as usize;
        let job = inner.jobs.swap_remove(index);
        job(&mut inner.bytes);
        true
    }

    /// What it holds now.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.lock().bytes.clone()
    }

    /// Queues one job for each block of a range; the answer is there when all of them are done.
    fn later<T: Send + 'static>(
        &self,
        offset: u64,
        mut state: Buf,
        each: fn(&mut [u8], &mut [u8]),
        answer: fn(Buf) -> T,
    ) -> Io<Result<T, BlockError>> {
        if let Err(error) = self.geometry().check(offset, state.len() as u64) {
            return Io::err(error);
        }
        let parts: Vec<Vec<u8>> = state.chunks(BLOCK).map(<[u8]>::to_vec).collect();
        let count = parts.len();
        let done = Arc::new(Mutex::new(Vec::new()));
        for (index, mut part) in parts.into_iter().enumerate() {
            let (at, done) = (offset as usize + index * BLOCK, done.clone());
            self.lock().jobs.push(Box::new(move |bytes| {
                each(&mut bytes[at..at + BLOCK], &mut part);
                done.lock().unwrap_or_else(PoisonError::into_inner).push((index, part));
            }));
        }
        // The test polls whatever it likes; nobody has to be woken.
        Io::pending(async move {
            poll_fn(|_| match done.lock().unwrap_or_else(PoisonError::into_inner).len() == count {
                true => Poll::Ready(()),
                false => Poll::Pending,
            })
            .await;
            for (index, part) in done.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
                state[index * BLOCK..][..BLOCK].copy_from_slice(&part);
            }
            Ok(answer(state))
        })
    }
}

impl BlockDevice for Later {
    fn geometry(&self) -> Geometry {
        let size = self.lock().bytes.len() as u64;
        Geometry { unmap: Unmap::Zeroes { granularity: BLOCK as u32 }, ..Geometry::plain(size) }
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        self.later(offset, buf, |medium, part| part.copy_from_slice(medium), |buf| buf)
    }

    fn write(&self, offset: u64, data: SharedBuf, _durability: Durability) -> Io<Result<(), BlockError>> {
        self.later(offset, Buf::copy_of(&data), |medium, part| medium.copy_from_slice(part), drop)
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        Io::ok(())
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        self.write_zeroes(offset, len, Zeroing::MayUnmap)
    }

    fn write_zeroes(&self, offset: u64, len: u64, _zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        self.write(offset, Buf::zeroed(len as usize).freeze(), Durability::Volatile)
    }
}
