//! iSCSI names.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Longest name, bytes (RFC 7143 §4.2.7.1).
// RFC 7143 [4.2.7.1-2, 4.2.7.2-1]
const NAME_MAX: usize = 223;

/// The name of an iSCSI node: `iqn.`, `eui.` or `naa.` (RFC 7143 §4.2.7), kept in its normal form.
///
/// Two names are the same node exactly if their normal forms have the same bytes, so comparing values of this type is
/// right. Normalising is RFC 3722's stringprep as far as ASCII goes: capitals become small. Beyond ASCII the name is
/// taken as it comes: its author must have normalised it, as §4.2.7.1 asks.
///
/// One rule holds for all names, ours and peers': what can be sent as a name and written in an address is one. Names in
/// use depart from the standards' form (`_` is common), and those who chose them cannot always change them.
/// [`departure`](Self::departure) says where a name of ours does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IscsiName(String);

/// Reason why a name is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Empty, or longer than 223 bytes.
    #[error("{0:?} has {len} bytes, a name has 1 to {NAME_MAX} (RFC 7143 §4.2.7.1)", len = .0.len())]
    Length(String),
    /// Not one of the three types.
    #[error("{0:?} starts neither with \"iqn.\" nor \"eui.\" nor \"naa.\" (RFC 7143 §4.2.7.3)")]
    Type(String),
    /// A character that cannot be part of a name: blanks and control characters, and those that end a name in an
    /// address.
    #[error(
        "{name:?} contains {character:?}: blanks, control characters and any of {RESERVED} cannot be in a name"
    )]
    Character {
        /// The whole name.
        name: String,
        /// The first such character.
        character: char,
    },
}

/// Departure of a name from the form that the standards give it; some initiators refuse such a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameDeparture {
    /// A character that RFC 3722 does not have in names.
    #[error("it contains {0:?}: names consist of letters, digits, '-', '.' and ':' (RFC 3722)")]
    Character(char),
    /// `iqn.` is not followed by the year and month in which its author owned the domain, and the domain.
    #[error("it is not of the form \"iqn.YYYY-MM.reversed.domain:anything\" (RFC 7143 §4.2.7.4)")]
    Iqn,
    /// Not 16 (`eui.`), or 16 or 32 (`naa.`), hexadecimal digits.
    #[error(
        "it does not have 16 hexadecimal digits after \"eui.\", 16 or 32 after \"naa.\" (RFC 7143 §4.2.7.5, §4.2.7.6)"
    )]
    Digits,
}

/// Characters that end a path or cannot be in one (RFC 3986 §3.3): `iscsi://` addresses and the paths of the API hold
/// names as they are.
const RESERVED: &str = "/?#%\"<>[]\\^`{|}";

impl IscsiName {
    /// Name of a target for which its user has not chosen one. The host's name makes it unique, as names of targets
    /// should be.
    pub fn of_this_host() -> Self {
        let host = lunway_machine::host_name().to_ascii_lowercase();
        let host: String =
            host.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.')).take(64).collect();
        let name = format!("iqn.2026-11.io.lunway:{}", if host.is_empty() { "target" } else { &host });
        Self::parse(&name).expect("made of characters that names may have")
    }

    /// Checks and normalises.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let name = text.to_ascii_lowercase();
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(NameError::Length(name));
        }
        let unusable = |c: &char| c.is_whitespace() || c.is_control() || RESERVED.contains(*c);
        if let Some(character) = name.chars().find(unusable) {
            return Err(NameError::Character { name, character });
        }
        match name.split_at_checked(4) {
            Some(("iqn." | "eui." | "naa.", rest)) if !rest.is_empty() => Ok(Self(name)),
            _ => Err(NameError::Type(name)),
        }
    }

    /// Returns the departure of the name from the form of RFC 7143 §4.2.7 and RFC 3722; `None`: there is none.
    pub fn departure(&self) -> Option<NameDeparture> {
        let outside = |c: &char| c.is_ascii() && !(c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':'));
        if let Some(character) = self.0.chars().find(outside) {
            return Some(NameDeparture::Character(character));
        }
        let hexadecimal = |digits: &str, counts: &[usize]| {
            counts.contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit())
        };
        match self.0.split_at_checked(4) {
            Some(("iqn.", rest)) => (!is_dated_domain(rest)).then_some(NameDeparture::Iqn),
            Some(("eui.", digits)) => (!hexadecimal(digits, &[16])).then_some(NameDeparture::Digits),
            Some((_, digits)) => (!hexadecimal(digits, &[16, 32])).then_some(NameDeparture::Digits),
            None => None,
        }
    }

    /// The normal form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// `YYYY-MM.domain` or `YYYY-MM.domain:anything`.
fn is_dated_domain(text: &str) -> bool {
    let bytes = text.as_bytes();
    let digits = |range: std::ops::Range<usize>| bytes[range].iter().all(u8::is_ascii_digit);
    bytes.len() > 8
        && digits(0..4)
        && bytes[4] == b'-'
        && digits(5..7)
        && matches!(&bytes[5..7], [b'0', b'1'..=b'9'] | [b'1', b'0'..=b'2'])
        && bytes[7] == b'.'
        && !matches!(bytes[8], b'.' | b':')
}

impl TryFrom<String> for IscsiName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        Self::parse(&text)
    }
}

impl From<IscsiName> for String {
    fn from(name: IscsiName) -> Self {
        name.0
    }
}

impl fmt::Display for IscsiName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_types_of_names_are_accepted_and_become_lower_case() {
        for (text, normal) in [
            ("iqn.2001-04.com.example:storage:diskarrays-sn-a8675309", None),
            ("iqn.2001-04.com.example", None),
            ("IQN.2001-04.COM.Example:Disk", Some("iqn.2001-04.com.example:disk")),
            ("eui.02004567A425678D", Some("eui.02004567a425678d")),
            ("naa.52004567BA64678D", Some("naa.52004567ba64678d")),
            ("naa.62004567BA64678D0123456789ABCDEF", Some("naa.62004567ba64678d0123456789abcdef")),
        ] {
            let name = IscsiName::parse(text).unwrap();
            assert_eq!((name.as_str(), name.departure()), (normal.unwrap_or(text), None));
        }
    }

    #[test]
    fn what_is_not_a_name_is_refused_with_the_reason() {
        let long = format!("iqn.2001-04.com.example:{}", "x".repeat(200));
        for (text, part) in [
            ("", "has 0 bytes"),
            (long.as_str(), "has 224 bytes"),
            ("disk", "starts neither"),
            ("iqn.", "starts neither"),
            ("iqn.2001-04.com.example:my disk", "contains ' '"),
            ("iqn.2001-04.com.example:a/b", "contains '/'"),
            ("iqn.2001-04.com.example:a\tb", "contains '\\t'"),
        ] {
            let message = IscsiName::parse(text).expect_err(text).to_string();
            assert!(message.contains(part), "{text:?}: {message}");
        }
    }
    #[test]
    fn a_name_that_departs_from_the_standards_form_is_a_name_and_the_departure_is_told() {
        for (text, part) in [
            ("iqn.2001-04.com.example:a_b", "contains '_'"),
            ("iqn.2001-04.com.example:a@b", "contains '@'"),
            ("iqn.2001-13.com.example", "YYYY-MM"),
            ("iqn.2001-04.", "YYYY-MM"),
            ("iqn.example", "YYYY-MM"),
            ("eui.02004567A425678", "16 hexadecimal"),
            ("naa.02004567A425678Z", "16 hexadecimal"),
        ] {
            let told = IscsiName::parse(text).unwrap().departure().map(|departure| departure.to_string());
            assert!(told.as_ref().is_some_and(|told| told.contains(part)), "{text:?}: {told:?}");
        }
    }
}
