//! Findings: what a check, a plan or a measurement noticed, in parts that people and programs can use.

use std::fmt;

/// Severity of a [`Finding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Good to know beside a figure; nothing has to be done.
    Note,
    /// Works, and costs performance or redundancy.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Warning => "warning",
        })
    }
}

/// Something that was noticed, where it is, why it matters and what to do.
///
/// Its parts make one sentence, "what: why; remedy", so they begin in lower case (but for names) and end without a full
/// stop. `why` and `remedy` may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Stable name, for documentation and programs: `rule-3`, `page-cache`.
    pub id: &'static str,
    /// Severity.
    pub severity: Severity,
    /// Observation, with figures.
    pub what: String,
    /// Subject: a port, a portal, a region of a disk.
    pub place: String,
    /// Possible consequences.
    pub why: String,
    /// Remedy.
    pub remedy: String,
}

impl Finding {
    /// A sentence with a capital letter and a full stop, as reports print it.
    pub fn sentence(&self) -> String {
        let text = self.to_string();
        let mut letters = text.chars();
        let first = letters.next().map(|letter| letter.to_uppercase().to_string());
        first.unwrap_or_default() + letters.as_str() + "."
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if !self.why.is_empty() {
            write!(f, ": {}", self.why)?;
        }
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_make_one_sentence_and_empty_ones_leave_no_mark() {
        let mut finding = Finding {
            id: "one-lane",
            severity: Severity::Warning,
            what: "there is one lane".to_owned(),
            place: "eth0".to_owned(),
            why: "a fault on it stops the disk".to_owned(),
            remedy: "add a second port".to_owned(),
        };
        assert_eq!(finding.sentence(), "There is one lane: a fault on it stops the disk; add a second port.");
        finding.why.clear();
        assert_eq!(finding.to_string(), "there is one lane; add a second port");
        finding.remedy.clear();
        assert_eq!(finding.to_string(), "there is one lane");
        finding.what.clear();
        assert_eq!(finding.sentence(), ".");
    }
}
