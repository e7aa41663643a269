//! Reason why a negotiation failed.

use crate::keys::{Key, KeyRule, ValueType};

/// Reason why a negotiation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationError {
    /// A key was negotiated twice (RFC 7143 §6.3, §6.4).
    #[error("{key} was sent twice, the second time as {value:?}")]
    Repeated {
        /// The key.
        key: Key,
        /// Second value, shortened.
        value: String,
    },
    /// A declaration that is no value of the key.
    #[error("the other side declares {key}={value:?}: {expected} is expected")]
    BadDeclaration {
        /// The key.
        key: Key,
        /// Value declared, shortened.
        value: String,
        /// Values that the key takes.
        expected: String,
    },
    /// The answer to our offer is no value of the key, or a choice that was not offered.
    #[error("{key}: we offered {offered}, the other side answered {answered:?}: {expected} is expected")]
    BadAnswer {
        /// The key.
        key: Key,
        /// Value that we offered.
        offered: String,
        /// Value answered, shortened.
        answered: String,
        /// Values that were possible.
        expected: String,
    },
    /// An answer such as Reject to something we cannot do without, or the key is missing altogether.
    #[error("{key}: {required} is required, the other side answered {said}")]
    Refused {
        /// The key.
        key: Key,
        /// Value that we cannot do without.
        required: String,
        /// Value that the other side offered or answered, shortened, or that it answered nothing.
        said: String,
    },
}

/// Longest part of a peer's value that an error repeats, characters: enough for every value that the standard knows.
const VALUE_SHOWN_MAX: usize = 64;

/// A peer's value as an error repeats it.
pub(super) fn shown(value: &str) -> String {
    value.chars().take(VALUE_SHOWN_MAX).collect()
}

/// Describes the values that a key takes, for people.
pub(super) fn expectation(rule: &KeyRule) -> String {
    match rule.value {
        ValueType::Number { min, max, .. } => format!("a number from {min} to {max}"),
        ValueType::Boolean { .. } => "Yes or No".to_owned(),
        ValueType::Choice(names) => format!("one of {}", names.join(", ")),
        ValueType::Text => "a text".to_owned(),
    }
}
