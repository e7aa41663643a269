//! fio's latency buckets.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::measure::latency::Latency;

/// Buckets of a group: one power of two is cut in 64 parts.
const GROUP_BITS: u32 = 6;
const GROUP: u64 = 1 << GROUP_BITS;
/// All of them: exact below 128 ns, then one group for each power of two up to 2^34 ns, 17.2 s.
const BUCKETS: u64 = 29 * GROUP;

/// The bucket that fio counts a time in. All from 17.2 s on share the last one, as fio's do.
fn index(ns: u64) -> u64 {
    let magnitude = u64::BITS - ns.leading_zeros();
    if magnitude <= GROUP_BITS + 1 {
        return ns;
    }
    let shift = magnitude - GROUP_BITS - 1;
    let group = u64::from(shift) * GROUP;
    (group + (ns >> shift)).min(BUCKETS - 1)
}

/// The time that stands for a bucket: its middle, as fio writes it.
fn middle(index: u64) -> u64 {
    if index < 2 * GROUP {
        return index;
    }
    let shift = index / GROUP - 1;
    let base = (GROUP + index % GROUP) << shift;
    base + (1 << (shift - 1))
}

/// JSON+'s `bins`: how many I/Os fell in each bucket, by the bucket's middle in nanoseconds.
///
/// Each step of our own histogram lies within one of fio's buckets, so that every I/O is in its right one.
pub(super) fn bins(latency: &Latency) -> Value {
    let mut counts = BTreeMap::<u64, u64>::new();
    for (ns, count) in latency.buckets() {
        // The largest of a bucket of ours can lie above what was really measured.
        *counts.entry(index(ns.min(latency.max()))).or_default() += count;
    }
    let bins = counts.into_iter().map(|(index, count)| (middle(index).to_string(), count.into()));
    Value::Object(bins.collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_fios() {
        // Middles that `fio --output-format=json+` printed.
        for known in [27, 55, 64, 127, 157, 163, 169, 6368, 6752, 168_960, 1_003_520, 1_089_536] {
            assert_eq!(middle(index(known)), known, "{known}");
        }
        assert_eq!(middle(index(6357)), 6368);
        assert_eq!(middle(index(6776)), 6752);
    }

    #[test]
    fn every_bucket_begins_where_the_one_before_it_ends() {
        let starts = (1..1u64 << 20).filter(|&ns| index(ns) != index(ns - 1)).collect::<Vec<_>>();
        assert!(starts.windows(2).all(|pair| index(pair[1]) == index(pair[0]) + 1));
        for index in 0..BUCKETS {
            assert_eq!(super::index(middle(index)), index);
        }
        assert_eq!(index(u64::MAX), BUCKETS - 1);
        assert_eq!(middle(BUCKETS - 1), 17_112_760_320);
    }

    #[test]
    fn every_io_is_in_one_bin() {
        let mut latency = Latency::default();
        [1, 1, 27, 100_000, 100_001, 60_000_000_000].into_iter().for_each(|ns| latency.record(ns));
        let bins = bins(&latency);
        let counts: Vec<_> =
            bins.as_object().unwrap().values().map(|count| count.as_u64().unwrap()).collect();
        assert_eq!(counts.iter().sum::<u64>(), 6);
        assert_eq!((&bins["1"], &bins["27"], &bins["17112760320"]), (&2.into(), &1.into(), &1.into()));
    }
}
