//! The head of a series: its name, and the points that it has had, so that folders that were exchanged, points that no
//! prune has removed, and points that were put there are noticed.
//!
//! A run writes it behind its manifest. Until then, and after a cut between, it is behind: manifests name the point
//! before them, so that newer points are traced back to the one that it names. A prune that takes the newest point
//! writes it before it removes anything.

use std::collections::BTreeSet;

use lunway_backup::{BackupError, Folder, PointId, Result, parse_stem, seal, stem, unseal, write_whole};
use serde::{Deserialize, Serialize};

use crate::codec::{Codec, Document};
use crate::marker::FORMAT;
use crate::small::{Small, small};

pub(crate) const HEAD: &str = "head.json";
/// Most bytes of it: a full trail of points that were all removed, and a series that was renamed a hundred times.
const HEAD_MAX: u64 = 128 << 10;
/// Points of which a head remembers that they were made: a point each quarter of an hour for ten days, one each day for
/// three years. With 31 bytes each, and 14 that say that one was removed, they take half of [`HEAD_MAX`].
const TRAIL_MAX: usize = 1024;
/// Points that were gone of which a head remembers that: as many as a series loses in years. With 31 bytes each, in two
/// lists, they take 4 KiB.
const MISSED_MAX: usize = 64;
/// Words by which points were removed since the last run: as many as a person gives.
const WORDS_MAX: usize = 64;

/// The head of a series.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    format: u32,
    /// Name of the series.
    pub(crate) series: String,
    /// Names that it had before.
    pub(crate) was: Vec<String>,
    /// Its newest point.
    pub(crate) newest: Option<PointId>,
    /// The highest generation that a point of it has had.
    pub(crate) generation: u64,
    /// Its first point, by which series are told apart that have had one name; none where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) begun: Option<PointId>,
    /// The generation from which on the trail has all points; none where there is no trail: a version wrote it that
    /// knew none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<u64>,
    /// Stems of the points that it has had, removed ones as well, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    trail: Vec<String>,
    /// Generations of the points in the trail that prunes have removed; none where a version wrote it that marked none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gone: Option<BTreeSet<u64>>,
    /// Generations of the points in the trail that a prune removes by its rules, until it has ended.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) going: BTreeSet<u64>,
    /// Points that a prune was told by name to remove, until it has ended and its user knows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) removed: Vec<PointId>,
    /// The words that have named points for removal since a run has made one: given again, they remove no other point.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) words: Vec<String>,
    /// Stems of points that were gone when a run went on without them, and that no user has given up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    missed: Vec<String>,
    /// Stems of such points that a user has given up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    forgone: Vec<String>,
    /// Of an encrypted repository: BLAKE3, keyed, of this with an empty string here.
    authenticated: Option<String>,
}

impl Head {
    /// Of a series without points; what is known of it is filled in by the caller.
    pub(crate) fn new(series: &str, was: Vec<String>) -> Self {
        Self {
            format: FORMAT,
            series: series.to_owned(),
            was,
            newest: None,
            generation: 0,
            begun: None,
            since: None,
            trail: Vec::new(),
            gone: None,
            going: BTreeSet::new(),
            removed: Vec::new(),
            words: Vec::new(),
            missed: Vec::new(),
            forgone: Vec::new(),
            authenticated: None,
        }
    }

    /// Generations and ids of the points that it has had, the oldest first.
    pub(crate) fn trail(&self) -> impl Iterator<Item = (u64, PointId)> {
        self.trail.iter().filter_map(|stem| parse_stem(stem))
    }

    /// Generations and ids of the points before the newest one that no prune has removed, and that no user has given
    /// up. None where that is not known.
    pub(crate) fn kept(&self) -> impl Iterator<Item = (u64, PointId)> {
        let mut not: BTreeSet<u64> = self.removing();
        not.extend(self.gone.iter().flatten());
        not.extend(self.forgone().map(|(generation, _)| generation));
        let newest = self.newest.and_then(|newest| self.trail().find(|(_, point)| *point == newest));
        let end = self.gone.as_ref().and(newest).map_or(0, |(generation, _)| generation);
        self.trail().filter(move |(generation, _)| *generation < end && !not.contains(generation))
    }

    /// Generations and ids of points that were gone when a run went on without them.
    pub(crate) fn missed(&self) -> impl Iterator<Item = (u64, PointId)> {
        self.missed.iter().filter_map(|stem| parse_stem(stem))
    }

    pub(crate) fn set_missed(&mut self, points: impl Iterator<Item = (u64, PointId)>) {
        self.missed = last_stems(points);
    }

    /// Generations and ids of such points that a user has given up.
    pub(crate) fn forgone(&self) -> impl Iterator<Item = (u64, PointId)> {
        self.forgone.iter().filter_map(|stem| parse_stem(stem))
    }

    pub(crate) fn set_forgone(&mut self, points: impl Iterator<Item = (u64, PointId)>) {
        self.forgone = last_stems(points);
    }

    /// Takes the last of these words, each once.
    pub(crate) fn set_words<'a>(&mut self, words: impl Iterator<Item = &'a String>) {
        for word in words {
            if !self.words.contains(word) {
                self.words.push(word.clone());
            }
        }
        let excess = self.words.len().saturating_sub(WORDS_MAX);
        self.words.drain(..excess);
    }

    /// The same with this trail, the oldest first, which has all points from the generation `since` on. Of a longer one
    /// the last points are kept.
    pub(crate) fn with_trail(self, trail: &[(u64, PointId)], since: u64) -> Self {
        let excess = trail.len().saturating_sub(TRAIL_MAX);
        let last = &trail[excess..];
        let first = last.first().map_or(since, |(generation, _)| *generation);
        let since = if excess > 0 { since.max(first) } else { since };
        let stems = last.iter().map(|(generation, point)| stem(*generation, *point)).collect();
        let mut head = Self { trail: stems, since: Some(since), ..self };
        for marked in head.gone.iter_mut().chain([&mut head.going]) {
            marked.retain(|generation| last.iter().any(|(number, _)| number == generation));
        }
        head
    }

    /// Generations of the points that the prune that wrote it removes.
    fn removing(&self) -> BTreeSet<u64> {
        let named = self.trail().filter(|(_, point)| self.removed.contains(point));
        named.map(|(generation, _)| generation).chain(self.going.iter().copied()).collect()
    }

    /// Returns `true` if a prune wrote it that has not ended.
    pub(crate) fn is_of_prune(&self) -> bool {
        !self.removed.is_empty() || !self.going.is_empty()
    }

    /// Generations of points that prunes have removed, if those that are `there` still have not been.
    pub(crate) fn gone_but(&self, there: &BTreeSet<u64>) -> BTreeSet<u64> {
        let removing = self.removing();
        let gone = self.gone.iter().flatten().chain(removing.difference(there));
        gone.copied().collect()
    }

    /// The same when the prune that wrote it has ended.
    pub(crate) fn ended(self) -> Self {
        let gone = Some(self.gone_but(&BTreeSet::new()));
        Self { gone, going: BTreeSet::new(), removed: Vec::new(), ..self }
    }

    fn authentication(&self, codec: &Codec) -> Option<String> {
        let open = Self { authenticated: Some(String::new()), ..self.clone() };
        codec.authenticate(Document::Head, &seal(&open))
    }

    /// Reads it; `None` where there is none, what is wrong where it is damaged.
    pub(crate) fn load(
        folder: &dyn Folder,
        codec: &Codec,
    ) -> Result<std::result::Result<Option<Self>, String>> {
        let shown = folder.show(HEAD);
        let bytes = match small(folder, HEAD, HEAD_MAX)? {
            Small::Whole(bytes) => bytes,
            Small::Missing => return Ok(Ok(None)),
            Small::Wrong(what) => return Ok(Err(what)),
        };
        Ok(match unseal::<Self>(&bytes) {
            Err(what) => Err(format!("{shown}: {what}")),
            Ok(head) if head.format != FORMAT => {
                Err(format!("{shown} has a format that this version does not know"))
            }
            Ok(head) if head.authenticated != head.authentication(codec) => {
                Err(format!("{shown} was not written with the key of this repository"))
            }
            Ok(head) => Ok(Some(head)),
        })
    }

    /// Writes it, durably. The caller holds the lease of the series.
    pub(crate) fn store(mut self, folder: &dyn Folder, codec: &Codec) -> Result<()> {
        self.authenticated = self.authentication(codec);
        write_whole(folder, HEAD, &seal(&self))?;
        folder.sync().map_err(BackupError::folder("writing", &folder.show(HEAD)))
    }
}

/// Stems of the last of these points.
fn last_stems(points: impl Iterator<Item = (u64, PointId)>) -> Vec<String> {
    let all: BTreeSet<(u64, PointId)> = points.collect();
    let excess = all.len().saturating_sub(MISSED_MAX);
    all.into_iter().skip(excess).map(|(generation, point)| stem(generation, point)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_has_the_last_points_of_a_long_series_and_says_from_which_one_on_and_stays_small() {
        let all: Vec<(u64, PointId)> = (1..=5000).map(|number| (number, PointId(number * 7))).collect();
        let mut head = Head::new(&"s".repeat(255), vec!["w".repeat(255); 100]);
        head.gone = Some((1..=5000).collect());
        head.set_missed(all.iter().copied());
        head.set_forgone(all.iter().copied());
        let words: Vec<String> = (0..5000).map(|number| format!("{number:040}")).collect();
        head.set_words(words.iter());
        let short = head.clone().with_trail(&all[..TRAIL_MAX], 0);
        assert_eq!((short.since, short.trail().count()), (Some(0), TRAIL_MAX));
        let long = head.with_trail(&all, 0);
        let first = all[all.len() - TRAIL_MAX];
        assert_eq!((long.since, long.trail().next()), (Some(first.0), Some(first)));
        assert_eq!(long.gone.as_ref().map(BTreeSet::len), Some(TRAIL_MAX));
        assert!((seal(&long).len() as u64) < HEAD_MAX, "{}", seal(&long).len());
    }
}
