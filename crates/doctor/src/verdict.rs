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

/// Diagnosis by one rule for one place: a [`Finding`] with a verdict.
///
/// The finding is the type that plan warnings and cache truth use. Its `remedy` is the fix with the names of this
/// machine, and `undo` restores what the fix replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// The verdict.
    pub verdict: Verdict,
    /// Observation, its place, why it matters and what to do.
    pub finding: Finding,
    /// Command that undoes the fix; empty where there is nothing to undo.
    pub undo: String,
}

/// A value for a placeholder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    name: &'static str,
    text: String,
    /// Written for a shell already.
    for_shell: bool,
}

/// The shell that a fix is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shell {
    /// A POSIX shell.
    Sh,
    /// Windows PowerShell.
    PowerShell,
}

/// Outcome of a check at one place, before its rule adds why it matters and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) verdict: Verdict,
    pub(crate) place: String,
    pub(crate) what: String,
    /// Values for the placeholders of the rule's fix and undo.
    pub(crate) values: Vec<Value>,
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
        self.values.push(Value { name, text: value.to_string(), for_shell: false });
        self
    }

    /// Several words of a command, quoted one by one.
    pub(crate) fn with_words(self, name: &'static str, words: impl IntoIterator<Item = String>) -> Self {
        let words: Vec<String> = words.into_iter().map(|word| Shell::Sh.word(&word)).collect();
        self.with_text(name, words.join(" "))
    }

    /// A part of a command that has no name of this machine in it.
    pub(crate) fn with_text(mut self, name: &'static str, text: String) -> Self {
        self.values.push(Value { name, text, for_shell: true });
        self
    }

    pub(crate) fn fixed_by(mut self, fix: impl Into<String>, undo: impl Into<String>) -> Self {
        self.fix = Some((fix.into(), undo.into()));
        self
    }

    /// A template with the values in the places of `{name}`.
    ///
    /// Values are names that others have chosen: of files, targets, hosts. The result is pasted into a shell, so each
    /// of them is quoted where its characters mean something to one. Where sed would read them as well, there is no
    /// command, but what to do.
    pub(crate) fn filled(&self, template: &str, shell: Shell) -> String {
        let mut text = String::new();
        let mut quote = None;
        let mut rest = template;
        while let Some(next) = rest.chars().next() {
            let value = rest
                .strip_prefix('{')
                .and_then(|rest| rest.split_once('}'))
                .and_then(|(name, _)| self.values.iter().find(|value| value.name == name));
            if let Some(value) = value {
                rest = &rest[value.name.len() + 2..];
                if value.text.chars().any(char::is_control) {
                    let place = shell.word(&self.place);
                    return format!(
                        "change {place} by hand: a name in it has characters that cannot be shown (each is a ? here)"
                    );
                }
                if !value.for_shell && template.contains("sed -i") && !value.text.chars().all(is_plain) {
                    let place = shell.word(&self.place);
                    return format!(
                        "edit the file of {place} by hand: a name in it has characters that sed gives a meaning"
                    );
                }
                text +=
                    &if value.for_shell { value.text.clone() } else { shell.inserted(&value.text, quote) };
                continue;
            }
            let before = text.chars().next_back();
            match (next, quote) {
                // A comment has no quotes, but apostrophes.
                ('#', None) if before.is_none_or(char::is_whitespace) => quote = Some('#'),
                ('\'' | '"', None) => quote = Some(next),
                (_, Some(open)) if next == open && next != '#' => quote = None,
                _ => {}
            }
            text.push(next);
            rest = &rest[next.len_utf8()..];
        }
        text
    }
}

/// Characters that are themselves in every shell, wherever they stand.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '/' | '-' | '=' | '+')
}

impl Shell {
    /// A text as one word, which no character of it can end. Control characters, which no name needs, are replaced.
    pub(crate) fn word(self, text: &str) -> String {
        let text: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        if !text.is_empty() && text.chars().all(is_plain) {
            return text;
        }
        match self {
            Self::Sh => format!("'{}'", text.replace('\'', "'\\''")),
            Self::PowerShell => format!("'{}'", Self::doubled(&text)),
        }
    }

    /// PowerShell takes typographic quotes for straight ones.
    fn doubled(text: &str) -> String {
        let is_quote = |c: char| matches!(c, '\'' | '\u{2018}' | '\u{2019}' | '\u{201a}' | '\u{201b}');
        text.chars().flat_map(|c| std::iter::repeat_n(c, 1 + usize::from(is_quote(c)))).collect()
    }

    /// A text within an open quote of the command, or outside of quotes.
    fn inserted(self, text: &str, quote: Option<char>) -> String {
        let harmless = !text.is_empty() && text.chars().all(|c| is_plain(c) || c == ' ');
        match quote {
            Some('\'' | '"') if harmless => text.to_owned(),
            // The quote ends before the word, and begins again behind it.
            Some(open @ ('\'' | '"')) => format!("{open}{}{open}", self.word(text)),
            _ => self.word(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const HOSTILE: [&str; 9] = [
        "$(touch hit)",
        "`touch hit`",
        "'; touch hit; '",
        "\"; touch hit; \"",
        "a b\ntouch hit",
        "x & touch hit",
        "\\'; touch hit #",
        "|touch hit",
        "",
    ];

    #[test]
    fn names_cannot_leave_their_place_in_a_command() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        for name in HOSTILE {
            for template in [
                "printf '%s|' {name}",
                "printf '%s|' \"{name}\"",
                "printf '%s|' 'a{name}b'",
                "printf '%s|' /sys/{name}/x    # or isn't it: {name}",
            ] {
                let command = Outcome::ok("here", "").with("name", name).filled(template, Shell::Sh);
                let output = Command::new("sh").args(["-c", &command]).current_dir(&folder).output();
                let output = output.unwrap_or_else(|error| panic!("{error}"));
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                if name.contains('\n') {
                    assert!(command.contains("by hand") && !command.contains("printf"), "{command}");
                    continue;
                }
                let whole = name;
                assert!(output.status.success() && said.contains(whole), "{command}: {output:?}");
                assert_eq!(said.matches('|').count(), 1 + whole.matches('|').count(), "{command}");
                assert!(!folder.path().join("hit").exists(), "{command}");
            }
        }
    }

    #[test]
    fn plain_names_stand_as_they_are_and_words_each_by_itself() {
        let outcome = Outcome::ok("here", "").with("port", "eth0.7").with("old", "4096 131072 6291456");
        let outcome = outcome.with_words("on", ["tso on".to_owned(), "gro".to_owned()]);
        assert_eq!(
            outcome.filled("sysctl -w {port}=\"{old}\" {x}", Shell::Sh),
            "sysctl -w eth0.7=\"4096 131072 6291456\" {x}"
        );
        assert_eq!(outcome.filled("ethtool -K {port} {on}", Shell::Sh), "ethtool -K eth0.7 'tso on' gro");
        // A value is not read again.
        let nested = Outcome::ok("here", "").with("a", "{b}").with("b", "c");
        assert_eq!(nested.filled("{a} {b}", Shell::Sh), "'{b}' c");
    }

    #[test]
    fn powershell_and_sed_have_their_own_rules() {
        let filled = |name: &str, template: &str| {
            Outcome::ok("here", "").with("name", name).filled(template, Shell::PowerShell)
        };
        assert_eq!(filled("Ethernet 2", "X -Name {name}"), "X -Name 'Ethernet 2'");
        assert_eq!(filled("a'b\u{2019}; calc", "X -Name {name}"), "X -Name 'a''b\u{2019}\u{2019}; calc'");
        assert_eq!(filled("$(calc)", "X -Name {name}"), "X -Name '$(calc)'");
        let sed = Outcome::ok("/mnt", "").with("point", "/a|x;s/.*/id/e");
        assert!(
            sed.filled("sed -i 's|{point}|x|' /etc/fstab", Shell::Sh)
                .starts_with("edit the file of /mnt by hand")
        );
    }
}
