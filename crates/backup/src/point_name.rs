//! Points as people name them.

use crate::error::{BackupError, Result};
use crate::point_id::PointId;
use crate::time::Moment;
use crate::unreadable::UnreadablePoint;

/// What a point may be named by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameablePoint {
    /// Its generation.
    pub generation: u64,
    /// Its id.
    pub point: PointId,
    /// Seconds since 1970 by the clock of the machine that made it.
    pub time: Option<u64>,
}

/// The point that a text means, of points from the oldest to the newest: `latest`, the beginning of an id, or a time
/// (the newest point of then or before: of that day where there is only a date).
///
/// # Errors
///
/// [`BackupError::NoPoint`] where none does, or several do; where one that cannot be read may be what is meant: of that
/// no time is known.
pub fn find_point(points: &[NameablePoint], unreadable: &[UnreadablePoint], text: &str) -> Result<PointId> {
    let none = |what: String| Err(BackupError::NoPoint(what));
    let is_latest = text == "latest";
    let moment = if is_latest { None } else { Moment::last_of(text) };
    if is_latest || moment.is_some() {
        let is_old = |point: &NameablePoint| {
            moment.is_none_or(|moment| point.time.is_some_and(|time| time <= moment.0))
        };
        let found = points.iter().rfind(|point| is_old(point));
        let is_behind = |generation: u64| found.is_none_or(|found| found.generation < generation);
        // What was made behind a point that is too new is too new as well.
        let too_new = points.iter().find(|point| is_behind(point.generation) && point.time.is_some());
        let may_be_meant = |unreadable: &&UnreadablePoint| {
            is_behind(unreadable.generation)
                && too_new.is_none_or(|too_new| unreadable.generation < too_new.generation)
                && points.iter().all(|point| point.point != unreadable.point)
        };
        let newest = unreadable.iter().filter(may_be_meant).max_by_key(|unreadable| unreadable.generation);
        return match (newest, found, moment) {
            (Some(unreadable), None, _) if points.is_empty() => {
                none(format!("the destination holds no point that can be read: {unreadable}"))
            }
            (Some(unreadable), ..) => none(format!(
                "{unreadable}: {text} may be another point than is meant; give the id of one of `lunway backup list`"
            )),
            (None, Some(found), _) => Ok(found.point),
            (None, None, Some(moment)) => none(format!("no point is as old as {moment}")),
            (None, None, None) => none("the destination holds no point".into()),
        };
    }
    let begins = |point: PointId| !text.is_empty() && point.to_string().starts_with(text);
    let mut found: Vec<PointId> =
        points.iter().map(|point| point.point).filter(|point| begins(*point)).collect();
    let damaged: Vec<&UnreadablePoint> = unreadable
        .iter()
        .filter(|unreadable| begins(unreadable.point) && !found.contains(&unreadable.point))
        .collect();
    match (found.pop(), found.is_empty(), &damaged[..]) {
        (Some(point), true, []) => Ok(point),
        (None, _, [unreadable]) => none(unreadable.to_string()),
        (None, _, []) => none(format!(
            "there is no point {text:?}: an id of `lunway backup list`, latest, or a time as 2026-11-23T16:20 is expected"
        )),
        _ => none(format!("several points begin with {text}: give more digits")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;

    /// Points of so many hours behind 1970, with their hour as generation and id.
    fn points(hours: &[u64]) -> Vec<NameablePoint> {
        let of = |hour: &u64| NameablePoint {
            generation: *hour,
            point: PointId(*hour << 60),
            time: Some(*hour * HOUR),
        };
        hours.iter().map(of).collect()
    }

    fn unreadable(hours: &[u64]) -> Vec<UnreadablePoint> {
        let of =
            |hour: &u64| UnreadablePoint { generation: *hour, point: PointId(*hour << 60), what: "w".into() };
        hours.iter().map(of).collect()
    }

    /// The generation of what is found, or what is said.
    fn find(hours: &[u64], lost: &[u64], text: &str) -> std::result::Result<u64, String> {
        let found = find_point(&points(hours), &unreadable(lost), text);
        found.map(|point| point.0 >> 60).map_err(|error| error.to_string())
    }

    #[test]
    fn what_may_mean_a_point_that_cannot_be_read_is_refused_and_what_cannot_is_found() {
        let [first, third, fifth] = ["1970-01-01T01:30", "1970-01-01T03:30", "1970-01-01T05:30"];
        let refused = |lost: &[u64], text: &str, point: &str| {
            let said = find(&[1, 3, 5], lost, text).unwrap_err();
            assert!(
                said.contains(&format!("point {point} cannot be read: w")) && said.contains(text),
                "{said}"
            );
        };
        // The newest one.
        for text in ["latest", fifth, "1970-01-01"] {
            refused(&[7], text, "7000000000000000");
        }
        assert_eq!(find(&[1, 3, 5], &[7], third), Ok(3));
        // One between others.
        assert_eq!(find(&[1, 3, 5], &[4], "latest"), Ok(5));
        assert_eq!((find(&[1, 3, 5], &[4], fifth), find(&[1, 3, 5], &[4], first)), (Ok(5), Ok(1)));
        refused(&[4], third, "4000000000000000");
        // The oldest one.
        refused(&[0, 2], first, "2000000000000000");
        refused(&[0], "1970-01-01T00:30", "0000000000000000");
        assert_eq!(find(&[1, 3, 5], &[0], first), Ok(1));
        assert!(find(&[1, 3, 5], &[2], "1970-01-01T00:30").unwrap_err().contains("no point is as old"));
        // An id means one point.
        assert_eq!(find(&[1, 3, 5], &[7], "5000"), Ok(5));
        assert!(
            find(&[1, 3, 5], &[7], "7000").unwrap_err().ends_with("point 7000000000000000 cannot be read: w")
        );
        // A file under another number than its point has.
        let misnamed = UnreadablePoint { generation: 9, ..unreadable(&[3]).remove(0) };
        assert_eq!(find_point(&points(&[1, 3]), &[misnamed], "latest").ok(), Some(PointId(3 << 60)));
    }

    #[test]
    fn where_none_can_be_read_one_is_named() {
        let said = find(&[], &[2, 3], "latest").unwrap_err();
        assert!(
            said.contains("no point that can be read: point 3000000000000000 cannot be read: w"),
            "{said}"
        );
        assert!(find(&[], &[], "latest").unwrap_err().ends_with("the destination holds no point"));
    }
}
