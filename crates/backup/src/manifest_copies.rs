//! The two copies of a manifest: made, filled, and given their names, the second of which makes a point.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{BackupError, Result};
use crate::folder::{Folder, Unnamed};
use crate::manifest::{Manifest, manifest_names};
use crate::point_files::release;
use crate::threads::{Beside, both, each};

/// Both copies of a point's manifest, which have no names yet.
pub(crate) struct ManifestCopies(Vec<Unnamed>);

impl ManifestCopies {
    /// Makes them, empty.
    fn make(folder: &dyn Folder, stem: &str) -> Result<Self> {
        let copies = each(&manifest_names(stem), |name| Unnamed::begin(folder, name));
        copies.into_iter().collect::<Result<_>>().map(Self)
    }

    /// Writes them, durably.
    pub(crate) fn fill(&self, folder: &dyn Folder, manifest: &Manifest) -> Result<()> {
        let bytes = manifest.to_bytes();
        let look_up = || {
            self.0.iter().for_each(|copy| copy.look_up(folder));
            Ok(())
        };
        let fill = || each(&self.0, |copy| copy.fill(folder, &bytes)).into_iter().collect();
        both(look_up, fill).1
    }

    /// Gives them their names, the first copy last: that rename is the commit. All names that were given before it are
    /// durable before it.
    pub(crate) fn commit(self, folder: &dyn Folder, manifest: &Manifest) -> Result<()> {
        let mut copies = self.0.into_iter().peekable();
        while let Some(copy) = copies.next() {
            let look_up = || {
                if let Some(next) = copies.peek() {
                    next.look_up(folder);
                }
                Ok(())
            };
            let (_, named) = both(look_up, || copy.give_name(folder));
            named?;
            folder.sync().map_err(BackupError::folder("writing", &folder.show(&manifest.stem())))?;
        }
        Ok(())
    }
}

/// Copies that are being made. When this is dropped nothing is made of them any more; what there is, sweeping removes.
pub(crate) struct CopiesBegun(Option<Beside<ManifestCopies>>);

impl CopiesBegun {
    /// Begins to make those of the point with this stem.
    pub(crate) fn new(folder: &Arc<dyn Folder>, stem: String) -> Self {
        let folder = Arc::clone(folder);
        Self(Some(Beside::begin(Duration::ZERO, move || ManifestCopies::make(&*folder, &stem))))
    }

    /// Waits for them. Blocks.
    pub(crate) fn wait(mut self) -> Result<ManifestCopies> {
        self.0.take().map_or(Err(BackupError::Lost), Beside::wait)
    }
}

impl Drop for CopiesBegun {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Beside::give_up);
    }
}

/// Writes both copies of a manifest in place of those that there are, durably.
pub(crate) fn write_manifest(folder: &dyn Folder, manifest: &Manifest) -> Result<()> {
    release_manifests(folder, &manifest.stem());
    let copies = ManifestCopies::make(folder, &manifest.stem())?;
    copies.fill(folder, manifest)?;
    copies.commit(folder, manifest)
}

/// Copies of a manifest that are there may be replaced.
pub(crate) fn release_manifests(folder: &dyn Folder, stem: &str) {
    each(&manifest_names(stem), |name| {
        release(folder, name);
        Ok(())
    });
}
