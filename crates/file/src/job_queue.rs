//! Jobs of one device that wait for a thread.

use std::sync::Arc;

use lunway_block::{FairQueue, OwnerGroup, OwnerKey};

use crate::write_back::WriteBack;

/// Jobs of a kind that wait for a thread: 32 sessions with command windows of 128. Each brings its own buffer, which
/// its session has counted; more are answered with `Busy`, but for sessions that have less than their share, see
/// [`FairQueue`].
pub(crate) const QUEUE_MAX: usize = 4096;
/// Longest cached write that is a short one, bytes: it is copied in about the 10 to 25 µs that the way to a thread and
/// back costs anyway.
const LONG_LEN: u64 = 128 << 10;
/// Long cached writes of a device that run at a time: a file system has one writer of a file at a time, so that more
/// of them only stand before the short ones at its lock. The second has its memory ready when the first ends.
const LONG_MAX: usize = 2;

/// Kind of a job: what it waits for besides its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A thread alone.
    Plain,
    /// Room in the page cache, of a write of at most [`LONG_LEN`].
    Cached,
    /// Room, and one of [`LONG_MAX`] places, of a longer write.
    LongCached,
}

impl Kind {
    /// In the order of their turns.
    const ALL: [Self; 3] = [Self::Plain, Self::Cached, Self::LongCached];
}

/// Resources that a job takes while it runs.
#[derive(Clone, Copy)]
pub(crate) struct Demand {
    kind: Kind,
    host: OwnerGroup,
    /// Bytes that it writes to the page cache.
    len: u64,
}

impl Demand {
    /// A thread alone.
    pub(crate) fn plain(owner: OwnerKey) -> Self {
        Self { kind: Kind::Plain, host: owner.group(), len: 0 }
    }

    /// Room for `len` bytes in the page cache.
    pub(crate) fn cached(owner: OwnerKey, len: u64) -> Self {
        let kind = if len > LONG_LEN { Kind::LongCached } else { Kind::Cached };
        Self { kind, host: owner.group(), len }
    }
}

/// Work that blocks.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Jobs that wait, of which the next is one that can begin: of the kinds in turn, and within each of the owners.
///
/// **Room.** Writes to the page cache wait here while that has no room for their host, and hold no thread meanwhile:
/// see [`WriteBack`]. Those of other hosts, and what needs no room, pass them.
///
/// **Long writes.** Of those longer than [`LONG_LEN`] [`LONG_MAX`] run at a time, so that short ones always find a
/// thread, and wait at the lock of the file for two at most.
pub(crate) struct JobQueue {
    /// Jobs of each [`Kind`].
    waiting: [FairQueue<(Demand, Job)>; Kind::ALL.len()],
    /// Kind whose turn it is.
    turn: usize,
    /// Jobs of [`Kind::LongCached`] that run.
    long: usize,
    /// Says when there is room; `None`: always, also for long writes.
    room: Option<Arc<WriteBack>>,
}

impl JobQueue {
    pub(crate) fn new() -> Self {
        Self { waiting: Kind::ALL.map(|_| FairQueue::new(QUEUE_MAX)), turn: 0, long: 0, room: None }
    }

    /// Has writes to the page cache wait for room there.
    pub(crate) fn wait_for(&mut self, room: Arc<WriteBack>) {
        self.room = Some(room);
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.iter().map(FairQueue::len).sum()
    }

    /// Tells whether an owner may add such a job.
    pub(crate) fn admits(&self, owner: OwnerKey, demand: Demand) -> bool {
        self.waiting[demand.kind as usize].admits(owner)
    }

    /// Tells whether a job waits for nothing but a thread.
    pub(crate) fn has_plain(&self) -> bool {
        !self.waiting[Kind::Plain as usize].is_empty()
    }

    /// Appends a job. Gives it back where the owner has no place.
    pub(crate) fn push(&mut self, owner: OwnerKey, demand: Demand, job: Job) -> Result<(), Job> {
        self.waiting[demand.kind as usize].push(owner, (demand, job)).map_err(|(_, job)| job)
    }

    /// Takes out all jobs of an owner.
    pub(crate) fn remove(&mut self, owner: OwnerKey) -> Vec<Job> {
        self.waiting.iter_mut().flat_map(|waiting| waiting.remove(owner)).map(|(_, job)| job).collect()
    }

    /// Tells whether a job can begin on one of so many `threads`.
    pub(crate) fn has_next(&self, threads: usize) -> bool {
        let room = self.room.as_deref();
        Kind::ALL
            .into_iter()
            .filter(|kind| self.has_place(*kind, threads))
            .any(|kind| self.waiting[kind as usize].has_where(|(demand, _)| has_room(room, *demand)))
    }

    /// Takes the next job that can begin on one of so many `threads`. What it demands is taken until it is
    /// [over](Self::over).
    pub(crate) fn next(&mut self, threads: usize) -> Option<(Demand, Job)> {
        let room = self.room.as_deref();
        for kind in (self.turn..self.turn + Kind::ALL.len()).map(|turn| Kind::ALL[turn % Kind::ALL.len()]) {
            if !self.has_place(kind, threads) {
                continue;
            }
            let waiting = &mut self.waiting[kind as usize];
            let Some((demand, job)) = waiting.pop_where(|(demand, _)| has_room(room, *demand)) else {
                continue;
            };
            self.turn = kind as usize + 1;
            self.long += usize::from(kind == Kind::LongCached);
            if let Some(room) = room.filter(|_| kind != Kind::Plain) {
                room.begin(demand.host, demand.len);
            }
            return Some((demand, job));
        }
        None
    }

    /// A job that was taken has ended.
    pub(crate) fn over(&mut self, demand: Demand) {
        self.long -= usize::from(demand.kind == Kind::LongCached);
        if let Some(room) = self.room.as_deref().filter(|_| demand.kind != Kind::Plain) {
            room.end(demand.host, demand.len);
        }
    }

    /// Returns `true` if one more job of a kind may run beside those that do. One thread is left for the short ones,
    /// where there are several.
    fn has_place(&self, kind: Kind, threads: usize) -> bool {
        let places = threads.saturating_sub(1).clamp(1, LONG_MAX);
        kind != Kind::LongCached || self.room.is_none() || self.long < places
    }
}

/// Returns `true` if a job need not wait for room.
fn has_room(room: Option<&WriteBack>, demand: Demand) -> bool {
    demand.kind == Kind::Plain || room.is_none_or(|room| !room.must_wait(demand.host, demand.len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunway_block::Owner;

    const THREADS: usize = 16;

    /// Lengths of the jobs that can begin one after another without an end, up to ten.
    fn begun(queue: &mut JobQueue) -> Vec<u64> {
        std::iter::from_fn(|| queue.next(THREADS)).map(|(demand, _)| demand.len).take(10).collect()
    }

    fn filled(queue: &mut JobQueue, owner: &Owner, lens: &[u64]) {
        for len in lens {
            let demand = Demand::cached(owner.key(), *len);
            assert!(queue.push(owner.key(), demand, Box::new(|| ())).is_ok());
        }
    }

    /// Lost was more than a second of each 4 KiB write of a host while another one wrote 1 MiB after 1 MiB to the same
    /// slow disk: what the page cache may hold was that one's.
    #[test]
    fn writes_of_a_host_that_floods_the_disk_wait_for_room_and_those_of_others_pass_them() {
        let room = Arc::new(WriteBack::new());
        let mut queue = JobQueue::new();
        queue.wait_for(Arc::clone(&room));
        let [flood, other] = [(); 2].map(|()| Owner::new());
        assert!(room.note(flood.key().group(), 29 << 20), "a pass is due, and 8/9 of 32 MiB are dirty");
        filled(&mut queue, &flood, &[1 << 20, 64 << 10, 1 << 20]);
        assert!(!queue.has_next(THREADS) && queue.next(THREADS).is_none());
        filled(&mut queue, &other, &[4096, 8192, 1 << 20]);
        assert!(queue.has_next(THREADS));
        assert_eq!(begun(&mut queue), [4096, 1 << 20, 8192]);
        room.cleaned(room.mark());
        assert_eq!((queue.len(), begun(&mut queue)), (3, vec![1 << 20, 64 << 10]), "two long ones run");
    }

    /// Lost was the time of sixteen writes of 1 MiB for each of 4 KiB: each had a thread, and all one lock of a file.
    #[test]
    fn two_long_writes_to_the_page_cache_run_at_a_time_and_short_ones_pass_them() {
        let mut queue = JobQueue::new();
        queue.wait_for(Arc::new(WriteBack::new()));
        let owner = Owner::new();
        filled(&mut queue, &owner, &[LONG_LEN + 1; 5]);
        filled(&mut queue, &owner, &[LONG_LEN, 0]);
        let running = [(); 4].map(|()| queue.next(THREADS).unwrap().0);
        assert_eq!(running.map(|demand| demand.len), [LONG_LEN, LONG_LEN + 1, 0, LONG_LEN + 1]);
        assert!(!queue.has_next(THREADS));
        queue.over(running[1]);
        assert!(queue.has_next(THREADS) && !queue.has_next(2), "of two threads one is for short ones");
        assert_eq!(begun(&mut queue), [LONG_LEN + 1]);
        // Past the page cache no lock is shared, and each write waits for the disk.
        let mut queue = JobQueue::new();
        filled(&mut queue, &owner, &[LONG_LEN + 1; 5]);
        assert_eq!(begun(&mut queue).len(), 5);
    }

    #[test]
    fn a_write_that_has_begun_takes_its_room_until_it_is_over() {
        let room = Arc::new(WriteBack::new());
        let mut queue = JobQueue::new();
        queue.wait_for(Arc::clone(&room));
        let owner = Owner::new();
        room.note(owner.key().group(), 27 << 20);
        filled(&mut queue, &owner, &[1 << 20, 1 << 20]);
        let (demand, _) = queue.next(THREADS).unwrap();
        assert!(!queue.has_next(THREADS), "of 32 MiB 8/9 are the host's");
        queue.over(demand);
        assert!(queue.has_next(THREADS), "it has written nothing");
    }
}
