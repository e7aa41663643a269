//! Location and spread of values.

/// Arithmetic mean; `None` of nothing or of what is not finite.
pub fn mean(values: &[f64]) -> Option<f64> {
    if values.is_empty() || !finite(values) {
        return None;
    }
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    // Only a sum that overflows is worth the rounding of many divisions.
    Some(if mean.is_finite() { mean } else { values.iter().map(|value| value / n).sum() })
}

/// The middle value, or the mean of the two middle ones.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// The value below which the share `at` (0 to 1) of the values lies, linear between neighbours (R's type 7).
pub fn quantile(values: &[f64], at: f64) -> Option<f64> {
    if values.is_empty() || !finite(values) || !(0.0..=1.0).contains(&at) {
        return None;
    }
    let values = sorted(values);
    let place = at * (values.len() - 1) as f64;
    let (below, part) = (place as usize, place.fract());
    let above = (below + 1).min(values.len() - 1);
    Some(values[below] * (1.0 - part) + values[above] * part)
}

/// Median absolute deviation from the median, not scaled: 1.4826 times this estimates a normal standard deviation.
pub fn mad(values: &[f64]) -> Option<f64> {
    let middle = median(values)?;
    let away: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    median(&away)
}

/// Standard deviation of a sample (divided by n − 1); `None` below two values.
pub fn standard_deviation(values: &[f64]) -> Option<f64> {
    let middle = mean(values)?;
    if values.len() < 2 {
        return None;
    }
    let squares: f64 = values.iter().map(|value| (value - middle).powi(2)).sum();
    Some((squares / (values.len() - 1) as f64).sqrt())
}

/// Geometric mean; `None` unless every value is positive.
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    if values.iter().any(|&value| value <= 0.0) {
        return None;
    }
    let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    mean(&logs).map(f64::exp)
}

/// All values are numbers.
pub(crate) fn finite(values: &[f64]) -> bool {
    values.iter().all(|value| value.is_finite())
}

/// In ascending order; the caller has made sure that they are finite.
pub(crate) fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_has_no_mean() {
        assert_eq!(mean(&[]), None);
        assert_eq!(median(&[]), None);
        assert_eq!(mad(&[]), None);
        assert_eq!(geometric_mean(&[]), None);
        assert_eq!(standard_deviation(&[1.0]), None);
    }

    #[test]
    fn what_is_not_finite_is_refused() {
        assert_eq!(mean(&[1.0, f64::NAN]), None);
        assert_eq!(quantile(&[1.0, f64::INFINITY], 0.5), None);
        assert_eq!(geometric_mean(&[1.0, 0.0]), None);
        assert_eq!(geometric_mean(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
    }

    #[test]
    fn quantiles_are_rs_type_seven() {
        // quantile(c(1, 2, 3, 4, 10), c(0, 0.1, 0.25, 0.9, 1)) in R.
        let values = [1.0, 2.0, 3.0, 4.0, 10.0];
        for (at, expected) in [(0.0, 1.0), (0.1, 1.4), (0.25, 2.0), (0.9, 7.6), (1.0, 10.0)] {
            assert!((quantile(&values, at).unwrap() - expected).abs() < 1e-12, "{at}");
        }
    }

    #[test]
    fn one_stall_does_not_move_the_median_deviation() {
        assert_eq!(mad(&[1.0, 2.0, 3.0, 4.0, 1000.0]), Some(1.0));
    }

    #[test]
    fn the_geometric_mean_of_a_half_and_a_double_is_one() {
        assert!((geometric_mean(&[0.5, 2.0]).unwrap() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn the_mean_of_huge_values_does_not_overflow() {
        assert_eq!(mean(&[f64::MAX, f64::MAX]), Some(f64::MAX));
    }
}
