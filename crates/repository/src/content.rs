//! The content of a point in a repository: what is restored, compared and mounted.

use std::ops::Range;
use std::sync::Arc;

use lunway_backup::{BackupError, Content, LEAVES, Leaf, PointId, Result, leaf_range, units};

use crate::codec::{Id, ZEROES};
use crate::point::RepositoryPoint;
use crate::reader::{EntryError, Reader};
use crate::tree::{NODES, branches, leaves, split};

/// Content of a point.
pub struct PointContent {
    reader: Arc<Reader>,
    point: PointId,
    size: u64,
    /// Ids of its branches: 8 MiB for 64 TiB.
    branches: Vec<Id>,
}

impl PointContent {
    /// Opens a point: its root is read.
    pub(crate) fn open(reader: Arc<Reader>, point: &RepositoryPoint) -> Result<Self> {
        let damaged = |what: String| BackupError::Damaged { point: point.point, what };
        let root = match reader.read(&point.root()) {
            Ok(root) => root,
            Err(error) => return Err(damaged(error.sentence()?)),
        };
        let wanted = branches(units(point.virtual_bytes));
        match split(&root).filter(|ids| ids.len() == wanted as usize) {
            Some(branches) => Ok(Self { reader, point: point.point, size: point.virtual_bytes, branches }),
            None => Err(damaged("its root is not that of a disk of its size".into())),
        }
    }

    /// Ids of its branches.
    pub(crate) fn branches(&self) -> &[Id] {
        &self.branches
    }

    fn damaged(&self, error: EntryError) -> BackupError {
        match error.sentence() {
            Ok(what) => BackupError::Damaged { point: self.point, what },
            Err(error) => error,
        }
    }

    /// The ids of a branch's nodes; zeroes behind the end of the disk.
    pub(crate) fn nodes(&self, branch: u32) -> Result<Vec<Id>> {
        let id = self.branches.get(branch as usize).copied().unwrap_or(ZEROES);
        if id == ZEROES {
            return Ok(vec![ZEROES; NODES as usize]);
        }
        let bytes = self.reader.read_kept(&id).map_err(|error| self.damaged(error))?;
        split(&bytes).filter(|ids| ids.len() == NODES as usize).ok_or_else(|| BackupError::Damaged {
            point: self.point,
            what: "a branch has another length than branches have".into(),
        })
    }
}

impl Content for PointContent {
    fn size(&self) -> u64 {
        self.size
    }

    fn next(&self, unit: u32) -> Result<Option<u32>> {
        let end = units(self.size);
        let mut at = unit;
        while at < end {
            let branch = at / NODES;
            if self.branches.get(branch as usize) != Some(&ZEROES) {
                let nodes = self.nodes(branch)?;
                let held = (at % NODES..NODES).find(|node| nodes[*node as usize] != ZEROES);
                if let Some(node) = held {
                    return Ok(Some(branch * NODES + node).filter(|unit| *unit < end));
                }
            }
            at = (branch + 1) * NODES;
        }
        Ok(None)
    }

    fn unit(&self, unit: u32) -> Result<[Leaf; LEAVES]> {
        let id = match self.branches.get((unit / NODES) as usize) {
            None | Some(&ZEROES) => ZEROES,
            Some(_) => self.nodes(unit / NODES)?[(unit % NODES) as usize],
        };
        if id == ZEROES {
            return Ok([Leaf::Zero; LEAVES]);
        }
        let node = self.reader.read_kept(&id).map_err(|error| self.damaged(error))?;
        leaves(&node).ok_or_else(|| BackupError::Damaged {
            point: self.point,
            what: "a node has another length than nodes have".into(),
        })
    }

    fn leaf_of(&self, bytes: &[u8]) -> Leaf {
        self.reader.codec.leaf(bytes)
    }

    fn read(&self, unit: u32, leaves: Range<usize>, states: &[Leaf; LEAVES], data: &mut [u8]) -> Result<()> {
        let start = leaf_range(unit, leaves.start, self.size).start;
        let (mut ids, mut ranges) = (Vec::new(), Vec::new());
        for leaf in leaves {
            let range = leaf_range(unit, leaf, self.size);
            let range = (range.start - start) as usize..(range.end - start) as usize;
            match states[leaf] {
                Leaf::Zero => data[range].fill(0),
                Leaf::Data(id) => {
                    ids.push(id);
                    ranges.push(range);
                }
            }
        }
        let mut wrong = None;
        let read = self.reader.read_all(&ids, |at, bytes| match bytes.len() == ranges[at].len() {
            true => data[ranges[at].clone()].copy_from_slice(&bytes),
            false => wrong = Some(ranges[at].start),
        });
        let located = |error: BackupError| match error {
            BackupError::Damaged { point, what } => {
                let range = leaf_range(unit, 0, self.size);
                BackupError::Damaged {
                    point,
                    what: format!("{what} (of the mebibyte at offset {})", range.start),
                }
            }
            error => error,
        };
        read.map_err(|error| located(self.damaged(error)))?;
        match wrong {
            None => Ok(()),
            Some(at) => Err(BackupError::Damaged {
                point: self.point,
                what: format!("the leaf at offset {} has another length than leaves have", start + at as u64),
            }),
        }
    }
}

impl PointContent {
    /// A unit that is not all zeroes, the one that `number` falls on.
    pub(crate) fn sample(&self, number: u64) -> Result<Option<u32>> {
        let held = self.branches.iter().filter(|id| **id != ZEROES).count() as u64;
        let Some(nth) = number.checked_rem(held) else {
            return Ok(None);
        };
        let mut all = self.branches.iter().enumerate().filter(|(_, id)| **id != ZEROES);
        let Some((branch, _)) = all.nth(nth as usize) else {
            return Ok(None);
        };
        let first = branch as u32 * NODES;
        let within = (number / held % u64::from(NODES)) as u32;
        Ok(match self.next(first + within)? {
            Some(unit) => Some(unit),
            None => self.next(first)?,
        })
    }
}
