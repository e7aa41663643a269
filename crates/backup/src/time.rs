//! Times of points, for people: UTC, to the second.

use std::fmt;

const DAY: u64 = 86_400;

/// A moment, seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub u64);

impl Moment {
    /// Year, month, day (Howard Hinnant's days-from-civil, backwards: eras of 400 years that begin on 1 March).
    pub(crate) fn date(self) -> (u64, u64, u64) {
        let days = self.0 / DAY + 719_468;
        let (era, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let date = day - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        (era * 400 + year + u64::from(month <= 2), month, date)
    }

    /// The last second of what a text names: of a day, of a minute, or the second itself. See [`parse`](Self::parse).
    pub fn last_of(text: &str) -> Option<Self> {
        let first = Self::parse(text)?.0;
        let shorter = match text.matches(':').count() {
            0 => DAY - 1,
            1 => 59,
            _ => 0,
        };
        Some(Self(first + shorter))
    }

    /// Reads `2026-11-23`, `2026-11-23T16:20` and `2026-11-23T16:20:05`, with or without `Z`; a blank may stand for
    /// `T`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix('Z').unwrap_or(text);
        let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, ""));
        let numbers = |text: &str, mark: char| -> Option<Vec<u64>> {
            let digits = |part: &str| {
                (!part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
                    .then(|| part.parse().ok())?
            };
            text.split(mark).map(digits).collect()
        };
        let date = numbers(date, '-')?;
        let [year @ 1970..=9999, month @ 1..=12, day @ 1..=31] = date[..] else { return None };
        let time = if time.is_empty() { Vec::new() } else { numbers(time, ':')? };
        let (hour, minute, second) = match time[..] {
            [] => (0, 0, 0),
            [hour, minute] => (hour, minute, 0),
            [hour, minute, second] => (hour, minute, second),
            _ => return None,
        };
        if hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        let (from_march, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
        let (era, of_era) = (from_march / 400, from_march % 400);
        let of_year = (153 * month + 2) / 5 + day - 1;
        let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
        Some(Self(days * DAY + hour * 3600 + minute * 60 + second))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = self.date();
        let second = self.0 % DAY;
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
            second / 3600,
            second / 60 % 60,
            second % 60
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_and_a_minute_end_with_their_last_second() {
        let last = |text: &str| Moment::last_of(text).map(|moment| moment.to_string());
        assert_eq!(last("2026-11-23").as_deref(), Some("2026-11-23T23:59:59Z"));
        assert_eq!(last("2026-11-23T16:20").as_deref(), Some("2026-11-23T16:20:59Z"));
        assert_eq!(last("2026-11-23T16:20:05Z").as_deref(), Some("2026-11-23T16:20:05Z"));
    }

    #[test]
    fn a_moment_reads_back_on_every_day_of_a_century() {
        for day in 0..36_525 {
            let moment = Moment(day * DAY + 3661);
            assert_eq!(Moment::parse(&moment.to_string()), Some(moment), "{moment}");
        }
        assert_eq!(Moment(1_795_450_805).to_string(), "2026-11-23T16:20:05Z");
        assert_eq!(Moment::parse("2000-02-29").map(Moment::date), Some((2000, 2, 29)));
        for wrong in ["", "latest", "2026", "2026-13-01", "2026-11-23T25:00", "2026-11-23T1", "+2026-11-23"] {
            assert_eq!(Moment::parse(wrong), None, "{wrong}");
        }
    }
}
