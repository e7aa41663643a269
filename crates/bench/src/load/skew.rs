//! Distributions in which few blocks take most I/Os.

use crate::load::random::Random;

/// Draws a rank `0..count`, the hottest being 0.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Skew {
    Zipf(Zipf),
    Pareto { count: f64, power: f64 },
}

impl Skew {
    pub(crate) fn zipf(count: u64, theta: f64) -> Self {
        Self::Zipf(Zipf::new(count as f64, theta))
    }

    /// A share `h` of the ranks takes `1 − h` of the draws: the inverse of the distribution function is a power.
    pub(crate) fn pareto(count: u64, h: f64) -> Self {
        Self::Pareto { count: count as f64, power: h.ln() / (1.0 - h).ln() }
    }

    pub(crate) fn rank(&self, random: &mut Random) -> u64 {
        match self {
            Self::Zipf(zipf) => zipf.rank(random),
            Self::Pareto { count, power } => (count * random.unit().powf(*power)) as u64,
        }
    }
}

/// Ranks with a frequency of `1 / rank^theta`, by rejection-inversion (Hörmann and Derflinger, 1996): a draw from the
/// continuous density of that form, rounded, and drawn again where rounding would favour it. Exact for every exponent,
/// 1 included, and without the sum over all ranks that the usual method starts with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Zipf {
    count: f64,
    theta: f64,
    /// The integral of the density at the ends of what is drawn from.
    from: f64,
    to: f64,
    /// A draw at most this far below its rank needs no second look.
    sure: f64,
}

impl Zipf {
    fn new(count: f64, theta: f64) -> Self {
        let mut zipf = Self { count, theta, from: 0.0, to: 0.0, sure: 0.0 };
        zipf.from = zipf.integral(1.5) - 1.0;
        zipf.to = zipf.integral(count + 0.5);
        zipf.sure = 2.0 - zipf.integral_inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    fn rank(&self, random: &mut Random) -> u64 {
        loop {
            let area = self.to + random.unit() * (self.from - self.to);
            let x = self.integral_inverse(area);
            let rank = x.round().clamp(1.0, self.count);
            if rank - x <= self.sure || area >= self.integral(rank + 0.5) - self.density(rank) {
                return rank as u64 - 1;
            }
        }
    }

    fn density(&self, x: f64) -> f64 {
        x.powf(-self.theta)
    }

    /// Of the density from 1 to `x`: `(x^(1−θ) − 1) / (1−θ)`, and its limit `ln x` near θ = 1.
    fn integral(&self, x: f64) -> f64 {
        let exponent = (1.0 - self.theta) * x.ln();
        if exponent.abs() < 1e-12 { x.ln() } else { exponent.exp_m1() / exponent * x.ln() }
    }

    fn integral_inverse(&self, area: f64) -> f64 {
        // Rounding must not lead to the logarithm of a negative number.
        let scaled = (area * (1.0 - self.theta)).max(-1.0);
        let log = if scaled.abs() < 1e-12 { area } else { scaled.ln_1p() / scaled * area };
        log.exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u64 = 200_000;

    fn frequencies(skew: Skew, count: usize) -> Vec<f64> {
        let mut random = Random::new(11);
        let mut counts = vec![0u64; count];
        (0..DRAWS).for_each(|_| counts[skew.rank(&mut random) as usize] += 1);
        counts.iter().map(|&count| count as f64 / DRAWS as f64).collect()
    }

    #[test]
    fn ranks_of_zipf_come_in_proportion_to_their_power() {
        for theta in [0.5, 1.0, 1.2, 3.0] {
            let count = 50;
            let found = frequencies(Skew::zipf(count, theta), count as usize);
            let total: f64 = (1..=count).map(|rank| (rank as f64).powf(-theta)).sum();
            for (rank, found) in (1..).zip(&found) {
                let expected = f64::from(rank).powf(-theta) / total;
                let noise = 5.0 * (expected / DRAWS as f64).sqrt() + 1e-4;
                assert!(
                    (found - expected).abs() < noise,
                    "theta {theta}, rank {rank}: {found} for {expected}"
                );
            }
        }
    }

    #[test]
    fn a_fifth_of_the_ranks_takes_four_fifths_of_pareto_and_a_fifth_of_it_as_much_again() {
        let found = frequencies(Skew::pareto(1000, 0.2), 1000);
        let share = |ranks: usize| found[..ranks].iter().sum::<f64>();
        assert!((share(200) - 0.8).abs() < 0.01, "{}", share(200));
        assert!((share(40) - 0.64).abs() < 0.01, "{}", share(40));
    }

    #[test]
    fn one_block_is_always_the_one() {
        assert_eq!(frequencies(Skew::zipf(1, 1.2), 1), [1.0]);
        assert_eq!(frequencies(Skew::pareto(1, 0.2), 1), [1.0]);
    }
}
