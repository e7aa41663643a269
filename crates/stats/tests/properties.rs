//! What holds for any sample.

use lunway_stats::{changepoints, holm, mann_kendall, modified_z, outliers, paired, theil_sen, unpaired};
use proptest::collection::vec;
use proptest::prelude::*;

/// The median of a list, by writing it down.
fn middle(mut list: Vec<f64>) -> f64 {
    list.sort_by(f64::total_cmp);
    let n = list.len();
    if n % 2 == 1 { list[n / 2] } else { 0.5 * (list[n / 2 - 1] + list[n / 2]) }
}

fn averages(values: &[f64]) -> Vec<f64> {
    let mut list = Vec::new();
    for (index, a) in values.iter().enumerate() {
        list.extend(values[index..].iter().map(|b| 0.5 * a + 0.5 * b));
    }
    list
}

/// Numbers with ties.
fn coarse() -> impl Strategy<Value = f64> {
    (-20i32..20).prop_map(|value| f64::from(value) / 4.0)
}

proptest! {
    #[test]
    fn a_paired_estimate_is_the_median_of_all_averages(values in vec(coarse(), 1..40)) {
        let shift = paired::shift(&values, 0.95).unwrap();
        prop_assert_eq!(shift.estimate, middle(averages(&values)) + 0.0);
    }

    #[test]
    fn an_unpaired_estimate_is_the_median_of_all_differences(a in vec(coarse(), 1..20), b in vec(coarse(), 1..20)) {
        let list = a.iter().flat_map(|a| b.iter().map(move |b| b - a)).collect();
        prop_assert_eq!(unpaired::shift(&a, &b, 0.95).unwrap().estimate, middle(list) + 0.0);
    }

    #[test]
    fn turning_the_sign_turns_everything(values in vec(-1e6..1e6f64, 6..40)) {
        let (plus, minus) = (
            paired::shift(&values, 0.95).unwrap(),
            paired::shift(&values.iter().map(|value| -value).collect::<Vec<_>>(), 0.95).unwrap(),
        );
        prop_assert_eq!(plus.estimate, -minus.estimate);
        prop_assert!((plus.p - minus.p).abs() < 1e-12);
        let (plus, minus) = (plus.interval.unwrap(), minus.interval.unwrap());
        prop_assert_eq!((plus.low, plus.high), (-minus.high, -minus.low));
    }

    #[test]
    fn an_interval_holds_its_estimate_and_grows_with_confidence(values in vec(coarse(), 8..120)) {
        let of = |confidence| paired::shift(&values, confidence).unwrap();
        let (narrow, wide) = (of(0.8), of(0.98));
        let (inner, outer) = (narrow.interval.unwrap(), wide.interval.unwrap());
        prop_assert!(inner.contains(narrow.estimate));
        prop_assert!(outer.low <= inner.low && inner.high <= outer.high);
        prop_assert!(inner.confidence >= 0.799 && outer.confidence >= 0.979);
    }

    #[test]
    fn an_interval_leaves_zero_out_exactly_when_p_is_small(values in vec(-1.0..1.0f64, 6..60)) {
        // Without ties (these have none) the test and the interval are one thing.
        let shift = paired::shift(&values, 0.95).unwrap();
        prop_assert_eq!(!shift.interval.unwrap().contains(0.0), shift.p <= 0.05);
    }

    #[test]
    fn two_samples_agree_with_themselves_exchanged(a in vec(coarse(), 3..30), b in vec(coarse(), 3..30)) {
        let (there, back) = (unpaired::shift(&a, &b, 0.9).unwrap(), unpaired::shift(&b, &a, 0.9).unwrap());
        prop_assert!((there.p - back.p).abs() < 1e-9);
        prop_assert_eq!(there.estimate, -back.estimate + 0.0);
        prop_assert!((0.0..=1.0).contains(&there.p));
    }

    #[test]
    fn adjusting_never_helps_and_keeps_the_order(p in vec(0.0..1.0f64, 0..30)) {
        let adjusted = holm(&p);
        for i in 0..p.len() {
            prop_assert!(adjusted[i] >= p[i] && adjusted[i] <= 1.0);
            for j in 0..p.len() {
                prop_assert!(p[i] > p[j] || adjusted[i] <= adjusted[j]);
            }
        }
    }

    #[test]
    fn nothing_panics_on_any_numbers(values in vec(any::<f64>(), 0..150)) {
        paired::shift(&values, 0.95);
        unpaired::shift(&values, &values, 0.95);
        mann_kendall(&values);
        changepoints(&values);
        outliers(&values);
        prop_assert_eq!(modified_z(&values).len(), values.len());
        theil_sen(&values.iter().map(|&value| (value, value)).collect::<Vec<_>>());
        paired::shift(&values, f64::NAN);
        unpaired::shift(&values, &values, 2.0);
    }
}

/// A hundred thousand values cost neither the memory nor the time of their pairs.
#[test]
fn long_samples_are_cheap() {
    let values: Vec<f64> = (0..100_000u64).map(|i| (i.wrapping_mul(2_654_435_761) % 10_007) as f64).collect();
    let shift = paired::shift(&values, 0.95).unwrap();
    assert!((shift.estimate - 5003.0).abs() < 20.0);
    assert!(unpaired::shift(&values, &values, 0.95).unwrap().interval.unwrap().contains(0.0));
    assert!(mann_kendall(&values).is_some());
}
