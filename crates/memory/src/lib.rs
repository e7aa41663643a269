//! Block devices of memory: [`RamDisk`], sparse and fast, and [`NullDisk`], a sink.
//!
//! Both answer every operation inline ([`Io::Ready`](lunway_block::Io::Ready)), from any number of threads at
//! once.
//!
//! | part | is |
//! |---|---|
//! | [`RamDisk`] | the device: ranges cut into chunks, size, resize |
//! | `table` | chunk number → chunk, without a lock on the way |
//! | `reservation` | addresses of a disk, pages taken and given back, the lock of each chunk |
//! | `streaming` | copies that go past the caches; with `reservation` the only `unsafe` code of the crate |
//! | `huge` | huge pages where data is dense |
//! | [`NullDisk`] | writes vanish, reads are zeroes |

mod chunk;
mod huge;
mod null;
mod ram;
mod reservation;
mod streaming;
mod table;

use lunway_block::size::HumanSize;
pub use null::NullDisk;
pub use ram::RamDisk;
pub use table::SIZE_MAX;

/// Reason why a disk of memory cannot be made, or not be given this size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// A sector size that no initiator knows.
    #[error("a sector of {sector} bytes is not possible: 512 or 4096 is")]
    Sector {
        /// Sector size requested, bytes.
        sector: u32,
    },
    /// No bytes at all, or a part of a sector.
    #[error(
        "a size of {size} bytes is not possible: it must be whole sectors of {sector} bytes, and at least one"
    )]
    NotSectors {
        /// Size requested, bytes.
        size: u64,
        /// The logical sector, bytes.
        sector: u32,
    },
    /// More than the chunk table can hold.
    #[error("a RAM disk of {} is not possible: the limit is {}", HumanSize(*size), HumanSize(SIZE_MAX))]
    TooLarge {
        /// Size requested, bytes.
        size: u64,
    },
    /// The kernel gives no addresses for it.
    #[error(
        "the kernel reserves no addresses for a RAM disk of {}: take a smaller one, set vm.overcommit_memory=0, or raise the limit of \
         address space (ulimit -v)", HumanSize(*size)
    )]
    Refused {
        /// Size requested, bytes.
        size: u64,
    },
}

impl ShapeError {
    pub(crate) fn check(size: u64, sector: u32) -> Result<(), Self> {
        if sector != 512 && sector != 4096 {
            return Err(Self::Sector { sector });
        }
        if size == 0 || !size.is_multiple_of(u64::from(sector)) {
            return Err(Self::NotSectors { size, sector });
        }
        Ok(())
    }
}
