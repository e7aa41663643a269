//! Units of memory: chunks, segments of them, and the huge pages that the kernel may have.

use std::fs;
use std::sync::LazyLock;

/// The unit of allocation, of locking and of unmapping, bytes.
///
/// Smaller chunks: less memory for scattered writes, finer unmap. Larger ones: fewer locks per transfer, a
/// smaller table. At 64 KiB a 1 MiB read takes 16 uncontended locks, some 0.3 µs beside 50 µs and more of
/// copying, and the table is 0.02 % of the data.
pub(crate) const CHUNK: usize = 64 << 10;
/// Chunks per segment: 64 MiB of disk behind 12 KiB of locks.
pub(crate) const SEGMENT: usize = 1024;
/// A huge page, bytes (x86-64, and arm64 with pages of 4 KiB).
pub(crate) const HUGE: usize = 2 << 20;
/// Chunks in one.
pub(crate) const CHUNKS_PER_HUGE: usize = HUGE / CHUNK;

/// Mode of transparent huge pages on this machine (`/sys/kernel/mm/transparent_hugepage/enabled`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThpMode {
    /// The kernel takes them at the first write in any region: switched off for disks, where one sector would take 2
    /// MiB.
    Always,
    /// They are had where they are asked for.
    Advised,
    /// There are none.
    Never,
}

impl ThpMode {
    pub(crate) fn of_this_machine() -> Self {
        static MODE: LazyLock<ThpMode> = LazyLock::new(|| {
            let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
            match () {
                () if text.contains("[always]") => ThpMode::Always,
                () if text.contains("[madvise]") => ThpMode::Advised,
                () => ThpMode::Never,
            }
        });
        *MODE
    }
}
