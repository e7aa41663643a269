//! Ranges of files that copies have the kernel share or copy.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, PoisonError};

use lunway_block::{BlockError, FileRange};
use lunway_vhdx::{Disk, MapSegment, SegmentSource, Storage};

use crate::backing::Backing;
use crate::device::{Inner, meaning};

impl Inner {
    /// Position of a range in one of the chain's files, if it lies there in one piece.
    pub(crate) fn lend(&self, offset: u64, len: u64) -> Result<Option<FileRange>, BlockError> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let Ok(chain) = state.chain() else { return Ok(None) };
        let mut pieces = Vec::new();
        chain.map(offset, len, |segment| pieces.push(segment)).map_err(meaning)?;
        let [MapSegment { source: SegmentSource::File(from), level, .. }] = pieces[..] else {
            return Ok(None);
        };
        let Some(Backing::File(file)) = chain.disks().get(level).map(Disk::storage) else { return Ok(None) };
        // What was cut off is read, and fails.
        if from + len > Storage::len(&**file)? {
            return Ok(None);
        }
        let file = file.try_clone()?.into_file();
        Ok(Some(FileRange { file: Arc::new(file), offset: from, len }))
    }

    pub(crate) fn adopt(&self, offset: u64, from: &FileRange) -> Result<bool, BlockError> {
        self.change(offset, from.len, |chain| {
            let Backing::File(file) = chain.disks()[0].storage() else { return Ok(false) };
            let mut there = false;
            chain.write_by(offset, from.len, &mut |to, part| {
                let len = part.end - part.start;
                let part = FileRange { file: Arc::clone(&from.file), offset: from.offset + part.start, len };
                if part.put_into(file, to)? {
                    there = true;
                } else if there {
                    // Another block's part is there already, and a refusal must leave everything as it was.
                    copy_bytes(&part, file, to)?;
                } else {
                    return Ok(false);
                }
                Ok(true)
            })
        })
    }
}

/// Writes what a range of another file holds.
fn copy_bytes(from: &FileRange, file: &File, to: u64) -> std::io::Result<()> {
    /// Bytes at a time.
    const PIECE: u64 = 1 << 20;
    let mut buf = vec![0; from.len.min(PIECE) as usize];
    let mut done = 0;
    while done < from.len {
        let piece = &mut buf[..(from.len - done).min(PIECE) as usize];
        from.file.read_exact_at(piece, from.offset + done)?;
        file.write_all_at(piece, to + done)?;
        done += piece.len() as u64;
    }
    Ok(())
}
