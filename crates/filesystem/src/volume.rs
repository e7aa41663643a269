//! A volume: a file system, or whatever else lies in a partition.

use std::ops::Range;

use crate::map::{Joiner, Ranges, clip};
use crate::source::{ByteSource, Unreadable};

/// Identity of a volume, as the volume states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeIdentity {
    /// The name of the format: `ext4`, `XFS`, `NTFS` …
    pub kind: &'static str,
    /// Its label.
    pub label: Option<String>,
    /// Its UUID, or what the format has instead.
    pub uuid: Option<String>,
    /// Size that it states, bytes. What its container has beyond that is unknown.
    pub size: u64,
}

/// Mount state of a volume: whether a system has it mounted and may be changing it, as far as the volume's own marks
/// tell.
///
/// A system that is changing a volume has changes in its memory: data may lie in a block already whose allocation is
/// not on the disk yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mounted {
    /// No: who mounts it marks it before the first change, and the mark is not there. It is unmounted, mounted
    /// read-only, or frozen.
    No,
    /// The format has no mark, or not every driver sets it.
    Untold,
    /// Not unmounted, and is not frozen: it is mounted, or was when its system stopped.
    Yes,
}

/// Reason why nothing of a volume may be dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// Reason in one sentence, without a full stop: what was found, where.
    pub reason: String,
    /// Remedy: "run e2fsck", "shut Windows down instead of …".
    pub remedy: Option<&'static str>,
    /// `true` if a suspended system lies in the volume: it has other volumes of the disk mounted, in its memory.
    pub suspended: bool,
    /// `true` if the volume was not unmounted: [`Mounted::Yes`].
    pub mounted: bool,
}

impl Doubt {
    /// A doubt for this reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), remedy: None, suspended: false, mounted: false }
    }

    /// A doubt because the volume was not unmounted.
    pub fn mounted(reason: impl Into<String>) -> Self {
        Self { mounted: true, ..Self::new(reason) }
    }

    /// A doubt because of a suspended system.
    pub fn suspended(reason: impl Into<String>) -> Self {
        Self { suspended: true, ..Self::new(reason) }
    }

    /// The same, with what would help.
    #[must_use]
    pub fn helped_by(self, remedy: &'static str) -> Self {
        Self { remedy: Some(remedy), ..self }
    }
}

impl From<Unreadable> for Doubt {
    fn from(error: Unreadable) -> Self {
        Self::new(error.what)
    }
}

/// Result of the examination of a volume.
pub struct Examined {
    /// Identity that it states.
    pub identity: VolumeIdentity,
    /// Notes for people before they drop its free ranges, in sentences.
    pub notes: Vec<String>,
    /// Mount state: whether the volume may be changing; the mount state of a doubt is in [`Doubt::mounted`].
    pub mounted: Mounted,
    /// The volume with its free map proven, or why it is not.
    pub verdict: Result<Box<dyn Volume>, Doubt>,
}

/// A volume whose free map is proven. It holds what it needs to read the map again (geometry, an overlay of its
/// journal), never the map: at most 64 MiB for the largest volume.
///
/// Each format's module has two functions beside it:
///
/// - `recognised(source) -> Result<bool, Unreadable>`: whether the volume bears the format's signature. Cheap: a few
///   fields at fixed places, and as strict as the format allows, since two formats on one volume are ambivalent.
/// - `examine(source) -> Result<Examined, Doubt>`: reads everything that the proof needs. An error means that not even
///   the identity could be read; a doubt about the map is in [`Examined::verdict`].
///
/// `source` is always the volume itself, from byte 0 to its container's end for it; it comes behind a cache and within
/// a budget ([`Budget`](crate::source::Budget)), so that reading field by field is cheap and loops end.
pub trait Volume {
    /// Number of bytes that [`free_in`] gives for the whole volume, exactly.
    fn free_bytes(&self) -> u64;

    /// Number of bytes of the source that the format knows: [`VolumeIdentity::size`], and not more than the source has.
    /// Behind them nothing is free.
    fn size(&self) -> u64;

    /// Metadata that follows from the geometry: kept, whatever the map says. Includes what is never in the map (boot
    /// sectors, copies of superblocks).
    fn metadata(&self) -> &Ranges;

    /// Gives what the format's map says is free in `window` (bytes of the volume), sorted and disjoint. Ranges may
    /// touch, reach out of the window, and cover metadata: [`free_in`] sees to that.
    ///
    /// What is read here again is checked again, as far as that is cheap (checksums, padding, counts of a group).
    fn claimed_free(
        &self,
        source: &dyn ByteSource,
        window: Range<u64>,
        sink: &mut dyn FnMut(Range<u64>),
    ) -> Result<(), Doubt>;
}

/// Gives the free ranges of `window` (bytes of the volume's own addresses), sorted, disjoint, not touching: what the
/// volume claims, inside of the window and of the volume, without what is metadata by geometry. After an error nothing
/// of the window that was not yet given is free.
pub fn free_in(
    volume: &dyn Volume,
    source: &dyn ByteSource,
    window: Range<u64>,
    sink: &mut dyn FnMut(Range<u64>),
) -> Result<(), Doubt> {
    let window = window.start..window.end.min(volume.size()).min(source.len());
    if window.start >= window.end {
        return Ok(());
    }
    let mut joiner = Joiner::new(sink);
    let claimed = volume.claimed_free(source, window.clone(), &mut |range| {
        if let Some(range) = clip(&range, &window) {
            volume.metadata().missing_from(range, &mut |range| joiner.push(range));
        }
    });
    joiner.finish();
    claimed
}

/// Counts the bytes that [`free_in`] gives for the whole volume: the value for its [`Volume::free_bytes`].
pub(crate) fn count_free(volume: &dyn Volume, source: &dyn ByteSource) -> Result<u64, Doubt> {
    let mut free = 0;
    free_in(volume, source, 0..volume.size(), &mut |range| free += range.end - range.start)?;
    Ok(free)
}
