//! Notation of figures and times.

/// A figure with about four significant digits, and whole above a thousand; a dash for what is no number.
pub fn figure(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() => "–".into(),
        v if v >= 99.995 => thousands(value),
        v if v >= 9.9995 => format!("{value:.2}"),
        v if v >= 0.99995 || v == 0.0 => format!("{value:.3}"),
        v if v >= 0.09995 => format!("{value:.4}"),
        _ => format!("{value:.5}"),
    }
}

/// The unit in which values of a unit up to `largest` are written, and what to multiply them by: milliseconds below a
/// tenth are microseconds.
pub fn readable(unit: &str, largest: f64) -> (f64, &str) {
    match unit {
        "ms" if largest.abs() < 0.1 && largest != 0.0 => (1e3, "µs"),
        unit => (1.0, unit),
    }
}

/// A time in milliseconds, with its unit.
pub fn response_time(ms: f64) -> String {
    let (factor, unit) = readable("ms", ms);
    format!("{} {unit}", figure(ms * factor))
}

/// Rounded, with a comma between thousands; one decimal below a thousand.
fn thousands(value: f64) -> String {
    if value.abs() < 999.95 {
        return format!("{value:.1}");
    }
    let digits = format!("{:.0}", value.abs());
    let mut out = String::with_capacity(digits.len() * 4 / 3 + 1);
    if value < 0.0 {
        out.push('-');
    }
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A time, seconds since 1970, as C's `asctime` writes it, in UTC. Days to a date by the rule of the Gregorian
/// calendar, counted from 1 March of year 0 so that a leap day is a year's last.
pub fn utc(seconds: u64) -> String {
    const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec", "Jan", "Feb"];
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    let since = days + 719_468;
    let (era, day) = (since / 146_097, since % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year + u64::from(month >= 10);
    let weekday = WEEKDAYS[(days % 7) as usize];
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{weekday} {} {date:2} {hour:02}:{minute:02}:{second:02} {year}", MONTHS[month as usize])
}

/// Units that are not left alone at the beginning of a line.
const UNITS: [&str; 16] = [
    "%", "MB/s", "MB", "GB", "TB", "MiB", "GiB", "IOPS", "s", "ms", "µs", "ns", "Gb/s", "Mb/s", "Gbit/s",
    "Mbit/s",
];

/// `text` with figures that keep their unit beside them when a line is broken.
pub(crate) fn glued(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(' ') {
        let unit = after.split([' ', ',', '.', ';', ':', ')']).next().unwrap_or_default();
        let figure = before.ends_with(|last: char| last.is_ascii_digit());
        out.push_str(before);
        out.push(if figure && UNITS.contains(&unit) { '\u{a0}' } else { ' ' });
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_below_a_tenth_of_a_millisecond_are_microseconds() {
        for (ms, text) in [
            (0.00062, "0.6200 µs"),
            (0.00776, "7.760 µs"),
            (0.0999, "99.90 µs"),
            (0.1, "0.1000 ms"),
            (12.5, "12.50 ms"),
        ] {
            assert_eq!(response_time(ms), text);
        }
        assert_eq!((response_time(f64::NAN), readable("IOPS", 0.01)), ("– ms".to_owned(), (1.0, "IOPS")));
    }

    #[test]
    fn figures_keep_four_digits() {
        let cases = [
            (0.0, "0.000"),
            (0.001234, "0.00123"),
            (0.1234, "0.1234"),
            (1.23456, "1.235"),
            (9.99996, "10.00"),
            (12.3456, "12.35"),
            (123.456, "123.5"),
            (999.96, "1,000"),
            (123_456.7, "123,457"),
            (1_234_567.0, "1,234,567"),
            (f64::NAN, "–"),
        ];
        for (value, shown) in cases {
            assert_eq!(figure(value), shown);
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(utc(951_782_400), "Tue Feb 29 00:00:00 2000");
        assert_eq!(utc(1_795_221_987), "Sat Nov 21 00:46:27 2026");
    }

    #[test]
    fn a_figure_keeps_its_unit() {
        assert_eq!(glued("1 s or 70 % more, 5 MB/s."), "1\u{a0}s or 70\u{a0}% more, 5\u{a0}MB/s.");
        assert_eq!(glued("4 suns & "), "4 suns & ");
    }
}
