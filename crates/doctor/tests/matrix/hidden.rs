//! What is hidden is unknown, never ok.

use std::collections::BTreeSet;

use lunway_doctor::{Facts, Verdict, diagnose};
use serde_json::{Value, json};

use crate::healthy::healthy;

/// Facts that are collected for people and judged by no rule.
const NOT_JUDGED: [&str; 6] = [
    "/multipath/running",
    "/multipath/defaults",
    "/rotational",
    "/target/stores/0/write_cache",
    "/rss",
    "/isid",
];

/// Whether a rule judges this place in the healthy set-up, whose last two disks are local and whose others are not.
fn is_judged(place: &str) -> bool {
    let local = place.starts_with("/storage/disks/2/") || place.starts_with("/storage/disks/3/");
    let of_disk = place.starts_with("/storage/disks/");
    let of_local = place.ends_with("/healthy") || place.ends_with("/write_cache");
    // A disk below takes all sectors that are not smaller than its physical ones: it need not tell the logical ones.
    let of_store = place.starts_with("/target/stores/") && !place.ends_with("/physical_sector");
    // Of ports that no portal is on nothing has to be known.
    let none = place == "/default_ports" || of_store;
    // The merging takes them to the ends, where they are judged.
    let none = none || place == "/lunway_sessions";
    // Of both ends the sessions' names are compared.
    let of_end = place.starts_with("/ends/target/sessions/");
    let none = none || of_end && (place.ends_with("/keys") || place.ends_with("/task_management"));
    // LVM counts no errors.
    let none = none || place.starts_with("/storage/volumes/") && place.ends_with("/errors");
    !NOT_JUDGED.iter().any(|name| place.ends_with(name)) && !none && (!of_disk || local == of_local)
}

/// Maps of texts, which `{"unseen": …}` is as well.
fn is_map_of_texts(place: &str) -> bool {
    place == "/sysctls" || place.starts_with("/open_iscsi/records/") && place.ends_with("/settings")
}

/// Every place in a document, as a pointer.
fn places(value: &Value, at: &str, into: &mut Vec<String>) {
    into.push(at.to_owned());
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                places(value, &format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")), into);
            }
        }
        Value::Array(items) => {
            for (n, value) in items.iter().enumerate() {
                places(value, &format!("{at}/{n}"), into);
            }
        }
        _ => {}
    }
}

#[test]
fn each_fact_that_is_hidden_makes_a_rule_unknown_and_none_worse() {
    let whole = serde_json::to_value(healthy()).unwrap();
    let mut all = Vec::new();
    places(&whole, "", &mut all);
    let mut hidden = 0;
    for place in all.iter().filter(|place| !place.is_empty() && !is_map_of_texts(place)) {
        let mut document = whole.clone();
        let value = document.pointer_mut(place).unwrap();
        *value = json!({ "unseen": "it is hidden" });
        // Only facts that can be unseen are read back so.
        let Ok(facts) = Facts::parse(&document.to_string()) else { continue };
        let back = serde_json::to_value(&facts).unwrap();
        if back.pointer(place) != Some(&json!({ "unseen": "it is hidden" })) {
            continue;
        }
        hidden += 1;
        let found = diagnose(&facts);
        let worse: BTreeSet<_> =
            found.iter().filter(|one| one.verdict > Verdict::Unknown).map(|one| one.finding.id).collect();
        assert_eq!(worse, BTreeSet::new(), "{place}");
        let told = found
            .iter()
            .any(|one| one.verdict == Verdict::Unknown && one.finding.what.contains("it is hidden"));
        assert!(told || !is_judged(place), "{place} was hidden, and nothing says so");
    }
    assert!(hidden > 80, "{hidden} facts can be hidden");
}

#[test]
fn odd_facts_cost_a_sentence_or_a_verdict_and_never_a_panic() {
    let whole = serde_json::to_value(healthy()).unwrap();
    let mut all = Vec::new();
    places(&whole, "", &mut all);
    let odd = [
        json!(null),
        json!(0),
        json!(-1),
        json!(u64::MAX),
        json!(1e300),
        json!(""),
        json!("\u{0}{x}"),
        json!([]),
        json!({}),
    ];
    for place in all.iter().filter(|place| !place.is_empty()) {
        for value in &odd {
            let mut document = whole.clone();
            *document.pointer_mut(place).unwrap() = value.clone();
            if let Ok(facts) = Facts::parse(&document.to_string()) {
                diagnose(&facts);
            }
        }
    }
}
