//! Points as people name them.

use crate::error::{BackupError, Result};
use crate::point_id::PointId;
use crate::time::Moment;

/// The point that a text means, of points by their ids and times, the oldest first: `latest`, the beginning of an id,
/// or a time (the newest point of then or before: of that day where there is only a date).
///
/// # Errors
///
/// [`BackupError::NoPoint`] where none does, or several do.
pub fn find_point(points: &[(PointId, Option<u64>)], text: &str) -> Result<PointId> {
    let none = |what: String| Err(BackupError::NoPoint(what));
    if text == "latest" {
        let newest = points.last().map(|(point, _)| *point);
        return newest.map_or_else(|| none("the destination holds no point".into()), Ok);
    }
    if let Some(moment) = Moment::last_of(text) {
        let is_old = |(_, time): &&(PointId, Option<u64>)| time.is_some_and(|time| time <= moment.0);
        let found = points.iter().rev().find(is_old).map(|(point, _)| *point);
        return found.map_or_else(|| none(format!("no point is as old as {moment}")), Ok);
    }
    let begins =
        |(point, _): &&(PointId, Option<u64>)| !text.is_empty() && point.to_string().starts_with(text);
    let mut found = points.iter().filter(begins).map(|(point, _)| *point);
    match (found.next(), found.next()) {
        (Some(point), None) => Ok(point),
        (Some(_), Some(_)) => none(format!("several points begin with {text}: give more digits")),
        (None, _) => none(format!(
            "there is no point {text:?}: an id of `lunway backup list`, latest, or a time as 2026-11-23T16:20 is expected"
        )),
    }
}
