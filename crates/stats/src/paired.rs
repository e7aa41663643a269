//! By how much pairs differ: Wilcoxon's signed ranks, and the Hodges–Lehmann estimate that belongs to them.
//!
//! What is asked of the differences is that they scatter evenly around the truth, no matter how far. For runs of two
//! candidates in random order that needs no belief: without a difference the two are exchangeable, and so any scatter
//! is even.

use crate::order::{Interval, Shift, double_ranks, select, select_median};
use crate::summary::{finite, sorted};
use crate::{normal_cdf, normal_quantile};

/// Up to this many pairs distributions are exact.
pub const EXACT_MAX: usize = 100;

/// The shift of `differences` from zero, with an interval that has at least the `confidence` (such as 0.95). `None` of
/// nothing, or where something is not finite.
///
/// The estimate is the median of all averages of two differences (each with itself too). The interval's ends are two of
/// those averages; ties only make it surer than it says. The p-value is exact to [`EXACT_MAX`] pairs, with ties too: it
/// counts signs for the ranks as they are. Differences of zero take their ranks and have no sign (Pratt): leaving them
/// out, as is usual, would call a shift what mostly is none.
pub fn shift(differences: &[f64], confidence: f64) -> Option<Shift> {
    if differences.is_empty() || !finite(differences) {
        return None;
    }
    let ordered = sorted(differences);
    let n = ordered.len();
    let (low, high) = (ordered[0], ordered[n - 1]);
    let averages = n * (n + 1) / 2;
    let count = |x: f64| averages_up_to(&ordered, x);
    let estimate = select_median(low, high, averages, count) + 0.0;
    let interval = rank_of_bound(n, confidence).map(|(k, confidence)| Interval {
        low: select(low, high, k, count) + 0.0,
        high: select(low, high, averages + 1 - k, count) + 0.0,
        confidence,
    });
    Some(Shift { estimate, interval, p: p_value(differences) })
}

/// The least p-value that `pairs` pairs can give, all of them differing the same way.
pub fn p_min(pairs: usize) -> f64 {
    (2.0 * 0.5f64.powi(i32::try_from(pairs).unwrap_or(i32::MAX))).min(1.0)
}

/// Two-sided p-value of the differences' signed ranks.
fn p_value(differences: &[f64]) -> f64 {
    let sizes: Vec<f64> = differences.iter().map(|difference| difference.abs()).collect();
    let ranks = double_ranks(&sizes);
    let signed = || differences.iter().zip(&ranks).filter(|(difference, _)| **difference != 0.0);
    let positive: usize = signed().filter(|(difference, _)| **difference > 0.0).map(|(_, rank)| rank).sum();
    let all: usize = signed().map(|(_, rank)| rank).sum();
    let smaller = positive.min(all - positive);
    let p = if differences.len() <= EXACT_MAX {
        let ranks: Vec<usize> = signed().map(|(_, &rank)| rank).collect();
        2.0 * sums_by_chance(&ranks)[..=smaller].iter().sum::<f64>()
    } else {
        // Each rank is in or out with an even chance: variance rank²/4. Half a rank (here: one) for continuity.
        let deviation = signed().map(|(_, &rank)| (rank as f64 / 2.0).powi(2)).sum::<f64>().sqrt();
        if deviation == 0.0 {
            return 1.0;
        }
        2.0 * normal_cdf(((smaller as f64 + 1.0 - all as f64 / 2.0) / deviation).min(0.0))
    };
    p.min(1.0)
}

/// Chances of each sum of ranks, each rank being in it or not with an even chance.
fn sums_by_chance(ranks: &[usize]) -> Vec<f64> {
    let mut chances = vec![0.0; ranks.iter().sum::<usize>() + 1];
    chances[0] = 1.0;
    let mut reached = 0;
    for &rank in ranks {
        reached += rank;
        for sum in (0..=reached).rev() {
            let with = if sum >= rank { chances[sum - rank] } else { 0.0 };
            chances[sum] = 0.5 * (chances[sum] + with);
        }
    }
    chances
}

/// Returns the rank from below (from 1) of the average that bounds the interval of n differences, and the confidence
/// that it has.
fn rank_of_bound(n: usize, confidence: f64) -> Option<(usize, f64)> {
    let tail = 0.5 * (1.0 - confidence);
    if n > EXACT_MAX {
        let n = n as f64;
        let (middle, deviation) = (n * (n + 1.0) / 4.0, (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt());
        let below = (middle + normal_quantile(tail) * deviation - 0.5).floor();
        let tail = normal_cdf((below + 0.5 - middle) / deviation);
        return (below >= 0.0).then(|| (below as usize + 1, 1.0 - 2.0 * tail));
    }
    let ranks: Vec<usize> = (1..=n).collect();
    let mut below = 0.0;
    let mut bound = None;
    for (index, chance) in sums_by_chance(&ranks).into_iter().enumerate() {
        below += chance;
        if below > tail {
            break;
        }
        bound = Some((index + 1, 1.0 - 2.0 * below));
    }
    bound
}

/// Returns the number of Walsh averages, of two of the ordered values (each with itself too), that are at most `x`.
fn averages_up_to(ordered: &[f64], x: f64) -> usize {
    let mut count = 0;
    let mut end = ordered.len();
    for (index, value) in ordered.iter().enumerate() {
        while end > index && 0.5 * value + 0.5 * ordered[end - 1] > x {
            end -= 1;
        }
        count += end.saturating_sub(index);
        if end <= index {
            break;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The signed-rank example of Hollander and Wolfe, table 3.1 (depression scale factors), as in R's `wilcox.test`.
    const HAMILTON: [f64; 9] = [-0.952, 0.147, -1.022, -0.430, -0.620, -0.590, -0.490, 0.080, -0.010];

    #[test]
    fn the_published_example_comes_out() {
        // V = 5, p = 0.0390625 two-sided; estimate −0.46, interval −0.786 … −0.010.
        let shift = shift(&HAMILTON, 0.95).unwrap();
        assert!((shift.p - 0.039_062_5).abs() < 1e-12, "{shift:?}");
        assert!((shift.estimate + 0.46).abs() < 1e-9, "{shift:?}");
        let interval = shift.interval.unwrap();
        assert!((interval.low + 0.786).abs() < 1e-9 && (interval.high + 0.01).abs() < 1e-9, "{interval:?}");
        assert!((interval.confidence - 0.960_937_5).abs() < 1e-12);
    }

    #[test]
    fn critical_values_are_those_of_wilcoxons_table() {
        // Largest T whose two-sided p is at most 5 %, and 1 %; n from 6 to 20. The bound is one above it.
        let table = [
            (6, Some(0), None),
            (7, Some(2), None),
            (8, Some(3), Some(0)),
            (9, Some(5), Some(1)),
            (10, Some(8), Some(3)),
            (15, Some(25), Some(15)),
            (20, Some(52), Some(37)),
        ];
        for (n, five, one) in table {
            assert_eq!(rank_of_bound(n, 0.95).map(|(k, _)| k - 1), five, "{n}");
            assert_eq!(rank_of_bound(n, 0.99).map(|(k, _)| k - 1), one, "{n}");
        }
        assert_eq!(rank_of_bound(5, 0.95), None);
    }

    #[test]
    fn ties_and_zeroes_have_the_p_that_trying_every_sign_gives() {
        let differences: [f64; 7] = [1.0, 1.0, -1.0, 2.0, 0.0, 3.0, 2.0];
        let ranks = double_ranks(&differences.map(f64::abs));
        let sum = |signs: u32| {
            (0..7).filter(|&i| differences[i] != 0.0 && signs >> i & 1 == 1).map(|i| ranks[i]).sum::<usize>()
        };
        let observed = sum((0..7).filter(|&i| differences[i] > 0.0).map(|i| 1 << i).sum());
        let all = sum(u32::MAX);
        let smaller = observed.min(all - observed);
        let as_far = (0..128).filter(|&signs| sum(signs) <= smaller).count();
        let expected = 2.0 * as_far as f64 / 128.0;
        assert!((p_value(&differences) - expected).abs() < 1e-12);
    }

    #[test]
    fn nothing_but_zeroes_is_no_shift() {
        let zeroes = shift(&[0.0; 10], 0.95).unwrap();
        assert_eq!((zeroes.estimate, zeroes.p), (0.0, 1.0));
        assert_eq!(zeroes.interval.map(|interval| (interval.low, interval.high)), Some((0.0, 0.0)));
        assert_eq!(p_value(&[0.0; 200]), 1.0);
    }

    #[test]
    fn five_pairs_have_no_interval_and_six_have_the_range() {
        assert_eq!(shift(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.95).unwrap().interval, None);
        let six = shift(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.95).unwrap();
        let interval = six.interval.unwrap();
        assert_eq!((interval.low, interval.high, interval.confidence), (1.0, 6.0, 0.968_75));
        assert_eq!(six.p, p_min(6));
    }

    #[test]
    fn the_normal_distribution_takes_over_without_a_step() {
        let (exact, normal) = (rank_of_bound(100, 0.95).unwrap(), rank_of_bound(101, 0.95).unwrap());
        assert_eq!(exact.0 - 1, 1955, "Wilcoxon's table for 100");
        assert!((1975..2025).contains(&normal.0), "{normal:?}");
        let series = |n: usize| (0..n).map(|i| ((i * 7919) % 101) as f64 - 42.0).collect::<Vec<_>>();
        let (below, above) = (p_value(&series(100)), p_value(&series(101)));
        assert!((below - above).abs() < 0.02, "{below} {above}");
    }

    #[test]
    fn what_is_not_finite_is_refused() {
        assert_eq!(shift(&[], 0.95), None);
        assert_eq!(shift(&[1.0, f64::NAN], 0.95), None);
    }
}
