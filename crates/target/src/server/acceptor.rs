//! Accepting connections, and handing them to cores.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::shared::Shared;
use crate::worker::Worker;

/// Connections that have to make place for newer ones and have not ended yet: with more of them nobody is accepted.
/// Waiting for each would let a crowd fill the kernel's queue, where whoever means well waits as well.
const LEAVING_MAX: usize = 32;
/// How long the oldest of them is waited for.
const LEAVING_TIME: Duration = Duration::from_secs(1);
/// Pause after an error of `accept`, such as too many open files: it would come again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The thread that accepts. It ends when this is dropped.
pub(super) struct Acceptor {
    thread: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Acceptor {
    pub(super) fn start(
        listeners: Vec<std::net::TcpListener>,
        shared: &Arc<Shared>,
        workers: &Arc<[Worker]>,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listeners = {
            let _context = runtime.enter();
            listeners.into_iter().map(TcpListener::from_std).collect::<io::Result<Vec<_>>>()?
        };
        let (stop, stopped) = oneshot::channel();
        let (shared, workers) = (Arc::clone(shared), Arc::clone(workers));
        let join = thread::Builder::new().name("lunway-accept".to_owned()).spawn(move || {
            for listener in listeners {
                runtime.spawn(accept(listener, Arc::clone(&shared), Arc::clone(&workers)));
            }
            // Ends with an error, when the sender is dropped.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self { thread: Some((stop, join)) })
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        if let Some((stop, join)) = self.thread.take() {
            drop(stop);
            let _ = join.join();
        }
    }
}

/// Accepts until the runtime ends.
async fn accept(listener: TcpListener, shared: Arc<Shared>, workers: Arc<[Worker]>) {
    let mut leaving = VecDeque::new();
    loop {
        let accepted = listener.accept().await.and_then(|(stream, peer)| Ok((stream.into_std()?, peer)));
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                shared
                    .reject_log
                    .info(|suppressed| tracing::warn!(suppressed, "cannot accept a connection: {error}"));
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some((ticket, crowded)) = shared.registry.enter() else { return };
        if let Some(worker) = workers.iter().min_by_key(|worker| worker.connections()) {
            worker.serve(stream, peer, ticket, Arc::clone(&shared));
        }
        leaving.extend(crowded);
        if leaving.len() > LEAVING_MAX
            && let Some(oldest) = leaving.pop_front()
        {
            let _ = tokio::time::timeout(LEAVING_TIME, oldest.ended()).await;
        }
    }
}
