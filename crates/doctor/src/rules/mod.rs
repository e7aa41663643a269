//! The rules, and all of them on some facts.

mod asked;
mod backups;
mod chap;
mod disks;
mod ends;
mod file_systems;
mod host;
mod hosts;
mod initiator;
mod kubernetes;
mod lanes;
mod luns;
mod multipath;
mod neighbours;
mod network;
mod ports;
mod sessions;
mod space;
mod target;
mod windows;

use std::fmt;

use lunway_block::{Finding, Severity};

use crate::facts::Facts;
use crate::verdict::{Diagnosis, Outcome, Shell, Verdict};

/// A rule: what it demands, of what, why, and what to do where it is broken.
///
/// Texts are clauses without a full stop. `fix` and `undo` may have names in braces, `{port}`, for which a
/// [`Diagnosis`] has the machine's own; they are shell commands, or, where no command exists, an imperative clause.
#[derive(Debug)]
pub struct Rule {
    /// Stable name, for `--mute`, programs and the documentation.
    pub id: &'static str,
    /// Group, which is a page of the documentation.
    pub group: Group,
    /// Demand of the rule.
    pub title: &'static str,
    /// Severity of a breach: a note costs little.
    pub severity: Severity,
    /// To what it applies.
    pub applies: &'static str,
    /// Cost of a breach, with the figure.
    pub why: &'static str,
    /// Source of the figure or the value.
    pub source: &'static str,
    /// Numbers of the rules of thumb that it checks (`docs/src/doctor.md`).
    pub thumbs: &'static [u8],
    /// Remedy.
    pub fix: &'static str,
    /// Command that restores the state before the fix; empty where there is nothing to restore.
    pub undo: &'static str,
    /// Judges the facts: an outcome for each place, none where the rule does not apply.
    pub(crate) check: fn(&Facts) -> Vec<Outcome>,
}

/// Group of rules, by what they examine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// Ports, addresses, routes, kernel settings of the network.
    Network,
    /// open-iscsi.
    Initiator,
    /// dm-multipath.
    Multipath,
    /// Disks and arrays.
    Disks,
    /// Mounts, fstab, swap.
    FileSystems,
    /// The machine itself.
    Host,
    /// A running target and its initiators.
    Target,
    /// Hosts beside their target, or beside each other.
    Ends,
    /// The lanes of a disk of lunway's own initiator.
    Lanes,
    /// A Windows machine.
    Windows,
    /// Questions about what no program can see.
    Asked,
}

impl Group {
    /// All groups, in the order of the documentation.
    pub const ALL: [Self; 11] = [
        Self::Network,
        Self::Initiator,
        Self::Multipath,
        Self::Disks,
        Self::FileSystems,
        Self::Host,
        Self::Target,
        Self::Ends,
        Self::Lanes,
        Self::Windows,
        Self::Asked,
    ];

    /// Its name in texts and file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::Initiator => "initiator",
            Self::Multipath => "multipath",
            Self::Disks => "disks",
            Self::FileSystems => "file-systems",
            Self::Host => "host",
            Self::Target => "target",
            Self::Ends => "ends",
            Self::Lanes => "lanes",
            Self::Windows => "windows",
            Self::Asked => "asked",
        }
    }

    /// Heading of its page.
    pub fn title(self) -> &'static str {
        match self {
            Self::Network => "Network ports",
            Self::Initiator => "open-iscsi",
            Self::Multipath => "dm-multipath",
            Self::Disks => "Disks and arrays",
            Self::FileSystems => "File systems",
            Self::Host => "The machine",
            Self::Target => "A running target",
            Self::Ends => "Both ends",
            Self::Lanes => "Lanes of a disk",
            Self::Windows => "Windows",
            Self::Asked => "Questions",
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// All rules, group by group.
pub static RULES: [&[Rule]; 20] = [
    ports::RULES,
    network::RULES,
    neighbours::RULES,
    initiator::RULES,
    chap::RULES,
    multipath::RULES,
    disks::RULES,
    file_systems::RULES,
    host::RULES,
    kubernetes::RULES,
    target::RULES,
    hosts::RULES,
    sessions::RULES,
    luns::RULES,
    space::RULES,
    backups::RULES,
    ends::RULES,
    lanes::RULES,
    windows::RULES,
    asked::RULES,
];

/// The rule of this name.
pub fn rule(id: &str) -> Option<&'static Rule> {
    RULES.into_iter().flatten().find(|rule| rule.id == id)
}

/// Places of one rule that are told one by one. A machine with a thousand disks that all break a rule is told so by
/// the first of them and a count: a reader takes in no more.
const PLACES_MAX: usize = 32;

/// Returns the diagnoses of all rules for these facts, in the order of [`RULES`]. Rules that do not apply give none.
pub fn diagnose(facts: &Facts) -> Vec<Diagnosis> {
    RULES.into_iter().flatten().flat_map(|rule| rule.diagnoses(facts)).collect()
}

impl Rule {
    /// Returns the diagnoses of this rule for these facts.
    pub fn diagnoses(&self, facts: &Facts) -> Vec<Diagnosis> {
        let mut outcomes = (self.check)(facts);
        outcomes.sort_by_key(|outcome| std::cmp::Reverse(outcome.verdict));
        let left_out = outcomes.split_off(outcomes.len().min(PLACES_MAX));
        if let Some(worst) = left_out.first() {
            let what = format!("{} more places, of which the worst is {}", left_out.len(), worst.place);
            outcomes.push(Outcome { what, place: "more places".to_owned(), ..worst.clone() });
        }
        outcomes.into_iter().map(|outcome| self.diagnosis(outcome)).collect()
    }

    fn diagnosis(&self, outcome: Outcome) -> Diagnosis {
        let broken = outcome.verdict >= Verdict::Warn;
        let shell = if self.group == Group::Windows { Shell::PowerShell } else { Shell::Sh };
        let templates = outcome.fix.as_ref().map(|(fix, undo)| (fix.as_str(), undo.as_str()));
        let (fix, undo) = templates.unwrap_or((self.fix, self.undo));
        let (fix, undo) = (outcome.filled(fix, shell), outcome.filled(undo, shell));
        Diagnosis {
            verdict: outcome.verdict,
            finding: Finding {
                id: self.id,
                severity: self.severity,
                what: outcome.what,
                place: outcome.place,
                why: if broken { self.why.to_owned() } else { String::new() },
                remedy: if broken { fix } else { String::new() },
            },
            undo: if broken { undo } else { String::new() },
        }
    }
}

/// Names in one sentence: a reader takes in no more.
const NAMES_MAX: usize = 16;

/// Texts with commas, and "and" before the last; of many the first, and how many more there are.
pub(crate) fn listed(names: impl IntoIterator<Item = String>) -> String {
    let mut names = names.into_iter();
    let mut first: Vec<_> = names.by_ref().take(NAMES_MAX).collect();
    let more = names.count();
    if more > 0 {
        first.push(format!("{more} more"));
    }
    let names = first;
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_rule_has_a_name_of_its_own_and_all_its_texts() {
        let mut names = BTreeSet::new();
        for rule in RULES.into_iter().flatten() {
            assert!(names.insert(rule.id), "{} twice", rule.id);
            assert!(
                rule.id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'),
                "{}",
                rule.id
            );
            let has_figure = rule.why.chars().any(|c| c.is_ascii_digit());
            assert!(has_figure || rule.why.contains("no published figure"), "{}: {}", rule.id, rule.why);
            for text in [rule.title, rule.applies, rule.why, rule.source, rule.fix] {
                assert!(!text.is_empty() && !text.ends_with('.'), "{}: {text:?}", rule.id);
            }
        }
    }

    /// A port of a VLAN has a dot in its name, which sysctl(8) takes for a separator unless slashes are there.
    #[test]
    fn settings_of_a_port_are_named_by_slashes() {
        for rule in RULES.into_iter().flatten() {
            assert!(
                !rule.fix.contains("conf.{") && !rule.undo.contains("conf.{"),
                "{}: {}",
                rule.id,
                rule.fix
            );
        }
    }

    #[test]
    fn quotes_of_every_fix_and_undo_are_closed() {
        for rule in RULES.into_iter().flatten() {
            for text in [rule.fix, rule.undo].into_iter().filter(|text| text.contains('{')) {
                let command = text.split("    # ").next().unwrap_or_default();
                // Those for PowerShell and for sh alike: no quote is open at the end, so that none is open at a name.
                let mut open = None;
                for c in command.chars().filter(|c| matches!(c, '\'' | '"')) {
                    open = match open {
                        None => Some(c),
                        Some(quote) if quote == c => None,
                        other => other,
                    };
                }
                assert_eq!(open, None, "{}: {text}", rule.id);
            }
        }
    }

    #[test]
    fn many_names_are_told_by_the_first_and_a_count() {
        let names = |count: usize| listed((0..count).map(|n| n.to_string()));
        assert_eq!((names(1), names(3)), ("0".to_owned(), "0, 1 and 2".to_owned()));
        assert!(names(1000).ends_with("15 and 984 more"), "{}", names(1000));
    }

    #[test]
    fn every_rule_of_thumb_is_checked_or_asked() {
        let checked: BTreeSet<u8> =
            RULES.into_iter().flatten().flat_map(|rule| rule.thumbs.iter().copied()).collect();
        assert_eq!(checked, (1..=22).collect());
    }

    #[test]
    fn facts_that_nothing_is_known_of_break_no_rule_and_none_is_ok() {
        assert_eq!(diagnose(&Facts::default()), []);
    }
}
