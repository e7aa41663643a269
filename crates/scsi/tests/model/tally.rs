//! How the commands of a run ended.

use std::collections::BTreeMap;

use crate::layout::Layout;

/// How often commands of each operation code and service action ended well, and otherwise.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally(pub(crate) BTreeMap<(u8, Option<u8>), (u64, u64)>);

impl Tally {
    pub(crate) fn count(&mut self, layout: &Layout, good: bool) {
        let (well, badly) = self.0.entry((layout.fields[0], layout.action)).or_default();
        *if good { well } else { badly } += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (&key, &(well, badly)) in &other.0 {
            let (all_well, all_badly) = self.0.entry(key).or_default();
            *all_well += well;
            *all_badly += badly;
        }
    }
}
