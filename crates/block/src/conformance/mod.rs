//! The conformance suite: one contract, [`BlockDevice`], and every device held against it.
//!
//! For tests alone (feature `conformance`). A [`Subject`] is a device and what must be known to test it: how a fresh
//! one is opened, and, where it lies on another device, how it is opened on that. [`Subject::run`] carries out every
//! [`Check`] that applies, each on a fresh device, and returns the [`Outcome`]s: a row of the table devices × checks
//! that `crates/device/tests/waist` writes to `docs/devices.md`.
//!
//! ```text
//!   Subject::run ──▶ Check::ALL ──▶ fresh device ──▶ operations, beside a Model ──▶ Outcome
//!                                       └─▶ over Disk: recorded, cut at every prefix   (crash)
//!                                       └─▶ over Probe: does each method reach it?     (passes on)
//! ```
//!
//! What a device cannot do it says itself (`Unsupported`, a geometry without unmapping, read-only), and the check that
//! finds it so is [`Outcome::Lacks`]: visible in the table, so that a layer which forgets a method differs from the
//! device inside. No check needs a runtime of its own: it awaits nothing but [`Io`]s, within [`LIMIT`].

mod at_once;
mod content;
mod crash;
mod disk;
mod errors;
mod model;
mod passes_on;
mod probe;
mod random;
mod space;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

pub use disk::Disk;
pub use model::{Content, Model};
pub use probe::Probe;

use crate::decorate::sleep_until;
use crate::{BlockDevice, BlockError, Io, IoFuture};

/// Devices under test have at least this size: room for transfers that are cut in pieces (1 MiB) and for several
/// blocks.
pub const SIZE_MIN: u64 = 4 << 20;

/// A check that takes longer hangs: the slowest of them, power cuts of a VHDX over iSCSI, takes 9 s on a quiet machine
/// of two cores, and was seen to take 60 s with ten programs for each core.
pub const LIMIT: Duration = Duration::from_secs(240);

/// A future of a check; it stays on its thread.
pub type Local<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A device that was opened for a check.
pub struct Instance {
    /// The device.
    pub device: Arc<dyn BlockDevice>,
    /// Ends what belongs to it beside the device, once that is closed.
    pub close: Option<Close>,
    /// Opens again what this one held, once it is closed; `None` where its content ends with it.
    pub reopen: Option<Reopen>,
    /// Lives as long as the device: servers, folders.
    pub keep: Box<dyn Any>,
}

/// Function that closes an [`Instance`].
pub type Close = Box<dyn FnOnce() -> Local<'static, Result<(), BlockError>>>;
/// Function that opens an [`Instance`] again.
pub type Reopen = Box<dyn FnOnce() -> Local<'static, Instance>>;

impl Instance {
    /// A device that needs nothing beside it.
    pub fn plain(device: Arc<dyn BlockDevice>) -> Self {
        Self { device, close: None, reopen: None, keep: Box::new(()) }
    }
}

/// Storage below a device under test.
enum Below {
    /// On nothing that a test could exchange.
    Nothing,
    /// On another device, with which it shares every byte.
    Device(Over),
    /// In a format of its own on another device, of so many bytes.
    Format(u64, Over),
}

type Over = Box<dyn Fn(Arc<dyn BlockDevice>) -> Local<'static, Instance>>;

/// A method of the waist that a layer does not pass on, and why.
pub type Kept = (&'static str, &'static str);

/// A device under test.
pub struct Subject {
    /// Its name, in the table.
    pub name: &'static str,
    fresh: Box<dyn Fn() -> Local<'static, Instance>>,
    below: Below,
    layer: Option<&'static [Kept]>,
}

impl Subject {
    /// A device on nothing that a test could exchange: each call opens a fresh one of zeroes, of at least [`SIZE_MIN`].
    pub fn device(name: &'static str, fresh: impl Fn() -> Local<'static, Instance> + 'static) -> Self {
        Self { name, fresh: Box::new(fresh), below: Below::Nothing, layer: None }
    }

    /// A device that shows every byte of another one, such as a server and its client: opened on the device it is
    /// given.
    pub fn door(
        name: &'static str,
        over: impl Fn(Arc<dyn BlockDevice>) -> Local<'static, Instance> + Clone + 'static,
    ) -> Self {
        let fresh = over.clone();
        Self {
            name,
            fresh: Box::new(move || fresh(Arc::new(Disk::new(SIZE_MIN)))),
            below: Below::Device(Box::new(over)),
            layer: None,
        }
    }

    /// A layer around a device, which passes on all methods but `kept`.
    pub fn layer(
        name: &'static str,
        kept: &'static [Kept],
        wrap: impl Fn(Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> + Clone + 'static,
    ) -> Self {
        let over = move |inner| -> Local<'static, Instance> {
            let device = wrap(inner);
            Box::pin(async move { Instance::plain(device) })
        };
        Self { layer: Some(kept), ..Self::door(name, over) }
    }

    /// A format on a device: `over` opens what is there, and makes it where there are only zeroes, on a device of
    /// `size` bytes.
    pub fn format(
        name: &'static str,
        size: u64,
        over: impl Fn(Arc<dyn BlockDevice>) -> Local<'static, Instance> + Clone + 'static,
    ) -> Self {
        let fresh = over.clone();
        Self {
            name,
            fresh: Box::new(move || fresh(Arc::new(Disk::new(size)))),
            below: Below::Format(size, Box::new(over)),
            layer: None,
        }
    }

    /// A fresh device.
    pub async fn fresh(&self) -> Instance {
        (self.fresh)().await
    }

    /// Carries out all checks.
    ///
    /// # Errors
    ///
    /// Every check that failed, with what it saw.
    pub async fn run(&self) -> Result<Vec<(Check, Outcome)>, String> {
        let (mut row, mut failed) = (Vec::new(), Vec::new());
        for check in Check::ALL {
            match self.check(check).await {
                Ok(outcome) => row.push((check, outcome)),
                Err(what) => failed.push(format!("{}: {check}: {what}", self.name)),
            }
        }
        if failed.is_empty() { Ok(row) } else { Err(failed.join("\n")) }
    }

    /// Carries out one check.
    ///
    /// # Errors
    ///
    /// What it saw that must not be.
    pub async fn check(&self, check: Check) -> Verdict {
        within(LIMIT, async {
            match check {
                Check::Shape => space::shape(&self.fresh().await).await,
                Check::Reads => content::reads(&self.fresh().await).await,
                Check::Writes => content::writes(&self.fresh().await).await,
                Check::PartialBlocks => content::partial_blocks(&self.fresh().await).await,
                Check::Overlaps => at_once::overlaps(&self.fresh().await).await,
                Check::Flush => content::flush(&self.fresh().await).await,
                Check::Stable => content::stable(&self.fresh().await).await,
                Check::Unmap => space::unmap(&self.fresh().await).await,
                Check::WriteZeroes => space::write_zeroes(&self.fresh().await).await,
                Check::Extents => space::extents(&self.fresh().await).await,
                Check::Resize => space::resize(&self.fresh().await).await,
                Check::Errors => errors::errors(&self.fresh().await).await,
                Check::Cancellation => at_once::cancellation(&self.fresh().await).await,
                Check::Random => random::random(self).await,
                Check::Close => errors::close(self.fresh().await).await,
                Check::Confirm => passes_on::confirm(self).await,
                Check::Crash => crash::crash(self).await,
                Check::PassesOn => passes_on::passes_on(self).await,
            }
        })
        .await
        .unwrap_or_else(|| Err(format!("not finished after {LIMIT:?}")))
    }
}

/// Verdict of a check.
pub type Verdict = Result<Outcome, String>;

/// Outcome of a check that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The device does what the contract says.
    Holds,
    /// The device says that it does not do this at all, and why it must not be otherwise.
    Lacks(&'static str),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Holds => "yes",
            Self::Lacks(why) => why,
        })
    }
}

/// A part of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The geometry makes sense and stays; what has no I/O answers.
    Shape,
    /// A fresh device reads as zeroes, in any length, and every byte of the buffer is filled.
    Reads,
    /// Reads return the data written, or zeroes where the device [stores nothing](crate::Caching::Nowhere); nothing
    /// beside it changes.
    Writes,
    /// Ranges that begin and end within blocks, pages and physical sectors.
    PartialBlocks,
    /// Operations on one range at the same time: afterwards each sector is of one of them, and later ones see the end
    /// of it.
    Overlaps,
    /// Flushes, alone and many at once.
    Flush,
    /// Writes that are durable when they are answered.
    Stable,
    /// Unmapped ranges, and what is beside them.
    Unmap,
    /// Zeroes in both ways.
    WriteZeroes,
    /// Extents cover the range and hide no data.
    Extents,
    /// Larger, smaller, and larger again.
    Resize,
    /// Ranges that are refused, by every operation alike, without an effect.
    Errors,
    /// Answers without a waiting caller.
    Cancellation,
    /// Random sequences against a model, one by one and side by side.
    Random,
    /// The end of the device, and that it is opened again with what it held.
    Close,
    /// What was read is confirmed, and not where a device below says that it was taken away meanwhile.
    Confirm,
    /// A power cut after each operation: what was durable is there, and of the rest the old or the new.
    Crash,
    /// Every method of the waist reaches what is inside.
    PassesOn,
}

impl Check {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 18] = [
        Self::Shape,
        Self::Reads,
        Self::Writes,
        Self::PartialBlocks,
        Self::Overlaps,
        Self::Flush,
        Self::Stable,
        Self::Unmap,
        Self::WriteZeroes,
        Self::Extents,
        Self::Resize,
        Self::Errors,
        Self::Cancellation,
        Self::Random,
        Self::Close,
        Self::Confirm,
        Self::Crash,
        Self::PassesOn,
    ];

    /// Name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shape => "geometry",
            Self::Reads => "reads",
            Self::Writes => "writes",
            Self::PartialBlocks => "partial blocks",
            Self::Overlaps => "overlaps in flight",
            Self::Flush => "flush",
            Self::Stable => "FUA",
            Self::Unmap => "unmap",
            Self::WriteZeroes => "write zeroes",
            Self::Extents => "extents",
            Self::Resize => "resize",
            Self::Errors => "errors",
            Self::Cancellation => "cancellation",
            Self::Random => "random, against a model",
            Self::Close => "close",
            Self::Confirm => "confirm",
            Self::Crash => "power cuts",
            Self::PassesOn => "passes on",
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `Err` with a sentence unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}
pub(crate) use ensure;

/// The answers of several operations that are under way at the same time, in their order.
pub async fn all<T: Unpin>(ios: impl IntoIterator<Item = Io<T>>) -> Vec<T> {
    let mut pending: Vec<IoFuture<T>> = ios.into_iter().map(IntoFuture::into_future).collect();
    let mut answers: Vec<Option<T>> = pending.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, answer) in pending.iter_mut().zip(&mut answers) {
            if answer.is_none()
                && let Poll::Ready(value) = Pin::new(future).poll(context)
            {
                *answer = Some(value);
            }
        }
        if answers.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    answers.into_iter().flatten().collect()
}

/// The outcome of `future`, or `None` where it takes longer.
async fn within<T>(time: Duration, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut limit = pin!(sleep_until(Instant::now() + time));
    std::future::poll_fn(|context| {
        if let Poll::Ready(value) = future.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        limit.as_mut().poll(context).map(|()| None)
    })
    .await
}
