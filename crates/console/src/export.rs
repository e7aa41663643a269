//! Snapshots over NBD: each on a Unix socket of its own.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use lunway_nbd::{DirtyBitmaps, Export, NbdAddress, NbdServer};
use lunway_target::{Server, SnapshotHandle};
use tokio::sync::{oneshot, watch};

use crate::epoch_bitmaps::EpochBitmaps;
use crate::error::ApiError;

/// Time limit for the first reader of a snapshot that lasts as long as it is read.
const COME_TIME: Duration = Duration::from_secs(60);

/// The sockets of all snapshots.
#[derive(Debug, Default)]
pub(crate) struct Exports(Mutex<BTreeMap<String, Served>>);

/// Served snapshot, on a thread of its own: it ends when this is dropped.
#[derive(Debug)]
struct Served {
    socket: PathBuf,
    _stop: oneshot::Sender<()>,
}

impl Exports {
    fn served(&self) -> MutexGuard<'_, BTreeMap<String, Served>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The socket of a snapshot.
    pub(crate) fn socket(&self, name: &str) -> Option<PathBuf> {
        self.served().get(name).map(|served| served.socket.clone())
    }

    /// Serves no client any longer that is not in the list.
    pub(crate) fn keep(&self, names: &[String]) {
        self.served().retain(|name, _| names.contains(name));
    }

    pub(crate) fn end(&self, name: &str) {
        self.served().remove(name);
    }

    /// Begins to serve a snapshot. `while_read`: it is deleted when its last reader has gone, or none came within a
    /// minute.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        server: &Server,
        name: &str,
        while_read: bool,
    ) -> Result<(), ApiError> {
        let snapshot = server.snapshot(name).await.map_err(crate::error::refused)?;
        let device = snapshot.device();
        let socket = server.snapshot_socket(name);
        let socket = socket.ok_or_else(|| ApiError::internal("there is no state directory".to_owned()))?;
        let socket = std::path::absolute(&socket).unwrap_or(socket);
        let (stop, stopped) = oneshot::channel();
        let (bound, is_bound) = oneshot::channel();
        let bitmaps =
            snapshot.changes().map(|changes| Arc::new(EpochBitmaps(changes)) as Arc<dyn DirtyBitmaps>);
        let description = "a snapshot of a logical unit".to_owned();
        let export = Export { name: name.to_owned(), description, device, bitmaps };
        let serving = Serving {
            address: NbdAddress::Unix(socket.clone()),
            name: name.to_owned(),
            snapshot,
            exports: Arc::downgrade(self),
            while_read,
        };
        let thread = thread::Builder::new().name("snapshot".to_owned());
        let started = thread.spawn(move || serving.run(export, bound, stopped));
        started.map_err(|error| ApiError::internal(format!("no thread for the snapshot: {error}")))?;
        let bound = is_bound.await.unwrap_or_else(|_| Err("its thread ended".to_owned()));
        bound.map_err(|why| ApiError::internal(format!("the snapshot cannot be served: {why}")))?;
        self.served().insert(name.to_owned(), Served { socket, _stop: stop });
        Ok(())
    }
}

/// State that the thread of one snapshot needs.
struct Serving {
    address: NbdAddress,
    name: String,
    snapshot: SnapshotHandle,
    exports: Weak<Exports>,
    while_read: bool,
}

impl Serving {
    fn run(self, export: Export, bound: oneshot::Sender<Result<(), String>>, stopped: oneshot::Receiver<()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => return drop(bound.send(Err(error.to_string()))),
        };
        runtime.block_on(async {
            let server = match NbdServer::bind(&self.address, export).await {
                Ok(server) => server,
                Err(error) => return drop(bound.send(Err(error.to_string()))),
            };
            let connections = server.connections();
            let _ = bound.send(Ok(()));
            let while_read = self.while_read;
            let end = async move {
                tokio::select! {
                    // Ends with an error, when the sender is dropped.
                    _ = stopped => {}
                    () = unread(connections), if while_read => {}
                }
            };
            if let Err(error) = server.serve(end).await {
                tracing::warn!("serving a snapshot ended: {error}");
            }
            if while_read {
                self.snapshot.delete();
            }
            if let Some(exports) = self.exports.upgrade() {
                exports.end(&self.name);
            }
        });
        runtime.shutdown_background();
    }
}

/// Until the last reader has gone, or none came in time.
async fn unread(mut connections: watch::Receiver<usize>) {
    let has_come =
        matches!(tokio::time::timeout(COME_TIME, connections.wait_for(|count| *count > 0)).await, Ok(Ok(_)));
    if has_come {
        let _ = connections.wait_for(|count| *count == 0).await;
    }
}
