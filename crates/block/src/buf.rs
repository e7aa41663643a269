//! Pooled, aligned memory.
//!
//! A [`Buf`] is unique and can be filled; [`Buf::freeze`] turns it, without copying or allocating, into a
//! [`SharedBuf`] that can be cloned, sliced and sent. When the last handle goes, the memory returns to the pool of the
//! thread that dropped it. Pools are thread-local free lists by power-of-two size: no lock and no atomic but the
//! handle's own count. A thread that takes no buffers of a size keeps none of it: what others have it drop would lie
//! idle there.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// Every buffer starts at a multiple of this, bytes: enough for `O_DIRECT` everywhere.
pub const ALIGNMENT: usize = 4096;

/// Smallest pooled size, bytes: one 4 KiB request, the most common payload.
const SMALLEST: usize = 4096;
/// Largest pooled size, bytes; larger ones go back to the allocator.
const LARGEST: usize = 16 << 20;
const CLASSES: usize = (LARGEST / SMALLEST).ilog2() as usize + 1;
/// Limit of the memory that one class of one thread may keep, bytes (at least one buffer): 64 requests of 256 KiB, a
/// full window of most initiators.
const CLASS_BYTES_MAX: usize = 16 << 20;
/// Limit of the memory that all classes of one thread may keep, bytes: two full ones, since initiators keep to one or
/// two sizes at a time. What a flood of other sizes has left goes back to the allocator, the largest first.
const THREAD_BYTES_MAX: usize = 2 * CLASS_BYTES_MAX;

struct Mem {
    raw: Vec<u8>,
    start: usize,
    capacity: usize,
}

impl Mem {
    fn new(capacity: usize) -> Self {
        let raw = vec![0; capacity + ALIGNMENT - 1];
        let start = raw.as_ptr().align_offset(ALIGNMENT);
        Self { raw, start, capacity }
    }
}

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { lists: [const { Vec::new() }; CLASSES], bytes: 0, taken: [false; CLASSES] }) };
}

/// The free memory of a thread.
struct Pool {
    lists: [Vec<Arc<Mem>>; CLASSES],
    /// Bytes of all lists.
    bytes: usize,
    /// Classes of which this thread has taken a buffer.
    taken: [bool; CLASSES],
}

impl Pool {
    fn take(&mut self, class: usize) -> Option<Arc<Mem>> {
        self.taken[class] = true;
        let mem = self.lists[class].pop()?;
        self.bytes -= mem.capacity;
        Some(mem)
    }

    fn keep(&mut self, class: usize, mem: Arc<Mem>) {
        let (capacity, kept) = (mem.capacity, self.lists[class].len());
        if !self.taken[class] || kept > 0 && (kept + 1) * capacity > CLASS_BYTES_MAX {
            return;
        }
        while self.bytes + capacity > THREAD_BYTES_MAX {
            let Some(larger) = (class + 1..CLASSES).rev().find(|larger| !self.lists[*larger].is_empty())
            else {
                return;
            };
            drop(self.take(larger));
        }
        self.bytes += capacity;
        self.lists[class].push(mem);
    }
}

fn class_of(len: usize) -> Option<usize> {
    let size = len.max(SMALLEST).next_power_of_two();
    (size <= LARGEST).then(|| (size / SMALLEST).ilog2() as usize)
}

fn take(len: usize) -> Arc<Mem> {
    let Some(class) = class_of(len) else { return Arc::new(Mem::new(len)) };
    let pooled = POOL.try_with(|pool| pool.borrow_mut().take(class)).ok().flatten();
    pooled.unwrap_or_else(|| Arc::new(Mem::new(SMALLEST << class)))
}

/// Puts memory back whose last handle this is. Two handles dropped at the same instant on two threads may both see
/// the other: then the allocator gets it back, which is correct and rare.
fn give_back(mut mem: Arc<Mem>) {
    if Arc::get_mut(&mut mem).is_none() {
        return;
    }
    let Some(class) = class_of(mem.capacity).filter(|class| SMALLEST << class == mem.capacity) else {
        return;
    };
    let _ = POOL.try_with(|pool| pool.borrow_mut().keep(class, mem));
}

/// Unique, aligned, pooled memory of a fixed length.
pub struct Buf {
    /// `None` for the empty buffer, and while dropping.
    mem: Option<Arc<Mem>>,
    len: usize,
}

impl Buf {
    /// `len` bytes of **unspecified** content (whatever the pool had): for callers that fill all of it.
    pub fn for_overwrite(len: usize) -> Self {
        match len {
            0 => Self::empty(),
            _ => Self { mem: Some(take(len)), len },
        }
    }

    /// `len` zeroes.
    pub fn zeroed(len: usize) -> Self {
        let mut buf = Self::for_overwrite(len);
        buf.fill(0);
        buf
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = Self::for_overwrite(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// No bytes; allocates nothing.
    pub const fn empty() -> Self {
        Self { mem: None, len: 0 }
    }

    /// The memory that a buffer of `len` bytes occupies, bytes.
    pub const fn memory_of(len: usize) -> usize {
        match len {
            0 => 0,
            1..SMALLEST => SMALLEST,
            SMALLEST..=LARGEST => len.next_power_of_two(),
            _ => len,
        }
    }

    /// Shortens to `len`; longer ones stay as they are.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Gives up uniqueness: the result can be cloned and sliced.
    pub fn freeze(mut self) -> SharedBuf {
        SharedBuf { mem: self.mem.take(), range: 0..self.len }
    }
}

impl Default for Buf {
    fn default() -> Self {
        Self::empty()
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        if let Some(mem) = self.mem.take() {
            give_back(mem);
        }
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.mem.as_ref().map_or(&[], |mem| &mem.raw[mem.start..mem.start + self.len])
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // `get_mut` always succeeds: a `Buf` is made from memory that has no other handle, and cannot be cloned.
        match self.mem.as_mut().and_then(Arc::get_mut) {
            Some(mem) => &mut mem.raw[mem.start..mem.start + self.len],
            None => &mut [],
        }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

/// Shared, read-only, pooled memory, or a slice of it. Cloning counts, it does not copy.
#[derive(Clone, Default)]
pub struct SharedBuf {
    mem: Option<Arc<Mem>>,
    range: Range<usize>,
}

impl SharedBuf {
    /// The part `range` of this one, counted from its start.
    ///
    /// # Panics
    ///
    /// Like slicing, where `range` leaves it.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "slice {range:?} of {} bytes",
            self.len()
        );
        Self { mem: self.mem.clone(), range: self.range.start + range.start..self.range.start + range.end }
    }

    /// The memory that this handle keeps from going back to its pool, bytes: all of the buffer that it is a slice of.
    pub fn pinned(&self) -> usize {
        self.mem.as_ref().map_or(0, |mem| mem.capacity)
    }

    /// Address of that memory, as a number: handles of one buffer have the same. A buffer that was made after the other
    /// was given back may have it as well.
    pub fn memory(&self) -> usize {
        self.mem.as_ref().map_or(0, |mem| Arc::as_ptr(mem) as usize)
    }
}

impl Drop for SharedBuf {
    fn drop(&mut self) {
        if let Some(mem) = self.mem.take() {
            give_back(mem);
        }
    }
}

impl Deref for SharedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.mem
            .as_ref()
            .map_or(&[], |mem| &mem.raw[mem.start + self.range.start..mem.start + self.range.end])
    }
}

impl From<Buf> for SharedBuf {
    fn from(buf: Buf) -> Self {
        buf.freeze()
    }
}

impl fmt::Debug for SharedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBuf({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn every_buffer_is_aligned() {
        for len in [1, 512, 4096, 4097, 1 << 20, LARGEST, LARGEST + 1] {
            let buf = Buf::zeroed(len);
            assert_eq!((buf.as_ptr().align_offset(ALIGNMENT), buf.len()), (0, len));
            assert!(buf.iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn memory_comes_back_to_the_pool_and_zeroed_means_zeroes() {
        let mut buf = Buf::for_overwrite(8192);
        buf.fill(7);
        let address = buf.as_ptr();
        let shared = buf.freeze();
        let part = shared.slice(4096..8192);
        drop(shared);
        assert_eq!(&part[..], &[7; 4096], "a slice keeps the memory alive");
        drop(part);
        let again = Buf::zeroed(5000);
        assert_eq!(again.as_ptr(), address, "same class, same memory");
        assert_eq!(&again[..], &[0; 5000]);
    }

    #[test]
    fn the_pool_keeps_no_more_than_its_limit() {
        let bufs: Vec<_> = (0..40).map(|_| Buf::for_overwrite(1 << 20)).collect();
        drop(bufs);
        let class = class_of(1 << 20).unwrap();
        let kept = |class: usize| POOL.with(|pool| pool.borrow().lists[class].len());
        assert_eq!(kept(class) << 20, CLASS_BYTES_MAX);
        drop(Buf::for_overwrite(LARGEST + 1));

        // A flood of every size, and then the usual one: what is too much of the flood goes.
        for class in (0..CLASSES).rev() {
            drop((0..64).map(|_| Buf::for_overwrite(SMALLEST << class)).collect::<Vec<_>>());
        }
        let bytes = POOL.with(|pool| pool.borrow().bytes);
        let listed: usize = (0..CLASSES).map(|class| kept(class) * (SMALLEST << class)).sum();
        assert!(bytes == listed && bytes <= THREAD_BYTES_MAX, "{bytes} counted, {listed} listed");
        assert_eq!(kept(0), 64, "the smallest find room beside what larger ones have left");
    }

    #[test]
    fn a_thread_that_only_drops_buffers_keeps_none() {
        let kept = |class: usize| POOL.with(|pool| pool.borrow().lists[class].len());
        let class = class_of(1 << 20).unwrap();
        let (one, two) = (Buf::for_overwrite(1 << 20), Buf::for_overwrite(1 << 20));
        let elsewhere = thread::spawn(move || {
            drop(one);
            kept(class)
        });
        assert_eq!(elsewhere.join().unwrap(), 0);
        drop(two);
        assert_eq!(kept(class), 1, "where such buffers are taken");
    }

    #[test]
    fn a_buffer_occupies_what_is_told() {
        for len in [0, 1, SMALLEST, SMALLEST + 1, 3 << 20, LARGEST, LARGEST + 1] {
            assert_eq!(Buf::for_overwrite(len).freeze().pinned(), Buf::memory_of(len), "{len}");
        }
    }

    #[test]
    fn slices_count_from_the_slice() {
        let bytes: Vec<u8> = (0..100).collect();
        let shared = Buf::copy_of(&bytes).freeze().slice(10..50);
        assert_eq!(&shared.slice(5..8)[..], &[15, 16, 17]);
        assert_eq!(shared.slice(40..40).len(), 0);
        assert_eq!((shared.slice(5..8).pinned(), SharedBuf::default().pinned()), (SMALLEST, 0));
        assert_eq!(format!("{shared:?}"), "SharedBuf(40 bytes)");
    }

    #[test]
    #[should_panic(expected = "slice 0..41 of 40 bytes")]
    fn a_slice_cannot_reach_beyond_its_slice() {
        let _ = Buf::zeroed(100).freeze().slice(10..50).slice(0..41);
    }

    #[test]
    fn a_shortened_buffer_is_shared_short() {
        let mut buf = Buf::copy_of(b"abcdef");
        buf.truncate(3);
        buf.truncate(5);
        assert_eq!(&buf.freeze()[..], b"abc");
        assert_eq!(Buf::default().freeze().len(), 0);
    }

    #[test]
    fn handles_may_end_on_any_thread() {
        let shared = Buf::copy_of(&[3; 4096]).freeze();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || assert_eq!(&shared[..], &[3; 4096]))
            })
            .collect();
        drop(shared);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
