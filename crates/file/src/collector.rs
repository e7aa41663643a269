//! Collector of completions from a ring.

use std::sync::Arc;
use std::thread;

use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

use crate::ring::{Completions, PAUSE, Ring};

/// Starts a collector for `ring`, which has operations under way and no task that waits for them.
///
/// In a runtime (which must have its I/O driver, as all do that carry sockets) it is a task that waits for the ring as
/// others wait for sockets: a completion wakes the thread that wants it, and no other. A thread in between cost ten
/// microseconds for each operation at depth 1, and a quarter of the rate at depth 16. Elsewhere, and for what a runtime
/// leaves behind when it ends, it is a thread that lives until nothing is under way.
pub(crate) fn start(ring: &Arc<Ring>) {
    let Ok(runtime) = Handle::try_current() else { return on_thread(Arc::clone(ring)) };
    match Completions::of(ring) {
        Ok(completions) => drop(runtime.spawn(Task(completions).run())),
        Err(error) => {
            tracing::debug!(%error, "no task can wait for a ring");
            on_thread(Arc::clone(ring));
        }
    }
}

/// Sees to it that the kernel takes what it had no memory for: a thread offers it again until it does. Without a thread
/// to be had, the caller's runtime does, or the caller waits.
pub(crate) fn offer_later(ring: &Arc<Ring>) {
    let again = Arc::clone(ring);
    let offering = move || {
        while !again.offer_again() {
            thread::sleep(PAUSE);
        }
    };
    if thread::Builder::new().name("file-ring".to_owned()).spawn(offering.clone()).is_ok() {
        return;
    }
    let Ok(runtime) = Handle::try_current() else { return offering() };
    let ring = Arc::clone(ring);
    runtime.spawn(async move {
        while !ring.offer_again() {
            tokio::task::yield_now().await;
        }
    });
}

/// Without a thread to be had, the caller waits.
fn on_thread(ring: Arc<Ring>) {
    let work = {
        let ring = Arc::clone(&ring);
        move || collect_all(&ring)
    };
    if thread::Builder::new().name("file-ring".to_owned()).spawn(work).is_err() {
        collect_all(&ring);
    }
}

fn collect_all(ring: &Arc<Ring>) {
    while ring.is_needed() {
        ring.wait();
        ring.collect();
    }
}

/// Collects as long as its runtime lives.
struct Task(AsyncFd<Completions>);

impl Task {
    async fn run(self) {
        while let Ok(mut ready) = self.0.readable().await {
            ready.get_inner().ring().collect();
            ready.clear_ready();
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let ring = self.0.get_ref().ring();
        if ring.is_needed() {
            on_thread(Arc::clone(ring));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::{Handle, Placement};
    use lunway_block::Buf;
    use std::io::Write;
    use tokio::runtime::Builder;

    fn file(len: usize) -> Arc<Handle> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; len]).unwrap();
        Arc::new(Handle::new(file.into(), false, Placement::Local).unwrap().0)
    }

    #[test]
    fn what_a_runtime_leaves_under_way_is_still_answered() {
        if Ring::allowed().is_err() {
            return;
        }
        let file = file(1 << 20);
        for _ in 0..20 {
            let first = Builder::new_current_thread().enable_all().build().unwrap();
            let ring = Ring::here().unwrap();
            let answers: Vec<_> = first.block_on(async {
                (0..300).map(|_| ring.read(1, Arc::clone(&file), 0, Buf::for_overwrite(1 << 16), 0)).collect()
            });
            drop(first);
            let second = Builder::new_current_thread().enable_all().build().unwrap();
            for answer in answers {
                let buf = second.block_on(answer).unwrap().unwrap();
                assert!(buf.iter().all(|byte| *byte == 7));
            }
            // The ring works on, with a collector of the next runtime.
            let answer = second
                .block_on(async { ring.read(1, Arc::clone(&file), 0, Buf::for_overwrite(512), 0).await });
            assert!(answer.unwrap().is_ok());
        }
    }

    #[test]
    fn a_thread_that_ends_takes_nothing_with_it() {
        if Ring::allowed().is_err() {
            return;
        }
        let file = file(1 << 20);
        for _ in 0..20 {
            let file = Arc::clone(&file);
            let answers: Vec<_> = thread::spawn(move || {
                let ring = Ring::here().unwrap();
                (0..200)
                    .map(|_| ring.read(1, Arc::clone(&file), 0, Buf::for_overwrite(1 << 16), 0))
                    .collect::<Vec<_>>()
            })
            .join()
            .unwrap();
            let runtime = Builder::new_current_thread().build().unwrap();
            for answer in answers {
                assert_eq!(runtime.block_on(answer).unwrap().unwrap().len(), 1 << 16);
            }
        }
    }
}
