//! A bounded number of connections, shared fairly among their sources.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::source::SourceHost;

/// A bounded number of members, each from a [`SourceHost`].
///
/// Where there is no place for one more, the oldest member of the source that has most of them goes: a source can take
/// places from others only while it has fewer than they, so none can shut others out.
#[derive(Debug)]
pub struct SourceQuota<T> {
    members: BTreeMap<u64, (SourceHost, T)>,
    by_source: HashMap<SourceHost, BTreeSet<u64>>,
}

impl<T> Default for SourceQuota<T> {
    fn default() -> Self {
        Self { members: BTreeMap::new(), by_source: HashMap::new() }
    }
}

impl<T> SourceQuota<T> {
    /// Adds a member with a number of its own; lower numbers are older. Returns the member that has to go where there
    /// are more than `most` in all, or more than `most_of_source` of this source.
    ///
    /// Takes time in proportion to the number of sources, where it is full.
    pub fn enter(
        &mut self,
        number: u64,
        source: SourceHost,
        member: T,
        most: usize,
        most_of_source: usize,
    ) -> Option<T> {
        self.members.insert(number, (source, member));
        let of_source = self.by_source.entry(source).or_default();
        of_source.insert(number);
        let leaving = if of_source.len() > most_of_source {
            of_source.first().copied()
        } else if self.members.len() > most {
            let largest = self.by_source.values().max_by_key(|of| (of.len(), Reverse(of.first().copied())));
            largest.and_then(|of| of.first().copied())
        } else {
            None
        };
        leaving.and_then(|leaving| self.leave(leaving))
    }

    /// Removes a member.
    pub fn leave(&mut self, number: u64) -> Option<T> {
        let (source, member) = self.members.remove(&number)?;
        if let Some(of_source) = self.by_source.get_mut(&source) {
            of_source.remove(&number);
            if of_source.is_empty() {
                self.by_source.remove(&source);
            }
        }
        Some(member)
    }

    /// The members, the oldest first.
    pub fn members(&self) -> impl Iterator<Item = &T> {
        self.members.values().map(|(_, member)| member)
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns `true` if there is no member.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn source(text: &str) -> SourceHost {
        text.parse::<IpAddr>().unwrap().into()
    }

    #[test]
    fn one_source_takes_places_only_from_itself_while_it_has_the_most() {
        let mut quota = SourceQuota::default();
        let (quiet, loud) = (source("192.0.2.1"), source("192.0.2.2"));
        assert_eq!(quota.enter(1, quiet, "quiet", 4, 9), None);
        for number in 2..=4 {
            assert_eq!(quota.enter(number, loud, "loud", 4, 9), None);
        }
        for number in 5..100 {
            assert_eq!(quota.enter(number, loud, "loud", 4, 9), Some("loud"));
        }
        assert_eq!(quota.enter(100, source("192.0.2.3"), "third", 4, 9), Some("loud"));
        assert_eq!(quota.members().collect::<Vec<_>>(), [&"quiet", &"loud", &"loud", &"third"]);
        assert_eq!(quota.by_source.len(), 3);
    }

    #[test]
    fn among_sources_with_as_many_the_oldest_member_goes_and_a_source_may_have_a_bound_of_its_own() {
        let mut quota = SourceQuota::default();
        quota.enter(1, source("fd00::1"), 1, 2, 2);
        quota.enter(2, source("fd00:0:0:1::1"), 2, 2, 2);
        assert_eq!(quota.enter(3, source("fd00:0:0:2::1"), 3, 2, 2), Some(1));
        let mut quota = SourceQuota::default();
        assert_eq!(quota.enter(1, source("fd00::1"), 1, 9, 1), None);
        assert_eq!(quota.enter(2, source("fd00::2"), 2, 9, 1), Some(1), "a /64 is one source");
        assert_eq!((quota.leave(2), quota.leave(2), quota.len()), (Some(2), None, 0));
        assert!(quota.by_source.is_empty());
    }
}
