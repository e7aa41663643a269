//! Event gate of a lane: keeps events back until the lane is admitted.

use std::collections::VecDeque;
use std::mem::discriminant;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lunway_multipath::{LaneEvent, LaneListener};

/// Queue of a lane's events: passes them on in order, once there is a listener and the lane is admitted.
///
/// Until then of each kind of event the last one is kept, so that a lane that comes and goes unheard takes no memory.
#[derive(Default)]
pub(crate) struct EventGate(Mutex<State>);

#[derive(Default)]
struct State {
    listener: Option<Arc<dyn LaneListener>>,
    admitted: bool,
    queue: VecDeque<LaneEvent>,
    /// Reason why there is nothing to admit yet.
    absence: Option<LaneEvent>,
    /// A thread is telling, and will tell the events that come meanwhile too.
    telling: bool,
}

impl EventGate {
    /// Sets the listener.
    pub(crate) fn listen(&self, listener: Arc<dyn LaneListener>) {
        let mut state = self.lock();
        state.listener = Some(listener.clone());
        let absence = state.absence.take().filter(|_| !state.admitted);
        drop(state);
        if let Some(event) = absence {
            listener.happened(event);
        }
        self.tell();
    }

    /// From now on, what happens may be told.
    pub(crate) fn admit(&self) {
        self.lock().admitted = true;
        self.tell();
    }

    /// Discards the events that were to be told: the session was never part of the disk.
    pub(crate) fn forget(&self) {
        let mut state = self.lock();
        state.admitted = false;
        state.queue.clear();
    }

    /// Tells, or keeps it until it can be told.
    pub(crate) fn push(&self, event: LaneEvent) {
        let mut state = self.lock();
        if state.listener.is_none() || !state.admitted {
            state.queue.retain(|waiting| discriminant(waiting) != discriminant(&event));
        }
        state.queue.push_back(event);
        drop(state);
        self.tell();
    }

    /// Tells why there is nothing to admit.
    pub(crate) fn absent(&self, event: LaneEvent) {
        let mut state = self.lock();
        match state.listener.clone() {
            Some(listener) => {
                drop(state);
                listener.happened(event);
            }
            None => state.absence = Some(event),
        }
    }

    /// Without the lock, so that a listener may do as it likes; one at a time, so that the order stays.
    fn tell(&self) {
        let mut state = self.lock();
        if state.telling || !state.admitted {
            return;
        }
        let Some(listener) = state.listener.clone() else { return };
        state.telling = true;
        while let Some(event) = state.queue.pop_front() {
            drop(state);
            listener.happened(event);
            state = self.lock();
        }
        state.telling = false;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A listener that panicked has broken nothing in here.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Ear(Mutex<Vec<String>>);

    impl LaneListener for Ear {
        fn happened(&self, event: LaneEvent) {
            let name = match event {
                LaneEvent::Up { epoch } => format!("up {epoch}"),
                LaneEvent::Lost { epoch, .. } => format!("lost {epoch}"),
                LaneEvent::Settled { epoch } => format!("settled {epoch}"),
                other => format!("{other:?}"),
            };
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(name);
        }
    }

    impl Ear {
        fn heard(&self) -> String {
            std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)).join(", ")
        }
    }

    fn session(gate: &EventGate, epoch: u64) {
        gate.push(LaneEvent::Up { epoch });
        gate.push(LaneEvent::Lost { epoch, why: String::new() });
        gate.push(LaneEvent::Settled { epoch });
    }

    #[test]
    fn nothing_is_told_before_the_lane_is_admitted_and_then_the_last_of_each_kind_in_order() {
        let (gate, ear) = (EventGate::default(), Arc::new(Ear::default()));
        gate.listen(ear.clone());
        (1..1000).for_each(|epoch| session(&gate, epoch));
        gate.push(LaneEvent::Up { epoch: 1000 });
        assert!(gate.lock().queue.len() <= 8);
        assert_eq!(ear.heard(), "");
        gate.admit();
        assert_eq!(ear.heard(), "lost 999, settled 999, up 1000");
        gate.push(LaneEvent::Silent);
        gate.push(LaneEvent::Silent);
        assert_eq!(ear.heard(), "Silent, Silent");
    }

    #[test]
    fn whoever_begins_to_listen_hears_what_is_so() {
        let (gate, ear) = (EventGate::default(), Arc::new(Ear::default()));
        gate.admit();
        session(&gate, 1);
        gate.push(LaneEvent::Up { epoch: 2 });
        gate.listen(ear.clone());
        assert_eq!(ear.heard(), "lost 1, settled 1, up 2");
    }

    #[test]
    fn why_a_lane_is_not_there_is_told_without_its_being_admitted() {
        let (gate, ear) = (EventGate::default(), Arc::new(Ear::default()));
        gate.absent(LaneEvent::Lost { epoch: 0, why: "refused".to_owned() });
        gate.listen(ear.clone());
        assert_eq!(ear.heard(), "lost 0");
        gate.absent(LaneEvent::Lost { epoch: 0, why: "unreachable".to_owned() });
        assert_eq!(ear.heard(), "lost 0");
        gate.push(LaneEvent::Up { epoch: 1 });
        gate.forget();
        gate.admit();
        assert_eq!(ear.heard(), "");
    }
}
