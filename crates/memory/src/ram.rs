//! A sparse disk of memory.

use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use lunway_block::{
    BlockDevice, BlockError, Buf, Caching, DeviceMemory, Durability, Extent, ExtentKind, Geometry, Identity,
    Io, Lent, LockedBytes, Permit, ResizeCallback, SharedBuf, Space, Unmap, Zeroing, in_time_slices,
};

use crate::ShapeError;
use crate::chunk::CHUNK;
use crate::huge;
use crate::reservation::{Chunk, ReadGuard, WriteGuard};
use crate::streaming;
use crate::table::{SIZE_MAX, Table};

/// A disk of memory: sparse, thin, never waiting.
///
/// - **Sparse.** Memory is taken in chunks of 64 KiB when first written, zeroed, and read as zeroes before
///   that. The disk never holds more than its size, rounded up to chunks, and 0.02 % for the table. Addresses are
///   reserved for the whole disk, in one mapping: a pattern of holes costs none more.
/// - **Dense.** Where 2 MiB are full their pages become a huge one, on a thread in the background (`huge`).
/// - **Thin.** [`unmap`](BlockDevice::unmap) and zeroing that may unmap give whole chunks back to the
///   kernel and zero the rest, so unmapped ranges always read as zeroes. Zeroing that must keep allocated
///   space leaves holes holes: they have none to keep.
/// - **Parallel.** Each chunk has its own lock. Operations on other chunks do not meet; reads of the same one
///   go together. A transfer is atomic per chunk, hence per sector, and not as a whole.
/// - **Inline.** Every answer is ready, but for reads and writes above 1 MiB and for unmapping or zeroing more than
///   that of data, which are done in pieces so that others on the core have their turns in between: 4 KiB cost a table
///   walk, a lock and a copy. Measured on a disk of 2 GiB: 4 KiB in 120 ns where the caches have it and 550–700 ns
///   where memory must be asked (a bare copy: 480–560 ns), 1 MiB at the speed of `memcpy` (112 µs, 9 GB/s).
/// - **Lent.** Reads of 64 KiB to 1 MiB are sent from the disk's memory ([`lend_memory`](BlockDevice::lend_memory)),
///   unless a change had to wait for one that was being sent not long ago. Such a read is atomic per page of 4 KiB, as
///   each PDU of it is sent by itself.
/// - **Streamed.** Changes of 4 KiB and more go past the caches (`streaming`).
/// - **Volatile** in the sense that everything goes with the process; nothing in the sense of a write cache
///   that a flush would empty. [`Durability::Stable`] and flush promise what memory can.
pub struct RamDisk {
    medium: Arc<Medium>,
    /// All but the size.
    shape: Geometry,
    /// Held while the size changes, so that callbacks see sizes in their order.
    callbacks: Mutex<Vec<ResizeCallback>>,
}

/// The longest transfer that is copied at once: it takes the core that it is on 0.1 ms (see [`RamDisk`]), as with
/// files.
const AT_ONCE_MAX: usize = 1 << 20;

/// Bytes that a longer transfer copies before others on its core have their turn: 30 µs, and more where a write fills
/// holes.
const TURN: usize = 256 << 10;

/// Chunks with data that are given back or zeroed before others on the core have their turn: as much memory as
/// [`AT_ONCE_MAX`].
const TURN_CHUNKS: usize = 16;

/// Steps of a walk in the same time, most of which find a hole: estimated, at 10 ns each.
const TURN_STEPS: usize = 4096;

/// The bytes of a chunk that is a hole.
static HOLE: [u8; CHUNK] = [0; CHUNK];

/// Long reads that are copied after a change has waited for one that was being sent: some seconds of a flood of 1 MiB
/// reads, in which a writer of 4 KiB to the same 32 MiB had a p99.9 of 1.6 ms instead of 0.3, when all were lent.
const COPIED_AFTER_WAIT: usize = 1 << 13;

/// State of the disk that an operation needs; the disk may end before the operation does.
struct Medium {
    table: Arc<Table>,
    /// Chunks that hold memory.
    held: AtomicUsize,
    size: AtomicU64,
    /// Pieces that are being sent.
    lent: AtomicUsize,
    /// Long reads that are copied before one is lent again.
    copied: AtomicUsize,
}

/// The part of a range that lies in one chunk.
struct Piece {
    chunk: usize,
    /// Within the chunk.
    inside: Range<usize>,
    /// Within the caller's range.
    outside: Range<usize>,
}

/// Cuts a checked range at chunk borders.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = Piece> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let from = (at % CHUNK as u64) as usize;
        let count = (CHUNK - from).min(len - done);
        let outside = done..done + count;
        done += count;
        Some(Piece { chunk: (at / CHUNK as u64) as usize, inside: from..from + count, outside })
    })
}

/// Reads what a checked range holds.
fn copy_out(table: &Table, offset: u64, bytes: &mut [u8]) {
    for piece in pieces(offset, bytes.len()) {
        let target = &mut bytes[piece.outside];
        let chunk = table.get(piece.chunk).map(Chunk::read);
        match chunk.as_ref().and_then(ReadGuard::bytes) {
            Some(bytes) => target.copy_from_slice(&bytes[piece.inside]),
            None => target.fill(0),
        }
    }
}

/// A part of a chunk, locked while it is sent.
struct LockedPiece<'a> {
    chunk: ReadGuard<'a>,
    inside: Range<usize>,
    /// [`Medium::lent`].
    lent: &'a AtomicUsize,
}

impl Deref for LockedPiece<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.chunk.bytes().unwrap_or(&HOLE)[self.inside.clone()]
    }
}

impl Drop for LockedPiece<'_> {
    fn drop(&mut self) {
        self.lent.fetch_sub(1, Ordering::Relaxed);
    }
}

impl DeviceMemory for Medium {
    fn try_lock(&self, offset: u64, len: usize) -> Option<LockedBytes<'_>> {
        let Piece { chunk, inside, .. } = pieces(offset, len).next()?;
        match self.table.get(chunk) {
            Some(chunk) => {
                let chunk = chunk.try_read()?;
                self.lent.fetch_add(1, Ordering::Relaxed);
                Some(Box::new(LockedPiece { chunk, inside, lent: &self.lent }))
            }
            // Which a write meanwhile would fill, after this read.
            None => Some(Box::new(&HOLE[inside])),
        }
    }

    fn copy_to(&self, offset: u64, bytes: &mut [u8]) {
        copy_out(&self.table, offset, bytes);
    }
}

/// An operation of several turns, one for each [time slice](lunway_block::TimeSlices).
fn in_turns<T: Send + 'static>(turn: impl FnMut() -> Poll<T> + Send + 'static) -> Io<T> {
    Io::pending(in_time_slices(turn))
}

impl Medium {
    fn size(&self) -> u64 {
        self.size.load(Ordering::SeqCst)
    }

    /// Locks a chunk to change it. Sending locks it for longer than a copy does, and still longer where its core has
    /// other things to do: where a change had to wait while something was sent, long reads are copied for a while.
    fn lock<'a>(&self, chunk: Chunk<'a>) -> WriteGuard<'a> {
        chunk.try_write().unwrap_or_else(|| {
            if self.lent.load(Ordering::Relaxed) > 0 {
                self.copied.store(COPIED_AFTER_WAIT, Ordering::Relaxed);
            }
            chunk.write()
        })
    }

    /// A read of so many bytes is copied.
    fn copies(&self, len: usize) {
        if len >= Lent::MIN && self.copied.load(Ordering::Relaxed) > 0 {
            let one_less = |left: usize| left.checked_sub(1);
            let _ = self.copied.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        }
    }

    /// Writes a range that was checked against the size of a moment ago.
    fn copy_in(&self, offset: u64, bytes: &[u8]) -> Result<(), BlockError> {
        for piece in pieces(offset, bytes.len()) {
            let mut chunk = self.lock(self.table.get_or_make(piece.chunk));
            let size = self.size();
            if offset + piece.outside.end as u64 > size {
                // The disk shrank meanwhile, see `resize`.
                return Err(BlockError::OutOfRange { offset, len: bytes.len() as u64, size });
            }
            if !chunk.is_held() {
                self.held.fetch_add(1, Ordering::Relaxed);
                if let Some(region) = self.table.taken(piece.chunk) {
                    huge::is_dense(Arc::downgrade(&self.table), region);
                }
            }
            streaming::copy(&mut chunk.bytes()[piece.inside], &bytes[piece.outside]);
        }
        Ok(())
    }

    /// Zeroes a range as far as a turn goes; gives whole chunks back if that is wanted. Returns where the next turn
    /// begins.
    fn clear(&self, offset: u64, end: u64, zeroing: Zeroing) -> u64 {
        let (mut cleared, mut steps) = (0, 0);
        for (chunks, chunk) in self.table.walk((offset / CHUNK as u64) as usize..chunks_of(end)) {
            let start = chunks.start as u64 * CHUNK as u64;
            if cleared == TURN_CHUNKS || steps == TURN_STEPS {
                return start;
            }
            steps += 1;
            let Some(chunk) = chunk else { continue };
            let from = offset.saturating_sub(start) as usize;
            let to = (end - start).min(CHUNK as u64) as usize;
            let mut chunk = self.lock(chunk);
            if !chunk.is_held() {
                continue;
            }
            cleared += 1;
            if zeroing == Zeroing::MayUnmap && to - from == CHUNK {
                if chunk.clear() {
                    self.table.given_back(chunks.start);
                    self.held.fetch_sub(1, Ordering::Relaxed);
                }
            } else {
                chunk.bytes()[from..to].fill(0);
            }
        }
        end
    }
}

impl RamDisk {
    /// A disk of `size` bytes in sectors of `logical_sector` bytes, 512 or 4096. Takes a few KiB of memory
    /// whatever the size.
    ///
    /// # Errors
    ///
    /// [`ShapeError`] for another sector, a size that is not whole sectors or more than 16 TiB, or one for which the
    /// kernel gives no addresses.
    pub fn new(size: u64, logical_sector: u32) -> Result<Self, ShapeError> {
        check_shape(size, logical_sector)?;
        let shape = Geometry {
            unmap: Unmap::Zeroes { granularity: CHUNK as u32 },
            ..Geometry::plain(size).with_sector(logical_sector)
        };
        Ok(Self {
            medium: Arc::new(Medium {
                table: Arc::new(Table::new(size)?),
                held: AtomicUsize::new(0),
                size: AtomicU64::new(size),
                lent: AtomicUsize::new(0),
                copied: AtomicUsize::new(0),
            }),
            shape,
            callbacks: Mutex::default(),
        })
    }

    /// Memory that the data takes now, bytes.
    pub fn allocated(&self) -> u64 {
        self.medium.held.load(Ordering::Relaxed) as u64 * CHUNK as u64
    }

    fn change_size(&self, new_size: u64, permit: &Permit) -> Result<(), BlockError> {
        check_shape(new_size, self.shape.logical_sector)
            .map_err(|why| BlockError::Size { why: why.to_string() })?;
        permit.begin()?;
        let callbacks = self.callbacks.lock().unwrap_or_else(PoisonError::into_inner);
        self.medium.table.reserve(new_size).map_err(|why| BlockError::Size { why: why.to_string() })?;
        // First the size, then the data: a write that has passed its check against the old size looks again
        // under the chunk's lock (`write`), so that nothing is left behind the new end for a later growth to
        // show.
        let old_size = self.medium.size.swap(new_size, Ordering::SeqCst);
        if new_size < old_size {
            let (mut at, end) = (new_size, old_size.next_multiple_of(CHUNK as u64));
            while at < end {
                at = self.medium.clear(at, end, Zeroing::MayUnmap);
            }
        }
        if new_size != old_size {
            let geometry = self.geometry();
            callbacks.iter().for_each(|callback| callback(geometry));
        }
        Ok(())
    }

    /// Zeroes a range, the first turn of it at once.
    fn clear(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        if let Err(error) = self.geometry().check_write(offset, len) {
            return Io::err(error);
        }
        let end = offset + len;
        let mut at = self.medium.clear(offset, end, zeroing);
        if at == end {
            return Io::ok(());
        }
        let medium = self.medium.clone();
        in_turns(move || {
            at = medium.clear(at, end, zeroing);
            if at == end { Poll::Ready(Ok(())) } else { Poll::Pending }
        })
    }
}

fn check_shape(size: u64, sector: u32) -> Result<(), ShapeError> {
    ShapeError::check(size, sector)?;
    if size > SIZE_MAX { Err(ShapeError::TooLarge { size }) } else { Ok(()) }
}

/// Returns the number of chunks that hold `size` bytes.
fn chunks_of(size: u64) -> usize {
    size.div_ceil(CHUNK as u64) as usize
}

impl BlockDevice for RamDisk {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.medium.size(), ..self.shape }
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Result<Buf, BlockError>> {
        if let Err(error) = self.geometry().check(offset, buf.len() as u64) {
            return Io::err(error);
        }
        self.medium.copies(buf.len());
        if buf.len() > AT_ONCE_MAX {
            let (medium, mut done, mut reading) = (self.medium.clone(), 0, Some(buf));
            return in_turns(move || {
                let bytes = &mut reading.as_deref_mut().expect("polled after it was ready")[done..];
                let turn = bytes.len().min(TURN);
                let all = turn == bytes.len();
                copy_out(&medium.table, offset + done as u64, &mut bytes[..turn]);
                done += turn;
                if all { Poll::Ready(Ok(reading.take().expect("it was there above"))) } else { Poll::Pending }
            });
        }
        // Borrowed once: each look at a `Buf` as bytes proves again that it is unique.
        copy_out(&self.medium.table, offset, &mut buf[..]);
        Io::ok(buf)
    }

    fn lend_memory(&self, offset: u64, len: usize) -> Option<Lent> {
        let lent = (Lent::MIN..=AT_ONCE_MAX).contains(&len)
            && offset.is_multiple_of(Lent::PAGE as u64)
            && self.medium.copied.load(Ordering::Relaxed) == 0
            && self.geometry().check(offset, len as u64).is_ok();
        lent.then(|| Lent::new(Arc::clone(&self.medium) as _, offset, len))
    }

    fn write(&self, offset: u64, data: SharedBuf, _durability: Durability) -> Io<Result<(), BlockError>> {
        if let Err(error) = self.geometry().check_write(offset, data.len() as u64) {
            return Io::err(error);
        }
        if data.len() > AT_ONCE_MAX {
            let (medium, mut done) = (self.medium.clone(), 0);
            return in_turns(move || {
                let turn = done..data.len().min(done + TURN);
                let written = medium.copy_in(offset + done as u64, &data[turn.clone()]);
                done = turn.end;
                if done == data.len() || written.is_err() { Poll::Ready(written) } else { Poll::Pending }
            });
        }
        Io::Ready(self.medium.copy_in(offset, &data[..]))
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        Io::ok(())
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        self.clear(offset, len, Zeroing::MayUnmap)
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        self.clear(offset, len, zeroing)
    }

    fn extents(&self, offset: u64, len: u64, count: usize) -> Io<Result<Vec<Extent>, BlockError>> {
        if let Err(error) = self.geometry().check(offset, len) {
            return Io::err(error);
        }
        let end = offset + len;
        let mut list = Vec::new();
        for (chunks, chunk) in self.medium.table.walk((offset / CHUNK as u64) as usize..chunks_of(end)) {
            let from = offset.max(chunks.start as u64 * CHUNK as u64);
            let to = end.min(chunks.end as u64 * CHUNK as u64);
            let data = chunk.is_some_and(|chunk| chunk.read().bytes().is_some());
            let kind = if data { ExtentKind::Data } else { ExtentKind::Unallocated };
            // An empty range within a chunk makes one empty piece, which `push_onto` drops.
            Extent { offset: from, len: to - from, kind }.push_onto(&mut list);
            if list.len() > count.max(1) {
                // The one before is whole.
                list.pop();
                break;
            }
        }
        Io::ok(list)
    }

    fn resize(&self, size: u64, permit: Permit) -> Io<Result<(), BlockError>> {
        Io::Ready(self.change_size(size, &permit))
    }

    fn identity(&self) -> Identity {
        Identity::of_place(format!(
            "memory at {:p} of process {}",
            Arc::as_ptr(&self.medium.table),
            std::process::id()
        ))
    }

    fn space(&self) -> Option<Space> {
        let allocated = self.allocated();
        Some(Space { allocated, used: allocated, available: self.medium.size().saturating_sub(allocated) })
    }

    fn caching(&self) -> Caching {
        Caching::Memory
    }

    fn on_resize(&self, callback: ResizeCallback) {
        self.callbacks.lock().unwrap_or_else(PoisonError::into_inner).push(callback);
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    /// The answer, and how many turns it took.
    fn turns<T>(io: Io<T>) -> (T, usize) {
        let mut pending = match io {
            Io::Ready(answer) => return (answer, 1),
            Io::Pending(pending) => pending,
        };
        let mut context = Context::from_waker(Waker::noop());
        let mut turns = 1;
        loop {
            match pending.as_mut().poll(&mut context) {
                Poll::Ready(answer) => return (answer, turns),
                Poll::Pending => turns += 1,
            }
        }
    }

    fn ready<T>(io: Io<T>) -> T {
        turns(io).0
    }

    fn write(disk: &RamDisk, offset: u64, len: usize, byte: u8) {
        let data = Buf::copy_of(&vec![byte; len]).freeze();
        ready(disk.write(offset, data, Durability::Volatile)).unwrap();
    }

    fn read(disk: &RamDisk, offset: u64, len: usize) -> Vec<u8> {
        // Filled with rubbish, so that zeroes are the disk's doing.
        ready(disk.read(offset, Buf::copy_of(&vec![0xaa; len]))).unwrap().to_vec()
    }

    #[test]
    fn memory_is_taken_when_written_and_given_back_when_unmapped() {
        let chunk = CHUNK as u64;
        let disk = RamDisk::new(SIZE_MAX, 512).unwrap();
        assert_eq!(disk.allocated(), 0);
        assert_eq!(read(&disk, SIZE_MAX - 512, 512), [0; 512]);
        assert_eq!(disk.allocated(), 0, "a read allocates nothing");
        write(&disk, chunk - 512, 1024, 1);
        write(&disk, SIZE_MAX - 512, 512, 2);
        assert_eq!(disk.allocated(), 3 * chunk);
        ready(disk.unmap(512, 2 * chunk - 512)).unwrap();
        assert_eq!(disk.allocated(), 2 * chunk, "only the second chunk was unmapped as a whole");
        assert_eq!(read(&disk, chunk - 512, 1024), [0; 1024], "and what was unmapped reads as zeroes");
        let space = Space { allocated: 2 * chunk, used: 2 * chunk, available: SIZE_MAX - 2 * chunk };
        assert_eq!(disk.space(), Some(space));
        ready(disk.unmap(0, SIZE_MAX)).unwrap();
        assert_eq!(disk.allocated(), 0);
    }

    #[test]
    fn what_is_lent_is_what_is_read_and_holes_are_zeroes() {
        let disk = RamDisk::new(16 << 20, 512).unwrap();
        write(&disk, CHUNK as u64 + 512, 4096, 7);
        let lent = disk.lend_memory(4096, 3 * CHUNK).unwrap();
        let (mut seen, mut at) = (Vec::new(), 0);
        while at < lent.len() {
            let bytes = lent.try_lock(at).unwrap();
            assert!((at + 4096).is_multiple_of(CHUNK) || at == 0, "a piece is what lies in one chunk");
            seen.extend_from_slice(&bytes);
            at += bytes.len();
        }
        assert!(seen == read(&disk, 4096, 3 * CHUNK) && lent.copy()[..] == seen);
        let is_lent = |offset, len| disk.lend_memory(offset, len).is_some();
        assert!(is_lent(0, Lent::MIN) && is_lent(15 << 20, 1 << 20));
        assert!(!is_lent(0, Lent::MIN - 512) && !is_lent(0, (1 << 20) + 512), "too short, too long");
        assert!(!is_lent(512, Lent::MIN), "within a page");
        assert!(!is_lent((15 << 20) + 4096, 1 << 20) && !is_lent(u64::MAX, Lent::MIN), "beyond the end");
        let (end, _) = (disk.lend_memory(15 << 20, 1 << 20).unwrap(), write(&disk, 15 << 20, 1 << 20, 9));
        ready(disk.resize(512, Permit::default())).unwrap();
        drop(disk);
        assert_eq!(end.try_lock(0).unwrap()[..], [0; CHUNK], "what is cut off meanwhile reads as zeroes");
    }

    #[test]
    fn a_writer_waits_for_what_is_locked_and_nothing_is_locked_that_a_writer_waits_for() {
        let disk = Arc::new(RamDisk::new(1 << 20, 512).unwrap());
        write(&disk, 0, 1 << 20, 1);
        let lent = disk.lend_memory(0, 2 * CHUNK).unwrap();
        let locked = lent.try_lock(0).unwrap();
        let writer = {
            let disk = Arc::clone(&disk);
            std::thread::spawn(move || write(&disk, 0, 2 * CHUNK, 2))
        };
        while lent.try_lock(0).is_some() {
            std::thread::yield_now();
        }
        assert!(locked.iter().all(|byte| *byte == 1));
        assert_eq!(lent.try_lock(CHUNK).unwrap()[0], 1, "the next chunk is still free");
        drop(locked);
        writer.join().unwrap();
        assert!(lent.copy().iter().all(|byte| *byte == 2));
        let copied =
            (0..).take_while(|_| disk.lend_memory(0, CHUNK).is_none() && read(&disk, 0, CHUNK)[0] == 2);
        assert_eq!(copied.count(), COPIED_AFTER_WAIT, "then nothing is lent for a while");
        write(&disk, 0, 2 * CHUNK, 3);
        assert!(disk.lend_memory(0, CHUNK).is_some(), "a write that waits for nothing changes nothing");
    }

    #[test]
    fn transfers_of_eight_mebibytes_give_others_their_turns() {
        const LEN: usize = 8 << 20;
        let disk = RamDisk::new(LEN as u64 + 512, 512).unwrap();
        let data: Vec<u8> = (0..LEN).map(|n| (n / 512 % 251) as u8).collect();
        let (written, count) = turns(disk.write(512, Buf::copy_of(&data).freeze(), Durability::Volatile));
        assert_eq!((written.is_ok(), count), (true, LEN / TURN));
        let (read, count) = turns(disk.read(512, Buf::copy_of(&vec![0xaa; LEN])));
        assert_eq!(count, LEN / TURN);
        assert!(read.unwrap()[..] == data[..]);
    }

    #[test]
    fn unmapping_and_zeroing_much_data_gives_others_their_turns() {
        let disk = RamDisk::new(SIZE_MAX, 512).unwrap();
        let (held, far) = (4 * TURN_CHUNKS, SIZE_MAX - (1 << 30));
        for change in [Zeroing::KeepAllocated, Zeroing::MayUnmap] {
            write(&disk, 0, held * CHUNK, 7);
            write(&disk, far, CHUNK, 7);
            let (changed, count) = turns(match change {
                Zeroing::MayUnmap => disk.unmap(0, SIZE_MAX),
                keep => disk.write_zeroes(0, SIZE_MAX, keep),
            });
            assert!(changed.is_ok());
            assert!(count >= 4 + (SIZE_MAX >> 26) as usize / TURN_STEPS, "{change:?}: {count} turns");
            let left = if change == Zeroing::MayUnmap { 0 } else { (held + 1) * CHUNK };
            assert_eq!(disk.allocated(), left as u64, "{change:?}");
            for offset in [0, (held - 1) * CHUNK, far as usize] {
                assert_eq!(read(&disk, offset as u64, CHUNK), [0; CHUNK], "{change:?}");
            }
        }
        assert!(matches!(disk.unmap(0, (TURN_CHUNKS * CHUNK) as u64), Io::Ready(Ok(()))));
    }

    #[test]
    fn zeroing_gives_memory_back_only_where_it_may() {
        let disk = RamDisk::new(1 << 20, 4096).unwrap();
        write(&disk, 0, 2 * CHUNK, 1);
        ready(disk.write_zeroes(0, 1 << 20, Zeroing::KeepAllocated)).unwrap();
        assert_eq!(disk.allocated(), 2 * CHUNK as u64);
        assert_eq!(read(&disk, 0, 2 * CHUNK), vec![0; 2 * CHUNK]);
        ready(disk.write_zeroes(0, 1 << 20, Zeroing::MayUnmap)).unwrap();
        assert_eq!(disk.allocated(), 0);
    }

    #[test]
    fn extents_show_the_real_map() {
        let chunk = CHUNK as u64;
        let disk = RamDisk::new(1 << 30, 512).unwrap();
        write(&disk, chunk, CHUNK + 512, 1);
        let extents = ready(disk.extents(512, (1 << 30) - 512, usize::MAX)).unwrap();
        let piece = |offset: u64, end: u64, kind| Extent { offset, len: end - offset, kind };
        assert_eq!(
            extents,
            [
                piece(512, chunk, ExtentKind::Unallocated),
                piece(chunk, 3 * chunk, ExtentKind::Data),
                piece(3 * chunk, 1 << 30, ExtentKind::Unallocated),
            ]
        );
        assert_eq!(ready(disk.extents(512, (1 << 30) - 512, 2)).unwrap(), extents[..2]);
        assert_eq!(ready(disk.extents(512, 0, usize::MAX)), Ok(vec![]));
    }

    #[test]
    fn a_resize_is_announced_and_forgets_what_it_cuts_off() {
        let disk = RamDisk::new(4 * CHUNK as u64, 512).unwrap();
        let seen = std::sync::Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        disk.on_resize(Box::new(move |geometry| log.lock().unwrap().push(geometry.size)));
        write(&disk, 0, 4 * CHUNK, 7);
        ready(disk.resize(CHUNK as u64 + 512, Permit::default())).unwrap();
        assert_eq!(disk.allocated(), 2 * CHUNK as u64);
        assert!(matches!(
            ready(disk.read(2 * CHUNK as u64, Buf::zeroed(512))),
            Err(BlockError::OutOfRange { .. })
        ));
        ready(disk.resize(4 * CHUNK as u64, Permit::default())).unwrap();
        ready(disk.resize(4 * CHUNK as u64, Permit::default())).unwrap();
        let kept = CHUNK + 512;
        assert_eq!(read(&disk, 0, kept), vec![7; kept]);
        assert_eq!(read(&disk, kept as u64, 4 * CHUNK - kept), vec![0; 4 * CHUNK - kept]);
        assert_eq!(*seen.lock().unwrap(), [CHUNK as u64 + 512, 4 * CHUNK as u64]);
    }

    #[test]
    fn impossible_shapes_are_refused() {
        assert!(matches!(RamDisk::new(512, 520), Err(ShapeError::Sector { sector: 520 })));
        assert!(matches!(RamDisk::new(512, 4096), Err(ShapeError::NotSectors { .. })));
        assert!(matches!(RamDisk::new(0, 512), Err(ShapeError::NotSectors { .. })));
        assert!(matches!(RamDisk::new(SIZE_MAX + 512, 512), Err(ShapeError::TooLarge { .. })));
        let disk = RamDisk::new(512, 512).unwrap();
        for size in [0, 100, SIZE_MAX + 512] {
            assert!(matches!(ready(disk.resize(size, Permit::default())), Err(BlockError::Size { .. })));
        }
        assert_eq!(disk.geometry().size, 512);
    }

    #[test]
    fn wrong_ranges_are_refused() {
        let disk = RamDisk::new(8192, 4096).unwrap();
        let data = Buf::zeroed(4096).freeze();
        for offset in [8192, u64::MAX - 4095] {
            assert!(matches!(
                ready(disk.read(offset, Buf::zeroed(4096))),
                Err(BlockError::OutOfRange { .. })
            ));
            let written = ready(disk.write(offset, data.clone(), Durability::Volatile));
            assert!(matches!(written, Err(BlockError::OutOfRange { .. })));
            assert!(matches!(ready(disk.unmap(offset, 4096)), Err(BlockError::OutOfRange { .. })));
            assert!(matches!(
                ready(disk.extents(offset, 4096, usize::MAX)),
                Err(BlockError::OutOfRange { .. })
            ));
        }
        assert!(matches!(ready(disk.read(512, Buf::zeroed(4096))), Err(BlockError::Misaligned { .. })));
        assert!(matches!(ready(disk.unmap(0, 512)), Err(BlockError::Misaligned { .. })));
    }
}
