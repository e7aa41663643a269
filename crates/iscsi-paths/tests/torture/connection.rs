//! What workers ask of whoever has the disk, and what they know of it.

#![allow(dead_code, reason = "each test program uses its part of this")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use lunway_block::{BlockDevice, BlockError, Buf, Durability, SharedBuf, Zeroing};
use tokio::sync::{mpsc, oneshot};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Read,
    Write,
    Zero,
    Flush,
    /// One of [`POLICIES`].
    Policy,
    /// How many lanes are away (the first 8 bytes), and how many sessions there were.
    Lanes,
    /// An orderly end.
    Close,
}

impl Verb {
    pub(crate) const ALL: [Self; 7] =
        [Self::Read, Self::Write, Self::Zero, Self::Flush, Self::Policy, Self::Lanes, Self::Close];
}

pub(crate) struct Request {
    pub(crate) what: Verb,
    /// With a write: it is to be stable.
    pub(crate) flag: bool,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) data: SharedBuf,
}

impl Request {
    pub(crate) fn new(what: Verb) -> Self {
        Self { what, flag: false, offset: 0, len: 0, data: SharedBuf::default() }
    }

    /// Does to a device what concerns its blocks.
    pub(crate) async fn carry_out<D: BlockDevice + ?Sized>(self, device: &D) -> Result<Vec<u8>, BlockError> {
        let Self { what, flag, offset, len, data } = self;
        let nothing = |()| Vec::new();
        match what {
            Verb::Read => {
                device.read(offset, Buf::for_overwrite(len as usize)).await.map(|data| data.to_vec())
            }
            Verb::Write => {
                let durability = if flag { Durability::Stable } else { Durability::Volatile };
                device.write(offset, data, durability).await.map(nothing)
            }
            Verb::Zero => device.write_zeroes(offset, len, Zeroing::MayUnmap).await.map(nothing),
            Verb::Flush => device.flush().await.map(nothing),
            Verb::Policy | Verb::Lanes | Verb::Close => panic!("{what:?} is not for a device"),
        }
    }
}

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    /// The client is dead: whether it was done is not known.
    #[error("the client died")]
    Died,
    /// The client said so.
    #[error("{0}")]
    Told(String),
}

pub(crate) type Answer = Result<Vec<u8>, Failed>;

/// Where an answer goes.
pub(crate) type Waiting = oneshot::Sender<Answer>;

/// The way to a client, and what is known of it.
pub(crate) struct Connection {
    requests: mpsc::UnboundedSender<(Request, Waiting)>,
    died: AtomicBool,
    /// What is being done to it makes errors right.
    excused: AtomicBool,
    /// When its key had been taken away: nothing that was asked for later may be written.
    pub(crate) fenced: OnceLock<Instant>,
}

impl Connection {
    /// One, and where requests come out of it.
    pub(crate) fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<(Request, Waiting)>) {
        let (requests, to_send) = mpsc::unbounded_channel();
        let connection = Self {
            requests,
            died: AtomicBool::new(false),
            excused: AtomicBool::new(false),
            fenced: OnceLock::new(),
        };
        (Arc::new(connection), to_send)
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.died.load(Ordering::SeqCst)
    }

    pub(crate) fn die(&self) {
        self.died.store(true, Ordering::SeqCst);
    }

    pub(crate) fn excuse(&self) {
        self.excused.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_excused(&self) -> bool {
        self.excused.load(Ordering::SeqCst)
    }

    pub(crate) fn ask(&self, request: Request) -> impl Future<Output = Answer> + Send + 'static {
        let (answer, answered) = oneshot::channel();
        let _ = self.requests.send((request, answer));
        async move { answered.await.unwrap_or(Err(Failed::Died)) }
    }
}
