//! Queue of the state directory's thread: whose item is next, and which need not be written any more.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use lunway_block::{FairQueue, Owner, OwnerKey};
use lunway_scsi::StateError;
use tokio::sync::oneshot;

/// Interval at which the directory is looked at while nothing is asked for: as often as served files are, so that
/// warnings of both kinds come within 10 s.
const LOOK_TIME: Duration = Duration::from_secs(10);

/// Item that is kept under one name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Thing {
    pub(super) owner: String,
    pub(super) item: String,
}

/// One thing that the thread does.
#[derive(Debug)]
pub(super) enum Request {
    Load {
        thing: Thing,
        answer: mpsc::SyncSender<Result<Option<Vec<u8>>, StateError>>,
    },
    Save {
        thing: Thing,
        bytes: Vec<u8>,
        /// Of all who saved it since it was last taken.
        answers: Vec<oneshot::Sender<Result<(), StateError>>>,
    },
    /// Nothing was asked for during [`LOOK_TIME`].
    Look,
}

/// Requests to the thread, from any other.
///
/// Saves take turns by the owners for whom they are asked: principal, host, session. So a session that saves hundreds
/// of things delays what another saves by the one that is being written and one of each turn. A later state of a thing
/// takes the place of one that still waits: it is written once, and answers both. Loads, which are asked for when units
/// are made, go first, after what waits of the same thing.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    news: Condvar,
}

/// A thing to be read, and who is answered.
type Load = (Thing, mpsc::SyncSender<Result<Option<Vec<u8>>, StateError>>);

#[derive(Debug)]
struct State {
    closed: bool,
    loads: VecDeque<Load>,
    saves: HashMap<Thing, Save>,
    /// The keys of `saves`: one of each owner who waits for it.
    turns: FairQueue<Thing>,
}

#[derive(Debug, Default)]
struct Save {
    bytes: Vec<u8>,
    answers: Vec<oneshot::Sender<Result<(), StateError>>>,
    owners: Vec<OwnerKey>,
}

impl Queue {
    pub(super) fn new() -> Self {
        let (loads, saves, turns) = (VecDeque::new(), HashMap::new(), FairQueue::new(usize::MAX));
        Self { state: Mutex::new(State { closed: false, loads, saves, turns }), news: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change of it is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a load. After the end the answer's way is dropped.
    pub(super) fn load(&self, thing: Thing, answer: mpsc::SyncSender<Result<Option<Vec<u8>>, StateError>>) {
        let mut state = self.state();
        if !state.closed {
            state.loads.push_back((thing, answer));
            self.news.notify_one();
        }
    }

    /// Asks for a save, for the owner for whom the thread calls. After the end the answer's way is dropped.
    pub(super) fn save(&self, thing: Thing, bytes: Vec<u8>, answer: oneshot::Sender<Result<(), StateError>>) {
        let mut state = self.state();
        let State { closed, saves, turns, .. } = &mut *state;
        if *closed {
            return;
        }
        let owner = Owner::current_key();
        let save = saves.entry(thing.clone()).or_default();
        save.bytes = bytes;
        save.answers.push(answer);
        if !save.owners.contains(&owner) {
            save.owners.push(owner);
            // There is a place for each.
            let _ = turns.push(owner, thing);
        }
        self.news.notify_one();
    }

    /// Nothing can be asked for any longer.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.news.notify_one();
    }

    /// The same, and what waits is dropped with the ways of its answers.
    pub(super) fn abandon(&self) {
        let mut state = self.state();
        state.closed = true;
        let waiting = (std::mem::take(&mut state.loads), std::mem::take(&mut state.saves));
        drop(state);
        drop(waiting);
    }

    /// Waits for the next request, which is [`Request::Look`] after [`LOOK_TIME`]; `None`: there will be no more.
    pub(super) fn next(&self) -> Option<Request> {
        let nothing = |state: &mut State| state.loads.is_empty() && state.saves.is_empty() && !state.closed;
        let waited = self.news.wait_timeout_while(self.state(), LOOK_TIME, nothing);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match state.take() {
            Some(request) => Some(request),
            None if state.closed => None,
            None => Some(Request::Look),
        }
    }
}

impl State {
    fn take(&mut self) -> Option<Request> {
        let thing = match self.loads.front() {
            Some((thing, _)) if self.saves.contains_key(thing) => thing.clone(),
            Some(_) => {
                let (thing, answer) = self.loads.pop_front()?;
                return Some(Request::Load { thing, answer });
            }
            None => self.turns.pop()?,
        };
        let Save { bytes, answers, owners } = self.saves.remove(&thing)?;
        for owner in owners {
            self.turns.take(owner, |waiting| *waiting == thing);
        }
        Some(Request::Save { thing, bytes, answers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thing(owner: &str) -> Thing {
        Thing { owner: owner.to_owned(), item: "reservations".to_owned() }
    }

    fn save(queue: &Queue, owner: &str, bytes: &[u8]) -> oneshot::Receiver<Result<(), StateError>> {
        let (answer, saved) = oneshot::channel();
        queue.save(thing(owner), bytes.to_vec(), answer);
        saved
    }

    /// Items in the order in which they are saved, with the number of answers.
    fn drain(queue: &Queue) -> Vec<(String, Vec<u8>, usize)> {
        queue.close();
        let saves = std::iter::from_fn(|| match queue.next()? {
            Request::Save { thing, bytes, answers } => Some((thing.owner, bytes, answers.len())),
            Request::Load { .. } | Request::Look => panic!("it is no save"),
        });
        saves.collect()
    }

    #[test]
    fn a_session_that_saves_many_things_lets_another_go_second() {
        let queue = Queue::new();
        let [many, one] = [["many", "host"], ["one", "host"]].map(Owner::in_groups);
        {
            let _entered = many.enter();
            (0..64).for_each(|unit| drop(save(&queue, &format!("many/{unit}"), b"x")));
        }
        {
            let _entered = one.enter();
            drop(save(&queue, "one/0", b"x"));
        }
        let order = drain(&queue);
        assert_eq!(order.iter().position(|(owner, ..)| owner == "one/0"), Some(1));
        assert_eq!((order.len(), &*order[64].0), (65, "many/63"));
    }

    #[test]
    fn a_later_state_of_a_thing_takes_the_place_of_one_that_waits_and_answers_both() {
        let queue = Queue::new();
        let [one, other] = [(); 2].map(|()| Owner::new());
        for (owner, bytes) in [(&one, b"1"), (&one, b"2"), (&other, b"3")] {
            let _entered = owner.enter();
            drop(save(&queue, "a", bytes));
        }
        drop(save(&queue, "b", b"4"));
        assert_eq!(drain(&queue), [("a".to_owned(), b"3".to_vec(), 3), ("b".to_owned(), b"4".to_vec(), 1)]);
        assert!(queue.state().turns.is_empty());
    }

    /// Its own turn comes first, although the thing waits already in a long line.
    #[test]
    fn who_saves_what_waits_in_another_owners_line_does_not_wait_in_that_line() {
        let queue = Queue::new();
        let [many, one] = [(); 2].map(|()| Owner::new());
        {
            let _entered = many.enter();
            (0..9).for_each(|unit| drop(save(&queue, &unit.to_string(), b"x")));
        }
        let _entered = one.enter();
        drop(save(&queue, "8", b"y"));
        assert_eq!(drain(&queue)[1], ("8".to_owned(), b"y".to_vec(), 2));
    }

    #[test]
    fn a_load_sees_what_was_saved_before_it() {
        let queue = Queue::new();
        (0..3).for_each(|unit| drop(save(&queue, &unit.to_string(), b"x")));
        let (answer, _loaded) = mpsc::sync_channel(1);
        queue.load(thing("2"), answer);
        let is_save = |request| matches!(request, Some(Request::Save { thing, .. }) if thing.owner == "2");
        assert!(is_save(queue.next()));
        assert!(matches!(queue.next(), Some(Request::Load { .. })));
        assert_eq!(drain(&queue).len(), 2);
    }

    #[test]
    fn what_is_asked_for_after_the_end_is_answered_by_the_end_of_its_way() {
        let queue = Queue::new();
        let mut waits = save(&queue, "a", b"x");
        queue.abandon();
        let mut late = save(&queue, "a", b"x");
        assert!(queue.next().is_none());
        assert!(waits.try_recv().is_err() && late.try_recv().is_err());
    }
}
