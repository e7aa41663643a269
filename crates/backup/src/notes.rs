//! Notes of verification: which points were found whole, and what was found damaged, until it is healed.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::folder::{Folder, read_or_none, write_whole};
use crate::manifest::seal;
use crate::point_id::PointId;

/// Name of the file of [`Notes`].
pub const NOTES: &str = "checks.json";
/// Most bytes of it: damage of 100,000 leaves, each 100 bytes.
const NOTES_MAX: u64 = 16 << 20;
/// Damaged leaves that are noted for one point; a point with more is not healed leaf by leaf.
pub(crate) const LEAVES_NOTED_MAX: usize = 100_000;

/// Something of a point that is damaged.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Damage {
    /// A leaf: its unit, and its index among the unit's 16.
    Leaf {
        /// The point whose file holds it.
        point: PointId,
        /// Unit of 1 MiB.
        unit: u32,
        /// Leaf of 64 KiB in it.
        leaf: u8,
    },
    /// A file beside its leaves, or a whole point.
    Point {
        /// The point.
        point: PointId,
        /// Description of the damage.
        what: String,
    },
}

impl Damage {
    /// The point that it is of.
    pub fn point(&self) -> PointId {
        match self {
            Self::Leaf { point, .. } | Self::Point { point, .. } => *point,
        }
    }
}

/// Findings of verification.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notes {
    /// Points that were found whole, all of their leaves and all below.
    pub verified: Vec<PointId>,
    /// Known damage.
    pub damage: Vec<Damage>,
}

impl Notes {
    /// Reads them. Notes that are missing or damaged are none: they are made again by the next verification.
    ///
    /// # Errors
    ///
    /// Where they cannot be read now: what is in them must not be lost.
    pub fn load(folder: &dyn Folder) -> Result<Self> {
        read_or_none(folder, NOTES, NOTES_MAX)
    }

    /// Writes them, durably. The caller holds the lease.
    ///
    /// # Errors
    ///
    /// What the folder says.
    pub fn store(&self, folder: &dyn Folder) -> Result<()> {
        write_whole(folder, NOTES, &seal(self))?;
        folder.sync().map_err(crate::BackupError::folder("writing", &folder.show(NOTES)))
    }

    /// Points of which a file is damaged as a whole, and how.
    pub(crate) fn broken(&self) -> impl Iterator<Item = (PointId, &str)> {
        self.damage.iter().filter_map(|damage| match damage {
            Damage::Point { point, what } => Some((*point, what.as_str())),
            Damage::Leaf { .. } => None,
        })
    }
}
