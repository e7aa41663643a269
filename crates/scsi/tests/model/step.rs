//! What can happen, written so that it can be done again without the generator.

use std::collections::BTreeSet;
use std::fmt;

use crate::disk::Disk;
use crate::random::Random;

/// Data-out.
#[derive(Clone)]
pub(crate) enum Payload {
    /// Bytes as they are: parameter lists.
    Raw(Vec<u8>),
    /// Zeroes.
    Zeroes(usize),
    /// So many bytes that nobody else writes.
    Stamp { seed: u64, len: usize },
    /// What the medium holds when the command comes, one byte of it changed where `flip` says so, and a stamp of the
    /// same length behind it for those who write as well.
    Medium { lba: u64, blocks: u64, flip: Option<usize>, write: Option<u64> },
}

impl Payload {
    pub(crate) const NOTHING: Self = Self::Zeroes(0);

    /// The bytes, in front of a disk in this state.
    pub(crate) fn bytes(&self, disk: Option<&Disk>) -> Vec<u8> {
        match self {
            Self::Raw(bytes) => bytes.clone(),
            Self::Zeroes(len) => vec![0; *len],
            Self::Stamp { seed, len } => {
                let mut bytes = vec![0; *len];
                Random::new(*seed).fill(&mut bytes);
                bytes
            }
            Self::Medium { lba, blocks, flip, write } => {
                let Some(disk) = disk else { return Vec::new() };
                let first = (*lba).min(disk.blocks());
                let count = (*blocks).min(disk.blocks() - first);
                let mut bytes = disk.read(first, count).to_vec();
                // As many as were asked for, although the disk may have shrunk.
                bytes.resize(*blocks as usize * disk.sector, 0);
                let len = bytes.len();
                if let Some(at) = flip.filter(|_| len > 0) {
                    bytes[at % len] ^= 1;
                }
                if let Some(seed) = write {
                    bytes.resize(2 * len, 0);
                    Random::new(*seed).fill(&mut bytes[len..]);
                }
                bytes
            }
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Raw(bytes) => write!(f, "{bytes:02x?}"),
            Self::Zeroes(len) => write!(f, "{len} zeroes"),
            Self::Stamp { seed, len } => write!(f, "{len} bytes of stamp {seed:x}"),
            Self::Medium { lba, blocks, flip, write } => {
                write!(f, "what is at {lba}+{blocks}, flipped at {flip:?}, then stamp {write:x?}")
            }
        }
    }
}

/// Task management functions that touch more than commands.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Management {
    AbortTaskSet,
    ClearTaskSet,
    LogicalUnitReset,
    TargetReset,
    /// The transport dropped commands for another nexus's CLEAR TASK SET.
    Cleared,
}

#[derive(Clone)]
pub(crate) enum Step {
    Command {
        nexus: usize,
        lun: u16,
        cdb: Vec<u8>,
        data: Payload,
    },
    Manage {
        nexus: usize,
        lun: u16,
        what: Management,
    },
    /// The nexus goes, and its initiator comes back.
    Reopen {
        nexus: usize,
    },
    Attach {
        lun: u16,
    },
    Detach {
        lun: u16,
    },
    Resize {
        lun: u16,
        blocks: u64,
    },
    View {
        nexus: usize,
        luns: Option<BTreeSet<u16>>,
        read_only: bool,
    },
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command { nexus, lun, cdb, data } => {
                write!(f, "nexus {nexus} to LUN {lun}: {cdb:02x?}, {data:?}")
            }
            Self::Manage { nexus, lun, what } => write!(f, "nexus {nexus} to LUN {lun}: {what:?}"),
            Self::Reopen { nexus } => write!(f, "nexus {nexus} goes and comes back"),
            Self::Attach { lun } => write!(f, "LUN {lun} is attached"),
            Self::Detach { lun } => write!(f, "LUN {lun} is detached"),
            Self::Resize { lun, blocks } => write!(f, "LUN {lun} gets {blocks} blocks"),
            Self::View { nexus, luns, read_only } => {
                write!(f, "nexus {nexus} sees {luns:?}, read-only: {read_only}")
            }
        }
    }
}
