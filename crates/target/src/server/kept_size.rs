//! Kept size of a raw image: bytes that it had when it was served last. A file that was cut while it was not served
//! looks like a smaller disk, so nothing else would tell.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lunway_block::size::HumanSize;
use lunway_block::spec::DeviceSpec;
use lunway_scsi::StateStore;
use tokio::runtime::Handle;

use super::lun::identity;
use crate::config::LunConfig;

/// Name of the item in the state store. Its bytes are the size, 8 bytes big-endian, and the path of the image, as
/// another file under the same number is another disk.
const ITEM: &str = "size";

/// Size of a logical unit's raw image as it is kept in the state directory.
///
/// It is compared when the image is opened ([`of`](Self::of)), kept when that is served ([`keep`](Self::keep)) and when
/// it is resized, and forgotten with the logical unit. The kept size of an image that [is shorter](Self::shrunk_from)
/// stays, also over restarts, until somebody resizes it, be it to the size that it has.
pub(super) struct KeptSize {
    store: Arc<dyn StateStore>,
    owner: String,
    path: Vec<u8>,
    kept: Mutex<Kept>,
}

#[derive(Clone, Copy)]
struct Kept {
    /// On record; `None`: nothing, or the size of another file.
    recorded: Option<u64>,
    /// Of the image that is open.
    present: u64,
}

impl KeptSize {
    /// Compares an image that was opened with what is kept of it. `None`: it is no raw image. Blocks.
    pub(super) fn of(
        store: Arc<dyn StateStore>,
        target: &str,
        lun: &LunConfig,
        present: u64,
    ) -> Option<Self> {
        let DeviceSpec::File { path, .. } = lun.device.spec().leaf() else { return None };
        let (owner, path) = (identity(target, lun.id), path.as_os_str().as_encoded_bytes().to_vec());
        let loaded = store.load(&owner, ITEM).unwrap_or_else(|error| {
            // The disk itself is whole: it is served all the same.
            tracing::warn!("{error}");
            None
        });
        let recorded = loaded.and_then(|bytes| {
            let (size, of) = bytes.split_first_chunk()?;
            (of == path).then(|| u64::from_be_bytes(*size))
        });
        Some(Self { store, owner, path, kept: Mutex::new(Kept { recorded, present }) })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that the image had when it was served last, if it was longer then.
    pub(super) fn shrunk_from(&self) -> Option<u64> {
        let Kept { recorded, present } = *self.kept();
        recorded.filter(|recorded| *recorded > present)
    }

    /// Warning with its remedy, a sentence; `None`: it is not shorter than it was.
    pub(super) fn warning(&self) -> Option<String> {
        let (before, Kept { present, .. }) = (self.shrunk_from()?, *self.kept());
        let path = String::from_utf8_lossy(&self.path);
        Some(format!(
            "{path} has {}, and had {} when it was served last: it was made shorter meanwhile, and what was behind its end is \
             lost; restore it from a backup, or, if that was meant, resize it to the size that it has (`lunway lun resize`, {present} \
             bytes)",
            HumanSize(present),
            HumanSize(before)
        ))
    }

    /// The image is served: keeps its size, unless it is shorter than it was.
    pub(super) fn keep(&self, runtime: &Handle) {
        let Kept { recorded, present } = *self.kept();
        if recorded.is_none_or(|recorded| recorded < present) {
            self.confirm(present, runtime);
        }
    }

    /// Keeps the size that a user gave to the image, without waiting for the result.
    pub(super) fn confirm(&self, size: u64, runtime: &Handle) {
        *self.kept() = Kept { recorded: Some(size), present: size };
        self.save([&size.to_be_bytes()[..], &self.path].concat(), runtime);
    }

    /// The logical unit is removed for good.
    pub(super) fn forget(&self, runtime: &Handle) {
        self.save(Vec::new(), runtime);
    }

    fn save(&self, bytes: Vec<u8>, runtime: &Handle) {
        let saved = self.store.save(&self.owner, ITEM, bytes);
        runtime.spawn(async move {
            if let Err(error) = saved.await {
                tracing::warn!("{error}");
            }
        });
    }
}

/// Forgets the size of a logical unit that was removed while it was offline.
pub(super) async fn forget(store: &dyn StateStore, target: &str, lun: u16) {
    if let Err(error) = store.save(&identity(target, lun), ITEM, Vec::new()).await {
        tracing::warn!("{error}");
    }
}
