//! The marker: what makes a folder a repository, and who may read it.

use std::cmp::Ordering;

use lunway_backup::{BackupError, Folder, LEAF, Result, read_small, seal, unseal, write_whole};
use serde::{Deserialize, Serialize};

use crate::codec::{Codec, Document};
use crate::keys::WrappedKey;

/// Version of the repository's format.
pub const FORMAT: u32 = 1;
/// Name of the file, and of its copy: without it an encrypted repository has no key.
pub(crate) const MARKER: &str = "repository.json";
pub(crate) const MARKER_COPY: &str = "repository.copy.json";
/// Most bytes of it: 2,000 people.
pub(crate) const MARKER_MAX: u64 = 1 << 20;

/// Revisions of which a marker remembers that they led to it: a change of keys each week for five years. They take
/// 8 KiB of [`MARKER_MAX`].
const TRAIL_MAX: usize = 256;
/// Digits of a revision's tag that stand for it there: as many as an id has.
const REVISION_DIGITS: usize = 16;

/// How a marker came to be beside another one of the same repository, which was written with the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Descent {
    /// It is the same.
    Same,
    /// The other one led to it, as far as is known.
    Later,
    /// It led to the other one, as far as is known.
    Earlier,
    /// Neither led to the other one: an older one was put back, and changed.
    Apart,
}

/// The marker of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// [`FORMAT`].
    pub format: u32,
    /// Id of the repository, 16 hexadecimal digits.
    pub repository: String,
    /// Bytes of a leaf.
    pub leaf_bytes: u64,
    /// Entries are encrypted, and their ids keyed.
    pub encrypted: bool,
    /// The key for each person.
    pub keys: Vec<WrappedKey>,
    /// Counts changes of the keys: of two copies the higher one is newer. None: there were no changes, or they were
    /// made before there was this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) revision: Option<u64>,
    /// First digits of the tags of the revisions that led to this one, the oldest first. None where a version changed
    /// it that knew no trail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    trail: Vec<String>,
    /// Of an encrypted repository: BLAKE3, keyed, of this marker with an empty string here. One that was written before
    /// there was this field has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    authenticated: Option<String>,
}

impl Marker {
    /// One of a new repository, which has yet to be [sealed](Self::sealed).
    pub(crate) fn new(repository: String, keys: Vec<WrappedKey>) -> Self {
        let encrypted = !keys.is_empty();
        Self {
            format: FORMAT,
            repository,
            leaf_bytes: LEAF,
            encrypted,
            keys,
            revision: None,
            trail: Vec::new(),
            authenticated: None,
        }
    }

    /// The same as only a reader of the repository can make it.
    pub(crate) fn sealed(mut self, codec: &Codec) -> Self {
        self.authenticated = self.authentication(codec);
        self
    }

    /// The same as the revision that follows another one.
    pub(crate) fn following(mut self, before: &Self) -> Self {
        self.revision = Some(before.revision.unwrap_or(0) + 1);
        self.trail.clone_from(&before.trail);
        self.trail.extend(before.tag().map(str::to_owned));
        let excess = self.trail.len().saturating_sub(TRAIL_MAX);
        self.trail.drain(..excess);
        self
    }

    /// What stands for this revision in the trails of those that follow it.
    fn tag(&self) -> Option<&str> {
        self.authenticated.as_deref().map(|tag| tag.get(..REVISION_DIGITS).unwrap_or(tag))
    }

    /// Compares it with a marker that is known, if both are authentic.
    pub(crate) fn descent(&self, known: &Self) -> Descent {
        match self.revision.cmp(&known.revision) {
            _ if self == known => Descent::Same,
            // Versions that did not count revisions changed keys as well.
            _ if known.revision.is_none() => Descent::Later,
            Ordering::Greater if self.may_follow(known) => Descent::Later,
            Ordering::Less if known.may_follow(self) => Descent::Earlier,
            _ => Descent::Apart,
        }
    }

    /// Returns `false` if it is known that an earlier revision has not led to this one.
    fn may_follow(&self, earlier: &Self) -> bool {
        let (Some(now), Some(then), Some(tag)) = (self.revision, earlier.revision, earlier.tag()) else {
            return true;
        };
        let back = usize::try_from(now.saturating_sub(then)).unwrap_or(usize::MAX);
        match self.trail.len().checked_sub(back) {
            Some(at) => self.trail.get(at).is_some_and(|led| led == tag),
            // It lies too far back, or a version made one of those between that knew no trail; one that was made with
            // a trail hands that on.
            None => self.trail.len() >= TRAIL_MAX || earlier.trail.is_empty(),
        }
    }

    fn authentication(&self, codec: &Codec) -> Option<String> {
        let open = Self { authenticated: Some(String::new()), ..self.clone() };
        codec.authenticate(Document::Marker, &seal(&open))
    }

    /// Returns `true` unless it was changed without the repository's key.
    pub(crate) fn is_authentic(&self, codec: &Codec) -> bool {
        self.authenticated.is_none() || self.authenticated == self.authentication(codec)
    }

    /// Returns `true` if it says that it was written with the repository's key.
    pub(crate) fn is_sealed(&self) -> bool {
        self.authenticated.is_some()
    }

    /// Reads it: of the file and its copy the one that is whole and accepted, the newer one where both are. A change of
    /// keys that was cut off between them stays.
    pub(crate) fn load<T>(folder: &dyn Folder, accept: &dyn Fn(&Self) -> Result<T>) -> Result<(Self, T)> {
        let attempt = |name: &str| {
            let marker = Self::read(folder, name)?;
            let accepted = accept(&marker)?;
            Ok((marker, accepted))
        };
        match (attempt(MARKER), attempt(MARKER_COPY)) {
            (Ok(first), Ok(copy)) if copy.0.revision > first.0.revision => Ok(copy),
            (Ok(first), _) => Ok(first),
            (Err(_), Ok(copy)) => Ok(copy),
            (Err(error), Err(_)) => Err(error),
        }
    }

    /// Reads one of the two.
    pub(crate) fn read(folder: &dyn Folder, name: &str) -> Result<Self> {
        let wrong = |what: String| BackupError::Manifest { name: folder.show(name), what };
        let bytes = read_small(folder, name, MARKER_MAX)?;
        let marker: Self = unseal(&bytes).map_err(wrong)?;
        match marker.format == FORMAT && marker.leaf_bytes == LEAF {
            true => Ok(marker),
            false => Err(wrong("it has a format that this version does not know".into())),
        }
    }

    /// Writes both, durably. The caller holds the lease of the packs.
    pub(crate) fn store(&self, folder: &dyn Folder) -> Result<()> {
        for name in [MARKER_COPY, MARKER] {
            write_whole(folder, name, &seal(self))?;
            folder.sync().map_err(BackupError::folder("writing", &folder.show(name)))?;
        }
        Ok(())
    }

    /// Names of the file and its copy where they are not this, and what they are instead.
    pub(crate) fn problems(&self, folder: &dyn Folder) -> Vec<(String, &'static str)> {
        let problem = |name: &str| match Self::read(folder, name) {
            Ok(found) if found == *self => None,
            Ok(_) => Some((folder.show(name), "is of another state than its copy")),
            Err(_) => Some((folder.show(name), "is not whole, and its copy is")),
        };
        [MARKER_COPY, MARKER].iter().filter_map(|name| problem(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::MasterKey;
    use crate::keys::Identity;

    const MASTER: [u8; 32] = [3; 32];

    fn codec() -> Codec {
        Codec::encrypted(&MasterKey::new(MASTER))
    }

    fn first() -> Marker {
        let recipient = Identity::generate().unwrap().recipient();
        let keys = vec![WrappedKey::wrap(&MasterKey::new(MASTER), &recipient).unwrap()];
        Marker::new("0000000000000001".into(), keys).sealed(&codec())
    }

    /// A change of keys; an `is_older` version does not know trails.
    fn changed(before: &Marker, recipient: &str, is_older: bool) -> Marker {
        let mut marker = before.clone();
        marker.keys[0].recipient = recipient.to_owned();
        let mut marker = marker.following(before);
        if is_older {
            marker.trail.clear();
        }
        marker.sealed(&codec())
    }

    #[test]
    fn a_marker_that_was_put_back_and_changed_is_told_from_later_and_earlier_ones() {
        let all: Vec<Marker> = (0..5)
            .scan(first(), |marker, number| {
                let now = marker.clone();
                *marker = changed(marker, &format!("r{number}"), false);
                Some(now)
            })
            .collect();
        for (at, one) in all.iter().enumerate() {
            for (number, other) in all.iter().enumerate() {
                let expected = match at.cmp(&number) {
                    Ordering::Less => Descent::Earlier,
                    Ordering::Equal => Descent::Same,
                    Ordering::Greater => Descent::Later,
                };
                assert_eq!(one.descent(other), expected, "{at} {number}");
            }
        }
        let mut put_back = changed(&all[1], "other", false);
        for revision in 2..6 {
            assert_eq!(put_back.revision, Some(revision));
            for known in &all[2..] {
                assert_eq!(put_back.descent(known), Descent::Apart, "{revision} {:?}", known.revision);
            }
            assert_eq!(put_back.descent(&all[1]), Descent::Later);
            assert_eq!(all[1].descent(&put_back), Descent::Earlier);
            put_back = changed(&put_back, "more", false);
        }
    }

    #[test]
    fn what_versions_without_trails_have_changed_is_gone_on_with_and_a_long_trail_is_bounded() {
        let old = changed(&changed(&first(), "a", true), "b", true);
        let new = changed(&changed(&old, "c", true), "d", false);
        assert_eq!((new.descent(&old), old.descent(&new)), (Descent::Later, Descent::Earlier));
        assert_eq!(new.descent(&first()), Descent::Later);
        assert_eq!(changed(&first(), "a", true).descent(&changed(&first(), "b", true)), Descent::Apart);
        // A version that knows no trails cannot have gone on from one that has.
        let known = changed(&new, "f", false);
        assert_eq!(changed(&changed(&new, "e", true), "g", true).descent(&known), Descent::Apart);
        let mut long = new.clone();
        for number in 0..2 * TRAIL_MAX {
            long = changed(&long, &number.to_string(), false);
        }
        assert_eq!(long.trail.len(), TRAIL_MAX);
        assert_eq!(long.descent(&new), Descent::Later);
        assert!(seal(&long).len() < 10 << 10, "{}", seal(&long).len());
    }
}
