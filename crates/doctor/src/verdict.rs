//! Verdicts, and what a rule says about one place.

use std::fmt;

use lunway_block::Finding;
use serde::{Deserialize, Serialize};

/// Result of one rule about one place. The order is that of a report: the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Seen, and as it should be.
    Ok,
    /// Not seen. It is never counted as ok.
    Unknown,
    /// Works, and costs performance, redundancy or time at the next fault.
    Warn,
    /// Data or availability is at risk now.
    Bad,
}

impl Verdict {
    /// All of them, the best first.
    pub const ALL: [Self; 4] = [Self::Ok, Self::Unknown, Self::Warn, Self::Bad];
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Warn => "warn",
            Self::Bad => "bad",
        })
    }
}

/// What one rule says about one place: a [`Finding`] with a verdict.
///
/// The finding is the type that plan warnings and cache truth use. Its `remedy` is the fix with the names of this
/// machine, and `undo` restores what the fix replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// The verdict.
    pub verdict: Verdict,
    /// What was seen, where, why it matters and what to do.
    pub finding: Finding,
    /// What undoes the fix; empty where there is nothing to undo.
    pub undo: String,
}

/// What a check found at one place, before its rule adds why it matters and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) verdict: Verdict,
    pub(crate) place: String,
    pub(crate) what: String,
    /// Values for the placeholders of the rule's fix and undo.
    pub(crate) values: Vec<(&'static str, String)>,
    /// A fix and an undo of its own, where the rule's do not fit.
    pub(crate) fix: Option<(String, String)>,
}

impl Outcome {
    fn new(verdict: Verdict, place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { verdict, place: place.into(), what: what.into(), values: Vec::new(), fix: None }
    }

    pub(crate) fn ok(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self::new(Verdict::Ok, place, what)
    }

    pub(crate) fn warn(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self::new(Verdict::Warn, place, what)
    }

    pub(crate) fn bad(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self::new(Verdict::Bad, place, what)
    }

    pub(crate) fn unknown(place: impl Into<String>, why: impl Into<String>) -> Self {
        Self::new(Verdict::Unknown, place, why)
    }

    /// Ok where `sound` is true, `otherwise` where not.
    pub(crate) fn judged(
        sound: bool,
        otherwise: Verdict,
        place: impl Into<String>,
        what: impl Into<String>,
    ) -> Self {
        Self::new(if sound { Verdict::Ok } else { otherwise }, place, what)
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.values.push((name, value.to_string()));
        self
    }

    pub(crate) fn fixed_by(mut self, fix: impl Into<String>, undo: impl Into<String>) -> Self {
        self.fix = Some((fix.into(), undo.into()));
        self
    }

    /// A template with the values in the places of `{name}`.
    pub(crate) fn filled(&self, template: &str) -> String {
        let insert =
            |text: String, (name, value): &(&str, String)| text.replace(&format!("{{{name}}}"), value);
        self.values.iter().fold(template.to_owned(), insert)
    }
}
