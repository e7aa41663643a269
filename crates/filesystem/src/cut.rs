//! Loss from a smaller size of a disk: a partition, the copy of a GPT, a volume.

use std::cell::RefCell;

use crate::partition::{HEAD, Partition, Table};
use crate::source::{ByteSource, Unreadable};
use crate::tree;

/// Damage that an earlier end would do. The text says what lies where and what to do, without the disk's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cut {
    /// A partition reaches behind the new end.
    #[error(
        "partition {number} ends at byte {end}, behind the new end: shrink it first ({minimum} bytes hold all partitions)"
    )]
    Partition {
        /// Its place in the table, from 1.
        number: usize,
        /// Its end, bytes.
        end: u64,
        /// The least size that holds all partitions, bytes.
        minimum: u64,
    },
    /// Behind the last partition there would be no room for the copy of the GPT.
    #[error(
        "{minimum} bytes are the least: behind the last partition there must be room for the copy of its GPT"
    )]
    TableCopy {
        /// The least size with that room, bytes.
        minimum: u64,
    },
    /// A volume on a disk without a partition table reaches behind the new end.
    #[error("its {kind} volume ends at byte {end}, behind the new end: shrink it first")]
    Volume {
        /// `ext4`, `LUKS` …
        kind: &'static str,
        /// End of the volume, bytes; for a format whose size is not known, the end of the disk.
        end: u64,
    },
    /// The disk could not be read, so that nothing is known.
    #[error("its contents could not be read: {0}")]
    Unread(Unreadable),
}

/// Returns what a disk with logical sectors of `sector` bytes would lose if it ended at `size`, bytes. `None`: nothing
/// that is recognised; bytes that belong to no known format are not searched for. The reads are those of
/// [`Disk::examine`](tree::Disk::examine).
pub fn cut(source: &dyn ByteSource, sector: u32, size: u64) -> Option<Cut> {
    if size >= source.len() {
        return None;
    }
    let watched = Watched { source, failed: RefCell::new(None) };
    let found = find(&watched, sector, size);
    found.or_else(|| watched.failed.into_inner().map(Cut::Unread))
}

fn find(source: &Watched<'_>, sector: u32, size: u64) -> Option<Cut> {
    let mut head = vec![0; HEAD.min(usize::try_from(source.len()).unwrap_or(HEAD))];
    source.read(0, &mut head).ok()?;
    let Some(table) = Table::read(&head, sector, source.len()) else {
        let disk = tree::Disk::examine(source, sector);
        let (kind, end) = (disk.root().kind?, disk.root().volume_bytes.unwrap_or(source.len()));
        return (end > size).then_some(Cut::Volume { kind, end });
    };
    let (partitions, minimum) = (table.partitions(), table.minimum());
    match partitions.iter().position(|partition| partition.end() > size) {
        Some(at) => Some(Cut::Partition { number: at + 1, end: Partition::end(&partitions[at]), minimum }),
        None => (size < minimum).then_some(Cut::TableCopy { minimum }),
    }
}

/// A source that remembers the first of its bytes that could not be read: the readers of file systems take a volume
/// that they cannot read for none.
struct Watched<'a> {
    source: &'a dyn ByteSource,
    failed: RefCell<Option<Unreadable>>,
}

impl ByteSource for Watched<'_> {
    fn len(&self) -> u64 {
        self.source.len()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Unreadable> {
        let inside = offset.checked_add(buf.len() as u64).is_some_and(|end| end <= self.len());
        let read = self.source.read(offset, buf);
        if let (true, Err(error)) = (inside, &read) {
            self.failed.borrow_mut().get_or_insert_with(|| error.clone());
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// A disk with one MBR partition that ends at 3 MiB.
    fn partitioned() -> Vec<u8> {
        let mut disk = vec![0; 4 * MIB];
        disk[446 + 4] = 0x83;
        disk[446 + 8..446 + 12].copy_from_slice(&2048_u32.to_le_bytes());
        disk[446 + 12..446 + 16].copy_from_slice(&4096_u32.to_le_bytes());
        disk[510..512].copy_from_slice(&[0x55, 0xAA]);
        disk
    }

    #[test]
    fn a_partition_is_not_cut_and_what_lies_behind_it_may_be() {
        let (disk, end) = (partitioned(), 3 << 20);
        assert_eq!(cut(&disk, 512, end - 512), Some(Cut::Partition { number: 1, end, minimum: end }));
        assert_eq!(cut(&disk, 512, end), None);
    }

    #[test]
    fn a_disk_of_no_known_format_has_nothing_to_cut() {
        assert_eq!(cut(&vec![7; 4 * MIB], 512, 512), None);
    }

    #[test]
    fn a_disk_that_cannot_be_read_is_never_taken_for_an_empty_one() {
        struct Broken(Vec<u8>);
        impl ByteSource for Broken {
            fn len(&self) -> u64 {
                4 << 20
            }
            fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Unreadable> {
                // The table can be read, and nothing behind it.
                if offset >= MIB as u64 {
                    return Err(Unreadable { what: "the medium is broken".to_owned() });
                }
                self.0.as_slice().read(offset, buf)
            }
        }
        let read = cut(&Broken(vec![0; 4 * MIB]), 512, 1 << 20);
        assert!(matches!(read, Some(Cut::Unread(_))), "{read:?}");
    }
}
