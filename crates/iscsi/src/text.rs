//! The text of Login and Text PDUs: `key=value` pairs, each ended by a zero byte (RFC 7143 §6.1).
//!
//! | part | is |
//! |---|---|
//! | [`parse`] | text to pairs |
//! | [`Builder`] | pairs to text |
//! | [`Assembler`] | one text out of several PDUs (C bit) |
//! | [`Segments`] | one text cut into several PDUs (C bit) |
//! | [`number`], [`boolean`], [`list`], [`range`], [`binary`] | what a value means |
//!
//! Limits hold on everything a peer sends: [`TEXT_LEN_MAX`], [`PAIRS_MAX`], [`KEY_LEN_MAX`], [`VALUE_LEN_MAX`].

/// Longest key, bytes (RFC 7143 §6.1).
// RFC 7143 [6.1-2]
pub const KEY_LEN_MAX: usize = 63;
/// Longest value, bytes. The standard's limit is 255 for simple values (§6.1); large binary values and lists of
/// addresses need more.
pub const VALUE_LEN_MAX: usize = 8192;
/// Longest text over all its PDUs, bytes. Ours; the longest login seen in practice takes one kilobyte.
// RFC 7143 [6.1-4]
pub const TEXT_LEN_MAX: usize = 64 << 10;
/// Most pairs in one text. Ours; the standard defines some forty keys.
pub const PAIRS_MAX: usize = 256;
/// Most text one PDU carries during login, bytes: the default MaxRecvDataSegmentLength, which holds until the full
/// feature phase (RFC 7143 §13.12).
pub const LOGIN_SEGMENT_LEN_MAX: usize = 8192;

/// Answers to an offer that are no values (RFC 7143 §6.2).
// RFC 7143 [6.2-9]
pub mod answer {
    /// The responder does not know the key.
    pub const NOT_UNDERSTOOD: &str = "NotUnderstood";
    /// The key makes no sense under the other parameters.
    pub const IRRELEVANT: &str = "Irrelevant";
    /// The responder accepts none of the offered values.
    pub const REJECT: &str = "Reject";
    /// The value "none" of lists.
    pub const NONE: &str = "None";
}

/// Kind of error in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// Longer than [`TEXT_LEN_MAX`].
    #[error("the text is longer than {TEXT_LEN_MAX} bytes")]
    TooLong,
    /// More pairs than [`PAIRS_MAX`].
    #[error("the text has more than {PAIRS_MAX} pairs")]
    TooManyPairs,
    /// A pair without `=`.
    #[error("a pair has no '='")]
    NoValue,
    /// A key that is empty, too long, or has characters a key must not have.
    #[error("a key is empty, longer than {KEY_LEN_MAX} bytes, or has characters no key may have")]
    BadKey,
    /// A value longer than [`VALUE_LEN_MAX`].
    #[error("a value is longer than {VALUE_LEN_MAX} bytes")]
    ValueTooLong,
    /// A value that is not UTF-8.
    #[error("a value is not UTF-8")]
    NotUtf8,
}

/// Kind of error in a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Not a number, or above 64 bits.
    #[error("not a number of at most 64 bits")]
    Number,
    /// Neither `Yes` nor `No`.
    #[error("neither Yes nor No")]
    Boolean,
    /// Not two numbers in order with `~` between.
    #[error("not a range")]
    Range,
    /// Neither a hexadecimal nor a base64 constant.
    #[error("neither a hexadecimal nor a base64 constant")]
    Binary,
    /// A binary value longer than the caller takes.
    #[error("too many bytes")]
    TooLong,
}

/// Reads a complete text: the pairs in the order they stand. Empty strings between zero bytes are skipped, and the last
/// pair may lack its zero byte, as some implementations pad with more or with none.
pub fn parse(text: &[u8]) -> Result<Vec<(&str, &str)>, TextError> {
    if text.len() > TEXT_LEN_MAX {
        return Err(TextError::TooLong);
    }
    let mut pairs = Vec::new();
    for pair in text.split(|&byte| byte == 0).filter(|pair| !pair.is_empty()) {
        if pairs.len() == PAIRS_MAX {
            return Err(TextError::TooManyPairs);
        }
        let equals = pair.iter().position(|&byte| byte == b'=').ok_or(TextError::NoValue)?;
        let (key, value) = (&pair[..equals], &pair[equals + 1..]);
        if key.is_empty() || key.len() > KEY_LEN_MAX || !key.iter().all(|&byte| is_key_byte(byte)) {
            return Err(TextError::BadKey);
        }
        if value.len() > VALUE_LEN_MAX {
            return Err(TextError::ValueTooLong);
        }
        let key = str::from_utf8(key).map_err(|_| TextError::BadKey)?;
        let value = str::from_utf8(value).map_err(|_| TextError::NotUtf8)?;
        pairs.push((key, value));
    }
    Ok(pairs)
}

const fn is_key_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+' | b'@' | b'_')
}

/// Writes a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Builder(Vec<u8>);

impl Builder {
    /// An empty text.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Appends a pair. Keys and values are our own words or come out of [`parse`], so they hold no zero byte.
    // RFC 7143 [6.1-1]
    pub fn pair(&mut self, key: &str, value: impl std::fmt::Display) {
        use std::io::Write;
        let start = self.0.len();
        write!(self.0, "{key}={value}").expect("writing to memory does not fail");
        debug_assert!(!self.0[start..].contains(&0));
        self.0.push(0);
    }

    /// The text.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Returns `true` if nothing was written.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Collects one text out of several PDUs.
#[derive(Clone, Debug, Default)]
pub struct Assembler(Vec<u8>);

impl Assembler {
    /// Nothing collected.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Appends one PDU's data; returns the whole text unless the PDU's C bit says that it `continues`.
    pub fn push(&mut self, data: &[u8], continues: bool) -> Result<Option<Vec<u8>>, TextError> {
        if self.0.len() + data.len() > TEXT_LEN_MAX {
            self.0 = Vec::new();
            return Err(TextError::TooLong);
        }
        self.0.extend_from_slice(data);
        Ok((!continues).then(|| std::mem::take(&mut self.0)))
    }

    /// Returns `true` if a text has begun and not ended.
    pub const fn is_partial(&self) -> bool {
        !self.0.is_empty()
    }
}

/// Cuts one text into the data segments of several PDUs.
#[derive(Clone, Debug)]
pub struct Segments {
    text: Vec<u8>,
    sent: usize,
    segment_len: usize,
}

impl Segments {
    /// Cuts `text` into pieces of at most `segment_len` bytes.
    pub fn new(text: Builder, segment_len: usize) -> Self {
        Self { text: text.into_bytes(), sent: 0, segment_len: segment_len.max(1) }
    }

    /// The next data segment; empty once, if the text is.
    pub fn take(&mut self) -> Vec<u8> {
        let end = self.text.len().min(self.sent + self.segment_len);
        let segment = self.text[self.sent..end].to_vec();
        self.sent = end;
        segment
    }

    /// Returns `true` if more text follows: the C bit of the PDU just taken.
    // RFC 7143 [6.2-1]
    pub const fn continues(&self) -> bool {
        self.sent < self.text.len()
    }
}

/// Reads a number, decimal or hexadecimal (RFC 7143 §6.1, numerical-value).
pub fn number(value: &str) -> Result<u64, ValueError> {
    let (digits, radix) = match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (value, 10),
    };
    // The parser of the standard library would accept a sign.
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return Err(ValueError::Number);
    }
    u64::from_str_radix(digits, radix).map_err(|_| ValueError::Number)
}

/// Reads `Yes` or `No`.
pub fn boolean(value: &str) -> Result<bool, ValueError> {
    match value {
        "Yes" => Ok(true),
        "No" => Ok(false),
        _ => Err(ValueError::Boolean),
    }
}

/// Writes `Yes` or `No`.
pub const fn yes_no(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}

/// The values of a list, in order of preference.
pub fn list(value: &str) -> impl Iterator<Item = &str> {
    value.split(',')
}

/// Reads `low~high`.
pub fn range(value: &str) -> Result<std::ops::RangeInclusive<u64>, ValueError> {
    let (low, high) = value.split_once('~').ok_or(ValueError::Range)?;
    let (low, high) = (number(low)?, number(high)?);
    if low > high { Err(ValueError::Range) } else { Ok(low..=high) }
}

/// Reads a binary value of at most `len_max` bytes: a hexadecimal (`0x`) or base64 (`0b`) constant (RFC 7143 §6.1).
// RFC 7143 [6.1-6]
pub fn binary(value: &str, len_max: usize) -> Result<Vec<u8>, ValueError> {
    let (prefix, digits) = value.as_bytes().split_at_checked(2).ok_or(ValueError::Binary)?;
    match prefix {
        b"0x" | b"0X" => hexadecimal(digits, len_max),
        b"0b" | b"0B" => base64(digits, len_max),
        _ => Err(ValueError::Binary),
    }
}

/// Writes a binary value as a hexadecimal constant, the form every implementation reads.
// RFC 7143 [6.1-3]
pub fn to_hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::from("0x"), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to memory does not fail");
        text
    })
}

fn hexadecimal(digits: &[u8], len_max: usize) -> Result<Vec<u8>, ValueError> {
    if digits.is_empty() {
        return Err(ValueError::Binary);
    }
    if digits.len().div_ceil(2) > len_max {
        return Err(ValueError::TooLong);
    }
    let nibble = |digit: u8| char::from(digit).to_digit(16).map(|d| d as u8).ok_or(ValueError::Binary);
    // An odd count lacks the leading zero of the first byte.
    let (head, rest) = digits.split_at(digits.len() % 2);
    let mut bytes = Vec::with_capacity(digits.len().div_ceil(2));
    if let [digit] = head {
        bytes.push(nibble(*digit)?);
    }
    for pair in rest.chunks_exact(2) {
        bytes.push(nibble(pair[0])? << 4 | nibble(pair[1])?);
    }
    Ok(bytes)
}

/// RFC 4648 §4, padding optional as its bits carry nothing; left-over bits must be zero so that a value has one form.
fn base64(digits: &[u8], len_max: usize) -> Result<Vec<u8>, ValueError> {
    let padding = digits.iter().rev().take_while(|&&digit| digit == b'=').count();
    let digits = &digits[..digits.len() - padding];
    let padded = digits.len() + padding;
    if digits.is_empty() || padding > 2 || (padding > 0 && !padded.is_multiple_of(4)) || digits.len() % 4 == 1
    {
        return Err(ValueError::Binary);
    }
    let len = digits.len() * 3 / 4;
    if len > len_max {
        return Err(ValueError::TooLong);
    }
    let mut bytes = Vec::with_capacity(len);
    let (mut bits, mut count) = (0u32, 0);
    for &digit in digits {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return Err(ValueError::Binary),
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    if bits == 0 { Ok(bytes) } else { Err(ValueError::Binary) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // shows RFC 7143 [6.1-1]
    #[test]
    fn pairs_are_read_in_order_and_empty_strings_between_them_skipped() {
        let text = b"A=1\0\0B=\0C=x=y\0last=unterminated";
        assert_eq!(parse(text), Ok(vec![("A", "1"), ("B", ""), ("C", "x=y"), ("last", "unterminated")]));
        assert_eq!(parse(b""), Ok(vec![]));
    }

    // shows RFC 7143 [6.1-2]
    #[test]
    fn what_is_no_pair_is_refused_by_name() {
        assert_eq!(parse(b"Key\0"), Err(TextError::NoValue));
        assert_eq!(parse(b"=v\0"), Err(TextError::BadKey));
        assert_eq!(parse(b"a b=v\0"), Err(TextError::BadKey));
        assert_eq!(parse(format!("{}=v\0", "k".repeat(64)).as_bytes()), Err(TextError::BadKey));
        assert_eq!(parse(b"k=\xff\0"), Err(TextError::NotUtf8));
        assert_eq!(parse(format!("k={}\0", "v".repeat(8193)).as_bytes()), Err(TextError::ValueTooLong));
        assert_eq!(parse("k=v\0".repeat(257).as_bytes()), Err(TextError::TooManyPairs));
        assert_eq!(parse(&[0; TEXT_LEN_MAX + 1]), Err(TextError::TooLong));
        assert!(parse(format!("{}={}\0", "k".repeat(63), "v".repeat(8192)).as_bytes()).is_ok());
    }

    // shows RFC 7143 [6.1-3]
    #[test]
    fn numbers_are_decimal_or_hexadecimal_without_sign() {
        assert_eq!(number("0"), Ok(0));
        assert_eq!(number("8192"), Ok(8192));
        assert_eq!(number("0x1F"), Ok(31));
        assert_eq!(number("18446744073709551615"), Ok(u64::MAX));
        for wrong in ["", "0x", "+1", "-1", "0x+1", "1 ", "18446744073709551616", "1f"] {
            assert_eq!(number(wrong), Err(ValueError::Number), "{wrong}");
        }
    }

    #[test]
    fn booleans_and_ranges_are_exact() {
        assert_eq!((boolean("Yes"), boolean("No")), (Ok(true), Ok(false)));
        assert_eq!(boolean("yes"), Err(ValueError::Boolean));
        assert_eq!(range("1~0x10"), Ok(1..=16));
        assert_eq!(range("2~1"), Err(ValueError::Range));
        assert_eq!(range("2"), Err(ValueError::Range));
    }

    // shows RFC 7143 [6.1-6]
    #[test]
    fn binary_values_come_in_both_constants() {
        assert_eq!(binary("0x0aFf", 2), Ok(vec![0x0a, 0xff]));
        assert_eq!(binary("0xfff", 2), Ok(vec![0x0f, 0xff]));
        assert_eq!(binary("0bSGVsbG8=", 5), Ok(b"Hello".to_vec()));
        assert_eq!(binary("0bSGVsbG8", 5), Ok(b"Hello".to_vec()));
        assert_eq!(binary("0bSGVsbA==", 5), Ok(b"Hell".to_vec()));
        assert_eq!(binary("0BSGVs", 3), Ok(b"Hel".to_vec()));
        for wrong in
            ["", "0", "0x", "0b", "0xg0", "12", "0b====", "0bSGVsbG9=", "0bSGVs=", "0bS", "0bSG=s", "0b-_-_"]
        {
            assert_eq!(binary(wrong, 100), Err(ValueError::Binary), "{wrong}");
        }
        assert_eq!(binary("0x000000", 2), Err(ValueError::TooLong));
        assert_eq!(binary("0bSGVsbG8=", 4), Err(ValueError::TooLong));
        // A character of two bytes where the prefix would end must not split.
        assert_eq!(binary("0é", 4), Err(ValueError::Binary));
    }

    // shows RFC 7143 [6.1-4]
    #[test]
    fn a_text_without_end_is_refused_before_it_fills_memory() {
        let mut assembler = Assembler::new();
        for _ in 0..8 {
            assert_eq!(assembler.push(&[b'a'; 8192], true), Ok(None));
        }
        assert!(assembler.is_partial());
        assert_eq!(assembler.push(b"a", true), Err(TextError::TooLong));
    }

    proptest! {
        #[test]
        fn what_was_built_is_parsed(
            pairs in proptest::collection::vec(("[A-Za-z0-9.+@_-]{1,63}", "[^\\x00]{0,100}"), 0..30)
        ) {
            let mut builder = Builder::new();
            for (key, value) in &pairs {
                builder.pair(key, value);
            }
            let bytes = builder.into_bytes();
            let expected: Vec<_> = pairs.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            prop_assert_eq!(parse(&bytes), Ok(expected));
        }

        #[test]
        fn a_text_cut_into_segments_comes_together(text in "[a-z]{0,60}", len in 1usize..20) {
            let mut builder = Builder::new();
            builder.pair("k", &text);
            let whole = builder.clone().into_bytes();
            let (mut segments, mut assembler) = (Segments::new(builder, len), Assembler::new());
            let assembled = loop {
                let data = segments.take();
                prop_assert!(data.len() <= len && !data.is_empty());
                if let Some(text) = assembler.push(&data, segments.continues()).unwrap() {
                    break text;
                }
            };
            prop_assert_eq!(assembled, whole);
        }

        #[test]
        fn hexadecimal_values_survive(bytes in proptest::collection::vec(any::<u8>(), 1..100)) {
            prop_assert_eq!(binary(&to_hexadecimal(&bytes), 100), Ok(bytes));
        }

        #[test]
        fn nothing_panics_on_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
            if let Ok(pairs) = parse(&bytes) {
                for (_, value) in pairs {
                    let _ = (number(value), boolean(value), range(value), binary(value, 16), list(value).count());
                }
            }
        }

        #[test]
        fn no_constant_panics_or_exceeds_its_limit(value in "0[xXbB][A-Za-z0-9+/=é]{0,40}") {
            if let Ok(bytes) = binary(&value, 16) {
                prop_assert!(bytes.len() <= 16);
            }
        }
    }
}
