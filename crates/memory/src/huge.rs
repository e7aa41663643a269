//! Huge pages where data is dense.

use std::collections::VecDeque;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::setpriority_process;

use crate::chunk::ThpMode;
use crate::table::Table;

/// Regions that wait to be put together; the next ones stay as they are. 32 GiB.
const WAITING_MAX: usize = 16_384;
/// The thread rests this many times as long as it worked, so that it takes a fifth of a core: a disk of 1 GiB that is
/// filled is done after 1–2 s, and in a virtual machine that the host gives its memory first, after a minute.
const REST: u32 = 4;
/// But no longer than this: a region that took more than a quarter of it waited for others' work.
const REST_MAX: Duration = Duration::from_millis(200);
/// Priority of the thread, the lowest (`setpriority(2)`): whatever else there is to do goes first.
const NICE: i32 = 19;
/// Idle time after which the thread ends.
const IDLE_TIME: Duration = Duration::from_secs(5);

#[derive(Default)]
struct Queue {
    regions: VecDeque<(Weak<Table>, usize)>,
    running: bool,
}

static QUEUE: LazyLock<Mutex<Queue>> = LazyLock::new(Mutex::default);
static WORK: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, Queue> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that all chunks of a region hold data: soon after, a thread puts its pages together to a huge one
/// (`MADV_COLLAPSE`), which copies 2 MiB and takes 0.2–0.5 ms, or 25 ms in a virtual machine whose host has no such
/// page at hand. A region is huge only once it is full, so no memory is taken that data does not fill.
pub(crate) fn is_dense(table: Weak<Table>, region: usize) {
    if ThpMode::of_this_machine() != ThpMode::Advised {
        return;
    }
    let mut queue = lock();
    if queue.regions.len() >= WAITING_MAX {
        return;
    }
    queue.regions.push_back((table, region));
    if !queue.running {
        queue.running = thread::Builder::new().name("ram-huge-pages".to_owned()).spawn(work).is_ok();
    }
    drop(queue);
    WORK.notify_one();
}

fn work() {
    // Of this thread alone.
    let _ = setpriority_process(None, NICE);
    let mut queue = lock();
    loop {
        if let Some((table, region)) = queue.regions.pop_front() {
            drop(queue);
            if let Some(table) = table.upgrade() {
                let begun = Instant::now();
                // Where there is no memory in one piece it stays as it is.
                let _ = table.collapse(region);
                drop(table);
                thread::sleep((begun.elapsed() * REST).min(REST_MAX));
            }
            queue = lock();
            continue;
        }
        let waited = WORK.wait_timeout(queue, IDLE_TIME).unwrap_or_else(PoisonError::into_inner);
        queue = waited.0;
        if waited.1.timed_out() && queue.regions.is_empty() {
            queue.running = false;
            return;
        }
    }
}
