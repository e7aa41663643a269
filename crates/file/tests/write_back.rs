//! What a device has written and nobody has flushed: the disk gets it without a flush, so that one has little left to
//! do.
#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

use std::fs::File;
use std::io::IoSliceMut;
use std::thread;
use std::time::Duration;

use lunway_block::{BlockDevice, Buf, Durability};
use lunway_file::{FileDevice, FileOptions};
use rustix::fs::Advice;
use rustix::io::ReadWriteFlags;

const PIECE: usize = 1 << 20;
/// A quarter of what may be dirty before the disk has shown how fast it is, and one more.
const PIECES: usize = 9;
/// More than that takes on a busy disk, and less than the kernel leaves it alone (`dirty_expire_centisecs`: 30 s).
const SETTLED: Duration = Duration::from_secs(3);
/// One that is good is enough: what is not written back is so in none.
const TRIES: usize = 4;

/// How many pieces the disk has: only what it has may be dropped from the page cache.
fn pieces_written_back(file: &File) -> usize {
    rustix::fs::fadvise(file, 0, None, Advice::DontNeed).unwrap();
    let is_cached = |piece: &usize| {
        let mut byte = [0];
        let at = (piece * PIECE) as u64;
        rustix::io::preadv2(file, &mut [IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT).is_ok()
    };
    PIECES - (0..PIECES).filter(is_cached).count()
}

#[test]
fn a_quarter_of_what_may_be_dirty_is_written_back_without_a_flush() {
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        file.as_file().set_len((PIECES * PIECE) as u64).unwrap();
        let device = FileDevice::open(file.path(), &FileOptions::default()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            for piece in 0..PIECES {
                let data = Buf::copy_of(&vec![7; PIECE]).freeze();
                device.write((piece * PIECE) as u64, data, Durability::Volatile).await.unwrap();
            }
        });
        thread::sleep(SETTLED);
        seen.push(pieces_written_back(file.as_file()));
        if seen.last() >= Some(&(PIECES - 1)) {
            return;
        }
    }
    panic!("of {PIECES} MiB the disk has got {seen:?}");
}
