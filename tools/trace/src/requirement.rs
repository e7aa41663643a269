//! The lists of requirements: one file for each chapter of the RFC, written to be read and edited by people.
//!
//! ```text
//! # 6 Login and full feature phase negotiation
//!
//! ## 6.3 Login phase
//!
//! 6.3-1 | MUST | both | At most one login PDU is outstanding on a connection.
//! 6.3-2 | MAY | initiator | A login may leave out the security stage.
//!     deliberately not: @always-security
//! ```
//!
//! The words of a reason may stand in `reasons.txt`, once for all that share it: `@name | words`.

use std::fs;
use std::io;
use std::path::Path;

/// Strength of the RFC's wording.
pub const LEVELS: [&str; 5] = ["MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "MAY"];
/// Whom it asks. `people` are those who install and configure.
pub const ROLES: [&str; 4] = ["target", "initiator", "both", "people"];

/// Reason why a requirement has no mark, or needs none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// `deliberately not:`
    Refused(String),
    /// `not yet:`
    Missing(String),
    /// `kept by absence:`
    Absent(String),
}

impl Reason {
    /// The words, or the name of a shared reason.
    pub fn words(&self) -> &str {
        match self {
            Self::Refused(words) | Self::Missing(words) | Self::Absent(words) => words,
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let (kind, words) = line.split_once(": ")?;
        let words = words.trim().to_owned();
        match kind {
            "deliberately not" => Some(Self::Refused(words)),
            "not yet" => Some(Self::Missing(words)),
            "kept by absence" => Some(Self::Absent(words)),
            _ => None,
        }
    }
}

/// One thing that the RFC asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// Section and number, `6.3-1`; stable, so a deleted one is not used again.
    pub id: String,
    /// One of [`LEVELS`].
    pub level: String,
    /// One of [`ROLES`].
    pub role: String,
    /// One sentence of our own.
    pub words: String,
    /// Reason why there is no mark.
    pub reason: Option<Reason>,
}

/// A section with its requirements.
#[derive(Clone, Debug)]
pub struct Section {
    /// Number and title.
    pub title: String,
    /// In the RFC's order.
    pub requirements: Vec<Requirement>,
}

/// A chapter: one file.
#[derive(Clone, Debug)]
pub struct Chapter {
    /// Number and title.
    pub title: String,
    /// In the RFC's order.
    pub sections: Vec<Section>,
}

impl Chapter {
    /// All requirements of the chapter.
    pub fn requirements(&self) -> impl Iterator<Item = &Requirement> {
        self.sections.iter().flat_map(|section| &section.requirements)
    }
}

/// All chapters, and the reasons that several requirements share.
#[derive(Clone, Debug, Default)]
pub struct Lists {
    /// In the RFC's order.
    pub chapters: Vec<Chapter>,
    shared: Vec<(String, String)>,
}

impl Lists {
    /// Reads every `.txt` of the directory.
    pub fn read(directory: &Path) -> io::Result<Self> {
        let mut files: Vec<_> = fs::read_dir(directory)?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()?;
        files.retain(|file| file.extension().is_some_and(|extension| extension == "txt"));
        files.sort();
        let mut lists = Self::default();
        for file in files {
            let text = fs::read_to_string(&file)?;
            let taken =
                if file.ends_with("reasons.txt") { lists.take_reasons(&text) } else { lists.take(&text) };
            taken.map_err(|(line, what)| {
                io::Error::new(io::ErrorKind::InvalidData, format!("{}:{line}: {what}", file.display()))
            })?;
        }
        for requirement in lists.requirements() {
            if let Some(reason) = &requirement.reason
                && lists.words_of(reason.words()).starts_with('@')
            {
                let what = format!("{}: nobody knows the reason {}", requirement.id, reason.words());
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
        Ok(lists)
    }

    /// All requirements.
    pub fn requirements(&self) -> impl Iterator<Item = &Requirement> {
        self.chapters.iter().flat_map(Chapter::requirements)
    }

    /// The requirement with this id.
    pub fn find(&self, id: &str) -> Option<&Requirement> {
        self.requirements().find(|requirement| requirement.id == id)
    }

    /// A reason in full: what `@name` stands for, or the words themselves.
    pub fn words_of<'a>(&'a self, reason: &'a str) -> &'a str {
        self.shared.iter().find(|(name, _)| name == reason).map_or(reason, |(_, words)| words)
    }

    fn take_reasons(&mut self, text: &str) -> Result<(), (usize, String)> {
        for (number, line) in text.lines().enumerate().filter(|(_, line)| line.starts_with('@')) {
            let (name, words) =
                line.split_once(" | ").ok_or((number + 1, "a reason is `@name | words`".to_owned()))?;
            self.shared.push((name.trim().into(), words.trim().into()));
        }
        Ok(())
    }

    fn take(&mut self, text: &str) -> Result<(), (usize, String)> {
        let mut chapter: Option<Chapter> = None;
        for (index, line) in text.lines().enumerate() {
            let fault = |what: &str| (index + 1, what.to_owned());
            if line.trim().is_empty() || line.starts_with("//") {
                continue;
            }
            if let Some(title) = line.strip_prefix("# ") {
                chapter = Some(Chapter { title: title.into(), sections: Vec::new() });
                continue;
            }
            let sections =
                &mut chapter.as_mut().ok_or(fault("nothing stands before the chapter's title"))?.sections;
            if let Some(title) = line.strip_prefix("## ") {
                sections.push(Section { title: title.into(), requirements: Vec::new() });
                continue;
            }
            let section = sections.last_mut().ok_or(fault("a requirement stands in a section"))?;
            if line.starts_with(' ') {
                let last =
                    section.requirements.last_mut().ok_or(fault("a reason follows its requirement"))?;
                last.reason = Some(Reason::parse(line.trim()).ok_or(fault("that is no kind of reason"))?);
                continue;
            }
            let fields: Vec<&str> = line.splitn(4, '|').map(str::trim).collect();
            let [id, level, role, words] = fields[..] else {
                return Err(fault("a requirement is `id | level | role | words`"));
            };
            let number = section.title.split(' ').next().unwrap_or_default();
            let fits = id.strip_prefix(number).and_then(|rest| rest.strip_prefix('-'));
            if fits.is_none_or(|rest| rest.parse::<u32>().is_err()) {
                return Err(fault("an id is the section's number, `-`, and a number"));
            }
            if !LEVELS.contains(&level) || !ROLES.contains(&role) || words.is_empty() {
                return Err(fault("a level or a role that there is not, or no words"));
            }
            let twice = section.requirements.iter().any(|other| other.id == id) || self.find(id).is_some();
            if twice {
                return Err(fault("this id is taken"));
            }
            section.requirements.push(Requirement {
                id: id.into(),
                level: level.into(),
                role: role.into(),
                words: words.into(),
                reason: None,
            });
        }
        self.chapters.extend(chapter);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# 6 Login\n\n## 6.3 Phase\n\n6.3-1 | MUST | both | One.\n6.3-2 | MAY | target | Two.\n    not yet: @soon\n";

    #[test]
    fn a_list_is_read_as_it_is_written() {
        let mut lists = Lists::default();
        lists.take(TEXT).unwrap();
        lists.take_reasons("@soon | In a while.\n").unwrap();
        let two = lists.find("6.3-2").unwrap();
        assert_eq!((two.level.as_str(), two.role.as_str(), two.words.as_str()), ("MAY", "target", "Two."));
        assert_eq!(lists.words_of(two.reason.as_ref().unwrap().words()), "In a while.");
        assert_eq!(lists.find("6.3-1").unwrap().reason, None);
    }

    #[test]
    fn what_is_no_requirement_is_refused_with_its_line() {
        for (line, number) in [
            ("6.3-1 | MUST | both | Again.", 8),
            ("6.4-1 | MUST | both | Of another section.", 8),
            ("6.3-3 | OUGHT | both | No level.", 8),
            ("6.3-3 | MUST | both", 8),
            ("    perhaps: no kind of reason", 8),
        ] {
            let fault = Lists::default().take(&format!("{TEXT}{line}\n")).unwrap_err();
            assert_eq!(fault.0, number, "{line}: {}", fault.1);
        }
    }
}
