//! The lines of a job file.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lunway_block::small_file;

use super::error::{JobFileError, Problem};

/// Bytes of one file.
const FILE_MAX: u64 = 1 << 20;
/// Settings of a file and all that it includes.
const SETTINGS_MAX: usize = 4096;
const SECTIONS_MAX: usize = 512;
const INCLUDES_MAX: usize = 64;
const INCLUDE_DEPTH_MAX: usize = 8;
/// Bytes of a value once its variables are filled in.
const VALUE_MAX: usize = 64 << 10;

/// Position in a job file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// The file, as it was named.
    pub file: Arc<Path>,
    /// From 1.
    pub line: usize,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// `key=value`, or a key alone.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) place: SourceLine,
    pub(super) key: String,
    pub(super) value: Option<String>,
}

/// `[name]` and what stands below it.
#[derive(Clone, Debug)]
pub(super) struct RawSection {
    pub(super) place: SourceLine,
    pub(super) name: String,
    pub(super) settings: Vec<Setting>,
    /// Number of global settings above it: those are its defaults.
    pub(super) globals: usize,
}

/// A job file as text: settings with their places, variables filled in, includes taken in, no meaning yet.
#[derive(Debug, Default)]
pub(super) struct Ini {
    pub(super) globals: Vec<Setting>,
    pub(super) sections: Vec<RawSection>,
    settings: usize,
    includes: usize,
}

/// Values of environment variables.
pub(super) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Destination of the settings of a line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Current {
    Nowhere,
    Globals,
    Section,
}

impl Ini {
    pub(super) fn read(path: &Path, environment: Environment<'_>) -> Result<Self, JobFileError> {
        let mut ini = Self::default();
        let mut current = Current::Nowhere;
        ini.take(path, &load(path)?, &mut current, environment, 0)?;
        Ok(ini)
    }

    #[cfg(test)]
    pub(super) fn parse(text: &str, environment: Environment<'_>) -> Result<Self, JobFileError> {
        let mut ini = Self::default();
        ini.take(Path::new("test.fio"), text, &mut Current::Nowhere, environment, 0)?;
        Ok(ini)
    }

    fn take(
        &mut self,
        path: &Path,
        text: &str,
        current: &mut Current,
        environment: Environment<'_>,
        depth: usize,
    ) -> Result<(), JobFileError> {
        let file: Arc<Path> = path.into();
        for (index, line) in text.lines().enumerate() {
            let place = SourceLine { file: file.clone(), line: index + 1 };
            let wrong = |problem| JobFileError::Line { place: place.clone(), problem };
            // fio ends a line at the first of these, wherever it stands.
            let line = line.split([';', '#']).next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            if let Some(header) = line.strip_prefix('[') {
                if depth > 0 {
                    return Err(wrong(Problem::SectionInInclude));
                }
                *current = self.open(header, &place).map_err(wrong)?;
                continue;
            }
            if *current == Current::Nowhere {
                return Err(wrong(Problem::NoSection));
            }
            if let Some(name) = line.strip_prefix("include ") {
                let included = find(path, name.trim());
                self.includes += 1;
                if depth == INCLUDE_DEPTH_MAX || self.includes > INCLUDES_MAX {
                    return Err(wrong(Problem::Includes { most: INCLUDES_MAX, deepest: INCLUDE_DEPTH_MAX }));
                }
                let text = load(&included)?;
                self.take(&included, &text, current, environment, depth + 1)?;
                continue;
            }
            let (key, value) = match line.split_once('=') {
                Some((key, value)) => (key.trim_end(), Some(value.trim_start())),
                None => (line, None),
            };
            let value = value.map(|value| fill_in(value, environment)).transpose().map_err(wrong)?;
            self.settings += 1;
            if self.settings > SETTINGS_MAX {
                return Err(wrong(Problem::Settings { most: SETTINGS_MAX }));
            }
            let setting = Setting { place, key: key.to_owned(), value };
            match self.sections.last_mut() {
                Some(section) if *current == Current::Section => section.settings.push(setting),
                _ => self.globals.push(setting),
            }
        }
        Ok(())
    }

    fn open(&mut self, header: &str, place: &SourceLine) -> Result<Current, Problem> {
        let (name, _) = header.split_once(']').ok_or(Problem::Header)?;
        match name.trim() {
            "" => Err(Problem::Header),
            "global" => Ok(Current::Globals),
            _ if self.sections.len() == SECTIONS_MAX => Err(Problem::Sections { most: SECTIONS_MAX }),
            name => {
                let (name, globals) = (name.to_owned(), self.globals.len());
                self.sections.push(RawSection { place: place.clone(), name, settings: Vec::new(), globals });
                Ok(Current::Section)
            }
        }
    }
}

/// An included file: as it is named, else beside the file that includes it.
fn find(including: &Path, name: &str) -> PathBuf {
    let named = Path::new(name);
    let beside = including.parent().map(|folder| folder.join(named));
    beside.filter(|beside| !named.exists() && beside.exists()).unwrap_or_else(|| named.to_owned())
}

fn load(path: &Path) -> Result<String, JobFileError> {
    small_file::read_text(path, FILE_MAX).map_err(|source| {
        let source = match source.kind() {
            io::ErrorKind::FileTooLarge => {
                let message = format!("it is larger than {FILE_MAX} bytes, which no job file needs");
                io::Error::new(io::ErrorKind::FileTooLarge, message)
            }
            _ => source,
        };
        JobFileError::Read { path: path.to_owned(), source }
    })
}

/// Replaces each `${NAME}`.
///
/// fio takes an unset variable for nothing; that makes another job of the file than its author meant, so it is an
/// error.
fn fill_in(value: &str, environment: Environment<'_>) -> Result<String, Problem> {
    let mut filled = String::new();
    let mut rest = value;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, behind)) = after.split_once('}') else { break };
        filled.push_str(before);
        filled.push_str(&environment(name).ok_or_else(|| Problem::Unset { name: name.to_owned() })?);
        rest = behind;
        if filled.len() > VALUE_MAX {
            return Err(Problem::Long { most: VALUE_MAX });
        }
    }
    filled.push_str(rest);
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Ini, String> {
        let environment = |name: &str| (name == "SIZE").then(|| "64m".to_owned());
        Ini::parse(text, &environment).map_err(|error| error.to_string())
    }

    fn pairs(settings: &[Setting]) -> Vec<(&str, Option<&str>)> {
        settings.iter().map(|setting| (setting.key.as_str(), setting.value.as_deref())).collect()
    }

    #[test]
    fn sections_have_the_globals_above_them_and_comments_are_gone() {
        let ini = parse(
            "; a comment\n# another\n[global]\n rw = randread  ; trailing\nsize=${SIZE}\n\n[one]\ntime_based\nbs=4k#x\n\
             [global]\nbs=8k\n[two words]\n",
        )
        .unwrap();
        assert_eq!(
            pairs(&ini.globals),
            [("rw", Some("randread")), ("size", Some("64m")), ("bs", Some("8k"))]
        );
        assert_eq!(pairs(&ini.sections[0].settings), [("time_based", None), ("bs", Some("4k"))]);
        let sections: Vec<_> =
            ini.sections.iter().map(|s| (s.name.as_str(), s.globals, s.place.line)).collect();
        assert_eq!(sections, [("one", 2, 7), ("two words", 3, 12)]);
    }

    #[test]
    fn what_is_no_job_file_is_refused_with_its_place() {
        assert_eq!(parse("bs=4k").unwrap_err(), "test.fio:1: there is a setting before the first [section]");
        assert!(parse("[a\nbs=4k").unwrap_err().starts_with("test.fio:1: "));
        assert!(parse("[]").is_err());
        let unset = parse("[a]\n\nsize=${NOPE}").unwrap_err();
        assert_eq!(unset, "test.fio:3: the environment variable NOPE is not set");
        assert_eq!(
            parse("[a]\nname=$x ${y").unwrap().sections[0].settings[0].value.as_deref(),
            Some("$x ${y")
        );
    }

    #[test]
    fn a_hostile_file_is_refused_before_it_costs_anything() {
        assert!(parse(&"[a]\n".repeat(SECTIONS_MAX + 1)).is_err());
        assert!(parse(&format!("[a]\n{}", "bs=4k\n".repeat(SETTINGS_MAX + 1))).is_err());
        let long = "${SIZE}".repeat(VALUE_MAX);
        assert!(parse(&format!("[a]\nname={long}")).is_err());
    }

    #[test]
    fn includes_are_found_beside_the_file_and_cannot_go_round_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("main.fio", "[global]\ninclude part.inc\n[a]\ninclude part.inc\nbs=8k\n");
        write("part.inc", "bs=4k\n");
        let ini = Ini::read(&folder.path().join("main.fio"), &|_| None).unwrap();
        assert_eq!(pairs(&ini.globals), [("bs", Some("4k"))]);
        assert_eq!(pairs(&ini.sections[0].settings), [("bs", Some("4k")), ("bs", Some("8k"))]);
        write("part.inc", "include part.inc\ninclude part.inc\n");
        assert!(Ini::read(&folder.path().join("main.fio"), &|_| None).is_err());
        write("part.inc", "[b]\n");
        assert!(Ini::read(&folder.path().join("main.fio"), &|_| None).is_err());
        write("part.inc", "include nothing.inc\n");
        let missing = Ini::read(&folder.path().join("main.fio"), &|_| None).unwrap_err().to_string();
        assert!(missing.contains("nothing.inc"), "{missing}");
    }
}
