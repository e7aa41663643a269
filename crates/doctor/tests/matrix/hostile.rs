//! Facts that are made to cost time: long lists of places that are compared with each other.

use std::time::{Duration, Instant};

use lunway_doctor::facts::within_limits;
use lunway_doctor::{Facts, Verdict, diagnose};
use serde_json::{Value, json};

use crate::healthy::healthy;

/// Entries of each list: without a limit, pairs of them are 2.5 × 10⁷ for each rule.
const MANY: usize = 5000;
/// Time for all rules, of a debug build on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(120);

/// Every list of the document with its first entry as often as this, each entry told apart by its name.
fn longer(value: &mut Value, times: usize) {
    match value {
        Value::Array(items) => {
            if let Some(first) = items.first().cloned() {
                *items = (0..times)
                    .map(|n| {
                        let mut item = first.clone();
                        if let Value::Object(members) = &mut item
                            && members.contains_key("name")
                        {
                            members.insert("name".into(), json!(format!("n{n}")));
                        }
                        item
                    })
                    .collect();
            }
        }
        Value::Object(members) => members.values_mut().for_each(|value| longer(value, times)),
        _ => {}
    }
}

#[test]
fn lists_of_thousands_are_cut_told_and_judged_in_seconds() {
    let mut document = serde_json::to_value(healthy()).unwrap();
    longer(&mut document, MANY);
    let text = document.to_string();
    assert!(text.len() > 8 << 20, "{} bytes", text.len());
    let began = Instant::now();
    let facts = Facts::parse(&text).unwrap();
    let found = diagnose(&facts);
    let took = began.elapsed();
    println!("{} MiB of facts: {took:?}", text.len() >> 20);
    assert!(took < PATIENCE, "{took:?}");
    let limits: Vec<_> = found.iter().filter(|one| one.finding.id == "facts-whole").collect();
    assert!(!limits.is_empty() && limits.iter().all(|one| one.verdict == Verdict::Unknown), "{limits:#?}");
    assert!(
        limits.iter().any(|one| one.finding.what == "of 5000 entries of ports only 1024 were looked at"),
        "{limits:#?}"
    );
    assert!(found.len() < 200 * 33, "{}", found.len());
}

#[test]
fn answers_of_garbage_deep_or_huge_are_cut_or_refused() {
    for mut value in [json!(null), json!("x"), json!(-1), json!({ "a": [[], {}, null] })] {
        let before = value.clone();
        assert_eq!(within_limits("answer", &mut value), Vec::<String>::new());
        assert_eq!(value, before);
    }
    let mut deep = json!(1);
    for _ in 0..120 {
        deep = json!([deep, deep.to_string().len()]);
    }
    assert_eq!(within_limits("answer", &mut deep), Vec::<String>::new());
    let mut wide = json!(vec![json!(vec!["x"; 5000]); 5000]);
    let told = within_limits("sessions", &mut wide);
    assert!(wide.to_string().len() < 1 << 20 && !told.is_empty(), "{told:?}");
    assert!(Facts::parse(&"[".repeat(1 << 20)).is_err());
    assert!(Facts::parse(&format!("{{\"schema\":1,\"left_out\":[\"{}\"]}}", "x".repeat(8 << 20))).is_ok());
}
