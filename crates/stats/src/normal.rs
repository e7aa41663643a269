//! The normal distribution, for samples too large for exact ones.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// Share of the standard normal distribution below `x`. Relative error under 1e-12, in the tails too.
pub fn normal_cdf(x: f64) -> f64 {
    0.5 * erfc(-x * FRAC_1_SQRT_2)
}

/// The value below which the share `p` of the standard normal distribution lies; infinite at 0 and 1, NaN outside.
pub fn normal_quantile(p: f64) -> f64 {
    if !(0.0..=1.0).contains(&p) {
        return f64::NAN;
    }
    if p > 0.5 {
        return -normal_quantile(1.0 - p);
    }
    if p == 0.0 {
        return f64::NEG_INFINITY;
    }
    // The distribution is monotone and 80 halvings are cheaper than a page of rational coefficients.
    let (mut low, mut high) = (-40.0, 0.0);
    for _ in 0..80 {
        let middle = 0.5 * (low + high);
        if normal_cdf(middle) < p {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}

/// Complementary error function: the series of erf near zero, its continued fraction in the tail (DLMF 7.6.2, 7.9.1).
fn erfc(x: f64) -> f64 {
    if x < 0.0 {
        return 2.0 - erfc(-x);
    }
    if x < 2.0 {
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while term > 1e-18 * sum {
            n += 1.0;
            term *= 2.0 * x * x / (2.0 * n + 1.0);
            sum += term;
        }
        return 1.0 - 2.0 / PI.sqrt() * (-x * x).exp() * sum;
    }
    // From x = 2 on 60 terms are good for 15 digits.
    let mut fraction = x;
    for k in (1..=60).rev() {
        fraction = x + f64::from(k) / 2.0 / fraction;
    }
    (-x * x).exp() / PI.sqrt() / fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_every_textbook_is_met() {
        // pnorm() of R.
        for (x, expected) in [
            (0.0, 0.5),
            (1.0, 0.841_344_746_068_542_9),
            (1.96, 0.975_002_104_851_779_5),
            (-2.5, 0.006_209_665_325_776_132),
            (-3.0, 0.001_349_898_031_630_094_6),
            (-6.0, 9.865_876_450_376_98e-10),
            (-10.0, 7.619_853_024_160_527e-24),
        ] {
            let found = normal_cdf(x);
            assert!((found / expected - 1.0).abs() < 1e-11, "{x}: {found}");
        }
    }

    #[test]
    fn the_quantile_undoes_the_distribution() {
        assert!((normal_quantile(0.975) - 1.959_963_984_540_054).abs() < 1e-12);
        assert!((normal_quantile(0.025) + 1.959_963_984_540_054).abs() < 1e-12);
        assert_eq!(normal_quantile(0.0), f64::NEG_INFINITY);
        assert_eq!(normal_quantile(1.0), f64::INFINITY);
        assert!(normal_quantile(1.5).is_nan());
        for p in [1e-9, 0.001, 0.2, 0.5, 0.9] {
            assert!((normal_cdf(normal_quantile(p)) / p - 1.0).abs() < 1e-9, "{p}");
        }
    }

    #[test]
    fn the_two_ways_of_computing_the_tail_meet() {
        let (below, above) = (erfc(2.0 - 1e-9), erfc(2.0));
        assert!((below / above - 1.0).abs() < 1e-7);
    }
}
