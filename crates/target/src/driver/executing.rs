//! Commands that devices execute for a connection, and what they occupy.

use std::collections::BTreeSet;
use std::task::{Context, Poll};

use futures_util::stream::{FuturesUnordered, StreamExt};
use lunway_iscsi::target::TaskId;

use super::work::{Done, Work};

/// Work that a connection waits for beside its socket, and the bounds of the commands among it.
///
/// The counts are those of the commands in `work`: both change in [`push`](Self::push) and
/// [`poll_next`](Self::poll_next), and nowhere else.
pub(super) struct Executing {
    work: FuturesUnordered<Work>,
    /// `work` has something that was never polled.
    unpolled: bool,
    commands: usize,
    /// Bytes of buffers for these commands.
    bytes: usize,
    bytes_max: usize,
    /// Bytes that the next command needs and the principal's memory did not have; 0: it had all.
    starved_of: usize,
}

impl Executing {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            work: FuturesUnordered::new(),
            unpolled: false,
            commands: 0,
            bytes: 0,
            bytes_max,
            starved_of: 0,
        }
    }

    /// The bound is shared by so many connections.
    pub(super) fn share(&mut self, connections: u16) {
        self.bytes_max /= usize::from(connections.max(1));
    }

    pub(super) fn push(&mut self, work: Work) {
        if let Work::Command { bytes, .. } = &work {
            self.commands += 1;
            self.bytes += bytes;
        }
        self.unpolled = true;
        self.work.push(work);
    }

    /// Adds what there is.
    pub(super) fn extend(&mut self, work: Option<Work>) {
        work.into_iter().for_each(|work| self.push(work));
    }

    /// Returns `true` if there is work that was never polled: the device may begin only when it is asked for the first
    /// time.
    pub(super) fn take_unpolled(&mut self) -> bool {
        std::mem::take(&mut self.unpolled)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.work.is_empty()
    }

    /// No device has a command.
    pub(super) fn is_idle(&self) -> bool {
        self.commands == 0
    }

    /// Next work that is done; `None`: there is none.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Done>> {
        let next = self.work.poll_next_unpin(cx);
        if let Poll::Ready(Some(Done::Command { bytes, .. })) = &next {
            self.commands -= 1;
            self.bytes -= bytes;
            self.starved_of = 0;
        }
        next
    }

    /// A command of so many bytes has to wait for others, or for memory of the principal.
    pub(super) fn is_full(&self, bytes: usize) -> bool {
        self.bytes > 0 && self.bytes + bytes > self.bytes_max
            || self.starved_of > 0 && bytes >= self.starved_of
    }

    /// No command occupies memory: one gets what it needs.
    pub(super) fn is_alone(&self) -> bool {
        self.bytes == 0
    }

    /// The principal had the memory for the next command, of so many bytes, or had not.
    pub(super) fn asked(&mut self, bytes: usize, granted: bool) {
        self.starved_of = if granted { 0 } else { bytes };
    }

    /// Memory of the principal may be free again.
    pub(super) fn memory_freed(&mut self) {
        self.starved_of = 0;
    }

    /// The answers of these commands are no longer waited for.
    pub(super) fn give_up(&mut self, is_meant: impl Fn(TaskId) -> bool) {
        self.work.iter_mut().filter(|work| work.task().is_some_and(&is_meant)).for_each(Work::give_up);
    }

    /// Has everything polled again.
    pub(super) fn poll_anew(&mut self) {
        self.work = std::mem::take(&mut self.work).into_iter().collect();
    }

    /// Keeps nothing but commands.
    pub(super) fn forget_others(&mut self) {
        let work = std::mem::take(&mut self.work).into_iter();
        self.work = work.filter(|work| work.task().is_some()).collect();
    }

    /// The logical units whose devices have commands.
    pub(super) fn luns(&self) -> BTreeSet<u16> {
        self.work.iter().filter_map(Work::lun).collect()
    }
}
