//! Threads for system calls that block.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::answer::{Answer, pair};

/// Threads of the process for all files together: enough to keep a disk's queue busy, few enough to be free.
/// Deeper queues are what the ring is for.
const THREADS_MAX: usize = 16;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    /// As long as callers have operations outstanding: they bound it, since each brings its own buffer.
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

#[derive(Default)]
struct Pool {
    queue: Mutex<Queue>,
    work: Condvar,
}

static POOL: LazyLock<Pool> = LazyLock::new(Pool::default);

/// Runs `job` on a thread of the pool, started if none is idle and the limit allows. Jobs start in the order
/// of their calls. Dropping the answer does not stop the job.
pub(crate) fn run<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> Answer<T> {
    let (sender, answer) = pair();
    POOL.push(Box::new(move || sender.send(job())));
    answer
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&'static self, job: Job) {
        let mut queue = self.lock();
        queue.jobs.push_back(job);
        // An idle thread counts once for each job that waits for it.
        if queue.idle < queue.jobs.len() && queue.threads < THREADS_MAX {
            let name = format!("file-io-{}", queue.threads);
            match thread::Builder::new().name(name).spawn(|| self.work()) {
                Ok(_) => queue.threads += 1,
                Err(_) if queue.threads > 0 => {}
                Err(_) => {
                    // Not one thread to be had: slow is better than never.
                    let jobs = std::mem::take(&mut queue.jobs);
                    drop(queue);
                    return jobs.into_iter().for_each(|job| job());
                }
            }
        }
        drop(queue);
        self.work.notify_one();
    }

    fn work(&self) {
        let mut queue = self.lock();
        loop {
            let Some(job) = queue.jobs.pop_front() else {
                queue.idle += 1;
                queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
                continue;
            };
            drop(queue);
            // A job that panics drops its sender, which answers; the thread lives on.
            let _ = catch_unwind(AssertUnwindSafe(job));
            queue = self.lock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Barrier};

    #[tokio::test]
    async fn jobs_run_side_by_side_up_to_the_limit() {
        // Only if all run at once do any get past the barrier.
        let barrier = Arc::new(Barrier::new(THREADS_MAX));
        let jobs = (0..THREADS_MAX).map(|index| {
            let barrier = Arc::clone(&barrier);
            run(move || {
                barrier.wait();
                index
            })
        });
        for (index, job) in jobs.collect::<Vec<_>>().into_iter().enumerate() {
            assert_eq!(job.await, Some(index));
        }
        let many: Vec<_> = (0..1000).map(|index| run(move || index)).collect();
        for (index, job) in many.into_iter().enumerate() {
            assert_eq!(job.await, Some(index));
        }
        assert!(POOL.lock().threads <= THREADS_MAX);
    }

    #[tokio::test]
    async fn a_job_that_panics_answers_none_and_costs_no_thread() {
        for _ in 0..2 * THREADS_MAX {
            assert_eq!(run(|| std::panic::resume_unwind(Box::new("gone"))).await, None::<()>);
        }
        assert_eq!(run(|| 1).await, Some(1));
    }
}
