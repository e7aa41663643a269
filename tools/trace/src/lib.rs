//! From the requirements of RFC 7143 to the code that obeys them and the tests that show it.
//!
//! ```text
//!   docs/rfc7143/*.txt      the requirements, in our own words          requirement::Lists
//!   // RFC 7143 [6.3-4]     marks in code          ┐
//!   // shows RFC 7143 […]   marks in tests         ┘                    mark::Marks
//!                           both together                               Trace
//!   docs/rfc7143.md         the page, every requirement                 page::whole
//!   docs/src/rfc7143.md     its summary, for the book                   page::summary
//! ```
//!
//! A requirement is **tested** (code and test have its mark), **implemented** (only code has), **kept by absence**
//! (nothing in the code could break it), **deliberately not** obeyed or **not yet**; the last three are said in the
//! list, with the reason. One that is none of these, and a mark that names no requirement, are faults, and
//! `cargo test -p lunway-trace` fails. `LUNWAY_WRITE_DOCS=1 cargo test -p lunway-trace` writes the pages anew.

pub mod mark;
pub mod page;
pub mod requirement;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::Path;

use mark::{Mark, Marks};
use requirement::{Chapter, Lists, Reason, Requirement};

/// Standing of a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Code obeys it and a test shows it.
    Tested,
    /// Code obeys it.
    Implemented,
    /// Nothing in the code could break it.
    Absent,
    /// Deliberately not obeyed.
    Refused,
    /// Not obeyed yet.
    Missing,
    /// No mark and no reason: a fault.
    Unmarked,
}

impl Standing {
    /// All, best first.
    pub const ALL: [Self; 6] =
        [Self::Tested, Self::Implemented, Self::Absent, Self::Refused, Self::Missing, Self::Unmarked];

    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tested => "tested",
            Self::Implemented => "implemented",
            Self::Absent => "kept by absence",
            Self::Refused => "deliberately not",
            Self::Missing => "not yet",
            Self::Unmarked => "unmarked",
        }
    }
}

/// Fault of the lists or the marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A mark that names no requirement.
    Unknown(Mark),
    /// A requirement without mark or reason.
    Unmarked(String),
    /// A requirement with marks in code that the list says is not obeyed.
    Contradiction(String, Mark),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(mark) => write!(f, "{mark} names {}, which is in no list", mark.id),
            Self::Unmarked(id) => write!(f, "{id} has neither a mark nor a reason"),
            Self::Contradiction(id, mark) => write!(f, "{id} is said not to be obeyed, and {mark} obeys it"),
        }
    }
}

/// The requirements with their marks.
#[derive(Debug)]
pub struct Trace {
    lists: Lists,
    code: BTreeMap<String, Vec<Mark>>,
    tests: BTreeMap<String, Vec<Mark>>,
}

impl Trace {
    /// Reads `docs/rfc7143` and `crates` of the repository at `root`; not `tools`: comments of this crate explain
    /// marks.
    pub fn read(root: &Path) -> io::Result<Self> {
        let lists = Lists::read(&root.join("docs/rfc7143"))?;
        let marks = Marks::read(root, Path::new("crates"))?;
        let mut trace = Self { lists, code: BTreeMap::new(), tests: BTreeMap::new() };
        for mark in marks.0 {
            let side = if mark.shows { &mut trace.tests } else { &mut trace.code };
            side.entry(mark.id.clone()).or_default().push(mark);
        }
        Ok(trace)
    }

    /// The chapters with their requirements.
    pub fn chapters(&self) -> &[Chapter] {
        &self.lists.chapters
    }

    /// The reason of a requirement in full, its name resolved.
    pub fn words_of<'a>(&'a self, reason: &'a str) -> &'a str {
        self.lists.words_of(reason)
    }

    /// Marks where code obeys the requirement.
    pub fn code(&self, requirement: &Requirement) -> &[Mark] {
        self.code.get(&requirement.id).map_or(&[], Vec::as_slice)
    }

    /// Which tests show it.
    pub fn tests(&self, requirement: &Requirement) -> &[Mark] {
        self.tests.get(&requirement.id).map_or(&[], Vec::as_slice)
    }

    /// Standing of the requirement.
    pub fn standing(&self, requirement: &Requirement) -> Standing {
        match &requirement.reason {
            Some(Reason::Refused(_)) => Standing::Refused,
            Some(Reason::Missing(_)) => Standing::Missing,
            // Absence can be tested as well.
            _ if !self.tests(requirement).is_empty() => Standing::Tested,
            _ if !self.code(requirement).is_empty() => Standing::Implemented,
            Some(Reason::Absent(_)) => Standing::Absent,
            None => Standing::Unmarked,
        }
    }

    /// Number of these requirements by standing.
    pub fn counts<'a>(
        &self,
        requirements: impl Iterator<Item = &'a Requirement>,
    ) -> BTreeMap<Standing, usize> {
        let mut counts = BTreeMap::new();
        for requirement in requirements {
            *counts.entry(self.standing(requirement)).or_default() += 1;
        }
        counts
    }

    /// Everything that is wrong.
    pub fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let marks = self.code.values().chain(self.tests.values()).flatten();
        faults.extend(marks.filter(|mark| self.lists.find(&mark.id).is_none()).cloned().map(Fault::Unknown));
        for requirement in self.lists.requirements() {
            match (self.standing(requirement), self.code(requirement)) {
                (Standing::Unmarked, _) => faults.push(Fault::Unmarked(requirement.id.clone())),
                (Standing::Refused | Standing::Missing, [mark, ..]) => {
                    faults.push(Fault::Contradiction(requirement.id.clone(), mark.clone()));
                }
                _ => {}
            }
        }
        faults
    }
}
