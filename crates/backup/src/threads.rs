//! Work that blocks, on threads.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use lunway_file::ThreadPool;

use crate::error::{BackupError, Result};

/// Runs a job that blocks on a thread.
///
/// # Errors
///
/// Those of the job.
pub async fn on<T: Send + Unpin + 'static>(
    pool: &ThreadPool,
    job: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    begun_on(pool, job).await
}

/// The same of a job that begins at once, before its answer is waited for.
pub(crate) fn begun_on<T, J>(pool: &ThreadPool, job: J) -> impl Future<Output = Result<T>> + Send + use<T, J>
where
    T: Send + Unpin + 'static,
    J: FnOnce() -> Result<T> + Send + 'static,
{
    let answer = pool.io(move || Ok(Box::new(job())));
    async move { answer.await.map_or(Err(BackupError::Lost), |answer| *answer) }
}

/// Operations on a folder that are under way at a time: a share answers each after a round trip, and one of 150 ms is
/// waited for once instead of sixteen times. Servers of NFS and SMB take more from one client (`slot table`, credits).
const AT_ONCE: usize = 16;

/// Does the same with each of `items`, several at a time: the answers in their order. Blocks.
///
/// Where the host gives no threads, the caller's does it all.
pub(crate) fn each<I: Sync, T: Send>(items: &[I], job: impl Fn(&I) -> Result<T> + Sync) -> Vec<Result<T>> {
    let next = AtomicUsize::new(0);
    let answers: Vec<_> = items.iter().map(|_| Mutex::new(None)).collect();
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return };
            let answer = job(item);
            *answers[at].lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        }
    };
    thread::scope(|scope| {
        for _ in 1..items.len().min(AT_ONCE) {
            let _ = thread::Builder::new().name("backup-folder".into()).spawn_scoped(scope, work);
        }
        work();
    });
    let answer = |answer: Mutex<Option<_>>| answer.into_inner().unwrap_or_else(PoisonError::into_inner);
    answers.into_iter().map(|found| answer(found).unwrap_or(Err(BackupError::Lost))).collect()
}

/// Does two things at a time. Blocks until both are done.
///
/// # Errors
///
/// Those of each.
pub fn both<A: Send, B>(
    beside: impl FnOnce() -> Result<A> + Send,
    here: impl FnOnce() -> Result<B>,
) -> (Result<A>, Result<B>) {
    let beside = Mutex::new(Some(beside));
    let work = || {
        let job = beside.lock().unwrap_or_else(PoisonError::into_inner).take();
        job.map_or(Err(BackupError::Lost), |job| job())
    };
    thread::scope(|scope| {
        let spawned = thread::Builder::new().name("backup-folder".into()).spawn_scoped(scope, work);
        let here = here();
        let beside = match spawned {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            // The host gives no thread.
            Err(_) => work(),
        };
        (beside, here)
    })
}

/// Work that is done on a thread of its own until its answer is waited for. It is not begun once this is dropped.
pub(crate) struct Beside<T> {
    job: Arc<dyn Fn() -> Result<T> + Send + Sync>,
    answer: Receiver<Result<T>>,
    wanted: Sender<()>,
}

impl<T: Send + 'static> Beside<T> {
    /// Begins it, `later` than now if it is not waited for before.
    pub(crate) fn begin(later: Duration, job: impl Fn() -> Result<T> + Send + Sync + 'static) -> Self {
        let job: Arc<dyn Fn() -> Result<T> + Send + Sync> = Arc::new(job);
        let ((done, answer), (wanted, is_wanted)) = (channel(), channel::<()>());
        let work = Arc::clone(&job);
        // Where the host gives no thread, who waits for it does it.
        let _ = thread::Builder::new().name("backup-beside".into()).spawn(move || {
            if is_wanted.recv_timeout(later) != Err(RecvTimeoutError::Disconnected) {
                // The answer may not be wanted any more.
                let _ = done.send(work());
            }
        });
        Self { job, answer, wanted }
    }

    /// Waits for its answer; what failed is done again, as the reason may have passed. Blocks.
    ///
    /// # Errors
    ///
    /// Its own.
    pub(crate) fn wait(self) -> Result<T> {
        // A thread that has begun does not listen.
        let _ = self.wanted.send(());
        match self.answer.recv() {
            Ok(Ok(answer)) => Ok(answer),
            _ => (self.job)(),
        }
    }

    /// Gives it up: waits for the end of what has begun. Blocks.
    pub(crate) fn give_up(self) {
        drop(self.wanted);
        let _ = self.answer.recv();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn items_are_dealt_with_at_a_time_and_answered_in_their_order() {
        // None passes before all are there.
        let barrier = Barrier::new(AT_ONCE);
        let items: Vec<usize> = (0..AT_ONCE).collect();
        let answers = each(&items, |item| {
            barrier.wait();
            if *item == 3 { Err(BackupError::Cancelled) } else { Ok(item * 2) }
        });
        for (item, answer) in answers.iter().enumerate() {
            match answer {
                Ok(answer) => assert_eq!(*answer, item * 2),
                Err(error) => assert!(item == 3 && matches!(error, BackupError::Cancelled), "{item}"),
            }
        }
        let more: Vec<usize> = (0..10 * AT_ONCE).collect();
        let answers: Result<Vec<usize>> = each(&more, |item| Ok(*item)).into_iter().collect();
        assert_eq!(answers.unwrap(), more);
        assert!(each(&[] as &[usize], |item| Ok(*item)).is_empty());
    }

    #[test]
    fn what_is_waited_for_begins_at_once_and_other_work_later() {
        let (told, began) = channel();
        let job = move || {
            told.send(()).unwrap();
            Ok(7)
        };
        let later = || Beside::begin(Duration::MAX, job.clone());
        later().give_up();
        let later = later();
        assert!(began.recv_timeout(Duration::from_millis(50)).is_err());
        assert_eq!(later.wait().unwrap(), 7);
        let soon = Beside::begin(Duration::ZERO, job.clone());
        for _ in 0..2 {
            began.recv().unwrap();
        }
        assert_eq!(soon.wait().unwrap(), 7);
    }

    #[test]
    fn two_things_are_done_at_a_time() {
        let barrier = Barrier::new(2);
        let (first, second) = both(
            || {
                barrier.wait();
                Ok(1)
            },
            || {
                barrier.wait();
                Err::<(), _>(BackupError::Cancelled)
            },
        );
        assert!(matches!((first, second), (Ok(1), Err(BackupError::Cancelled))));
    }
}
