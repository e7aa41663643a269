//! Numbers, sizes and times as fio writes them.

use std::time::Duration;

/// Choice of the prefixes that are powers of 1024.
///
/// fio turned the standards round to keep old scripts right: by default `4k` is 4096 and `4kib` is 4000. `kb_base=1000`
/// is the standards' way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KbBase {
    /// `k` is 1024, `kib` is 1000.
    Inverted,
    /// `k` is 1000, `kib` is 1024.
    Standard,
}

impl KbBase {
    fn plain(self) -> u64 {
        match self {
            Self::Inverted => 1024,
            Self::Standard => 1000,
        }
    }

    fn with_i(self) -> u64 {
        match self {
            Self::Inverted => 1000,
            Self::Standard => 1024,
        }
    }
}

/// Reason why a value cannot be read: what was wanted, as the end of a sentence.
pub(super) type Wanted = &'static str;

const SIZE: Wanted = "a size as in 4k, 1m or 4096 is wanted";
const TIME: Wanted = "a time as in 30, 10s, 500ms or 2m is wanted";

/// fio's *int*: decimal or `0x`, with a unit of data.
///
/// What fio reads half of (`1.5k` as 1, `8q` as 8) is refused, and so is `4ki`: fio's manual and fio itself differ on
/// it.
pub(super) fn size(text: &str, base: KbBase) -> Result<u64, Wanted> {
    let (number, suffix) = split(text).ok_or(SIZE)?;
    let suffix = suffix.to_ascii_lowercase();
    let mut letters = suffix.chars();
    let power = match letters.next() {
        None => return Ok(number),
        Some('b') if suffix == "b" => return Ok(number),
        Some('k') => 1,
        Some('m') => 2,
        Some('g') => 3,
        Some('t') => 4,
        Some('p') => 5,
        Some(_) => return Err(SIZE),
    };
    let unit = match letters.as_str() {
        "" | "b" => base.plain(),
        "ib" => base.with_i(),
        "i" => return Err("fio's manual and fio differ on what ki, mi and gi mean: write k or kib"),
        _ => return Err(SIZE),
    };
    number.checked_mul(unit.pow(power)).ok_or("that is more than any device has")
}

/// fio's *time*: seconds unless a unit says otherwise.
pub(super) fn time(text: &str) -> Result<Duration, Wanted> {
    let (number, suffix) = split(text).ok_or(TIME)?;
    let micros = match suffix.to_ascii_lowercase().as_str() {
        "d" => 86_400_000_000,
        "h" => 3_600_000_000,
        "m" => 60_000_000,
        "" | "s" | "sec" => 1_000_000,
        "ms" | "msec" => 1000,
        "us" | "usec" => 1,
        _ => return Err(TIME),
    };
    number.checked_mul(micros).map(Duration::from_micros).ok_or("nothing takes that long")
}

/// A plain number, which units would make no sense of.
pub(super) fn count(text: &str) -> Result<u64, Wanted> {
    match split(text) {
        Some((number, "")) => Ok(number),
        _ => Err("a whole number is wanted"),
    }
}

/// 0 to 100, with or without `%`.
pub(super) fn percent(text: &str) -> Result<u8, Wanted> {
    let number = text.strip_suffix('%').unwrap_or(text);
    match number.parse() {
        Ok(percent @ 0..=100) => Ok(percent),
        _ => Err("a percentage from 0 to 100 is wanted"),
    }
}

/// fio's *bool*; a key without a value is true.
pub(super) fn flag(text: Option<&str>) -> Result<bool, Wanted> {
    match text {
        None | Some("1" | "true") => Ok(true),
        Some("0" | "false") => Ok(false),
        Some(_) => Err("0 or 1 is wanted"),
    }
}

/// `read[,write[,trim]]`: one value is for all, and what is empty is left as it was.
pub(super) fn directions(text: &str) -> Result<[Option<&str>; 2], Wanted> {
    let mut parts = text.split(',').map(|part| Some(part.trim()).filter(|part| !part.is_empty()));
    let read = parts.next().flatten();
    let write = match parts.next() {
        // Nothing follows, or something for others only.
        None => read,
        Some(write) => write,
    };
    let _trim = parts.next();
    if parts.next().is_some() || (read, write) == (None, None) {
        return Err("one value, or one for reads and one for writes with a comma between is wanted");
    }
    Ok([read, write])
}

fn split(text: &str) -> Option<(u64, &str)> {
    let (radix, digits) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (16, digits),
        None => (10, text),
    };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    let (digits, suffix) = digits.split_at(end);
    // Digits only: `from_str_radix` would also take a sign.
    u64::from_str_radix(digits, radix).ok().map(|number| (number, suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_fios_with_the_prefixes_that_it_turned_round() {
        let size = |text| size(text, KbBase::Inverted);
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("4k"), Ok(4096));
        assert_eq!(size("4KB"), Ok(4096));
        assert_eq!(size("4kib"), Ok(4000));
        assert_eq!(size("1MiB"), Ok(1_000_000));
        assert_eq!(size("2g"), Ok(2 << 30));
        assert_eq!(size("1p"), Ok(1 << 50));
        assert_eq!(size("0x1000"), Ok(4096));
        assert_eq!(size("512b"), Ok(512));
        let standard = |text| super::size(text, KbBase::Standard);
        assert_eq!((standard("4k"), standard("4KiB")), (Ok(4000), Ok(4096)));
    }

    #[test]
    fn what_fio_would_read_half_of_is_refused() {
        for text in ["1.5k", "8q", "8 k", "1kk", "-1", "+1", "", "k", "8K/2", "4ki", "99999999p", "0x", "1bb"]
        {
            assert!(size(text, KbBase::Inverted).is_err(), "{text}");
        }
    }

    #[test]
    fn times_are_seconds_unless_they_say_otherwise() {
        let texts = ["10", "10s", "500ms", "500msec", "20us", "2m", "1h", "1D", "3sec"];
        let wanted = [
            10_000_000,
            10_000_000,
            500_000,
            500_000,
            20,
            120_000_000,
            3_600_000_000,
            86_400_000_000,
            3_000_000,
        ];
        for (text, micros) in texts.into_iter().zip(wanted) {
            assert_eq!(time(text), Ok(Duration::from_micros(micros)), "{text}");
        }
        assert!(time("0.5").is_err() && time("1:30").is_err() && time("99999999999d").is_err());
    }

    #[test]
    fn a_value_for_one_direction_leaves_the_other() {
        assert_eq!(directions("4k"), Ok([Some("4k"), Some("4k")]));
        assert_eq!(directions("4k,8k"), Ok([Some("4k"), Some("8k")]));
        assert_eq!(directions("4k,8k,16k"), Ok([Some("4k"), Some("8k")]));
        assert_eq!(directions("4k,"), Ok([Some("4k"), None]));
        assert_eq!(directions(",8k"), Ok([None, Some("8k")]));
        assert!(directions(",").is_err() && directions("1,2,3,4").is_err());
    }

    #[test]
    fn flags_and_percentages() {
        assert_eq!((flag(None), flag(Some("1")), flag(Some("0"))), (Ok(true), Ok(true), Ok(false)));
        assert!(flag(Some("2")).is_err());
        assert_eq!((percent("70"), percent("70%")), (Ok(70), Ok(70)));
        assert!(percent("101").is_err() && percent("-1").is_err());
    }
}
