//! State of the log: it is clean if its last record says that the volume was unmounted.
//!
//! The log is a ring of 512-byte blocks. Each begins with the number of the round in which it was written (its
//! *cycle*); a record's header has a magic there, and the cycle behind it. The head is where the cycle changes. As in
//! the kernel (`xlog_find_head`, `xlog_find_tail`), but without repair: blocks near the head that do not belong to the
//! round that they should be of are a torn write, and a doubt.

use super::superblock::Superblock;
use crate::fields::{be32, le32};
use crate::source::ByteSource;
use crate::volume::Doubt;

const BASIC_BLOCK: u64 = 512;
const MAGIC: u32 = 0xFEED_BABE;

/// Offsets of fields of a record's header (struct xlog_rec_header).
mod field {
    pub(super) const CYCLE: usize = 4;
    pub(super) const VERSION: usize = 8;
    pub(super) const LENGTH: usize = 12;
    pub(super) const OPERATIONS: usize = 40;
    pub(super) const UUID: usize = 304;
    pub(super) const SIZE: usize = 320;
}

/// `h_version` with headers of several blocks, and how many bytes of a record one block of its header describes.
const VERSION_2: u32 = 2;
const PER_HEADER: u32 = 32 << 10;
/// Offset of the flags in the header of an operation, and the one of an unmount.
const FLAGS: usize = 9;
const UNMOUNT: u8 = 0x20;
/// Distance from the head within which blocks of another round may lie after a crash: eight buffers of 256 KiB
/// (XLOG_TOTAL_REC_SHIFT).
const TORN: u64 = (8 * (256 << 10)) / BASIC_BLOCK;

struct Log<'a> {
    source: &'a dyn ByteSource,
    start: u64,
    blocks: u64,
}

/// Checks that the log is clean.
pub(super) fn clean(source: &dyn ByteSource, superblock: &Superblock) -> Result<(), Doubt> {
    let range = superblock.log();
    let log = Log { source, start: range.start, blocks: (range.end - range.start) / BASIC_BLOCK };
    let head = log.head()?;
    let (at, header) = log.last_record(head)?;
    if !superblock.is_own(&header[field::UUID..field::UUID + 16]) {
        return Err(dirty("is of another file system"));
    }
    let describes = be32(&header, field::SIZE);
    let headers = if be32(&header, field::VERSION) & VERSION_2 != 0 && describes > PER_HEADER {
        u64::from(describes.div_ceil(PER_HEADER))
    } else {
        1
    };
    let length = u64::from(be32(&header, field::LENGTH)).div_ceil(BASIC_BLOCK);
    if headers >= log.blocks
        || length >= log.blocks
        || (at + headers + length) % log.blocks != head % log.blocks
    {
        return Err(dirty("ends in a record that is not whole"));
    }
    if be32(&header, field::OPERATIONS) == 1 && log.block((at + headers) % log.blocks)?[FLAGS] & UNMOUNT != 0
    {
        return Ok(());
    }
    Err(Doubt::mounted("it was not unmounted: its log would have to be replayed")
        .helped_by("mount it, and unmount it"))
}

fn dirty(what: &str) -> Doubt {
    Doubt::mounted(format!("its log {what}")).helped_by("mount it, and unmount it")
}

impl Log<'_> {
    fn block(&self, number: u64) -> Result<[u8; BASIC_BLOCK as usize], Doubt> {
        Ok(self.source.array(self.start + number * BASIC_BLOCK)?)
    }

    fn cycle(&self, number: u64) -> Result<u32, Doubt> {
        let block = self.block(number)?;
        let word = be32(&block, 0);
        Ok(if word == MAGIC { be32(&block, field::CYCLE) } else { word })
    }

    /// The block behind the last one that was written; the number of blocks where that is the last of the ring.
    fn head(&self) -> Result<u64, Doubt> {
        let (first, last) = (self.cycle(0)?, self.cycle(self.blocks - 1)?);
        if first == 0 {
            return Err(dirty("is empty"));
        }
        let head = if first == last { self.blocks } else { self.first_not_of(first)? };
        // Behind the head are blocks of the round before, in the first round zeros.
        let before = first.wrapping_sub(1);
        if first != last && last != before {
            return Err(dirty("has blocks of more than two rounds"));
        }
        for number in head.saturating_sub(TORN)..(head + TORN).min(self.blocks) {
            let expected = if number < head { first } else { last };
            if self.cycle(number)? != expected {
                return Err(dirty("has a torn write near its head"));
            }
        }
        // Near the ring's start what was written before the head is at its end.
        for number in (self.blocks - TORN.saturating_sub(head).min(self.blocks - head)..self.blocks).rev() {
            if self.cycle(number)? != last {
                return Err(dirty("has a torn write near its head"));
            }
        }
        Ok(head)
    }

    /// By halves: the first block that is not of the round `first`, which block 0 is of and the last is not.
    fn first_not_of(&self, first: u32) -> Result<u64, Doubt> {
        let (mut of, mut not) = (0, self.blocks - 1);
        while of + 1 < not {
            let middle = of + (not - of) / 2;
            if self.cycle(middle)? == first { of = middle } else { not = middle }
        }
        Ok(not)
    }

    /// The last record before `head`: where its header lies, and the header.
    fn last_record(&self, head: u64) -> Result<(u64, [u8; BASIC_BLOCK as usize]), Doubt> {
        for back in 1..=TORN.min(self.blocks) {
            let number = (head + self.blocks - back) % self.blocks;
            let block = self.block(number)?;
            if be32(&block, 0) == MAGIC {
                return Ok((number, block));
            }
        }
        // A magic that is not there as one may be there backwards: a log of another machine's making.
        let foreign = le32(&self.block(0)?, 0) == MAGIC;
        Err(dirty(if foreign { "is in another byte order" } else { "has no record near its head" }))
    }
}
