//! Commands of a session that are not with its connection.

use std::collections::VecDeque;
use std::time::Instant;

use lunway_iscsi::initiator::Submission;

/// Commands that are not with the connection.
#[derive(Default)]
pub(super) struct Waiting {
    /// For room in the window, in order.
    pub(super) queue: VecDeque<Submission>,
    /// For their time, as the target was busy.
    delayed: Vec<(Instant, Submission)>,
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.delayed.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.delayed.clear();
    }

    /// Keeps those whose tokens `waits` confirms.
    pub(super) fn retain(&mut self, mut waits: impl FnMut(u64) -> bool) {
        self.queue.retain(|submission| waits(submission.token));
        self.delayed.retain(|(_, submission)| waits(submission.token));
    }

    /// Puts a command off until then.
    pub(super) fn delay(&mut self, until: Instant, submission: Submission) {
        self.delayed.push((until, submission));
    }

    /// Moves what has waited long enough into the queue, unless `waits` says that it waits no more.
    pub(super) fn release(&mut self, now: Instant, mut waits: impl FnMut(u64) -> bool) {
        let mut index = 0;
        while index < self.delayed.len() {
            if self.delayed[index].0 > now {
                index += 1;
                continue;
            }
            let (_, submission) = self.delayed.swap_remove(index);
            if waits(submission.token) {
                self.queue.push_back(submission);
            }
        }
    }

    /// Time at which [`Self::release`] has something to do.
    pub(super) fn next_release(&self) -> Option<Instant> {
        self.delayed.iter().map(|(at, _)| *at).min()
    }

    /// Puts commands that are older than all others before these.
    pub(super) fn put_before(&mut self, mut older: VecDeque<Submission>) {
        older.append(&mut self.queue);
        self.queue = older;
    }
}
