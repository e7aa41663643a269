//! Every requirement of RFC 7143 is accounted for, and the pages say so.

use std::path::{Path, PathBuf};

use lunway_trace::requirement::Chapter;
use lunway_trace::{Standing, Trace, page};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn every_requirement_has_a_mark_or_a_reason_and_every_mark_a_requirement() {
    let trace = Trace::read(&root()).expect("lists and sources can be read");
    let counts = trace.counts(trace.chapters().iter().flat_map(Chapter::requirements));
    for standing in Standing::ALL {
        println!("{:5} {}", counts.get(&standing).copied().unwrap_or_default(), standing.name());
    }
    let faults: Vec<String> = trace.faults().iter().map(ToString::to_string).collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn the_pages_say_what_lists_and_marks_say() {
    let trace = Trace::read(&root()).expect("lists and sources can be read");
    for (file, expected) in
        [("docs/rfc7143.md", page::whole(&trace)), ("docs/src/rfc7143.md", page::summary(&trace))]
    {
        lunway_foreign::written::says(file, &expected, "-p lunway-trace");
    }
}
