//! Long series, thinned out for the eye.

/// At most `most` points of `points`, in order: of each stretch its lowest and its highest, so that no drop and no peak
/// is lost, however short it was. Values that are no numbers are gaps; a stretch of nothing else stays one.
pub(super) fn thin(points: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    if points.len() <= most.max(2) {
        return points.to_vec();
    }
    let stretch = points.len().div_ceil((most / 2).max(1));
    let mut kept = Vec::with_capacity(most);
    for part in points.chunks(stretch) {
        let numbers = || part.iter().enumerate().filter(|(_, point)| point.1.is_finite());
        let low = numbers().min_by(|a, b| a.1.1.total_cmp(&b.1.1)).map(|(index, _)| index);
        let high = numbers().max_by(|a, b| a.1.1.total_cmp(&b.1.1)).map(|(index, _)| index);
        match (low, high) {
            (Some(low), Some(high)) => {
                kept.push(part[low.min(high)]);
                if low != high {
                    kept.push(part[low.max(high)]);
                }
            }
            _ => kept.push(part[0]),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drop_of_one_point_in_a_million_is_kept() {
        let mut points: Vec<(f64, f64)> = (0..1_000_000).map(|n| (f64::from(n), 100.0)).collect();
        points[777_777].1 = 0.0;
        points[123_456].1 = 200.0;
        let kept = thin(&points, 400);
        assert!(kept.len() <= 400);
        assert!(kept.contains(&(777_777.0, 0.0)) && kept.contains(&(123_456.0, 200.0)));
        assert!(kept.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn few_points_stay_as_they_are_and_gaps_stay_gaps() {
        assert_eq!(thin(&[(0.0, 1.0), (1.0, 2.0)], 400), [(0.0, 1.0), (1.0, 2.0)]);
        let nothing: Vec<(f64, f64)> = (0..100).map(|n| (f64::from(n), f64::NAN)).collect();
        assert!(thin(&nothing, 10).iter().all(|point| point.1.is_nan()));
    }
}
