//! Due times: times of day on days of the week, or an interval.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::civil::Time;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Days that are looked at for the next due time: from the day before, as a zone may skip one, to the same day of the
/// next week and the one after it, should that be skipped.
const DAYS_LOOKED_AT: i64 = 10;

/// A time of day, `HH:MM`, by the clock on the wall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct TimeOfDay {
    hour: i8,
    minute: i8,
}

/// Reason why a text is not a time of day.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a time of day: write hours and minutes, 00:00 to 23:59")]
pub struct TimeOfDayError {
    /// Text given.
    text: String,
}

impl FromStr for TimeOfDay {
    type Err = TimeOfDayError;

    fn from_str(text: &str) -> Result<Self, TimeOfDayError> {
        let wrong = || TimeOfDayError { text: text.to_owned() };
        let number = |part: &str, end: i8| {
            let digits = (1..=2).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| part.parse().ok()).flatten().filter(|number| *number < end)
        };
        let (hour, minute) =
            text.split_once(':').filter(|(_, minute)| minute.len() == 2).ok_or_else(wrong)?;
        let hour = number(hour, 24).ok_or_else(wrong)?;
        let minute = number(minute, 60).ok_or_else(wrong)?;
        Ok(Self { hour, minute })
    }
}

impl TryFrom<String> for TimeOfDay {
    type Error = TimeOfDayError;

    fn try_from(text: String) -> Result<Self, TimeOfDayError> {
        text.parse()
    }
}

impl From<TimeOfDay> for String {
    fn from(time: TimeOfDay) -> Self {
        time.to_string()
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.hour, self.minute)
    }
}

/// A day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Weekday {
    /// Monday.
    Mon,
    /// Tuesday.
    Tue,
    /// Wednesday.
    Wed,
    /// Thursday.
    Thu,
    /// Friday.
    Fri,
    /// Saturday.
    Sat,
    /// Sunday.
    Sun,
}

impl Weekday {
    const WEEK: [Self; 7] = [Self::Mon, Self::Tue, Self::Wed, Self::Thu, Self::Fri, Self::Sat, Self::Sun];

    fn of(date: jiff::civil::Date) -> Self {
        Self::WEEK[date.weekday().to_monday_zero_offset() as usize % Self::WEEK.len()]
    }
}

/// When something is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    /// At these times of these days, in the machine's time zone. A time that the clock skips (summer time begins) is
    /// as much later as the clock is put forward; of one that it shows twice the first counts.
    At {
        /// The times.
        times: Vec<TimeOfDay>,
        /// The days; none: each day.
        days: Vec<Weekday>,
    },
    /// So long after the last run began; the first time at once.
    Every(Duration),
}

impl When {
    /// Longest time between two due times that follow each other, by the clock on the wall: a change of summer time
    /// makes one an hour longer.
    pub fn longest_gap(&self) -> Duration {
        const DAY: u64 = 24 * 60;
        let (times, days) = match self {
            Self::Every(interval) => return *interval,
            Self::At { times, days } => (times, days),
        };
        let on = (0..).zip(Weekday::WEEK).filter(|(_, day)| days.is_empty() || days.contains(day));
        let minute = |time: &TimeOfDay| {
            u64::from(time.hour.unsigned_abs()) * 60 + u64::from(time.minute.unsigned_abs())
        };
        let mut due: Vec<u64> =
            on.flat_map(|(day, _)| times.iter().map(move |time| day * DAY + minute(time))).collect();
        due.sort_unstable();
        let around = due.first().zip(due.last()).map(|(first, last)| first + 7 * DAY - last);
        let gaps = due.windows(2).map(|pair| pair[1] - pair[0]);
        Duration::from_secs(gaps.chain(around).max().unwrap_or(0) * 60)
    }

    /// The first due time after a moment, in milliseconds since 1970; `None` of intervals.
    pub(crate) fn next_after(&self, after_ms: i64, zone: &TimeZone) -> Option<i64> {
        let Self::At { times, days } = self else { return None };
        let after = timestamp(after_ms);
        let today = after.to_zoned(zone.clone()).date();
        let due_on = |offset: i64| {
            let date = today.checked_add(offset.days()).ok()?;
            if !days.is_empty() && !days.contains(&Weekday::of(date)) {
                return None;
            }
            // Not simply the first: the clock may skip one time and not the next.
            let due = times.iter().filter_map(|time| {
                let time = Time::new(time.hour, time.minute, 0, 0).ok()?;
                let due = zone.to_ambiguous_zoned(date.to_datetime(time)).compatible().ok()?;
                Some(due.timestamp()).filter(|due| *due > after)
            });
            due.min()
        };
        // Not simply of the first day: the day before may have a time that the clock skips past midnight.
        let mut found = None::<Timestamp>;
        for offset in -1..DAYS_LOOKED_AT {
            let due = due_on(offset);
            if found.is_some() {
                return found.into_iter().chain(due).min().map(Timestamp::as_millisecond);
            }
            found = due;
        }
        found.map(Timestamp::as_millisecond)
    }
}

/// The nearest moment that has a date.
fn timestamp(millis: i64) -> Timestamp {
    let (first, last) = (Timestamp::MIN.as_millisecond() + 1, Timestamp::MAX.as_millisecond() - 1);
    Timestamp::from_millisecond(millis.clamp(first, last)).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// A moment as the clock on the wall shows it, with its distance from UTC: `2026-11-29 02:00:00 +01:00`.
pub fn wall_clock(seconds: i64, zone: &TimeZone) -> String {
    let moment = timestamp(seconds.saturating_mul(1000)).to_zoned(zone.clone());
    moment.strftime("%F %T %:z").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_shown_in_the_zone_and_at_the_ends_of_the_calendar() {
        assert_eq!(wall_clock(1_773_100_800, &berlin()), "2026-03-10 01:00:00 +01:00");
        assert_eq!(wall_clock(1_791_590_400, &berlin()), "2026-10-10 02:00:00 +02:00");
        for seconds in [i64::MIN, i64::MAX] {
            let _ = wall_clock(seconds, &berlin());
        }
    }

    fn berlin() -> TimeZone {
        TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap()
    }

    /// The next due times after a moment, as the wall clock of Berlin shows them.
    fn next(times: &[&str], days: &[Weekday], after: &str, count: usize) -> Vec<String> {
        let times = times.iter().map(|time| time.parse().unwrap()).collect();
        let when = When::At { times, days: days.to_vec() };
        let mut at = after.parse::<Timestamp>().unwrap().as_millisecond();
        let mut all = Vec::new();
        for _ in 0..count {
            at = when.next_after(at, &berlin()).unwrap();
            all.push(timestamp(at).to_zoned(berlin()).strftime("%a %m-%d %H:%M %:z").to_string());
        }
        all
    }

    #[test]
    fn the_longest_gap_is_that_of_a_night_or_of_a_weekend() {
        let gap = |times: &[&str], days: &[Weekday]| {
            let times = times.iter().map(|time| time.parse().unwrap()).collect();
            When::At { times, days: days.to_vec() }.longest_gap().as_secs() / 60
        };
        assert_eq!(gap(&["02:00"], &[]), 24 * 60);
        assert_eq!(gap(&["14:00", "02:30"], &[]), 12 * 60 + 30);
        assert_eq!(gap(&["02:00", "02:00"], &[Weekday::Sun]), 7 * 24 * 60);
        let week = [Weekday::Fri, Weekday::Mon, Weekday::Tue, Weekday::Wed, Weekday::Thu];
        assert_eq!(gap(&["02:00", "14:00"], &week), (2 * 24 + 12) * 60);
        assert_eq!(When::Every(Duration::from_secs(7)).longest_gap(), Duration::from_secs(7));
        assert_eq!(gap(&[], &[]), 0, "what is never due");
    }

    #[test]
    fn times_of_day_are_hours_and_minutes_and_nothing_else() {
        for (text, shown) in [("02:00", "02:00"), ("2:05", "02:05"), ("23:59", "23:59")] {
            assert_eq!(text.parse::<TimeOfDay>().unwrap().to_string(), shown);
        }
        for text in ["", "2", "24:00", "02:60", "02:5", "-1:00", "+1:00", "02:00:00", "noon", "002:00"] {
            let error = text.parse::<TimeOfDay>().unwrap_err().to_string();
            assert!(error.contains("23:59"), "{error}");
        }
    }

    #[test]
    fn the_next_due_time_is_the_next_time_on_the_next_day_that_is_named() {
        assert_eq!(
            next(&["22:00", "02:30"], &[], "2026-01-14T21:00:00Z", 3),
            ["Thu 01-15 02:30 +01:00", "Thu 01-15 22:00 +01:00", "Fri 01-16 02:30 +01:00"]
        );
        assert_eq!(
            next(&["02:30"], &[Weekday::Mon, Weekday::Wed], "2026-01-14T01:30:00Z", 3),
            ["Mon 01-19 02:30 +01:00", "Wed 01-21 02:30 +01:00", "Mon 01-26 02:30 +01:00"]
        );
    }

    #[test]
    fn a_time_that_summer_time_skips_is_later_that_day_and_one_that_it_repeats_is_once() {
        assert_eq!(
            next(&["02:30"], &[], "2026-03-28T00:00:00Z", 3),
            ["Sat 03-28 02:30 +01:00", "Sun 03-29 03:30 +02:00", "Mon 03-30 02:30 +02:00"]
        );
        assert_eq!(
            next(&["02:30", "03:10"], &[], "2026-03-28T12:00:00Z", 2),
            ["Sun 03-29 03:10 +02:00", "Sun 03-29 03:30 +02:00"]
        );
        assert_eq!(
            next(&["02:30"], &[], "2026-10-24T12:00:00Z", 2),
            ["Sun 10-25 02:30 +02:00", "Mon 10-26 02:30 +01:00"]
        );
    }

    #[test]
    fn a_time_that_is_skipped_past_midnight_comes_after_an_earlier_one_of_the_next_day() {
        // On 2026-03-08 the clock goes from 23:30 to 00:30 of the next day.
        let zone = TimeZone::posix("<+00>0<+01>-1,M3.2.0/23:30,M10.1.0").unwrap();
        let times = ["23:45", "00:40"].map(|time| time.parse().unwrap()).to_vec();
        let when = When::At { times, days: vec![] };
        let mut at = "2026-03-08T12:00:00Z".parse::<Timestamp>().unwrap().as_millisecond();
        let shown = ["00:40", "00:45", "23:45"].map(|_| {
            at = when.next_after(at, &zone).unwrap();
            timestamp(at).to_zoned(zone.clone()).strftime("%H:%M").to_string()
        });
        assert_eq!(shown, ["00:40", "00:45", "23:45"]);
    }

    #[test]
    fn at_the_ends_of_the_calendar_nothing_panics() {
        let when = When::At { times: vec!["02:00".parse().unwrap()], days: Vec::new() };
        for at in [i64::MIN, -1, 0, i64::MAX] {
            let _ = when.next_after(at, &berlin());
        }
    }
}
