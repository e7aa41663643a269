//! Odd values: to be shown, never dropped.

use crate::{mad, mean, median};

/// Beyond this modified z a value is called odd: the limit Iglewicz and Hoaglin recommend. About 1 in 2,000 of a normal
/// sample's values is beyond it.
pub const OUTLIER_Z: f64 = 3.5;

/// Each value's distance from the median in robust standard deviations. Where more than half of the values are equal
/// the median deviation is zero and the mean deviation takes its place; where all are equal every distance is zero.
pub fn modified_z(values: &[f64]) -> Vec<f64> {
    let (Some(middle), Some(spread)) = (median(values), mad(values)) else { return vec![0.0; values.len()] };
    let scale = if spread > 0.0 {
        spread / 0.6745
    } else {
        let away: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
        mean(&away).unwrap_or(0.0) * 1.253_314
    };
    if scale == 0.0 {
        return vec![0.0; values.len()];
    }
    values.iter().map(|value| (value - middle) / scale).collect()
}

/// Indices of the values whose modified z is beyond [`OUTLIER_Z`].
pub fn outliers(values: &[f64]) -> Vec<usize> {
    let z = modified_z(values);
    (0..values.len()).filter(|&index| z[index].abs() > OUTLIER_Z).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_among_ordinary_runs_is_named() {
        assert_eq!(outliers(&[10.0, 10.2, 9.9, 10.1, 3.0, 10.0]), [4]);
    }

    #[test]
    fn ordinary_scatter_has_no_odd_value() {
        assert!(outliers(&[10.0, 10.2, 9.9, 10.1, 9.8, 10.3]).is_empty());
    }

    #[test]
    fn one_odd_value_among_equal_ones_is_named() {
        assert_eq!(outliers(&[5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 9.0]), [7]);
        assert!(outliers(&[5.0, 5.0, 5.0]).is_empty());
        assert!(outliers(&[]).is_empty());
    }
}
