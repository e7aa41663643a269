//! A flush, and what it makes of a power-on.

use std::io;
use std::sync::Arc;

use lunway_block::{BlockError, Fate, Io};

use super::attempt::start;
use super::core::Shared;
use super::operation::{Flush, Origin};
use super::retry::Retry;
use super::unflushed::{Cover, Why, Worth};

/// Makes every acknowledged write durable, over one lane: the cache is the logical unit's.
pub(super) fn flush(shared: &Arc<Shared>) -> Io<Result<(), BlockError>> {
    let (cover, placed) = {
        let mut core = shared.lock();
        (core.unflushed.begin_flush(), core.place(&Flush))
    };
    let answer = match placed {
        Ok(flight) => start(shared, Flush, flight),
        Err(_) => Io::pending(Retry::new(shared.clone()).hindered(Flush)),
    };
    let shared = shared.clone();
    match answer {
        Io::Ready(Err(error)) => Io::err(error),
        Io::Ready(Ok(origin)) => {
            let worth = shared.lock().flush_answered(origin, cover);
            match worth {
                Worth::Good => Io::ok(()),
                Worth::Bad(why) => Io::err(error(why)),
                Worth::Doubtful => Io::pending(conclude(shared, origin, cover)),
            }
        }
        Io::Pending(answer) => Io::pending(async move { conclude(shared, answer.await?, cover).await }),
    }
}

/// A lane has answered: if that is in doubt, asks another one whose session was there before the doubt.
async fn conclude(shared: Arc<Shared>, mut origin: Origin, cover: Cover) -> Result<(), BlockError> {
    // A witness that does not answer is gone after one turn or the next.
    for _ in 0..=shared.lanes.len() {
        let (witness, stamp) = {
            let mut core = shared.lock();
            match core.flush_answered(origin, cover) {
                Worth::Good => return Ok(()),
                Worth::Bad(why) => return Err(error(why)),
                Worth::Doubtful => (core.unflushed.witness(), core.unflushed.stamp()),
            }
        };
        let Some(lane) = witness else { break };
        match shared.lanes[lane].device().flush().await {
            Ok(()) => origin = Origin { lane, stamp },
            Err(error) if error.fate() == Fate::Answered => return Err(error),
            Err(_) => {}
        }
    }
    let lost = shared.lock().condemn();
    tracing::warn!("{lost}");
    Err(lost)
}

pub(super) fn error(why: Why) -> BlockError {
    match why {
        Why::CacheLost { reported } => BlockError::UnflushedLost { reported },
        Why::Spoiled(message) => BlockError::Io { kind: io::ErrorKind::Other, message },
    }
}
