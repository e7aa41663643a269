//! Address space of a disk, and what is done with the pages in it.
#![expect(
    unsafe_code,
    reason = "chunks of one mapping are lent out under a lock for each, which the compiler cannot see: see `Chunk`"
)]

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use memmap2::{Advice, MmapOptions, MmapRaw, UncheckedAdvice};

use crate::chunk::{CHUNK, CHUNKS_PER_HUGE, HUGE, SEGMENT, ThpMode};

const SEGMENT_LEN: usize = SEGMENT * CHUNK;

/// Address space for a part of a disk: one mapping, of which pages are taken when they are first written, and given
/// back by advice.
///
/// One mapping, because the kernel allows a process 65,530 (`vm.max_map_count`): with a mapping for each chunk a
/// pattern of holes takes them all, and then threads and buffers cannot be had either. Advice splits none. Nothing is
/// reserved but addresses (`MAP_NORESERVE`): a disk may be larger than the memory. Where the kernel counts addresses as
/// memory (`vm.overcommit_memory=2`) it may refuse, which is the disk's error.
pub(crate) struct Reservation {
    map: MmapRaw,
    /// Bytes before the first chunk, so that regions of huge pages begin where the kernel has them.
    skip: usize,
    /// Segments that were lent.
    lent: Box<[AtomicBool]>,
}

impl Reservation {
    /// Addresses for so many segments.
    pub(crate) fn new(segments: usize) -> io::Result<Self> {
        let len = segments.checked_mul(SEGMENT_LEN).and_then(|len| len.checked_add(HUGE));
        let whole = len.ok_or(io::ErrorKind::OutOfMemory)?;
        let map = MmapRaw::from(MmapOptions::new().len(whole).no_reserve_swap().map_anon()?);
        let skip = map.as_ptr().addr().next_multiple_of(HUGE) - map.as_ptr().addr();
        if ThpMode::of_this_machine() == ThpMode::Always {
            // Else the first 4 KiB written in a region would take 2 MiB. On the whole mapping, which therefore stays
            // one.
            let _ = map.advise(Advice::NoHugePage);
        }
        Ok(Self { map, skip, lent: (0..segments).map(|_| AtomicBool::new(false)).collect() })
    }

    fn len(&self) -> usize {
        self.lent.len() * SEGMENT_LEN
    }

    /// Locks for the chunks of a segment.
    ///
    /// # Panics
    ///
    /// When they exist already: two locks for the same bytes would be none.
    pub(crate) fn lend(self: &Arc<Self>, segment: usize) -> Segment {
        assert!(!self.lent[segment].swap(true, Ordering::AcqRel), "segment {segment} is lent already");
        Segment {
            slots: (0..SEGMENT).map(|_| RwLock::new(false)).collect(),
            held: (0..SEGMENT / CHUNKS_PER_HUGE).map(|_| AtomicU8::new(0)).collect(),
            first: self.address(segment * SEGMENT_LEN),
            home: Arc::clone(self),
        }
    }

    /// The address of a byte.
    fn address(&self, offset: usize) -> Address {
        assert!(offset < self.len(), "beyond the reservation");
        // SAFETY: `skip` and the segments are at most the length of the mapping, which is one allocation.
        let address = unsafe { self.map.as_mut_ptr().add(self.skip + offset) };
        Address(NonNull::new(address).expect("no mapping begins at 0"))
    }

    /// Puts the pages of a whole region ([`HUGE`]) together to a huge one. What is in them stays, whichever thread
    /// reads and writes there meanwhile.
    pub(crate) fn collapse(&self, offset: usize) -> io::Result<()> {
        assert!(offset.is_multiple_of(HUGE) && offset + HUGE <= self.len(), "not a region");
        let address = self.address(offset).0.as_ptr();
        // SAFETY: the range lies in the mapping. The advice changes which pages hold the bytes and not the bytes.
        match unsafe { libc::madvise(address.cast(), HUGE, libc::MADV_COLLAPSE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Gives the pages of a chunk back to the kernel.
    fn give_back(&self, chunk: &mut WriteGuard<'_>) -> io::Result<()> {
        let offset = chunk.address.0.as_ptr().addr() - self.map.as_ptr().addr();
        assert!(
            offset >= self.skip && offset + CHUNK <= self.skip + self.len(),
            "a chunk of another reservation"
        );
        // SAFETY: the bytes become zeroes, as by a write; the guard says that no other thread looks at them.
        unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, offset, CHUNK) }
    }
}

/// Address in a [`Reservation`].
#[derive(Clone, Copy)]
struct Address(NonNull<u8>);

// SAFETY: an address alone reaches nothing; `Chunk` says who may use it.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

/// 64 MiB of a disk: the locks of its chunks, and where their bytes are.
pub(crate) struct Segment {
    /// `true` if a chunk holds data. Otherwise it is a hole, and its bytes are zeroes.
    slots: Box<[RwLock<bool>]>,
    /// Chunks that hold data, for each region of a huge page.
    held: Box<[AtomicU8]>,
    first: Address,
    home: Arc<Reservation>,
}

impl Segment {
    pub(crate) fn chunk(&self, index: usize) -> Chunk<'_> {
        let slot = &self.slots[index];
        // SAFETY: there are as many chunks behind `first` as slots, in the one mapping of `home`.
        let address = unsafe { self.first.0.add(index * CHUNK) };
        Chunk { slot, address: Address(address), home: &self.home }
    }

    /// The count of held chunks in the region of one.
    pub(crate) fn held(&self, index: usize) -> &AtomicU8 {
        &self.held[index / CHUNKS_PER_HUGE]
    }
}

/// One chunk: its lock and its bytes.
///
/// # Soundness
///
/// Bytes of a reservation are reached through chunks alone, and a chunk's bytes only while its lock is held: shared by
/// any number of readers, or by one writer. Chunks do not overlap, and each has one lock, since a segment is lent once.
/// The lifetime is the segment's, which keeps the mapping.
#[derive(Clone, Copy)]
pub(crate) struct Chunk<'a> {
    slot: &'a RwLock<bool>,
    address: Address,
    home: &'a Reservation,
}

impl<'a> Chunk<'a> {
    /// Locks it to read. Nothing panics under these locks; bytes have no invariant that a panic could break.
    pub(crate) fn read(self) -> ReadGuard<'a> {
        ReadGuard { held: self.slot.read().unwrap_or_else(PoisonError::into_inner), address: self.address }
    }

    /// The same, if that takes no waiting.
    pub(crate) fn try_read(self) -> Option<ReadGuard<'a>> {
        let held = match self.slot.try_read() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(ReadGuard { held, address: self.address })
    }

    /// Locks it to change it.
    pub(crate) fn write(self) -> WriteGuard<'a> {
        self.changed_under(self.slot.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// The same, if that takes no waiting.
    pub(crate) fn try_write(self) -> Option<WriteGuard<'a>> {
        match self.slot.try_write() {
            Ok(held) => Some(self.changed_under(held)),
            Err(TryLockError::Poisoned(held)) => Some(self.changed_under(held.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn changed_under(self, held: RwLockWriteGuard<'a, bool>) -> WriteGuard<'a> {
        WriteGuard { held, address: self.address, home: self.home }
    }
}

/// A chunk that is read.
pub(crate) struct ReadGuard<'a> {
    held: RwLockReadGuard<'a, bool>,
    address: Address,
}

impl ReadGuard<'_> {
    /// `None`: a hole.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        // SAFETY: see `Chunk`; the lock is held for reading as long as the slice is borrowed.
        self.held.then(|| unsafe { std::slice::from_raw_parts(self.address.0.as_ptr(), CHUNK) })
    }
}

/// A chunk that is changed.
pub(crate) struct WriteGuard<'a> {
    held: RwLockWriteGuard<'a, bool>,
    address: Address,
    home: &'a Reservation,
}

impl WriteGuard<'_> {
    pub(crate) fn is_held(&self) -> bool {
        *self.held
    }

    /// The bytes, of a hole too, which then is none any more.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        *self.held = true;
        // SAFETY: see `Chunk`; the lock is held for writing as long as the slice is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.address.0.as_ptr(), CHUNK) }
    }

    /// Makes it a hole. False: its pages are locked in memory and stay; its bytes are zeroes nevertheless.
    pub(crate) fn clear(&mut self) -> bool {
        let home = self.home;
        let given_back = home.give_back(self).is_ok();
        if !given_back {
            self.bytes().fill(0);
        }
        *self.held = !given_back;
        given_back
    }
}
