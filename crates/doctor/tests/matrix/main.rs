//! The matrix, planted × reported: each rule is broken alone, and is what is told; nothing else is.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fixes;
mod healthy;
mod hidden;
mod hostile;
mod lunway_ends;
mod plants;
mod set_ups;
mod windows;

use std::collections::BTreeSet;

use lunway_doctor::{Facts, RULES, Verdict, diagnose};

use healthy::healthy;
use plants::PLANTS;

/// Rules with a verdict that is not ok.
fn broken(facts: &Facts) -> BTreeSet<&'static str> {
    let not_ok = |diagnosis: &&lunway_doctor::Diagnosis| diagnosis.verdict != Verdict::Ok;
    diagnose(facts).iter().filter(not_ok).map(|diagnosis| diagnosis.finding.id).collect()
}

#[test]
fn every_rule_applies_to_the_healthy_set_up_and_is_kept() {
    let found = diagnose(&healthy());
    for diagnosis in &found {
        assert_eq!(diagnosis.verdict, Verdict::Ok, "{diagnosis:?}");
    }
    let kept: BTreeSet<_> = found.iter().map(|diagnosis| diagnosis.finding.id).collect();
    let all: BTreeSet<_> = RULES.into_iter().flatten().map(|rule| rule.id).collect();
    assert_eq!(all.difference(&kept).collect::<Vec<_>>(), Vec::<&&str>::new(), "rules that do not apply");
    assert!(all.len() >= 45, "{} rules", all.len());
}

/// Rules that one fact breaks together: without a UPS the question about it is broken as well.
const ALSO: [(&str, &str); 2] = [("disk-write-cache", "asked-ups"), ("asked-ups", "disk-write-cache")];

#[test]
fn each_planted_fault_breaks_its_rule_alone_and_says_what_to_do() {
    for (id, plant) in PLANTS {
        let mut facts = healthy();
        plant(&mut facts);
        let also = ALSO.iter().filter(|(rule, _)| rule == id).map(|(_, also)| *also);
        assert_eq!(broken(&facts), also.chain([*id]).collect(), "planted: {id}");
        for diagnosis in diagnose(&facts).iter().filter(|diagnosis| diagnosis.finding.id == *id) {
            let finding = &diagnosis.finding;
            if diagnosis.verdict == Verdict::Ok {
                assert_eq!((finding.remedy.as_str(), diagnosis.undo.as_str()), ("", ""), "{diagnosis:?}");
                continue;
            }
            if *id == "facts-whole" {
                assert_eq!(diagnosis.verdict, Verdict::Unknown, "what was not looked at");
                continue;
            }
            assert!(diagnosis.verdict >= Verdict::Warn, "{diagnosis:?}");
            assert!(!finding.what.is_empty() && !finding.place.is_empty(), "{diagnosis:?}");
            assert!(!finding.remedy.is_empty() && !finding.why.is_empty(), "{diagnosis:?}");
            for text in [&finding.remedy, &diagnosis.undo] {
                assert!(!has_placeholder(text), "{id}: {text}");
            }
        }
    }
}

/// Whether a name in braces is left, as `{port}`.
fn has_placeholder(text: &str) -> bool {
    let after = text.split('{').skip(1).filter_map(|rest| rest.split_once('}'));
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    after.map(|(name, _)| name).any(is_name)
}

#[test]
fn every_rule_has_a_planted_fault() {
    let planted: BTreeSet<_> = PLANTS.iter().map(|(id, _)| *id).collect();
    let all: BTreeSet<_> = RULES.into_iter().flatten().map(|rule| rule.id).collect();
    assert_eq!(all.symmetric_difference(&planted).collect::<Vec<_>>(), Vec::<&&str>::new());
}

#[test]
fn facts_come_back_from_a_file_as_they_were() {
    let facts = healthy();
    let text = serde_json::to_string(&facts).unwrap();
    assert_eq!(Facts::parse(&text).unwrap(), facts);
}

#[test]
fn the_pages_of_the_book_are_what_the_rules_say() {
    let thumbs = lunway_doctor::book::thumbs();
    lunway_foreign::written::says("docs/src/doctor-thumbs.md", &thumbs, "-p lunway-doctor --test matrix");
    let summary = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/SUMMARY.md");
    let summary = std::fs::read_to_string(summary).unwrap();
    for group in lunway_doctor::Group::ALL {
        assert!(summary.contains(&lunway_doctor::book::file_name(group)), "the book lacks {group}");
        let file = format!("docs/src/{}", lunway_doctor::book::file_name(group));
        lunway_foreign::written::says(
            &file,
            &lunway_doctor::book::page(group),
            "-p lunway-doctor --test matrix",
        );
    }
}
