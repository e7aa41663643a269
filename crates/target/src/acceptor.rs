//! Accepting connections, and giving each to a core.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;

use crate::portal::Accept;
use crate::shared::Shared;
use crate::worker::Worker;

/// Connections that have to make place for newer ones and have not ended yet: with more of them no connection is
/// accepted. Waiting for each would let a crowd fill the kernel's queue, where well-behaved initiators wait as well.
const LEAVING_MAX: usize = 32;
/// Maximum wait for the oldest of them.
const LEAVING_TIME: Duration = Duration::from_secs(1);
/// Pause after an error of `accept`, such as too many open files: it would come again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Takes connections from sockets that listen. Each goes to the core that has the fewest, and stays there.
#[derive(Debug)]
pub(crate) struct Acceptor {
    pub(crate) shared: Arc<Shared>,
    pub(crate) workers: Arc<[Worker]>,
}

impl Accept for Acceptor {
    fn accept(self: Arc<Self>, listener: Arc<TcpListener>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move { self.run(&listener).await })
    }
}

impl Acceptor {
    async fn run(&self, listener: &TcpListener) {
        let Self { shared, workers } = self;
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
            let Some((ticket, crowded)) = shared.registry.enter(peer.ip()) else { return };
            if let Some(worker) = workers.iter().min_by_key(|worker| worker.connections()) {
                worker.serve(stream, peer, ticket, Arc::clone(shared));
            }
            leaving.extend(crowded);
            if leaving.len() > LEAVING_MAX
                && let Some(oldest) = leaving.pop_front()
            {
                let _ = tokio::time::timeout(LEAVING_TIME, oldest.ended()).await;
            }
        }
    }
}
