//! The superblock: geometry, features, whether the volume was unmounted.

use super::FSCK;
use super::checksum::{START, crc32c};
use crate::fields::{label, le16, le32, uuid};
use crate::source::{ByteSource, Unreadable};
use crate::volume::{Doubt, Mounted};

/// Offset of the superblock, and its length.
const AT: u64 = 1024;
const LEN: usize = 1024;
const MAGIC: u16 = 0xEF53;

/// Offsets of fields (struct ext4_super_block).
mod field {
    pub(super) const BLOCKS_LO: usize = 0x04;
    pub(super) const FREE_BLOCKS_LO: usize = 0x0C;
    pub(super) const FIRST_DATA_BLOCK: usize = 0x14;
    pub(super) const LOG_BLOCK_SIZE: usize = 0x18;
    pub(super) const LOG_CLUSTER_SIZE: usize = 0x1C;
    pub(super) const BLOCKS_PER_GROUP: usize = 0x20;
    pub(super) const CLUSTERS_PER_GROUP: usize = 0x24;
    pub(super) const INODES_PER_GROUP: usize = 0x28;
    pub(super) const MAGIC: usize = 0x38;
    pub(super) const STATE: usize = 0x3A;
    pub(super) const REVISION: usize = 0x4C;
    pub(super) const INODE_SIZE: usize = 0x58;
    pub(super) const COMPAT: usize = 0x5C;
    pub(super) const INCOMPAT: usize = 0x60;
    pub(super) const RO_COMPAT: usize = 0x64;
    pub(super) const UUID: usize = 0x68;
    pub(super) const LABEL: usize = 0x78;
    pub(super) const RESERVED_GDT: usize = 0xCE;
    pub(super) const JOURNAL_INODE: usize = 0xE0;
    pub(super) const JOURNAL_DEVICE: usize = 0xE4;
    pub(super) const JOURNAL_BACKUP: usize = 0xFD;
    pub(super) const DESCRIPTOR_SIZE: usize = 0xFE;
    pub(super) const FIRST_META_BG: usize = 0x104;
    pub(super) const JOURNAL_BLOCKS: usize = 0x10C;
    pub(super) const BLOCKS_HI: usize = 0x150;
    pub(super) const FREE_BLOCKS_HI: usize = 0x158;
    pub(super) const MMP_BLOCK: usize = 0x168;
    pub(super) const ERROR_COUNT: usize = 0x194;
    pub(super) const BACKUP_GROUPS: usize = 0x24C;
    pub(super) const CHECKSUM_SEED: usize = 0x270;
    pub(super) const CHECKSUM: usize = 0x3FC;
}

/// Bits of `s_state`.
mod state {
    pub(super) const VALID: u16 = 1;
    pub(super) const ERRORS: u16 = 2;
    pub(super) const ORPHANS: u16 = 4;
    pub(super) const FAST_COMMIT_REPLAY: u16 = 0x20;
}

/// Features that only say something to those who know them.
pub(super) mod compat {
    pub(in crate::ext) const HAS_JOURNAL: u32 = 0x4;
    pub(in crate::ext) const SPARSE_SUPER2: u32 = 0x200;
    pub(in crate::ext) const FAST_COMMIT: u32 = 0x400;
    /// DIR_PREALLOC 1, EXT_ATTR 8, RESIZE_INODE 10, DIR_INDEX 20, STABLE_INODES 800 and ORPHAN_FILE 1000 change no map.
    /// The kernel mounts volumes with any others as well; what they would do to the map is not known here.
    pub(super) const KNOWN: u32 =
        0x1 | HAS_JOURNAL | 0x8 | 0x10 | 0x20 | SPARSE_SUPER2 | FAST_COMMIT | 0x800 | 0x1000;
}

/// Features without whose knowledge the volume must not be read.
pub(super) mod incompat {
    pub(in crate::ext) const RECOVER: u32 = 0x4;
    pub(in crate::ext) const META_BG: u32 = 0x10;
    pub(in crate::ext) const EXTENTS: u32 = 0x40;
    pub(in crate::ext) const WITH_64BIT: u32 = 0x80;
    pub(in crate::ext) const MMP: u32 = 0x100;
    pub(in crate::ext) const FLEX_BG: u32 = 0x200;
    pub(in crate::ext) const CSUM_SEED: u32 = 0x2000;
    /// Features under which the rules of this module hold. FILETYPE 2, EA_INODE 400, LARGEDIR 4000, INLINE 8000,
    /// ENCRYPT 10000 and CASEFOLD 20000 change files, and no map.
    pub(super) const KNOWN: u32 = 0x2
        | RECOVER
        | META_BG
        | EXTENTS
        | WITH_64BIT
        | MMP
        | FLEX_BG
        | 0x400
        | CSUM_SEED
        | 0x4000
        | 0x8000
        | 0x1_0000
        | 0x2_0000;
}

/// Features without whose knowledge the volume must not be written.
pub(super) mod ro_compat {
    pub(in crate::ext) const SPARSE_SUPER: u32 = 0x1;
    pub(in crate::ext) const GDT_CSUM: u32 = 0x10;
    pub(in crate::ext) const BIGALLOC: u32 = 0x200;
    pub(in crate::ext) const METADATA_CSUM: u32 = 0x400;
    pub(super) const ORPHAN_PRESENT: u32 = 0x1_0000;
    /// LARGE_FILE 2, HUGE_FILE 8, DIR_NLINK 20, EXTRA_ISIZE 40, QUOTA 100, PROJECT 2000, SHARED_BLOCKS 4000 and VERITY
    /// 8000 change no map.
    pub(super) const KNOWN: u32 = SPARSE_SUPER
        | 0x2
        | 0x8
        | GDT_CSUM
        | 0x20
        | 0x40
        | 0x100
        | BIGALLOC
        | METADATA_CSUM
        | 0x2000
        | 0x4000
        | 0x8000;
    /// Features that make a volume one of ext4.
    pub(super) const EXT4: u32 = !(SPARSE_SUPER | 0x2);
}

/// MMP (`struct mmp_struct`): the magic, and the sequence number of a volume that is not mounted.
const MMP_MAGIC: u32 = 0x004D_4D50;
const MMP_CLEAN: u32 = 0xFF4D_4D50;

/// The largest block: what 64 KiB pages allow.
const LARGEST_LOG_BLOCK_SIZE: u32 = 6;

/// A superblock whose fields have possible values.
pub(super) struct Superblock {
    bytes: [u8; LEN],
    /// Bytes in a block.
    pub(super) block: u64,
    /// Blocks in a cluster, for which there is a bit: 1 without BIGALLOC.
    pub(super) cluster: u64,
    /// Blocks of the volume.
    pub(super) blocks: u64,
}

impl Superblock {
    /// Returns `true` if the magic is there, with fields that a superblock can have: two bytes are little for a
    /// signature.
    pub(super) fn recognised(source: &dyn ByteSource) -> Result<bool, Unreadable> {
        Ok(source.has(AT, LEN as u64) && Self::parse(source.array(AT)?).is_some())
    }

    /// Reads the superblock.
    pub(super) fn read(source: &dyn ByteSource) -> Result<Self, Doubt> {
        Self::parse(source.array(AT)?)
            .ok_or_else(|| Doubt::new("the superblock is not one of ext").helped_by(FSCK))
    }

    fn parse(bytes: [u8; LEN]) -> Option<Self> {
        let log = le32(&bytes, field::LOG_BLOCK_SIZE);
        if le16(&bytes, field::MAGIC) != MAGIC || log > LARGEST_LOG_BLOCK_SIZE {
            return None;
        }
        let mut found = Self { bytes, block: 1024 << log, cluster: 1, blocks: 0 };
        found.blocks = u64::from(found.le32(field::BLOCKS_LO));
        if found.incompat(incompat::WITH_64BIT) {
            found.blocks |= u64::from(found.le32(field::BLOCKS_HI)) << 32;
        }
        if found.ro_compat(ro_compat::BIGALLOC) {
            // Up to 2^9 blocks are usual; mke2fs allows clusters of 512 MiB.
            let times = found.le32(field::LOG_CLUSTER_SIZE).checked_sub(log).filter(|times| *times < 32)?;
            found.cluster = 1 << times;
        }
        let plausible = found.blocks > found.first_data_block()
            && found.first_data_block() <= 1
            && found.blocks.checked_mul(found.block).is_some_and(|size| size < 1 << 60)
            && le32(&found.bytes, field::BLOCKS_PER_GROUP) > 0
            && le32(&found.bytes, field::INODES_PER_GROUP) > 0;
        plausible.then_some(found)
    }

    pub(super) fn le16(&self, at: usize) -> u16 {
        le16(&self.bytes, at)
    }

    pub(super) fn le32(&self, at: usize) -> u32 {
        le32(&self.bytes, at)
    }

    pub(super) fn compat(&self, bit: u32) -> bool {
        self.le32(field::REVISION) > 0 && self.le32(field::COMPAT) & bit != 0
    }

    pub(super) fn incompat(&self, bit: u32) -> bool {
        self.le32(field::REVISION) > 0 && self.le32(field::INCOMPAT) & bit != 0
    }

    pub(super) fn ro_compat(&self, bit: u32) -> bool {
        self.le32(field::REVISION) > 0 && self.le32(field::RO_COMPAT) & bit != 0
    }

    pub(super) fn kind(&self) -> &'static str {
        if self.incompat(incompat::EXTENTS | incompat::WITH_64BIT | incompat::FLEX_BG)
            || self.ro_compat(ro_compat::EXT4)
        {
            "ext4"
        } else if self.compat(compat::HAS_JOURNAL) {
            "ext3"
        } else {
            "ext2"
        }
    }

    pub(super) fn label(&self) -> Option<String> {
        label(&self.bytes[field::LABEL..field::LABEL + 16])
    }

    pub(super) fn uuid(&self) -> Option<String> {
        uuid(self.uuid_bytes())
    }

    pub(super) fn uuid_bytes(&self) -> &[u8] {
        &self.bytes[field::UUID..field::UUID + 16]
    }

    /// Bytes of the volume.
    pub(super) fn size(&self) -> u64 {
        self.blocks * self.block
    }

    /// Free bytes, as the superblock counts them: in blocks, with BIGALLOC too.
    pub(super) fn free_bytes(&self) -> u64 {
        let mut free = u64::from(self.le32(field::FREE_BLOCKS_LO));
        if self.incompat(incompat::WITH_64BIT) {
            free |= u64::from(self.le32(field::FREE_BLOCKS_HI)) << 32;
        }
        free.saturating_mul(self.block)
    }

    pub(super) fn first_data_block(&self) -> u64 {
        u64::from(self.le32(field::FIRST_DATA_BLOCK))
    }

    pub(super) fn blocks_per_group(&self) -> u64 {
        u64::from(self.le32(field::BLOCKS_PER_GROUP))
    }

    /// Clusters for which a group has bits: without BIGALLOC, blocks.
    pub(super) fn clusters_per_group(&self) -> u64 {
        if self.ro_compat(ro_compat::BIGALLOC) {
            u64::from(self.le32(field::CLUSTERS_PER_GROUP))
        } else {
            self.blocks_per_group()
        }
    }

    pub(super) fn inodes_per_group(&self) -> u64 {
        u64::from(self.le32(field::INODES_PER_GROUP))
    }

    pub(super) fn inode_size(&self) -> u64 {
        if self.le32(field::REVISION) == 0 { 128 } else { u64::from(self.le16(field::INODE_SIZE)) }
    }

    pub(super) fn descriptor_size(&self) -> u64 {
        if self.incompat(incompat::WITH_64BIT) { u64::from(self.le16(field::DESCRIPTOR_SIZE)) } else { 32 }
    }

    pub(super) fn reserved_descriptor_blocks(&self) -> u64 {
        u64::from(self.le16(field::RESERVED_GDT))
    }

    pub(super) fn first_meta_group(&self) -> u64 {
        u64::from(self.le32(field::FIRST_META_BG))
    }

    pub(super) fn backup_groups(&self) -> [u64; 2] {
        [0, 4].map(|at| u64::from(self.le32(field::BACKUP_GROUPS + at)))
    }

    pub(super) fn journal_inode(&self) -> u32 {
        self.le32(field::JOURNAL_INODE)
    }

    pub(super) fn has_external_journal(&self) -> bool {
        self.le32(field::JOURNAL_DEVICE) != 0 || self.journal_inode() == 0
    }

    /// The copy of the journal inode's block map, 15 words, if there is one.
    pub(super) fn journal_backup(&self) -> Option<&[u8]> {
        (self.bytes[field::JOURNAL_BACKUP] == 1)
            .then(|| &self.bytes[field::JOURNAL_BLOCKS..field::JOURNAL_BLOCKS + 60])
    }

    pub(super) fn mmp_block(&self) -> Option<u64> {
        let block = u64::from(self.le32(field::MMP_BLOCK)) | u64::from(self.le32(field::MMP_BLOCK + 4)) << 32;
        self.incompat(incompat::MMP).then_some(block)
    }

    /// Initial value of the metadata's checksums, where the feature is on.
    pub(super) fn seed(&self) -> Option<u32> {
        self.ro_compat(ro_compat::METADATA_CSUM).then(|| {
            if self.incompat(incompat::CSUM_SEED) {
                self.le32(field::CHECKSUM_SEED)
            } else {
                crc32c(START, self.uuid_bytes())
            }
        })
    }

    /// Checks that this module knows what may be in the volume.
    pub(super) fn known(&self) -> Result<(), Doubt> {
        let unknown = self.le32(field::INCOMPAT) & !incompat::KNOWN;
        if unknown != 0 {
            return Err(Doubt::new(format!(
                "it has incompatible features that are not known here ({unknown:#x})"
            )));
        }
        let unknown = self.le32(field::COMPAT) & !compat::KNOWN;
        if unknown != 0 {
            return Err(Doubt::new(format!(
                "it has compatible features that are not known here ({unknown:#x})"
            )));
        }
        let unknown = self.le32(field::RO_COMPAT) & !(ro_compat::KNOWN | ro_compat::ORPHAN_PRESENT);
        if unknown != 0 {
            return Err(Doubt::new(format!("it has features that are not known here ({unknown:#x})")));
        }
        if self.le32(field::REVISION) == 0
            && [field::COMPAT, field::INCOMPAT, field::RO_COMPAT].iter().any(|at| self.le32(*at) != 0)
        {
            return Err(Doubt::new("revision 0 has features").helped_by(FSCK));
        }
        let wrong = |what: &str| Err(Doubt::new(format!("the superblock's {what}")).helped_by(FSCK));
        if self.ro_compat(ro_compat::METADATA_CSUM)
            && crc32c(START, &self.bytes[..field::CHECKSUM]) != self.le32(field::CHECKSUM)
        {
            return wrong("checksum is wrong");
        }
        let bits = self.block * 8;
        if self.clusters_per_group().checked_mul(self.cluster) != Some(self.blocks_per_group())
            || self.clusters_per_group() > bits
            || !self.clusters_per_group().is_multiple_of(8)
            || self.inodes_per_group() > bits
        {
            return wrong("groups are larger than their bitmaps");
        }
        let (inode, descriptor) = (self.inode_size(), self.descriptor_size());
        if !inode.is_power_of_two() || !(128..=self.block).contains(&inode) {
            return wrong("size of inodes is wrong");
        }
        if !descriptor.is_power_of_two() || !(32..=self.block).contains(&descriptor) {
            return wrong("size of group descriptors is wrong");
        }
        if self.incompat(incompat::WITH_64BIT) && descriptor < 64 {
            return wrong("size of group descriptors is wrong");
        }
        // 1 KiB blocks begin with block 1, in front of which the boot sector is; clusters have no such block.
        let first =
            u64::from(self.block == 1024 && self.cluster == 1 && !self.ro_compat(ro_compat::BIGALLOC));
        if self.first_data_block() != first {
            return wrong("first data block is wrong");
        }
        Ok(())
    }

    /// Tells whether the volume is mounted: a mount for writing sets RECOVER, or without a journal clears VALID, and
    /// freezing undoes that, as unmounting does.
    pub(super) fn mounted(&self) -> Mounted {
        let is_open = self.incompat(incompat::RECOVER) || self.ro_compat(ro_compat::ORPHAN_PRESENT);
        if is_open || self.le16(field::STATE) & state::VALID == 0 { Mounted::Yes } else { Mounted::No }
    }

    /// Checks that no system was writing, or that the log has told everything: asked of the superblock as it is after
    /// it.
    pub(super) fn settled(&self, source: &dyn ByteSource, replayed: bool) -> Result<(), Doubt> {
        let state = self.le16(field::STATE);
        // The count outlives the flag until e2fsck has mended the volume.
        if state & state::ERRORS != 0 || self.le32(field::ERROR_COUNT) != 0 {
            return Err(Doubt::new("the kernel found errors in it").helped_by(FSCK));
        }
        if state & state::VALID == 0 || state & (state::ORPHANS | state::FAST_COMMIT_REPLAY) != 0 {
            return Err(Doubt::new("it was not unmounted")
                .helped_by("unmount it; if no system has it mounted, run e2fsck -f on it"));
        }
        // Every mounted volume with an orphan file has the flag. The next mount removes the deleted files in it, which
        // frees more than the map says now, and nothing less.
        if self.ro_compat(ro_compat::ORPHAN_PRESENT) && !replayed {
            return Err(
                Doubt::new("it was not unmounted: deleted files are not yet gone").helped_by("mount it once")
            );
        }
        if let Some(block) = self.mmp_block() {
            let at = block.checked_mul(self.block).ok_or_else(|| Doubt::new("its MMP block lies nowhere"))?;
            let mmp: [u8; 8] = source.array(at)?;
            if le32(&mmp, 0) != MMP_MAGIC {
                return Err(Doubt::new("its MMP block has no magic").helped_by(FSCK));
            }
            if le32(&mmp, 4) != MMP_CLEAN {
                return Err(Doubt::mounted("its MMP block says that a machine has it mounted")
                    .helped_by("unmount it there"));
            }
        }
        Ok(())
    }
}
