//! Answers to what no program can see.

use std::collections::BTreeMap;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, anyhow};
use lunway_doctor::{Group, RULES, rule};

use super::state;
use crate::failure::Failure;

/// An answer on the command line.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    id: &'static str,
    yes: bool,
}

impl FromStr for Answer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (id, answer) = text.split_once('=').ok_or("an answer is RULE=yes or RULE=no")?;
        let asked = rule(id).filter(|rule| rule.group == Group::Asked);
        let asked = asked.ok_or_else(|| {
            format!("{id:?} is no question: lunway doctor --list shows them in the group \"asked\"")
        })?;
        match answer {
            "yes" => Ok(Self { id: asked.id, yes: true }),
            "no" => Ok(Self { id: asked.id, yes: false }),
            _ => Err(format!("{answer:?} is neither yes nor no")),
        }
    }
}

/// Refuses two answers to one question.
pub(super) fn contradict(answers: &[Answer]) -> Result<(), Failure> {
    let is_again = |(at, answer): &(usize, &Answer)| {
        answers[..*at].iter().any(|other| other.id == answer.id && other.yes != answer.yes)
    };
    match answers.iter().enumerate().find(is_again) {
        Some((_, answer)) => {
            Err(Failure::Usage(format!("--answer {} is given as yes and as no: give it once", answer.id)))
        }
        None => Ok(()),
    }
}

/// The answers of this user: `doctor.json` in the state folder.
pub(super) struct Answers {
    path: Option<PathBuf>,
    answers: BTreeMap<String, bool>,
}

impl Answers {
    /// Reads the answers given before.
    pub(super) fn read() -> Result<Self, Failure> {
        let path = state::path("doctor.json");
        let answers = match &path {
            Some(path) => read(path)?,
            None => BTreeMap::new(),
        };
        Ok(Self { path, answers })
    }

    pub(super) fn into_inner(self) -> BTreeMap<String, bool> {
        self.answers
    }

    /// Adds answers, and remembers them.
    pub(super) fn add(&mut self, new: &[Answer]) -> Result<(), Failure> {
        if new.is_empty() {
            return Ok(());
        }
        self.answers.extend(new.iter().map(|answer| (answer.id.to_owned(), answer.yes)));
        self.write()
    }

    /// Asks for what is missing, on a terminal.
    pub(super) fn ask(&mut self) -> Result<(), Failure> {
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            return Err(Failure::Usage("--ask needs a terminal; use --answer RULE=yes or no".to_owned()));
        }
        let asked = RULES.into_iter().flatten().filter(|rule| rule.group == Group::Asked);
        for rule in asked {
            if self.answers.contains_key(rule.id) {
                continue;
            }
            // On standard error: the results may go to a file.
            eprint!("{} [yes, no, or Enter for later]: ", rule.title);
            let _ = io::stderr().flush();
            let mut line = String::new();
            if io::stdin().lock().read_line(&mut line).unwrap_or(0) == 0 {
                break;
            }
            let yes = match line.trim() {
                "yes" | "y" => true,
                "no" | "n" => false,
                _ => continue,
            };
            self.answers.insert(rule.id.to_owned(), yes);
            self.write()?;
        }
        Ok(())
    }

    fn write(&self) -> Result<(), Failure> {
        let path = self.path.as_ref().ok_or_else(|| {
            Failure::failed(anyhow!("answers cannot be kept: neither XDG_STATE_HOME nor HOME is set"))
        })?;
        let text = serde_json::to_string_pretty(&serde_json::json!({ "answers": self.answers }));
        let text = text.context("cannot build JSON")?;
        state::write(path, &text)
            .with_context(|| format!("cannot keep the answers in {}", path.display()))
            .map_err(Failure::Failed)
    }
}

fn read(path: &Path) -> Result<BTreeMap<String, bool>, Failure> {
    let cannot = |why: String| {
        let name = path.display();
        Failure::failed(anyhow!("cannot read the answers in {name}: {why}; remove it and answer again"))
    };
    let Some(text) = state::read(path).map_err(cannot)? else { return Ok(BTreeMap::new()) };
    let mut document: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| cannot(error.to_string()))?;
    serde_json::from_value(document["answers"].take()).map_err(|error| cannot(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn answers_are_of_questions_and_yes_or_no() {
        assert!("asked-ups=yes".parse::<Answer>().is_ok_and(|answer| answer.yes));
        for text in ["asked-ups", "asked-ups=maybe", "port-mtu=yes", "=yes", ""] {
            assert!(text.parse::<Answer>().is_err(), "{text}");
        }
    }

    #[test]
    fn answers_are_remembered_and_a_file_of_something_else_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/lunway/doctor.json");
        let mut answers = Answers { path: Some(path.clone()), answers: BTreeMap::new() };
        answers.add(&["asked-ups=no".parse().unwrap()]).unwrap();
        assert_eq!(read(&path).unwrap().get("asked-ups"), Some(&false));
        for text in ["", "{}", "{\"answers\":7}", "{\"answers\":{\"a\":\"b\"}}"] {
            fs::write(&path, text).unwrap();
            assert!(format!("{:?}", read(&path)).contains("remove it and answer again"), "{text}");
        }
    }
}
