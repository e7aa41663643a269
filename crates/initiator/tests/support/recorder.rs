//! Remembers what happened to a device's sessions, and when.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lunway_initiator::{SessionEvent, SharedObserver};

#[derive(Clone, Default)]
pub struct Recorder {
    events: Arc<Mutex<Vec<(Instant, SessionEvent)>>>,
}

impl Recorder {
    pub fn observer(&self) -> SharedObserver {
        let this = self.clone();
        SharedObserver::new(move |event| this.tell(event))
    }

    pub fn tell(&self, event: SessionEvent) {
        self.events.lock().unwrap().push((Instant::now(), event));
    }

    pub fn events(&self) -> Vec<SessionEvent> {
        self.events.lock().unwrap().iter().map(|(_, event)| event.clone()).collect()
    }

    pub fn has(&self, wanted: impl Fn(&SessionEvent) -> bool) -> bool {
        self.events().iter().any(wanted)
    }

    /// When it happened, waiting for it if it has not yet.
    pub async fn when(&self, what: &str, wanted: impl Fn(&SessionEvent) -> bool) -> Instant {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let found =
                self.events.lock().unwrap().iter().find(|(_, event)| wanted(event)).map(|(at, _)| *at);
            if let Some(at) = found {
                return at;
            }
            assert!(Instant::now() < until, "{what} was not told: {:?}", self.events());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

pub fn is_up(number: u64) -> impl Fn(&SessionEvent) -> bool {
    move |event| *event == SessionEvent::Up { epoch: number }
}

pub fn is_settled(number: u64) -> impl Fn(&SessionEvent) -> bool {
    move |event| *event == SessionEvent::Settled { epoch: number }
}

pub fn is_lost(event: &SessionEvent) -> bool {
    matches!(event, SessionEvent::Lost { .. })
}
