//! A fact, or the reason why it is not known.

use serde::{Deserialize, Serialize};

/// A fact that was read, or why it could not be.
///
/// **Invariant**: what was not seen is never taken for a value. A rule that meets an [`Unseen`](Self::Unseen) fact says
/// "unknown", with its reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Seen<T> {
    /// Not known.
    Unseen {
        /// Reason, as a clause: `reading it takes root`.
        unseen: String,
    },
    /// Known.
    Value(T),
}

impl<T> Seen<T> {
    /// Not known, for this reason.
    pub fn unseen(why: impl Into<String>) -> Self {
        Self::Unseen { unseen: why.into() }
    }

    /// The value; `None`: not known.
    pub fn get(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Unseen { .. } => None,
        }
    }

    /// Returns the reason why it is not known; empty where it is.
    pub fn why(&self) -> &str {
        match self {
            Self::Value(_) => "",
            Self::Unseen { unseen } => unseen,
        }
    }

    /// The value, or why there is none.
    pub fn known(&self) -> Result<&T, &str> {
        match self {
            Self::Value(value) => Ok(value),
            Self::Unseen { unseen } => Err(unseen),
        }
    }
}

impl<T> Default for Seen<T> {
    fn default() -> Self {
        Self::unseen("it was not collected")
    }
}

impl<T> From<Result<T, String>> for Seen<T> {
    fn from(result: Result<T, String>) -> Self {
        result.map_or_else(Self::unseen, Self::Value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_and_a_missing_fact_come_back_from_json_as_they_were() {
        for fact in [Seen::Value(vec![1, 2]), Seen::unseen("no permission")] {
            let text = serde_json::to_string(&fact).unwrap_or_default();
            assert_eq!(serde_json::from_str::<Seen<Vec<u32>>>(&text).ok(), Some(fact), "{text}");
        }
    }
}
