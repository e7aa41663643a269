//! Many questions at once.

/// Holm's adjusted p-values, in the order given: those at most α hold together with a chance of at most α that any is
/// wrong, whatever their dependence. A p that is not a number counts as 1.
pub fn holm(p: &[f64]) -> Vec<f64> {
    let value = |index: usize| if p[index].is_nan() { 1.0 } else { p[index] };
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| value(a).total_cmp(&value(b)));
    let mut adjusted = vec![1.0; p.len()];
    let mut floor: f64 = 0.0;
    for (place, &index) in order.iter().enumerate() {
        floor = floor.max((p.len() - place) as f64 * value(index)).min(1.0);
        adjusted[index] = floor;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjusted_values_are_those_of_rs_p_adjust() {
        // p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm") in R.
        let found = holm(&[0.01, 0.04, 0.03, 0.005]);
        for (found, expected) in found.iter().zip([0.03, 0.06, 0.06, 0.02]) {
            assert!((found - expected).abs() < 1e-12);
        }
    }

    #[test]
    fn nothing_is_above_one_or_below_its_own_p() {
        assert_eq!(holm(&[0.9, 0.8, f64::NAN]), [1.0, 1.0, 1.0]);
        assert_eq!(holm(&[0.2]), [0.2]);
        assert!(holm(&[]).is_empty());
    }
}
