//! Model of a device: the content that each sector should have.

use std::ops::Range;

use super::{Outcome, Verdict, ensure};
use crate::{BlockDevice, BlockError, Buf, Caching, Durability, Io, SharedBuf};

/// Content of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Zeroes.
    Zeroes,
    /// Made from this number, which is not 0, and from the sector's own: bytes that end up in another sector are found
    /// out.
    Stamp(u64),
    /// Anything: it was unmapped, and the device does not say that it reads as zeroes.
    Any,
}

impl Content {
    /// The eight bytes that the sector consists of.
    fn word(self, sector: u64) -> u64 {
        match self {
            Self::Zeroes | Self::Any => 0,
            // Odd multipliers: different for different sectors and stamps. Not 0, so that it is told from zeroes.
            Self::Stamp(stamp) => {
                stamp.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ sector.wrapping_mul(0xD6E8_FEB8_6659_FD93) | 1
            }
        }
    }

    /// Fills a sector with it.
    pub fn fill(self, sector: u64, bytes: &mut [u8]) {
        let word = self.word(sector).to_le_bytes();
        bytes.chunks_mut(8).for_each(|part| part.copy_from_slice(&word[..part.len()]));
    }

    /// Tells whether a sector holds this content.
    pub fn is(self, sector: u64, bytes: &[u8]) -> bool {
        let word = self.word(sector).to_le_bytes();
        self == Self::Any || bytes.chunks(8).all(|part| *part == word[..part.len()])
    }
}

/// A device of plain sectors.
#[derive(Clone, Debug)]
pub struct Model {
    sector: u64,
    sectors: Vec<Content>,
    /// The device says that it stores nothing: what is written is zeroes afterwards.
    forgets: bool,
}

impl Model {
    /// Of a fresh device: zeroes.
    pub fn of(device: &dyn BlockDevice) -> Self {
        let geometry = device.geometry();
        Self {
            sector: u64::from(geometry.logical_sector),
            sectors: vec![Content::Zeroes; geometry.sectors() as usize],
            forgets: device.caching() == Caching::Nowhere,
        }
    }

    /// Outcome of a check that wrote and found what this model holds.
    pub(super) fn kept(&self) -> Outcome {
        if self.forgets { Outcome::Lacks("forgets, as it says") } else { Outcome::Holds }
    }

    /// Bytes of a sector.
    pub fn sector(&self) -> u64 {
        self.sector
    }

    /// Number of sectors.
    pub fn len(&self) -> usize {
        self.sectors.len()
    }

    /// Returns `true` if there are no sectors.
    pub fn is_empty(&self) -> bool {
        self.sectors.is_empty()
    }

    /// Content of a sector.
    pub fn at(&self, sector: usize) -> Content {
        self.sectors[sector]
    }

    /// Another size, in sectors; what is added is zeroes.
    pub fn resize(&mut self, sectors: usize) {
        self.sectors.resize(sectors, Content::Zeroes);
    }

    /// Sets the content of a range of bytes.
    pub fn set(&mut self, offset: u64, len: u64, content: Content) {
        let range = self.range(offset, len);
        let content = if self.forgets { Content::Zeroes } else { content };
        self.sectors[range].fill(content);
    }

    /// `Err` where bytes that were read from `offset` are not what is there.
    ///
    /// # Errors
    ///
    /// The first sector that differs, and what it holds.
    pub fn compare(&self, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let first = offset / self.sector;
        for (number, bytes) in (first..).zip(bytes.chunks(self.sector as usize)) {
            let expected = self.sectors[number as usize];
            if !expected.is(number, bytes) {
                return Err(format!("sector {number}: {:02x?} instead of {expected:?}", &bytes[..16]));
            }
        }
        Ok(())
    }

    /// [`compare`](Self::compare) for all of a device, in pieces.
    ///
    /// # Errors
    ///
    /// The first sector that differs, or the read that failed.
    pub async fn compare_all(&self, device: &dyn BlockDevice) -> Result<(), String> {
        let size = self.sectors.len() as u64 * self.sector;
        ensure!(device.geometry().size == size, "{} bytes instead of {size}", device.geometry().size);
        let piece = (1 << 20) / self.sector * self.sector;
        let mut at = 0;
        while at < size {
            let buf = read(device, at, piece.min(size - at)).await?;
            self.compare(at, &buf)?;
            at += buf.len() as u64;
        }
        Ok(())
    }

    fn range(&self, offset: u64, len: u64) -> Range<usize> {
        (offset / self.sector) as usize..((offset + len) / self.sector) as usize
    }
}

/// Sectors of a stamp.
pub(super) fn stamped(device: &dyn BlockDevice, offset: u64, len: u64, content: Content) -> SharedBuf {
    let sector = u64::from(device.geometry().logical_sector);
    let mut buf = Buf::zeroed(len as usize);
    for (number, bytes) in (offset / sector..).zip(buf.chunks_mut(sector as usize)) {
        content.fill(number, bytes);
    }
    buf.freeze()
}

/// Begins to write a stamp.
pub(super) fn write(
    device: &dyn BlockDevice,
    offset: u64,
    len: u64,
    content: Content,
    durability: Durability,
) -> Io<Result<(), BlockError>> {
    device.write(offset, stamped(device, offset, len, content), durability)
}

/// Writes a stamp and has the model hold it.
pub(super) async fn put(
    device: &dyn BlockDevice,
    model: &mut Model,
    offset: u64,
    len: u64,
    stamp: u64,
) -> Result<(), String> {
    let written = write(device, offset, len, Content::Stamp(stamp), Durability::Volatile).await;
    written.map_err(|error| format!("write of {len} bytes at {offset}: {error}"))?;
    model.set(offset, len, Content::Stamp(stamp));
    Ok(())
}

/// Reads into a buffer that holds something else.
pub(super) async fn read(device: &dyn BlockDevice, offset: u64, len: u64) -> Result<Buf, String> {
    let mut buf = Buf::for_overwrite(len as usize);
    buf.fill(0xEE);
    let read = device.read(offset, buf).await;
    let buf = read.map_err(|error| format!("read of {len} bytes at {offset}: {error}"))?;
    ensure!(buf.len() as u64 == len, "a read of {len} bytes gave {} back", buf.len());
    Ok(buf)
}

/// [`read`], compared, and so what the device lends of the range.
pub(super) async fn check(
    device: &dyn BlockDevice,
    model: &Model,
    offset: u64,
    len: u64,
) -> Result<(), String> {
    let buf = read(device, offset, len).await?;
    model.compare(offset, &buf).map_err(|what| format!("read of {len} bytes at {offset}: {what}"))?;
    let Some(lent) = device.lend_memory(offset, len as usize) else { return Ok(()) };
    let (mut seen, mut at) = (Vec::new(), 0);
    while at < lent.len() {
        // No writer has it.
        seen.extend_from_slice(&lent.try_lock(at).ok_or("what is lent cannot be locked")?);
        ensure!(seen.len() > at, "nothing is locked at {at} of {len} lent bytes at {offset}");
        at = seen.len();
    }
    ensure!(seen.len() as u64 == len, "{} bytes are lent of {len} at {offset}", seen.len());
    model.compare(offset, &seen).map_err(|what| format!("{len} lent bytes at {offset}: {what}"))?;
    model
        .compare(offset, &lent.copy())
        .map_err(|what| format!("copy of {len} lent bytes at {offset}: {what}"))
}

/// `Some` where the device refuses all changes.
pub(super) fn is_read_only(device: &dyn BlockDevice) -> Option<Verdict> {
    device.geometry().read_only.then_some(Ok(Outcome::Lacks("read-only")))
}
