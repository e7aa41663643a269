//! Epochs of change tracking that were closed for a destination: so that a run that was killed leaves none behind.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::folder::{Folder, read_or_none, write_whole};
use crate::manifest::seal;

/// Name of the file of [`Epochs`].
pub const EPOCHS: &str = "epochs.json";
/// Most bytes of it: a tracked disk keeps 64 epochs, of 100 bytes each here.
const EPOCHS_BYTES_MAX: u64 = 1 << 20;

/// Epochs that were closed for the points of a destination, and were not released yet.
///
/// The name of an epoch is added **before** it is closed, and taken out after it was released: what is in the list may
/// be closed, what is not in it is not, for this destination. Only the newest point's is of use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Epochs {
    /// Their names.
    pub closed: Vec<String>,
}

impl Epochs {
    /// Reads them. A list that is missing or damaged is empty: what was in it stays with the source until somebody
    /// releases it.
    ///
    /// # Errors
    ///
    /// Where it cannot be read now: what is in it must not be lost.
    pub fn load(folder: &dyn Folder) -> Result<Self> {
        read_or_none(folder, EPOCHS, EPOCHS_BYTES_MAX)
    }

    /// Writes them, durably. The caller holds the lease.
    ///
    /// # Errors
    ///
    /// What the folder says.
    pub fn store(&self, folder: &dyn Folder) -> Result<()> {
        write_whole(folder, EPOCHS, &seal(self))?;
        folder.sync().map_err(crate::BackupError::folder("writing", &folder.show(EPOCHS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::HostFolder;

    #[test]
    fn a_list_is_read_as_it_was_written_and_a_damaged_one_is_empty() {
        let host = tempfile::tempdir().unwrap();
        let folder = HostFolder::open(host.path()).unwrap();
        assert_eq!(Epochs::load(&folder).unwrap(), Epochs::default());
        let epochs = Epochs { closed: vec!["0f".repeat(16), "1e".repeat(16)] };
        epochs.store(&folder).unwrap();
        assert_eq!(Epochs::load(&folder).unwrap(), epochs);
        let path = host.path().join(EPOCHS);
        let text = std::fs::read_to_string(&path).unwrap().replace("0f0f", "0f0e");
        std::fs::write(&path, text).unwrap();
        assert_eq!(Epochs::load(&folder).unwrap(), Epochs::default());
    }
}
