//! By how much two samples differ: Mann–Whitney, and the Hodges–Lehmann estimate that belongs to it.

use crate::order::{Interval, Shift, double_ranks, select, select_median, tie_groups};
use crate::summary::{finite, sorted};
use crate::{normal_cdf, normal_quantile};

/// Up to this many values in both samples together distributions are exact.
pub const EXACT_MAX: usize = 100;

/// By how much `b` lies above `a`, with an interval that has at least the `confidence` (such as 0.95). `None` where a
/// sample is empty or something is not finite.
///
/// The estimate is the median of all differences between a value of one and a value of the other. The interval's ends
/// are two of those differences; ties only make it surer than it says. The p-value is exact to [`EXACT_MAX`] values,
/// with ties too: it counts the ways of dealing out the ranks as they are.
pub fn shift(a: &[f64], b: &[f64], confidence: f64) -> Option<Shift> {
    if a.is_empty() || b.is_empty() || !finite(a) || !finite(b) {
        return None;
    }
    let (p, a, b) = (p_value(a, b), sorted(a), sorted(b));
    let (low, high) = (b[0] - a[a.len() - 1], b[b.len() - 1] - a[0]);
    let all = a.len() * b.len();
    let count = |x: f64| differences_up_to(&a, &b, x);
    let estimate = select_median(low, high, all, count) + 0.0;
    let interval = rank_of_bound(a.len(), b.len(), confidence).map(|(k, confidence)| Interval {
        low: select(low, high, k, count) + 0.0,
        high: select(low, high, all + 1 - k, count) + 0.0,
        confidence,
    });
    Some(Shift { estimate, interval, p })
}

/// Two-sided p-value of the rank sum.
fn p_value(a: &[f64], b: &[f64]) -> f64 {
    let both = [a, b].concat();
    let ranks = double_ranks(&both);
    let (m, n, total) = (a.len() as f64, b.len() as f64, both.len() as f64);
    let sum: usize = ranks[..a.len()].iter().sum();
    // Doubled: the mean of a's rank sum is m(N + 1)/2.
    let middle = m * (total + 1.0);
    let away = (sum as f64 - middle).abs();
    let p = if both.len() <= EXACT_MAX {
        let chances = sums_by_chance(&ranks, a.len());
        // Ties can make it lopsided, so each tail is counted on its own.
        let (up_to, from) = (chances[..=sum].iter().sum::<f64>(), chances[sum..].iter().sum::<f64>());
        2.0 * up_to.min(from)
    } else {
        let cubes: f64 = tie_groups(&both).iter().map(|&size| (size as f64).powi(3) - size as f64).sum();
        let variance = m * n / 12.0 * (total + 1.0 - cubes / (total * (total - 1.0)));
        if variance <= 0.0 {
            return 1.0;
        }
        2.0 * normal_cdf(-(away / 2.0 - 0.5).max(0.0) / variance.sqrt())
    };
    p.min(1.0)
}

/// Chances of each sum of `m` of the ranks, drawn without looking.
fn sums_by_chance(ranks: &[usize], m: usize) -> Vec<f64> {
    let width = ranks.iter().sum::<usize>() + 1;
    // chances[taken][sum], after some of the ranks: of all ways to take `taken` of them, each as likely.
    let mut chances = vec![vec![0.0; width]; m + 1];
    chances[0][0] = 1.0;
    for (seen, &rank) in ranks.iter().enumerate() {
        for taken in (1..=m.min(seen + 1)).rev() {
            // Of `seen + 1` ranks the last is among the `taken` with this chance.
            let share = taken as f64 / (seen + 1) as f64;
            let (fewer, more) = chances.split_at_mut(taken);
            let fewer = &fewer[taken - 1];
            for sum in (0..width).rev() {
                let with = if sum >= rank { fewer[sum - rank] } else { 0.0 };
                more[0][sum] = share * with + (1.0 - share) * more[0][sum];
            }
        }
    }
    chances.swap_remove(m)
}

/// Chances of each number of pairs (one of `m`, one of `n` values, no two equal) in which the second is larger.
pub(crate) fn untied(m: usize, n: usize) -> Vec<f64> {
    // By the largest of all: it is one of the m, and its pairs count nothing, or one of the n, and they count m. The
    // row of n values is built up from the rows of fewer.
    let mut rows: Vec<Vec<f64>> = vec![vec![1.0]; m + 1];
    for b in 1..=n {
        for a in 1..=m {
            let (without_a, without_b) = (&rows[a - 1], &rows[a]);
            let share = b as f64 / (a + b) as f64;
            let mut row = vec![0.0; a * b + 1];
            for (count, chance) in without_b.iter().enumerate() {
                row[count + a] += share * chance;
            }
            for (count, chance) in without_a.iter().enumerate() {
                row[count] += (1.0 - share) * chance;
            }
            rows[a] = row;
        }
    }
    rows.swap_remove(m)
}

/// Returns the rank from below (from 1) of the difference that bounds the interval, and the confidence that it has.
fn rank_of_bound(m: usize, n: usize, confidence: f64) -> Option<(usize, f64)> {
    let tail = 0.5 * (1.0 - confidence);
    if m + n > EXACT_MAX {
        let (m, n) = (m as f64, n as f64);
        let (middle, deviation) = (m * n / 2.0, (m * n * (m + n + 1.0) / 12.0).sqrt());
        let below = (middle + normal_quantile(tail) * deviation - 0.5).floor();
        let tail = normal_cdf((below + 0.5 - middle) / deviation);
        return (below >= 0.0).then(|| (below as usize + 1, 1.0 - 2.0 * tail));
    }
    let mut below = 0.0;
    let mut bound = None;
    for (index, chance) in untied(m, n).into_iter().enumerate() {
        below += chance;
        if below > tail {
            break;
        }
        bound = Some((index + 1, 1.0 - 2.0 * below));
    }
    bound
}

/// Returns the number of differences, a value of `b` less a value of `a`, both in order, that are at most `x`.
fn differences_up_to(a: &[f64], b: &[f64], x: f64) -> usize {
    let mut count = 0;
    let mut end = 0;
    for value in a {
        while end < b.len() && b[end] - value <= x {
            end += 1;
        }
        count += end;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_example_comes_out() {
        // Hollander and Wolfe, table 4.1 (permeability of the human chorioamnion), as in the example of R's
        // `wilcox.test`: W = 35, p = 0.2544 two-sided; estimate 0.305, interval −0.15 … 0.76.
        let term = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46];
        let early = [1.15, 0.88, 0.90, 0.74, 1.21];
        let shift = shift(&early, &term, 0.95).unwrap();
        assert!((shift.p - 0.254_412_254_4).abs() < 1e-9, "{shift:?}");
        assert!((shift.estimate - 0.305).abs() < 1e-9, "{shift:?}");
        let interval = shift.interval.unwrap();
        assert!((interval.low + 0.15).abs() < 1e-9 && (interval.high - 0.76).abs() < 1e-9, "{interval:?}");
    }

    #[test]
    fn critical_values_are_those_of_mann_and_whitneys_table() {
        // Largest U whose two-sided p is at most 5 %. The bound is one above it.
        for (m, n, critical) in [
            (4, 4, Some(0)),
            (5, 5, Some(2)),
            (6, 6, Some(5)),
            (8, 8, Some(13)),
            (10, 10, Some(23)),
            (5, 10, Some(8)),
            (20, 20, Some(127)),
            (3, 4, None),
        ] {
            assert_eq!(rank_of_bound(m, n, 0.95).map(|(k, _)| k - 1), critical, "{m} {n}");
        }
    }

    #[test]
    fn ties_have_the_p_that_trying_every_deal_gives() {
        let (a, b) = ([1.0, 2.0, 2.0, 5.0], [2.0, 3.0, 3.0, 5.0, 6.0]);
        let ranks = double_ranks(&[&a[..], &b[..]].concat());
        let observed: usize = ranks[..4].iter().sum();
        let (mut below, mut above, mut deals) = (0.0, 0.0, 0.0);
        for taken in 0u32..1 << 9 {
            if taken.count_ones() == 4 {
                let sum: usize = (0..9).filter(|i| taken >> i & 1 == 1).map(|i| ranks[i]).sum();
                deals += 1.0;
                below += f64::from(u8::from(sum <= observed));
                above += f64::from(u8::from(sum >= observed));
            }
        }
        assert!((p_value(&a, &b) - f64::min(1.0, 2.0 * f64::min(below, above) / deals)).abs() < 1e-12);
    }

    #[test]
    fn without_ties_both_ways_of_counting_agree() {
        let ranks: Vec<usize> = (1..=11).map(|rank| 2 * rank).collect();
        let sums = sums_by_chance(&ranks, 4);
        for (count, chance) in untied(7, 4).into_iter().enumerate() {
            // The sum of 4 ranks is 10 where none is above any of the 7, and each pair adds one.
            assert!((sums[2 * (10 + count)] - chance).abs() < 1e-12);
        }
    }

    #[test]
    fn equal_samples_do_not_differ() {
        let shift = shift(&[3.0; 5], &[3.0; 6], 0.95).unwrap();
        assert_eq!((shift.estimate, shift.p), (0.0, 1.0));
        assert_eq!(p_value(&[3.0; 80], &[3.0; 90]), 1.0);
    }

    #[test]
    fn the_normal_distribution_takes_over_without_a_step() {
        let (exact, normal) = (rank_of_bound(50, 50, 0.95).unwrap(), rank_of_bound(50, 51, 0.95).unwrap());
        assert!((exact.0..exact.0 + 40).contains(&normal.0), "{exact:?} {normal:?}");
        let series = |n: usize, up: f64| (0..n).map(|i| ((i * 7919) % 101) as f64 + up).collect::<Vec<_>>();
        let (below, above) =
            (p_value(&series(50, 0.0), &series(50, 9.0)), p_value(&series(50, 0.0), &series(51, 9.0)));
        assert!((below - above).abs() < 0.02, "{below} {above}");
    }

    #[test]
    fn what_cannot_be_compared_is_refused() {
        assert_eq!(shift(&[], &[1.0], 0.95), None);
        assert_eq!(shift(&[1.0], &[f64::NAN], 0.95), None);
        assert_eq!(shift(&[1.0], &[2.0], 0.95).unwrap().interval, None);
    }
}
