//! Does it drift, do neighbours resemble each other.

use crate::normal::normal_cdf;
use crate::order::{double_ranks, tie_groups};
use crate::summary::{finite, mean};
use crate::unpaired::untied;

/// Up to this many values the distribution of Kendall's S is exact, ties included.
const EXACT_MAX: usize = 100;

/// Trend: whether values rise or fall with time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    /// Kendall's tau-b of value and time: −1 (always falling) to 1 (always rising).
    pub tau: f64,
    /// Probability of a trend at least as strong (either way) if their order were by chance.
    pub p: f64,
}

/// Mann and Kendall's test for a trend, of values in order of time. Exact to 100 values, with ties too; normal with
/// ties and continuity corrected above. `None` below three values.
///
/// It asks for independent values: those that resemble their neighbours ([`autocorrelation`]) make trends of nothing.
pub fn mann_kendall(values: &[f64]) -> Option<Trend> {
    let n = values.len();
    if n < 3 || !finite(values) {
        return None;
    }
    let groups = tie_groups(values);
    let pairs = (n * (n - 1) / 2) as f64;
    let tied: f64 = groups.iter().map(|&size| (size * (size - 1) / 2) as f64).sum();
    let rising = rising_pairs(values) as f64;
    let compared = pairs - tied;
    // Of pairs that are not tied, each either rises or falls.
    let score = 2.0 * rising - compared;
    if compared == 0.0 {
        return Some(Trend { tau: 0.0, p: 1.0 });
    }
    let tau = score / (pairs * compared).sqrt();
    let p = if n <= EXACT_MAX {
        let chances = rising_by_chance(&groups);
        // The distribution is symmetric, so the smaller side's tail stands for both.
        let tail = rising.min(compared - rising) as usize;
        2.0 * chances[..=tail].iter().sum::<f64>()
    } else {
        let term = |size: f64| size * (size - 1.0) * (2.0 * size + 5.0);
        let ties: f64 = groups.iter().map(|&size| term(size as f64)).sum();
        let deviation = ((term(n as f64) - ties) / 18.0).sqrt();
        2.0 * normal_cdf(-(score.abs() - 1.0).max(0.0) / deviation)
    };
    Some(Trend { tau, p: p.min(1.0) })
}

/// Pairs whose later value is larger, counted with a binary indexed tree over the ranks.
fn rising_pairs(values: &[f64]) -> u64 {
    let ranks = double_ranks(values);
    let mut tree = vec![0u64; 2 * values.len() + 1];
    let mut rising = 0;
    for rank in ranks {
        let mut place = rank - 1;
        while place > 0 {
            rising += tree[place];
            place &= place - 1;
        }
        let mut place = rank;
        while place < tree.len() {
            tree[place] += 1;
            place += place & place.wrapping_neg();
        }
    }
    rising
}

/// Chances of each number of rising pairs, in any order of values with these groups of equal ones: group after group is
/// shuffled into those before it, and each shuffle is a Mann–Whitney count of its own.
fn rising_by_chance(groups: &[usize]) -> Vec<f64> {
    let mut chances = vec![1.0];
    let mut before = 0;
    for &size in groups {
        let shuffle = untied(before, size);
        let mut next = vec![0.0; chances.len() + shuffle.len() - 1];
        for (a, chance) in chances.iter().enumerate() {
            for (b, other) in shuffle.iter().enumerate() {
                next[a + b] += chance * other;
            }
        }
        chances = next;
        before += size;
    }
    chances
}

/// Spearman's rank correlation of two columns; `None` where they differ in length, are shorter than two, or one is
/// constant.
pub fn spearman(a: &[f64], b: &[f64]) -> Option<f64> {
    if a.len() != b.len() || a.len() < 2 || !finite(a) || !finite(b) {
        return None;
    }
    // The mean of doubled ranks is n + 1, with ties and without.
    let middle = (a.len() + 1) as f64;
    let (mut ab, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (x, y) in double_ranks(a).into_iter().zip(double_ranks(b)) {
        let (x, y) = (x as f64 - middle, y as f64 - middle);
        ab += x * y;
        aa += x * x;
        bb += y * y;
    }
    if aa == 0.0 || bb == 0.0 { None } else { Some(ab / (aa * bb).sqrt()) }
}

/// Correlation of each value with the next. Of n independent values it is about −1/n, give or take 1/√n. `None` below
/// three values or where all are equal.
pub fn autocorrelation(values: &[f64]) -> Option<f64> {
    if values.len() < 3 || values.iter().all(|value| *value == values[0]) {
        return None;
    }
    let middle = mean(values)?;
    let all: f64 = values.iter().map(|value| (value - middle).powi(2)).sum();
    let neighbours: f64 = values.windows(2).map(|pair| (pair[0] - middle) * (pair[1] - middle)).sum();
    if all > 0.0 { Some(neighbours / all) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn always_rising_has_the_least_p_that_n_values_can_have() {
        let trend = mann_kendall(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert_eq!(trend.tau, 1.0);
        assert!((trend.p - 2.0 / 120.0).abs() < 1e-12);
    }

    #[test]
    fn kendalls_published_table_is_met() {
        // Kendall's table of P(S >= s), n = 10: s = 21 has 0.036, s = 29 has 0.0046. Half of p is one tail.
        let one_tail = |falling: usize| {
            let chances = rising_by_chance(&[1; 10]);
            chances[..=falling].iter().sum::<f64>()
        };
        assert!((one_tail(12) - 0.036).abs() < 5e-4, "{}", one_tail(12));
        assert!((one_tail(8) - 0.0046).abs() < 5e-5, "{}", one_tail(8));
    }

    #[test]
    fn ties_have_the_distribution_that_trying_every_order_gives() {
        let values = [1.0, 1.0, 2.0, 3.0, 3.0, 3.0];
        let mut counts = vec![0.0; 12];
        let mut total = 0.0;
        permutations(&mut values.to_vec(), 0, &mut |order| {
            counts[rising_pairs(order) as usize] += 1.0;
            total += 1.0;
        });
        for (found, count) in rising_by_chance(&[2, 1, 3]).iter().zip(&counts) {
            assert!((found - count / total).abs() < 1e-12);
        }
    }

    fn permutations(values: &mut Vec<f64>, from: usize, visit: &mut dyn FnMut(&[f64])) {
        if from == values.len() {
            return visit(values);
        }
        for index in from..values.len() {
            values.swap(from, index);
            permutations(values, from + 1, visit);
            values.swap(from, index);
        }
    }

    #[test]
    fn the_normal_distribution_takes_over_without_a_step() {
        // A mild trend with ties, once below the limit and once above it.
        let series =
            |n: usize| (0..n).map(|i| ((i * 37) % 11) as f64 + (i * 6 / n) as f64).collect::<Vec<_>>();
        let (below, above) = (mann_kendall(&series(100)).unwrap().p, mann_kendall(&series(101)).unwrap().p);
        assert!((below / above).ln().abs() < 0.7, "{below} {above}");
    }

    #[test]
    fn a_constant_has_no_trend() {
        assert_eq!(mann_kendall(&[2.0; 5]), Some(Trend { tau: 0.0, p: 1.0 }));
        assert_eq!(mann_kendall(&[1.0, 2.0]), None);
        assert_eq!(mann_kendall(&[1.0, 2.0, f64::NAN]), None);
    }

    #[test]
    fn spearman_is_rs_cor() {
        // cor(c(1,2,3,4,5), c(2,1,4,3,7), method = "spearman") in R; and with ties.
        assert!(
            (spearman(&[1.0, 2.0, 3.0, 4.0, 5.0], &[2.0, 1.0, 4.0, 3.0, 7.0]).unwrap() - 0.8).abs() < 1e-12
        );
        assert!(
            (spearman(&[1.0, 2.0, 2.0, 3.0], &[1.0, 2.0, 3.0, 4.0]).unwrap() - 0.948_683_298).abs() < 1e-8
        );
        assert_eq!(spearman(&[1.0, 1.0], &[1.0, 2.0]), None);
        assert_eq!(spearman(&[1.0], &[1.0, 2.0]), None);
    }

    #[test]
    fn alternating_values_repel_and_slow_waves_attract_their_neighbours() {
        assert!(autocorrelation(&[1.0, 2.0, 1.0, 2.0, 1.0, 2.0]).unwrap() < -0.7);
        let wave: Vec<f64> = (0..40).map(|i| (f64::from(i) / 6.0).sin()).collect();
        assert!(autocorrelation(&wave).unwrap() > 0.8);
        assert_eq!(autocorrelation(&[1.0; 9]), None);
    }
}
