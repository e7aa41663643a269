//! Worker: one core that serves connections.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lunway_block::hand_out_time_slices;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::driver::Connection;
use crate::registry::Ticket;
use crate::shared::Shared;

/// Turns of connections after which the kernel is asked for news of their sockets (61 in the runtime of itself). A turn
/// of long commands takes a tenth of a millisecond, so that news waits for 1 ms at most; asking takes less than 1 µs,
/// where a turn of 4 KiB commands takes 10.
const TURNS_PER_POLL: u32 = 8;
/// Maximum time for a thread to end: nothing in it takes time but a device that blocks it.
const STOP_TIME: Duration = Duration::from_secs(2);
/// Polling interval of the end of a thread.
const STOP_POLL: Duration = Duration::from_millis(1);

/// A thread, pinned to a core, with a runtime of its own. A connection is given to it once and stays: all that a
/// session needs stays in one core's cache, and nothing of it is ever woken across cores.
#[derive(Debug)]
pub(crate) struct Worker {
    runtime: Handle,
    connections: Arc<AtomicUsize>,
    thread: Option<Thread>,
}

#[derive(Debug)]
struct Thread {
    /// The thread ends when this is dropped.
    stop: oneshot::Sender<()>,
    join: JoinHandle<()>,
}

/// The cores that this process may use, by number.
pub(crate) fn allowed_cores() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect(),
        Err(_) => (0..thread::available_parallelism().map_or(1, usize::from)).collect(),
    }
}

impl Worker {
    /// Starts number `index`, on `core`.
    pub(crate) fn start(index: usize, core: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().event_interval(TURNS_PER_POLL).build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let join = thread::Builder::new().name(format!("lunway-core-{index}")).spawn(move || {
            let mut set = CpuSet::new();
            set.set(core);
            if let Err(error) = sched_setaffinity(None, &set) {
                tracing::warn!(core, "cannot stay on this core: {error}");
            }
            let _slices = runtime.spawn(hand_out_time_slices(tokio::task::yield_now));
            // Ends with an error, when the sender is dropped.
            let _ = runtime.block_on(stopped);
            // Blocking operations of connections that were given up are not waited for.
            runtime.shutdown_background();
        })?;
        Ok(Self {
            runtime: handle,
            connections: Arc::new(AtomicUsize::new(0)),
            thread: Some(Thread { stop, join }),
        })
    }

    /// Connections that it serves now.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Serves a connection to its end.
    pub(crate) fn serve(&self, stream: TcpStream, peer: SocketAddr, ticket: Ticket, shared: Arc<Shared>) {
        let (counted, on_core) = (Counted::new(&self.connections), Arc::clone(&self.connections));
        self.runtime.spawn(async move {
            let _counted = counted;
            Connection::serve(stream, peer, ticket, shared, on_core).await;
        });
    }

    /// Ends the thread and with it all connections that are left. A thread that does not end in time, because a device
    /// keeps it, is left to the end of the process.
    pub(crate) fn stop(&mut self) {
        if let Some(Thread { stop, join }) = self.thread.take() {
            drop(stop);
            let by = Instant::now() + STOP_TIME;
            while !join.is_finished() && Instant::now() < by {
                thread::sleep(STOP_POLL);
            }
            if join.is_finished() {
                let _ = join.join();
            }
        }
    }
}

/// Counts while it lives.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
