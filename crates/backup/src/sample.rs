//! The sample of a run: what is said to be unchanged, compared with the source.

use std::sync::Arc;

use lunway_file::ThreadPool;

use crate::changed::Changed;
use crate::error::Result;
use crate::leaf::{UNIT, unit_range};
use crate::manifest::Manifest;
use crate::point_id::PointId;
use crate::request::Request;
use crate::threads::on;

/// The newest point of a destination, as a run asks about it. Calls block.
pub trait SampledBase: Send + Sync + 'static {
    /// A unit of which it holds something, the one that `number` falls on.
    ///
    /// # Errors
    ///
    /// Where that cannot be read.
    fn sample(&self, number: u64) -> Result<Option<u32>>;

    /// Tells whether leaves of the source's unit equal the point's: `data` is the whole unit, `asked` has a bit for
    /// each leaf that is compared.
    ///
    /// # Errors
    ///
    /// Where that cannot be read.
    fn is_as_before(&self, unit: u32, data: &[u8], asked: u16) -> Result<bool>;
}

/// Properties of the newest point by which a map of changes is believed.
#[derive(Clone, Debug)]
pub struct NewestPoint {
    /// Its id.
    pub point: PointId,
    /// The epoch of change tracking that ended with it.
    pub epoch: Option<String>,
    /// Size of the disk, bytes.
    pub virtual_bytes: u64,
}

impl NewestPoint {
    /// Those of a point in a chain.
    pub(crate) fn of(manifest: &Manifest) -> Self {
        Self { point: manifest.point, epoch: manifest.epoch.clone(), virtual_bytes: manifest.virtual_bytes }
    }
}

impl Request<'_> {
    /// Compares a sample of what is said to be unchanged: one difference, and the map is not believed. Returns what is
    /// to be told then.
    ///
    /// What is left out now is not compared, since a change of it was not backed up.
    ///
    /// # Errors
    ///
    /// Where source or destination cannot be read.
    pub async fn distrust<B: SampledBase>(
        &mut self,
        base: &Arc<B>,
        newest: Option<NewestPoint>,
        reads: &ThreadPool,
    ) -> Result<Option<String>> {
        let Changed::Known { since, .. } = &self.changed else { return Ok(None) };
        let Some(newest) = newest else {
            self.changed = Changed::Unknown { why: "a full holds everything".into() };
            return Ok(None);
        };
        if !since.is_moment(newest.point, newest.epoch.as_deref()) {
            let why = format!("changes are known since {since}, which is not point {}", newest.point);
            self.changed = Changed::Unknown { why };
            return Ok(None);
        }
        let size = self.source.geometry().size.min(newest.virtual_bytes);
        let whole = (size / UNIT) as u32;
        let mut random = self.seed | 1;
        for number in 0..self.sample_bytes / UNIT {
            // xorshift64, of which any sequence will do.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let Some(anywhere) = random.checked_rem(u64::from(whole)) else { break };
            let mut unit = anywhere as u32;
            if number % 2 == 0 {
                let (sampled, place) = (Arc::clone(base), random);
                unit = on(reads, move || sampled.sample(place)).await?.unwrap_or(unit);
            }
            let range = unit_range(unit, size);
            if unit >= whole || self.is_touched(range.clone()) {
                continue;
            }
            let skipped = self.skipped_leaves(unit);
            if skipped == u16::MAX {
                continue;
            }
            let data = self.read(range.clone()).await?;
            let compared = Arc::clone(base);
            let is_as_before = move || compared.is_as_before(unit, &data, !skipped);
            if !on(reads, is_as_before).await? {
                let why = format!(
                    "a sample at offset {} differs although no change was known: change tracking is not believed",
                    range.start
                );
                self.changed = Changed::Unknown { why: why.clone() };
                return Ok(Some(why));
            }
        }
        Ok(None)
    }
}
