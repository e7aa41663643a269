//! Mapping of a qcow2 disk to its file.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use lunway_vhdx::Storage;
use miniz_oxide::inflate::decompress_slice_iter_to_slice;

use super::BackingFormat;
use super::format::{COMPRESSED, COMPRESSED_SECTOR, OFFSET, SUBCLUSTERS, ZERO};
use super::header::{Parsed, parse};
use crate::error::{ImageOpenError, nonsense};
use crate::layer_info::{Compressed, ImageKind, LayerInfo, LayerSource};
use crate::pages::Pages;

/// A qcow2 file. Tables are read as they are needed; one that says nonsense fails what needs it.
pub struct Qcow2<S> {
    storage: S,
    /// Bytes of the file when it was opened: what is missing of them later was cut off, and does not read as zeroes.
    len: u64,
    header: Parsed,
    pages: Pages,
    /// The compressed cluster that was read last, by its offset in the file: a reader goes through it in several steps.
    last: Mutex<Option<(u64, Arc<[u8]>)>>,
}

impl<S: Storage> Qcow2<S> {
    /// Opens a file.
    ///
    /// # Errors
    ///
    /// [`ImageOpenError`], which says what is wrong.
    pub fn open(storage: S) -> Result<Self, ImageOpenError> {
        let header = parse(&storage)?;
        let len = storage.len().map_err(ImageOpenError::read("asking for the file's length"))?;
        Ok(Self { storage, len, header, pages: Pages::default(), last: Mutex::default() })
    }

    /// The backing file, as it is named, and its format.
    pub(crate) fn backing(&self) -> Option<(&str, BackingFormat)> {
        self.header.backing.as_ref().map(|(name, format)| (name.as_str(), *format))
    }

    pub(crate) fn info(&self) -> LayerInfo {
        LayerInfo {
            kind: if self.header.backing.is_some() { ImageKind::Differencing } else { ImageKind::Dynamic },
            size: self.header.size,
            block: self.cluster(),
            id: None,
        }
    }

    fn cluster(&self) -> u64 {
        1 << self.header.cluster_bits
    }

    /// See [`Layer::locate`](crate::layer::Layer::locate).
    pub(crate) fn locate(&self, offset: u64, len: u64) -> io::Result<(u64, LayerSource)> {
        let span = self.header.bytes_per_l1_entry();
        let Some(table) = self.l2_table(offset / span)? else {
            let mut found = span - offset % span;
            while found < len && self.l2_table((offset + found) / span)?.is_none() {
                found = found.saturating_add(span);
            }
            return Ok((found.min(len), LayerSource::Absent));
        };
        let within = offset % self.cluster();
        let entry_at = table + offset % span / self.cluster() * self.header.entry_len();
        let entry = self.pages.be64(&self.storage, entry_at)?;
        let len = len.min(self.cluster() - within);
        if entry & COMPRESSED != 0 {
            return Ok((len, self.compressed(entry, within)?));
        }
        let data = entry & OFFSET;
        if !data.is_multiple_of(self.cluster()) {
            return Err(nonsense(format!(
                "the L2 table at byte {table} leads to byte {data}, where no cluster begins"
            )));
        }
        if self.header.extended {
            let subclusters = self.pages.be64(&self.storage, entry_at + 8)?;
            return self.subcluster(data, subclusters, within, len);
        }
        Ok((
            len,
            match data {
                _ if self.header.zero_flag && entry & ZERO != 0 => LayerSource::Zero,
                0 => LayerSource::Absent,
                data => LayerSource::File(data + within),
            },
        ))
    }

    /// Returns the offset of an L2 table; `None`: there is none.
    fn l2_table(&self, index: u64) -> io::Result<Option<u64>> {
        let entry = self.pages.be64(&self.storage, self.header.l1_offset + index * 8)?;
        match entry & OFFSET {
            0 => Ok(None),
            // Whatever is in the header's cluster is no table, and neither are entries of the L1 table.
            table if table.is_multiple_of(self.cluster()) && !self.is_over_tables(table) => Ok(Some(table)),
            table => {
                Err(nonsense(format!("L1 entry {index} leads to byte {table}, where no L2 table can be")))
            }
        }
    }

    fn is_over_tables(&self, cluster: u64) -> bool {
        let l1 = self.header.l1_offset;
        cluster < self.cluster()
            || (cluster + self.cluster() > l1 && cluster < l1 + self.header.l1_entries * 8)
    }

    /// A range of one cluster with extended L2 entries: as far as its subclusters are alike.
    fn subcluster(&self, data: u64, bits: u64, within: u64, len: u64) -> io::Result<(u64, LayerSource)> {
        let size = self.cluster() / SUBCLUSTERS;
        let state = |number: u64| (bits >> number & 1 != 0, bits >> (number + SUBCLUSTERS) & 1 != 0);
        let first = within / size;
        let mut end = first + 1;
        while end * size < within + len && state(end) == state(first) {
            end += 1;
        }
        let source = match state(first) {
            (true, false) if data != 0 => LayerSource::File(data + within),
            (false, true) => LayerSource::Zero,
            (false, false) => LayerSource::Absent,
            _ => {
                return Err(nonsense(format!(
                    "an L2 entry whose subcluster {first} is in no possible state"
                )));
            }
        };
        Ok(((end * size - within).min(len), source))
    }

    /// The descriptor of a compressed cluster.
    fn compressed(&self, entry: u64, within: u64) -> io::Result<LayerSource> {
        let offset_bits = 62 - (self.header.cluster_bits - 8);
        let offset = entry & ((1 << offset_bits) - 1);
        let sectors = (entry & (COMPRESSED - 1)) >> offset_bits;
        let len = (sectors + 1) * COMPRESSED_SECTOR - offset % COMPRESSED_SECTOR;
        Ok(LayerSource::Compressed(Compressed { offset, len, within }))
    }

    /// Fills `buf` from a compressed cluster.
    pub(crate) fn decompress(&self, compressed: Compressed, buf: &mut [u8]) -> io::Result<()> {
        let Compressed { offset, len, within } = compressed;
        let last = || self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = last().as_ref().filter(|(at, _)| *at == offset).map(|(_, bytes)| Arc::clone(bytes));
        let cluster = match kept {
            Some(cluster) => cluster,
            None => {
                // The last sector that is counted need not be there to its end.
                let there = self.len.saturating_sub(offset).min(len);
                let mut stream = vec![0; there as usize];
                self.storage.read_at(offset, &mut stream)?;
                let mut bytes = vec![0; self.cluster() as usize];
                let inflated = inflate(&stream, &mut bytes);
                if inflated != Some(bytes.len()) {
                    return Err(nonsense(format!("the compressed cluster at byte {offset} is damaged")));
                }
                let bytes: Arc<[u8]> = bytes.into();
                *last() = Some((offset, Arc::clone(&bytes)));
                bytes
            }
        };
        let from = within as usize;
        buf.copy_from_slice(&cluster[from..from + buf.len()]);
        Ok(())
    }

    /// Fills `buf` from a cluster of the file, which may end within its last one.
    pub(crate) fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let first = at / self.cluster() * self.cluster();
        if first >= self.len {
            let problem = format!("a cluster at byte {first} is behind the file's end: the file was cut");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, problem));
        }
        let there = self.len.saturating_sub(at).min(buf.len() as u64) as usize;
        let (there, behind) = buf.split_at_mut(there);
        behind.fill(0);
        self.storage.read_at(at, there)
    }
}

/// Inflates a stream without a zlib header; what follows its end does not count. How many bytes it held.
fn inflate(stream: &[u8], into: &mut [u8]) -> Option<usize> {
    decompress_slice_iter_to_slice(into, std::iter::once(stream), false, true).ok()
}
