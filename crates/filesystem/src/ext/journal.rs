//! The journal (JBD2), replayed in memory: which blocks of the volume have a newer copy in the log.
//!
//! As the kernel does it (fs/jbd2/recovery.c): the first pass finds the end of the log, the first block that does not
//! continue it; the second collects revoked blocks; the third notes for every block the last committed copy. Where the
//! kernel would report an error, or do something that is not done here (fast commits), the volume is unknown.

use std::collections::HashMap;
use std::ops::Range;

use super::FSCK;
use super::checksum::{START, crc32c};
use super::inode::{self, Inode};
use super::superblock::{Superblock, compat, incompat};
use crate::fields::{be16, be32, be64, le16, le32};
use crate::source::{ByteSource, Unreadable};
use crate::volume::Doubt;

const MAGIC: u32 = 0xC03B_3998;

/// `h_blocktype`.
mod kind {
    pub(super) const DESCRIPTOR: u32 = 1;
    pub(super) const COMMIT: u32 = 2;
    pub(super) const SUPERBLOCK_V1: u32 = 3;
    pub(super) const SUPERBLOCK_V2: u32 = 4;
    pub(super) const REVOKE: u32 = 5;
}

/// Offsets: of the header that all blocks begin with, and of fields of the superblock (journal_superblock_t).
mod field {
    pub(super) const KIND: usize = 0x04;
    pub(super) const SEQUENCE: usize = 0x08;
    /// End of the header.
    pub(super) const BODY: usize = 0x0C;
    pub(super) const BLOCK_SIZE: usize = 0x0C;
    pub(super) const LENGTH: usize = 0x10;
    pub(super) const FIRST: usize = 0x14;
    pub(super) const FIRST_SEQUENCE: usize = 0x18;
    pub(super) const START: usize = 0x1C;
    pub(super) const ERRNO: usize = 0x20;
    pub(super) const COMPAT: usize = 0x24;
    pub(super) const INCOMPAT: usize = 0x28;
    pub(super) const RO_COMPAT: usize = 0x2C;
    pub(super) const UUID: usize = 0x30;
    pub(super) const FAST_COMMIT_BLOCKS: usize = 0x54;
    pub(super) const CHECKSUM: usize = 0xFC;
    /// Bytes of the superblock.
    pub(super) const END: usize = 1024;
    /// `h_chksum` of a commit block.
    pub(super) const COMMIT_CHECKSUM: usize = 0x10;
    /// `r_count` of a revoke block, and where its records begin.
    pub(super) const REVOKED_BYTES: usize = 0x0C;
    pub(super) const REVOKED: usize = 0x10;
}

/// Features.
mod feature {
    /// compat: a checksum of all blocks of a transaction in its commit.
    pub(super) const CHECKSUM: u32 = 1;
    pub(super) const WITH_64BIT: u32 = 0x2;
    pub(super) const CSUM_V2: u32 = 0x8;
    pub(super) const CSUM_V3: u32 = 0x10;
    pub(super) const FAST_COMMIT: u32 = 0x20;
    /// REVOKE 1. ASYNC_COMMIT 4 has no known rule for what is behind a hole in the log.
    pub(super) const KNOWN: u32 = 1 | WITH_64BIT | CSUM_V2 | CSUM_V3 | FAST_COMMIT;
}

/// Flags of a tag.
mod tag {
    pub(super) const ESCAPED: u32 = 1;
    pub(super) const SAME_UUID: u32 = 2;
    pub(super) const LAST: u32 = 8;
}

/// Default number of fast commit blocks, for a journal that does not state it (JBD2_DEFAULT_FAST_COMMIT_BLOCKS).
const FAST_COMMIT_BLOCKS: u32 = 256;
/// The tag that a fast commit begins with (EXT4_FC_TAG_HEAD).
const FAST_COMMIT_HEAD: u16 = 9;

/// The least blocks of a log beside fast commits (JBD2_MIN_JOURNAL_BLOCKS): with fewer, the kernel and e2fsck disagree
/// about where fast commits lie.
const LEAST_BLOCKS: u32 = 1024;

/// The most blocks that a log may replace: a journal of 4 GiB, ten times the default, in 32 MiB of memory.
const MOST_BLOCKS: usize = 1 << 20;

/// The most runs that a journal may lie in. mke2fs makes one or a few.
const MOST_RUNS: usize = 1 << 16;

/// A block's copy in the log.
#[derive(Clone, Copy)]
struct Copy {
    /// The byte of the volume where it lies.
    at: u64,
    /// `true` if its first four bytes were the log's magic, and are zeros in the log.
    escaped: bool,
}

/// The blocks that the log replaces.
pub(super) struct Overlay {
    block: u64,
    copies: HashMap<u64, Copy>,
}

impl Overlay {
    /// Number of blocks.
    pub(super) fn blocks(&self) -> usize {
        self.copies.len()
    }
}

/// The volume as it is after its log was replayed.
pub(super) struct Replayed<'a> {
    source: &'a dyn ByteSource,
    overlay: &'a Overlay,
}

impl<'a> Replayed<'a> {
    pub(super) fn new(source: &'a dyn ByteSource, overlay: &'a Overlay) -> Self {
        Self { source, overlay }
    }
}

impl ByteSource for Replayed<'_> {
    fn len(&self) -> u64 {
        self.source.len()
    }

    fn read(&self, mut offset: u64, mut buf: &mut [u8]) -> Result<(), Unreadable> {
        if self.overlay.copies.is_empty() || !self.source.has(offset, buf.len() as u64) {
            return self.source.read(offset, buf);
        }
        while !buf.is_empty() {
            let (number, inside) = (offset / self.overlay.block, offset % self.overlay.block);
            let len = ((self.overlay.block - inside) as usize).min(buf.len());
            let (now, later) = buf.split_at_mut(len);
            match self.overlay.copies.get(&number) {
                None => self.source.read(offset, now)?,
                Some(copy) => {
                    self.source.read(copy.at + inside, now)?;
                    if copy.escaped {
                        let magic = MAGIC.to_be_bytes();
                        for (at, byte) in (inside as usize..magic.len()).zip(&mut *now) {
                            *byte = magic[at];
                        }
                    }
                }
            }
            (buf, offset) = (later, offset + len as u64);
        }
        Ok(())
    }
}

/// Contents of a journal.
pub(super) struct Log {
    pub(super) overlay: Overlay,
    /// `true` if the volume was in use: its counters are then not reliable.
    pub(super) replayed: bool,
    /// The blocks that the journal lies in.
    pub(super) runs: Vec<Range<u64>>,
}

/// Reads the journal of a volume, and replays it if the volume needs that.
pub(super) fn read(source: &dyn ByteSource, superblock: &Superblock) -> Result<Log, Doubt> {
    let recover = superblock.incompat(incompat::RECOVER);
    let mut log = Log {
        overlay: Overlay { block: superblock.block, copies: HashMap::new() },
        replayed: recover,
        runs: Vec::new(),
    };
    if !superblock.compat(compat::HAS_JOURNAL) {
        return if recover { Err(wrong("is needed, and there is none")) } else { Ok(log) };
    }
    if superblock.has_external_journal() {
        return Err(Doubt::new("its journal is on another device"));
    }
    let map = blocks(source, superblock)?;
    log.runs = map.iter().map(|run| run.physical..run.physical + u64::from(run.len)).collect();
    let journal = Journal::read(source, superblock, map)?;
    match (recover, journal.start) {
        (false, 0) => {}
        // An empty log may still be followed by fast commits.
        (true, 0) => journal.refuse_fast_commits(journal.sequence)?,
        // The kernel would forget the log, e2fsck asks.
        (false, _) => return Err(wrong("is not empty, although the superblock says that it is not needed")),
        (true, _) => log.overlay.copies = journal.replay()?,
    }
    Ok(log)
}

fn wrong(what: impl std::fmt::Display) -> Doubt {
    Doubt::new(format!("the journal {what}")).helped_by(FSCK)
}

/// Blocks of the journal that lie side by side.
struct Run {
    logical: u32,
    physical: u64,
    len: u32,
}

/// Returns the runs of the journal's blocks, by its inode.
fn blocks(source: &dyn ByteSource, superblock: &Superblock) -> Result<Vec<Run>, Doubt> {
    // The inode table of group 0 by its descriptor: the checksum is proven later, and the map here by its copy.
    let number = superblock.journal_inode();
    if u64::from(number) > superblock.inodes_per_group() {
        return Err(wrong("has an inode outside of the first group"));
    }
    let inode: [u8; inode::LEN] = {
        let table = super::groups::Groups::new(superblock)?.first_inode_table(source)?;
        let inside = u64::from(number - 1) * superblock.inode_size();
        let at = table.checked_mul(superblock.block).and_then(|at| at.checked_add(inside));
        source.array(at.ok_or_else(|| wrong("has an inode that lies nowhere"))?)?
    };
    let inode = Inode(&inode);
    if superblock.journal_backup().is_some_and(|backup| backup != inode.map()) {
        return Err(wrong("lies elsewhere by its inode than by the superblock's copy"));
    }
    let mut runs: Vec<Run> = Vec::new();
    let mut next = 0u32;
    inode.for_each(source, superblock, &|what| wrong(what), &mut |found| {
        let Some((logical, written)) = found.data else { return Ok(()) };
        let len = found.blocks.end - found.blocks.start;
        let end = u32::try_from(u64::from(next) + len).map_err(|_| wrong("is too long"))?;
        if logical != u64::from(next) || !written {
            return Err(wrong("has holes"));
        }
        let (physical, len) = (found.blocks.start, end - next);
        match runs.last_mut() {
            Some(last) if last.physical + u64::from(last.len) == physical => last.len += len,
            _ => runs.push(Run { logical: next, physical, len }),
        }
        if runs.len() > MOST_RUNS {
            return Err(wrong("lies in too many pieces"));
        }
        next = end;
        Ok(())
    })?;
    Ok(runs)
}

struct Journal<'a> {
    source: &'a dyn ByteSource,
    block: u64,
    map: Vec<Run>,
    incompat: u32,
    compat: u32,
    /// Initial value of checksums.
    seed: u32,
    /// The ring: the first block, and the one behind the last.
    first: u32,
    end: u32,
    /// The blocks behind the ring that may have fast commits. The kernel leaves the first of them unused
    /// (`j_fc_first = j_last + 1`).
    fast_commits: Range<u32>,
    /// Start of the log, 0 if it is empty, and its sequence number.
    start: u32,
    sequence: u32,
}

/// Block of the log that belongs to it.
enum Entry {
    Descriptor {
        tags: Vec<Tag>,
    },
    Revoke {
        blocks: Vec<u64>,
    },
    /// A descriptor or a revoke block whose checksum is wrong, and so many blocks behind it.
    Torn {
        blocks: u32,
    },
    Commit,
}

struct Tag {
    block: u64,
    flags: u32,
    checksum: u32,
}

impl<'a> Journal<'a> {
    fn read(source: &'a dyn ByteSource, superblock: &Superblock, map: Vec<Run>) -> Result<Self, Doubt> {
        let block = superblock.block;
        let Some(run) = map.first() else { return Err(wrong("has no blocks")) };
        let bytes: [u8; field::END] = source.array(run.physical * block)?;
        let kind = be32(&bytes, field::KIND);
        if be32(&bytes, 0) != MAGIC || !(kind::SUPERBLOCK_V1..=kind::SUPERBLOCK_V2).contains(&kind) {
            return Err(wrong("has no superblock"));
        }
        let features = |at| if kind == kind::SUPERBLOCK_V2 { be32(&bytes, at) } else { 0 };
        let (compat, incompat) = (features(field::COMPAT), features(field::INCOMPAT));
        let unknown = incompat & !feature::KNOWN | features(field::RO_COMPAT);
        if unknown != 0 {
            return Err(wrong(format!("has features that are not known here ({unknown:#x})")));
        }
        if incompat & (feature::CSUM_V2 | feature::CSUM_V3) != 0 {
            let mut zeroed = bytes;
            zeroed[field::CHECKSUM..field::CHECKSUM + 4].fill(0);
            if crc32c(START, &zeroed) != be32(&bytes, field::CHECKSUM) {
                return Err(wrong("has a superblock with a wrong checksum"));
            }
        }
        if be32(&bytes, field::ERRNO) != 0 {
            return Err(wrong("was aborted after an error"));
        }
        let (first, mut end) = (be32(&bytes, field::FIRST), be32(&bytes, field::LENGTH));
        let held = map.last().map_or(0, |run| run.logical + run.len);
        if u64::from(be32(&bytes, field::BLOCK_SIZE)) != block || first == 0 || first >= end || end > held {
            return Err(wrong("is longer than its file"));
        }
        let mut fast_commits = end..end;
        // The log's flag is clear while the log is empty; the superblock's says that fast commits are in use.
        let in_ring = incompat & feature::FAST_COMMIT == 0;
        if !in_ring || superblock.compat(compat::FAST_COMMIT) {
            let blocks = match be32(&bytes, field::FAST_COMMIT_BLOCKS) {
                0 => FAST_COMMIT_BLOCKS,
                blocks => blocks,
            };
            let ring = end.checked_sub(blocks).filter(|end| *end >= LEAST_BLOCKS && *end > first);
            fast_commits.start = ring.ok_or_else(|| wrong("has no room for a log"))?;
            if !in_ring {
                end = fast_commits.start;
            }
        }
        let start = be32(&bytes, field::START);
        if start != 0 && !(first..end).contains(&start) {
            return Err(wrong("begins outside of itself"));
        }
        let sequence = be32(&bytes, field::FIRST_SEQUENCE);
        let seed = crc32c(START, &bytes[field::UUID..field::UUID + 16]);
        Ok(Self { source, block, map, incompat, compat, seed, first, end, fast_commits, start, sequence })
    }

    /// The byte of the volume at which a block of the journal lies.
    fn place(&self, logical: u32) -> Result<u64, Doubt> {
        let at = self.map.partition_point(|run| run.logical <= logical).checked_sub(1);
        let run = at.and_then(|at| self.map.get(at)).filter(|run| logical - run.logical < run.len);
        let run = run.ok_or_else(|| wrong("has a hole"))?;
        Ok((run.physical + u64::from(logical - run.logical)) * self.block)
    }

    fn bytes(&self, logical: u32) -> Result<Vec<u8>, Doubt> {
        Ok(self.source.bytes(self.place(logical)?, self.block as usize)?)
    }

    fn after(&self, logical: u32, blocks: u32) -> u32 {
        let next = u64::from(logical) + u64::from(blocks);
        let end = u64::from(self.end);
        (if next >= end { next - (end - u64::from(self.first)) } else { next }) as u32
    }

    fn has(&self, bit: u32) -> bool {
        self.incompat & bit != 0
    }

    fn checked(&self) -> bool {
        self.has(feature::CSUM_V2 | feature::CSUM_V3)
    }

    fn tag_len(&self) -> usize {
        if self.has(feature::CSUM_V3) {
            return 16;
        }
        8 + if self.has(feature::WITH_64BIT) { 4 } else { 0 } + if self.has(feature::CSUM_V2) { 2 } else { 0 }
    }

    /// The log's block `logical`, if it is the one with this sequence number.
    fn entry(&self, logical: u32, sequence: u32) -> Result<Option<Entry>, Doubt> {
        let bytes = self.bytes(logical)?;
        if be32(&bytes, 0) != MAGIC || be32(&bytes, field::SEQUENCE) != sequence {
            return Ok(None);
        }
        let tail = bytes.len() - if self.checked() { 4 } else { 0 };
        let tail_right = || !self.checked() || self.sum(&bytes, tail) == be32(&bytes, tail);
        match be32(&bytes, field::KIND) {
            kind::DESCRIPTOR if !tail_right() => {
                Ok(Some(Entry::Torn { blocks: self.tags(&bytes[..tail]).len() as u32 }))
            }
            kind::DESCRIPTOR => Ok(Some(Entry::Descriptor { tags: self.tags(&bytes[..tail]) })),
            kind::REVOKE if !tail_right() => Ok(Some(Entry::Torn { blocks: 0 })),
            kind::REVOKE => Ok(Some(Entry::Revoke { blocks: self.revoked(&bytes[..tail])? })),
            kind::COMMIT => {
                let checksum = be32(&bytes, field::COMMIT_CHECKSUM);
                if self.checked() && self.sum(&bytes, field::COMMIT_CHECKSUM) != checksum {
                    return Err(wrong("has a commit with a wrong checksum"));
                }
                Ok(Some(Entry::Commit))
            }
            // The kernel stops at what it does not know.
            _ => Ok(None),
        }
    }

    /// The checksum of a block, whose four bytes at `zero` count as zeros.
    fn sum(&self, bytes: &[u8], zero: usize) -> u32 {
        let sum = crc32c(crc32c(self.seed, &bytes[..zero]), &[0; 4]);
        crc32c(sum, &bytes[zero + 4..])
    }

    fn tags(&self, bytes: &[u8]) -> Vec<Tag> {
        let (mut tags, mut rest) = (Vec::new(), &bytes[field::BODY..]);
        while let Some(bytes) = rest.get(..self.tag_len()) {
            let (flags, checksum) = if self.has(feature::CSUM_V3) {
                (be32(bytes, 4), be32(bytes, 12))
            } else {
                (u32::from(be16(bytes, 6)), u32::from(be16(bytes, 4)))
            };
            let upper = if self.has(feature::WITH_64BIT) { be32(bytes, 8) } else { 0 };
            tags.push(Tag { block: u64::from(upper) << 32 | u64::from(be32(bytes, 0)), flags, checksum });
            let uuid = if flags & tag::SAME_UUID == 0 { 16 } else { 0 };
            rest = rest.get(self.tag_len() + uuid..).unwrap_or_default();
            if flags & tag::LAST != 0 {
                break;
            }
        }
        tags
    }

    fn revoked(&self, bytes: &[u8]) -> Result<Vec<u64>, Doubt> {
        let end = be32(bytes, field::REVOKED_BYTES) as usize;
        let records =
            bytes.get(field::REVOKED..end).ok_or_else(|| wrong("has a revoke block that is too long"))?;
        Ok(if self.has(feature::WITH_64BIT) {
            records.chunks_exact(8).map(|record| be64(record, 0)).collect()
        } else {
            records.chunks_exact(4).map(|record| u64::from(be32(record, 0))).collect()
        })
    }

    /// Goes through the log up to the sequence number `end`, or where it ends by itself; gives the sequence number
    /// there. `each` gets every entry, its sequence number, and where the blocks behind it lie.
    fn pass(
        &self,
        end: Option<u32>,
        each: &mut dyn FnMut(u32, &Entry, u32) -> Result<(), Doubt>,
    ) -> Result<u32, Doubt> {
        let (mut at, mut sequence) = (self.start, self.sequence);
        // A log is not longer than its ring: one that goes on has caught its own tail.
        let mut left = self.end - self.first;
        // What a power cut tore belongs to a transaction without a commit. One that has a commit is damaged.
        let mut torn = false;
        while Some(sequence) != end {
            let Some(entry) = self.entry(at, sequence)? else { break };
            let len = match &entry {
                Entry::Descriptor { tags } => 1 + tags.len() as u32,
                Entry::Torn { blocks } => 1 + blocks,
                Entry::Revoke { .. } | Entry::Commit => 1,
            };
            torn |= matches!(entry, Entry::Torn { .. });
            left = left.checked_sub(len).ok_or_else(|| wrong("has no end"))?;
            each(sequence, &entry, self.after(at, 1))?;
            at = self.after(at, len);
            if matches!(entry, Entry::Commit) {
                if torn {
                    return Err(wrong("has a block with a wrong checksum"));
                }
                sequence = sequence.wrapping_add(1);
            }
        }
        Ok(sequence)
    }

    /// Doubts a journal with a fast commit that belongs to the transaction `next`, which would follow the log's end, or
    /// to a later one: fast commits of transactions that the log has whole are over.
    fn refuse_fast_commits(&self, next: u32) -> Result<(), Doubt> {
        for at in self.fast_commits.clone() {
            let head: [u8; 12] = self.source.array(self.place(at)?)?;
            let current = (le32(&head, 8).wrapping_sub(next) as i32) >= 0;
            if le16(&head, 0) == FAST_COMMIT_HEAD && current {
                return Err(wrong("has fast commits, which are not replayed here").helped_by("mount it once"));
            }
        }
        Ok(())
    }

    fn replay(&self) -> Result<HashMap<u64, Copy>, Doubt> {
        if self.compat & feature::CHECKSUM != 0 {
            return Err(wrong("has checksums of a kind that is not checked here").helped_by("mount it once"));
        }
        let end = self.pass(None, &mut |_, _, _| Ok(()))?;
        self.refuse_fast_commits(end)?;
        let mut revoked: HashMap<u64, u32> = HashMap::new();
        self.pass(Some(end), &mut |sequence, entry, _| {
            if let Entry::Revoke { blocks } = entry {
                // Later ones replace earlier ones: sequence numbers only grow on the way.
                revoked.extend(blocks.iter().map(|block| (*block, sequence)));
            }
            if revoked.len() > MOST_BLOCKS { Err(wrong("revokes too many blocks")) } else { Ok(()) }
        })?;
        let mut copies = HashMap::new();
        self.pass(Some(end), &mut |sequence, entry, mut at| {
            let Entry::Descriptor { tags } = entry else { return Ok(()) };
            for tag in tags {
                let later =
                    revoked.get(&tag.block).is_some_and(|by| (sequence.wrapping_sub(*by) as i32) <= 0);
                if !later {
                    self.verify(tag, at, sequence)?;
                    copies.insert(
                        tag.block,
                        Copy { at: self.place(at)?, escaped: tag.flags & tag::ESCAPED != 0 },
                    );
                }
                at = self.after(at, 1);
            }
            if copies.len() > MOST_BLOCKS { Err(wrong("has too many blocks")) } else { Ok(()) }
        })?;
        Ok(copies)
    }

    /// Checks a block of data as it lies in the log.
    fn verify(&self, tag: &Tag, at: u32, sequence: u32) -> Result<(), Doubt> {
        if !self.checked() {
            return Ok(());
        }
        let sum = crc32c(crc32c(self.seed, &sequence.to_be_bytes()), &self.bytes(at)?);
        let sum = if self.has(feature::CSUM_V3) { sum } else { sum & 0xFFFF };
        if sum == tag.checksum { Ok(()) } else { Err(wrong("has a block whose checksum is wrong")) }
    }
}
