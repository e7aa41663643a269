//! An image as a block device.

use std::sync::{Arc, PoisonError};

use lunway_block::spec::RbdName;
use lunway_block::{
    BlockDevice, BlockError, Buf, Caching, Durability, Extent, Geometry, Identity, Io, Permit,
    ResizeCallback, SharedBuf, Unmap, Zeroing,
};

use crate::RbdOpenError;
use crate::client::{Client, RbdChanges};
use crate::lane::Lane;
use crate::options::RbdOptions;
use crate::renewal::Slot;
use crate::request;

/// An image of a Ceph cluster, or a snapshot of one.
///
/// Opened by [`open`](Self::open), ended by [`close`](BlockDevice::close). Dropped without that, it gives up lock and
/// connection on its own thread once what is under way is answered.
pub struct RbdDevice {
    slot: Arc<Slot>,
}

impl RbdDevice {
    /// Opens an image, on a thread.
    ///
    /// # Errors
    ///
    /// [`RbdOpenError`]: the library or the image is missing, another client writes, or what the cluster said.
    pub async fn open(name: &RbdName, options: &RbdOptions) -> Result<Self, RbdOpenError> {
        let started = Lane::start();
        let lane = started.map_err(|source| RbdOpenError::Failed {
            name: name.to_string(),
            doing: "starting a thread".to_owned(),
            source,
        })?;
        let (own, name_there, options) = (lane.clone(), name.clone(), options.clone());
        // Where the caller waits no longer, the device ends as any that is dropped.
        let opening = lane.io(move || Ok(Slot::open(own, &name_there, &options).map(|slot| Self { slot })));
        let shape =
            |error: BlockError| RbdOpenError::Shape { name: name.to_string(), why: error.to_string() };
        opening.await.map_err(shape)?
    }

    /// Number of the snapshot that the device is, which the image never uses again; `None`: it is no snapshot.
    pub fn snapshot(&self) -> Option<u64> {
        self.slot.now().snapshot
    }

    /// What was written to the image between an older snapshot, by its name and [number](Self::snapshot), and this one,
    /// from `offset` on, for some gigabytes: the device is one of a snapshot. It counts once the last part is there.
    ///
    /// # Errors
    ///
    /// [`BlockError::Unsupported`] for an image that may change; that there is no such snapshot, that it has another
    /// number or is not an older one; what the cluster said.
    pub fn changed_since(
        &self,
        snapshot: &str,
        number: u64,
        offset: u64,
    ) -> Io<Result<RbdChanges, BlockError>> {
        let client = match self.slot.client() {
            Ok(client) => client,
            Err(error) => return Io::err(error),
        };
        if client.snapshot.is_none() {
            return Io::err(BlockError::Unsupported);
        }
        let (there, snapshot) = (Arc::clone(&client), snapshot.to_owned());
        client.lane.io(move || there.changed_since(&snapshot, number, offset))
    }

    /// Ends the client there is, and waits for one that is being made. On its lane.
    fn ending(&self) -> (Arc<Client>, impl FnOnce() -> Result<(), BlockError> + Send + use<>) {
        let client = self.slot.stop();
        client.gate.close();
        let (slot, ends) = (Arc::clone(&self.slot), Arc::clone(&client));
        (client, move || {
            slot.wait();
            ends.end()
        })
    }

    /// A completed write is durable unless librbd keeps writes.
    fn stable(
        client: &Arc<Client>,
        written: Io<Result<(), BlockError>>,
        durability: Durability,
    ) -> Io<Result<(), BlockError>> {
        if durability == Durability::Volatile || !client.shape.volatile_cache {
            return written;
        }
        let client = Arc::clone(client);
        written.then(move |done| match done {
            Ok(()) => request::flush(&client),
            Err(error) => Io::err(error),
        })
    }
}

impl Drop for RbdDevice {
    fn drop(&mut self) {
        let (client, end) = self.ending();
        client.lane.run(move || {
            if let Err(error) = end() {
                tracing::error!(%error, "the image was not closed in order");
            }
        });
    }
}

impl BlockDevice for RbdDevice {
    fn geometry(&self) -> Geometry {
        self.slot.now().geometry()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        let client = match self.slot.client() {
            Ok(client) => client,
            Err(error) => return Io::err(error),
        };
        if let Err(error) = client.geometry().check(offset, buf.len() as u64) {
            return Io::err(error);
        }
        if buf.is_empty() { Io::ok(buf) } else { request::read(&client, offset, buf) }
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        let client = match self.slot.client() {
            Ok(client) => client,
            Err(error) => return Io::err(error),
        };
        if let Err(error) = client.geometry().check_write(offset, data.len() as u64) {
            return Io::err(error);
        }
        if data.is_empty() {
            return Io::ok(());
        }
        let written = request::write(&client, offset, data);
        Self::stable(&client, written, durability)
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        match self.slot.client() {
            Ok(client) => request::flush(&client),
            Err(error) => Io::err(error),
        }
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        match self.geometry().unmap {
            // The library cannot: it would write zeroes.
            Unmap::Ignored => Io::Ready(self.geometry().check_write(offset, len)),
            _ => self.write_zeroes(offset, len, Zeroing::MayUnmap),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        let client = match self.slot.client() {
            Ok(client) => client,
            Err(error) => return Io::err(error),
        };
        if let Err(error) = client.geometry().check_write(offset, len) {
            return Io::err(error);
        }
        let flags = if zeroing == Zeroing::KeepAllocated { request::THICK } else { 0 };
        if len == 0 { Io::ok(()) } else { request::write_zeroes(&client, offset, len, flags) }
    }

    fn extents(&self, offset: u64, len: u64, count: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        let client = match self.slot.client() {
            Ok(client) => client,
            Err(error) => return Io::err(error),
        };
        if let Err(error) = client.geometry().check(offset, len) {
            return Io::err(error);
        }
        let there = Arc::clone(&client);
        client.lane.io(move || there.extents(offset, len, count))
    }

    fn confirm(&self) -> Io<Result<(), BlockError>> {
        let client = match self.slot.client() {
            Ok(client) => client,
            Err(error) => return Io::err(error),
        };
        let there = Arc::clone(&client);
        client.lane.io(move || there.check_presence())
    }

    fn resize(&self, size: u64, permit: Permit) -> Io<Result<(), BlockError>> {
        let client = match self.slot.client() {
            Ok(client) => client,
            Err(error) => return Io::err(error),
        };
        if client.shape.read_only {
            return Io::err(BlockError::ReadOnly);
        }
        let there = Arc::clone(&client);
        client.lane.io(move || there.resize(size, &permit))
    }

    fn close(&self) -> Io<Result<(), BlockError>> {
        let (client, end) = self.ending();
        client.lane.ending(end)
    }

    fn identity(&self) -> Identity {
        self.slot.now().identity.clone()
    }

    fn backing(&self) -> Option<String> {
        self.slot.fault()
    }

    fn caching(&self) -> Caching {
        if self.slot.now().shape.volatile_cache { Caching::WriteBack } else { Caching::PastPageCache }
    }

    fn on_resize(&self, callback: ResizeCallback) {
        let listeners = &self.slot.listeners;
        listeners.resized.lock().unwrap_or_else(PoisonError::into_inner).push(callback);
    }
}
