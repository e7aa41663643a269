//! The layer around a device of which snapshots can be made at any time.

use std::fmt;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use lunway_block::{
    BlockDevice, BlockError, Compaction, Durability, FileRange, Io, Layer, Lent, Permit, SharedBuf,
    SnapshotCommit, Zeroing, beyond_owner,
};

use crate::fleece::Effect;
use crate::fleeces::Fleeces;
use crate::gate::{Gate, Held, Hold, HoldError, Inside};

/// A device around another, of which snapshots are made while it is used: see [the crate](crate).
///
/// The outermost layer of a served device: what is under way here is all that is under way. Reads cost nothing; a
/// change costs two atomic operations, and one allocation if the device's answer is pending. A change whose answer was
/// dropped while it was under way is not waited for.
pub struct SnapshotLayer {
    inside: Arc<Inner>,
}

struct Inner {
    inner: Arc<dyn BlockDevice>,
    gate: Arc<Gate>,
    fleeces: Fleeces,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotLayer").field("fleeces", &self.fleeces).finish_non_exhaustive()
    }
}

impl Held for Inner {
    fn inner(&self) -> &Arc<dyn BlockDevice> {
        &self.inner
    }

    fn fleeces(&self) -> &Fleeces {
        &self.fleeces
    }
}

/// The device's answer to a change, and the end of the change with it.
struct Answer<T> {
    answer: Pin<Box<dyn Future<Output = T> + Send>>,
    inside: Option<Inside>,
}

impl<T> Future for Answer<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let answer = std::task::ready!(self.answer.as_mut().poll(context));
        self.inside = None;
        Poll::Ready(answer)
    }
}

impl SnapshotLayer {
    /// Around `inner`.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Self {
        Self { inside: Arc::new(Inner { inner, gate: Arc::default(), fleeces: Fleeces::default() }) }
    }

    /// Holds changes for at most `limit`. Those under way have not ended yet: [`Hold::at_rest`].
    ///
    /// # Errors
    ///
    /// As [`HoldError`].
    pub fn hold(&self, limit: Duration) -> Result<Hold, HoldError> {
        Hold::shut(&self.inside.gate, Arc::clone(&self.inside) as Arc<dyn Held>, limit)
    }

    /// Takes fleeces that have ended out of the way of changes.
    pub fn tidy(&self) {
        self.inside.fleeces.change(|_| {});
    }

    fn change<T: Send + 'static>(
        &self,
        offset: u64,
        length: u64,
        effect: Effect,
        issue: impl FnOnce(&dyn BlockDevice) -> Io<T> + Send + 'static,
    ) -> Io<T> {
        let Inner { inner, gate, fleeces } = &*self.inside;
        let entered = gate.enter();
        if entered && fleeces.list().iter().all(|fleece| fleece.is_kept(offset, length)) {
            return match issue(&**inner) {
                Io::Ready(answer) => {
                    gate.leave();
                    Io::Ready(answer)
                }
                Io::Pending(answer) => {
                    Io::Pending(Box::pin(Answer { answer, inside: Some(Gate::inside(gate)) }))
                }
            };
        }
        let entered = entered.then(|| Gate::inside(gate));
        let layer = Arc::clone(&self.inside);
        Io::pending(async move {
            let inside = match entered {
                Some(inside) => inside,
                None => Gate::wait(&layer.gate).await,
            };
            for fleece in layer.fleeces.list().iter() {
                // The snapshot is others', whatever becomes of the session whose change this is.
                beyond_owner(fleece.keep(offset, length, effect)).await;
            }
            let answer = match issue(&*layer.inner) {
                Io::Ready(answer) => answer,
                Io::Pending(answer) => answer.await,
            };
            drop(inside);
            answer
        })
    }
}

impl Layer for SnapshotLayer {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inside.inner
    }

    fn lend_memory(&self, offset: u64, len: usize) -> Option<Lent> {
        self.inside.inner.lend_memory(offset, len)
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        let length = data.len() as u64;
        self.change(offset, length, Effect::Data, move |inner| inner.write(offset, data, durability))
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        let unmap = self.inside.inner.geometry().unmap;
        if !unmap.frees() {
            // It changes nothing.
            return self.inside.inner.unmap(offset, len);
        }
        let effect = if unmap.zeroes() { Effect::Holes } else { Effect::Data };
        self.change(offset, len, effect, move |inner| inner.unmap(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        self.change(offset, len, Effect::Holes, move |inner| inner.write_zeroes(offset, len, zeroing))
    }

    fn adopt(&self, offset: u64, from: FileRange) -> Io<Result<bool, BlockError>> {
        Io::Ready(self.inside.inner.geometry().check_write(offset, from.len).map(|()| false))
    }

    /// Refuses a smaller size while there is a snapshot: data that it cuts off cannot be copied.
    fn resize(&self, size: u64, permit: Permit) -> Io<Result<(), BlockError>> {
        let layer = Arc::clone(&self.inside);
        self.change(0, 0, Effect::Data, move |inner| {
            if size < inner.geometry().size && layer.fleeces.list().iter().any(|fleece| !fleece.has_ended()) {
                let why =
                    "the disk has a snapshot, which a smaller size would end: delete it first".to_owned();
                return Io::err(BlockError::Size { why });
            }
            inner.resize(size, permit)
        })
    }

    fn snapshot(&self, leaf: &Path, commit: SnapshotCommit) -> Io<Result<(), BlockError>> {
        let leaf = leaf.to_owned();
        self.change(0, 0, Effect::Data, move |inner| inner.snapshot(&leaf, commit))
    }

    /// Compacts the disk. The unused space of frozen file systems would change unnoticed: such a compaction counts as a
    /// change, and is refused while there is a snapshot.
    fn compact(&self, task: Arc<Compaction>) -> Io<Result<(), BlockError>> {
        if !task.is_of_frozen() {
            return self.inside.inner.compact(task);
        }
        let layer = Arc::clone(&self.inside);
        self.change(0, 0, Effect::Data, move |inner| {
            if layer.fleeces.list().iter().any(|fleece| !fleece.has_ended()) {
                let why =
                    "the disk has a snapshot: delete it first, or compact without freezing its file systems"
                        .to_owned();
                return Io::err(BlockError::Compaction { why });
            }
            inner.compact(task)
        })
    }
}
