//! Answers that are waited for, and one thread that looks which of them have not come.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use lunway_block::{Buf, SharedBuf};
use tokio::sync::oneshot;

/// Interval of looking: limits of operations are whole seconds.
const LOOK: Duration = Duration::from_secs(1);

/// Memory of an operation, which librbd uses until its completion.
pub(crate) enum Payload {
    /// Nothing.
    None,
    /// To be filled.
    Fill(Buf),
    /// To be written.
    Data(SharedBuf),
}

/// What librbd returned, and the payload.
pub(crate) type Outcome = (isize, Payload);

/// Answers that are waited for, by the number of the operation. One short lock when an operation begins and one when it
/// ends: an operation of a cluster takes a thousand times as long.
pub(crate) struct Pending<T> {
    list: Mutex<List<T>>,
}

struct List<T> {
    next: u64,
    /// In the order in which they began.
    waiting: BTreeMap<u64, (Instant, oneshot::Sender<T>)>,
}

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Self { list: Mutex::new(List { next: 0, waiting: BTreeMap::new() }) }
    }
}

impl<T> Pending<T> {
    fn list(&self) -> MutexGuard<'_, List<T>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An operation begins; returns its number.
    pub(crate) fn add(&self, answer: oneshot::Sender<T>) -> u64 {
        let mut list = self.list();
        list.next += 1;
        let number = list.next;
        list.waiting.insert(number, (Instant::now(), answer));
        number
    }

    /// It has ended; `None`: it was given up.
    pub(crate) fn take(&self, number: u64) -> Option<oneshot::Sender<T>> {
        self.list().waiting.remove(&number).map(|(_, answer)| answer)
    }

    /// Gives up those that began before `time` ago: who waits for them hears that there is no answer. Returns how many.
    pub(crate) fn give_up(&self, time: Duration) -> usize {
        let mut late = Vec::new();
        {
            let mut list = self.list();
            while let Some(oldest) =
                list.waiting.first_entry().filter(|first| first.get().0.elapsed() >= time)
            {
                late.push(oldest.remove());
            }
        }
        // Without the lock: this wakes tasks.
        late.len()
    }
}

/// One that is looked after.
pub(crate) trait LookedAfter: Send + Sync {
    /// Called about once a second. Never blocks.
    fn look_after(self: Arc<Self>);
}

/// Those there are, and whether there is a thread that looks after them.
static WATCHED: Mutex<(Vec<Weak<dyn LookedAfter>>, bool)> = Mutex::new((Vec::new(), false));

/// Has a client's answers looked after, until it is gone.
///
/// # Errors
///
/// What the system says where no thread can be had.
pub(crate) fn look_after(client: Weak<dyn LookedAfter>) -> std::io::Result<()> {
    let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    watched.0.push(client);
    if !watched.1 {
        thread::Builder::new().name("rbd late".to_owned()).spawn(look)?;
        watched.1 = true;
    }
    Ok(())
}

/// Looks until no client is left.
fn look() {
    loop {
        thread::sleep(LOOK);
        let clients: Vec<Arc<dyn LookedAfter>> = {
            let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
            watched.0.retain(|client| client.strong_count() > 0);
            if watched.0.is_empty() {
                watched.1 = false;
                return;
            }
            watched.0.iter().filter_map(Weak::upgrade).collect()
        };
        clients.into_iter().for_each(LookedAfter::look_after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_began_too_long_ago_is_given_up_and_the_rest_is_answered() {
        let pending = Pending::default();
        let (first, mut late) = oneshot::channel();
        let (second, mut in_time) = oneshot::channel();
        let first = pending.add(first);
        assert_eq!(pending.give_up(Duration::from_secs(600)), 0);
        assert_eq!(pending.give_up(Duration::ZERO), 1);
        assert!(late.try_recv().is_err());
        assert!(pending.take(first).is_none(), "its answer comes later");
        let second = pending.add(second);
        pending.take(second).unwrap().send(7).unwrap();
        assert_eq!(in_time.try_recv(), Ok(7));
        assert_eq!(pending.give_up(Duration::ZERO), 0);
    }
}
