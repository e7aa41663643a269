//! The device's thread for calls that block.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use lunway_block::{BlockError, Io};
use tokio::sync::oneshot;

/// Calls that wait for the thread at most: as many as for a file's threads. More are refused as busy.
const WAITING_MAX: usize = 4096;

type Job = Box<dyn FnOnce() + Send>;

/// One thread, which carries out one call after another: opening, locking, resizing, maps, closing. Reads and writes do
/// not come here. librbd needs a stack of its own size, so it is none of the small ones that files have.
#[derive(Clone)]
pub(crate) struct Lane {
    jobs: mpsc::Sender<Job>,
    waiting: Arc<AtomicUsize>,
}

impl Lane {
    /// Starts the thread, which ends with the last handle once everything is done.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let waiting = Arc::new(AtomicUsize::new(0));
        let done = Arc::clone(&waiting);
        thread::Builder::new().name("rbd".to_owned()).spawn(move || {
            for job in queue {
                job();
                done.fetch_sub(1, Ordering::Relaxed);
            }
        })?;
        Ok(Self { jobs, waiting })
    }

    /// Carries out a job and answers. A job whose answer is not waited for any more when its turn comes is left out.
    pub(crate) fn io<T: Send + Unpin + 'static>(
        &self,
        job: impl FnOnce() -> Result<T, BlockError> + Send + 'static,
    ) -> Io<Result<T, BlockError>> {
        if self.waiting.load(Ordering::Relaxed) >= WAITING_MAX {
            return Io::err(BlockError::Busy);
        }
        let (sender, answer) = oneshot::channel();
        self.run(move || {
            if !sender.is_closed() {
                let _ = sender.send(job());
            }
        });
        Io::pending(async move { answer.await.unwrap_or_else(|_| Err(BlockError::lost())) })
    }

    /// As [`io`](Self::io), of a job that is carried out whether its answer is waited for or not, and never refused.
    pub(crate) fn ending(
        &self,
        job: impl FnOnce() -> Result<(), BlockError> + Send + 'static,
    ) -> Io<Result<(), BlockError>> {
        let (sender, answer) = oneshot::channel();
        self.run(move || drop(sender.send(job())));
        Io::pending(async move { answer.await.unwrap_or_else(|_| Err(BlockError::lost())) })
    }

    /// Carries out a job that needs no answer and is not refused.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // The thread takes jobs for as long as there is a sender.
        let _ = self.jobs.send(Box::new(job));
    }
}
