//! Lines through points.

use crate::median;
use crate::summary::{finite, mean};

/// Most points of [`theil_sen`]: their slopes by pairs are half a million numbers. Of more, as many are taken, evenly
/// spaced.
pub const THEIL_SEN_POINTS_MAX: usize = 1000;

/// A straight line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Value at zero.
    pub intercept: f64,
    /// Change per unit.
    pub slope: f64,
}

impl Line {
    /// The line's value at `x`.
    pub fn at(&self, x: f64) -> f64 {
        self.intercept + self.slope * x
    }
}

/// The line with the least squares of vertical distances through points `(x, y)`; `None` where all have one `x`.
pub fn least_squares(points: &[(f64, f64)]) -> Option<Line> {
    let (xs, ys): (Vec<f64>, Vec<f64>) = points.iter().copied().unzip();
    let (x_mean, y_mean) = (mean(&xs)?, mean(&ys)?);
    let (mut xy, mut xx) = (0.0, 0.0);
    for (x, y) in points {
        xy += (x - x_mean) * (y - y_mean);
        xx += (x - x_mean).powi(2);
    }
    if xx == 0.0 {
        return None;
    }
    let slope = xy / xx;
    Some(Line { intercept: y_mean - slope * x_mean, slope })
}

/// The line with the median of all slopes between two points: up to 29 % of the points may be anything. `None` where
/// all have one `x`.
pub fn theil_sen(points: &[(f64, f64)]) -> Option<Line> {
    let step = points.len().div_ceil(THEIL_SEN_POINTS_MAX).max(1);
    let points: Vec<(f64, f64)> = points.iter().copied().step_by(step).collect();
    if !points.iter().all(|&(x, y)| finite(&[x, y])) {
        return None;
    }
    let mut slopes = Vec::with_capacity(points.len() * points.len().saturating_sub(1) / 2);
    for (index, a) in points.iter().enumerate() {
        slopes.extend(points[index + 1..].iter().filter(|b| b.0 != a.0).map(|b| (b.1 - a.1) / (b.0 - a.0)));
    }
    let slope = median(&slopes)?;
    let rests: Vec<f64> = points.iter().map(|(x, y)| y - slope * x).collect();
    Some(Line { intercept: median(&rests)?, slope })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_on_a_line_give_that_line() {
        let points: Vec<(f64, f64)> = (0..6).map(|x| (f64::from(x), 3.0 - 2.0 * f64::from(x))).collect();
        for line in [least_squares(&points).unwrap(), theil_sen(&points).unwrap()] {
            assert!((line.intercept - 3.0).abs() < 1e-12 && (line.slope + 2.0).abs() < 1e-12);
            assert!((line.at(10.0) + 17.0).abs() < 1e-12);
        }
    }

    #[test]
    fn least_squares_is_what_a_hand_works_out() {
        // Means 6.5 and 32/3; sums of products 32 and of squares 21.5.
        let points = [(4.0, 2.0), (4.0, 10.0), (7.0, 4.0), (7.0, 22.0), (8.0, 16.0), (9.0, 10.0)];
        let line = least_squares(&points).unwrap();
        assert!((line.slope - 32.0 / 21.5).abs() < 1e-12, "{line:?}");
        assert!((line.intercept - (32.0 / 3.0 - 6.5 * 32.0 / 21.5)).abs() < 1e-12, "{line:?}");
    }

    #[test]
    fn a_stall_bends_least_squares_but_not_theil_sen() {
        let mut points: Vec<(f64, f64)> = (0..20).map(|x| (f64::from(x), 100.0)).collect();
        points[19].1 = 5.0;
        assert!(least_squares(&points).unwrap().slope < -1.0);
        assert_eq!(theil_sen(&points).unwrap().slope, 0.0);
    }

    #[test]
    fn one_place_has_no_line() {
        assert_eq!(least_squares(&[(1.0, 1.0), (1.0, 2.0)]), None);
        assert_eq!(theil_sen(&[(1.0, 1.0), (1.0, 2.0)]), None);
        assert_eq!(theil_sen(&[]), None);
        assert_eq!(theil_sen(&[(0.0, 0.0), (1.0, f64::NAN)]), None);
    }

    #[test]
    fn very_many_points_are_thinned() {
        let points: Vec<(f64, f64)> = (0..100_000).map(|x| (f64::from(x), 0.5 * f64::from(x))).collect();
        assert!((theil_sen(&points).unwrap().slope - 0.5).abs() < 1e-12);
    }
}
