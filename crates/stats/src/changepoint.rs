//! Change points: the places where the level changes.

use crate::median;
use crate::summary::finite;

/// Most values looked at one by one; of more, as many neighbours are averaged as makes so many groups.
pub const CHANGEPOINT_VALUES_MAX: usize = 2000;

/// Values that a level lasts at least: one stall is an outlier, two in a row may be a level.
const LEVEL_MIN: usize = 3;
/// Penalty that a further level must save, in variances and logarithms of the number of values. 3 is where 100 values
/// of plain normal noise have a change called in under 5 of 100 series (a test), and a level 2 deviations off is found
/// from 8 values on.
const PENALTY: f64 = 3.0;

/// Indices at which a new level begins, in order of time: the division into constant levels with the least squares
/// around them, each level more being paid for (optimal partitioning: Jackson et al. 2005, which PELT prunes; at these
/// lengths it needs no pruning). Empty where there is one level, or fewer than six values.
///
/// The noise is taken from the differences of neighbours, so that the levels themselves do not count as noise; values
/// that resemble their neighbours ([`autocorrelation`](crate::autocorrelation)) therefore have more changes called than
/// they have. Values far out are drawn in to 4 deviations from the median of their surroundings first: a stall is not a
/// level.
pub fn changepoints(values: &[f64]) -> Vec<usize> {
    if values.len() < 2 * LEVEL_MIN || !finite(values) {
        return Vec::new();
    }
    let group = values.len().div_ceil(CHANGEPOINT_VALUES_MAX);
    let grouped: Vec<f64> =
        values.chunks(group).map(|chunk| chunk.iter().sum::<f64>() / chunk.len() as f64).collect();
    let noise = neighbour_noise(&grouped);
    if noise == 0.0 {
        // Most neighbours are equal. Any difference is then a level; a hair of noise lets the same search find it.
        let range = grouped.iter().copied().fold(f64::MIN, f64::max)
            - grouped.iter().copied().fold(f64::MAX, f64::min);
        if range == 0.0 {
            return Vec::new();
        }
        return search(&grouped, range * 1e-3).into_iter().map(|start| start * group).collect();
    }
    let calm = drawn_in(&grouped, 4.0 * noise);
    // The median finds the stalls; of what is left the mean of squares is twice as sure, which few values need.
    let squares =
        calm.windows(2).map(|pair| (pair[1] - pair[0]).powi(2)).sum::<f64>() / (calm.len() - 1) as f64;
    let noise = noise.max((0.5 * squares).sqrt());
    search(&calm, noise).into_iter().map(|start| start * group).collect()
}

/// Standard deviation of the noise, from the median difference of neighbours.
fn neighbour_noise(values: &[f64]) -> f64 {
    let steps: Vec<f64> = values.windows(2).map(|pair| (pair[1] - pair[0]).abs()).collect();
    median(&steps).unwrap_or(0.0) * 1.4826 / std::f64::consts::SQRT_2
}

/// Values no further than `reach` from the median of themselves and their two neighbours on each side.
fn drawn_in(values: &[f64], reach: f64) -> Vec<f64> {
    (0..values.len())
        .map(|index| {
            let around = &values[index.saturating_sub(2)..(index + 3).min(values.len())];
            let middle = median(around).unwrap_or(values[index]);
            values[index].clamp(middle - reach, middle + reach)
        })
        .collect()
}

/// Starts of the levels but the first.
fn search(values: &[f64], noise: f64) -> Vec<usize> {
    let n = values.len();
    let penalty = PENALTY * noise * noise * (n as f64).ln();
    // Sums relative to the first value, for precision.
    let (mut sums, mut squares) = (vec![0.0; n + 1], vec![0.0; n + 1]);
    for (index, value) in values.iter().enumerate() {
        let value = value - values[0];
        sums[index + 1] = sums[index] + value;
        squares[index + 1] = squares[index] + value * value;
    }
    let cost = |from: usize, to: usize| {
        let sum: f64 = sums[to] - sums[from];
        squares[to] - squares[from] - sum * sum / (to - from) as f64
    };
    // best[end]: least cost of the values before `end`; start[end]: where the last level of that division begins.
    let mut best = vec![f64::INFINITY; n + 1];
    let mut start = vec![0; n + 1];
    best[0] = -penalty;
    for end in LEVEL_MIN..=n {
        for from in (0..=end - LEVEL_MIN).filter(|&from| from == 0 || from >= LEVEL_MIN) {
            let total = best[from] + cost(from, end) + penalty;
            if total < best[end] {
                best[end] = total;
                start[end] = from;
            }
        }
    }
    let mut starts = Vec::new();
    let mut end = start[n];
    while end > 0 {
        starts.push(end);
        end = start[end];
    }
    starts.reverse();
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Normal noise, the same for each seed: a generator of 64 bits and twelve uniform numbers for each value.
    fn noise(seed: u64, n: usize) -> Vec<f64> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut uniform = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        (0..n).map(|_| (0..12).map(|_| uniform()).sum::<f64>() - 6.0).collect()
    }

    #[test]
    fn plain_noise_has_a_change_in_fewer_than_one_series_of_twenty() {
        for n in [10, 30, 100] {
            let alarms = (1..=400).filter(|&seed| !changepoints(&noise(seed, n)).is_empty()).count();
            assert!(alarms < 20, "{alarms} of 400 with {n} values");
        }
    }

    #[test]
    fn a_level_that_begins_is_found_where_it_begins() {
        let mut near = 0;
        for seed in 1..=100 {
            let mut values = noise(seed, 60);
            values.iter_mut().take(12).for_each(|value| *value -= 4.0);
            near += usize::from(changepoints(&values).first().is_some_and(|start| start.abs_diff(12) <= 1));
        }
        assert!(near >= 95, "{near} of 100");
    }

    #[test]
    fn two_changes_are_found() {
        let mut values = noise(7, 90);
        values[30..60].iter_mut().for_each(|value| *value += 8.0);
        assert_eq!(changepoints(&values), [30, 60]);
    }

    #[test]
    fn one_stall_is_no_level() {
        let mut values = noise(3, 60);
        values[40] = -500.0;
        assert!(changepoints(&values).is_empty());
    }

    #[test]
    fn a_clean_step_is_found_though_nothing_scatters() {
        let values: Vec<f64> = (0..20).map(|i| if i < 5 { 1.0 } else { 2.0 }).collect();
        assert_eq!(changepoints(&values), [5]);
        assert!(changepoints(&[4.0; 20]).is_empty());
        assert!(changepoints(&[1.0, 2.0, 3.0]).is_empty());
    }

    #[test]
    fn a_long_series_is_looked_at_in_groups() {
        let values: Vec<f64> = noise(5, 100_000)
            .into_iter()
            .enumerate()
            .map(|(i, value)| if i < 50_000 { value } else { value + 3.0 })
            .collect();
        assert_eq!(changepoints(&values), [50_000]);
    }
}
