//! Replays the corpora of the fuzz targets, so that what was once found stays mended.

use std::fs;
use std::path::Path;

#[path = "fuzzed/conversation.rs"]
mod conversation;
#[path = "fuzzed/login_text.rs"]
mod login_text;
#[path = "fuzzed/pdu.rs"]
mod pdu;

/// Runs every file of a corpus; gives their number.
fn replay(name: &str, run: fn(&[u8])) -> usize {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let files = fs::read_dir(&corpus).unwrap_or_else(|error| panic!("{}: {error}", corpus.display()));
    let mut count = 0;
    for file in files {
        run(&fs::read(file.expect("readable").path()).expect("readable"));
        count += 1;
    }
    count
}

#[test]
fn every_conversation_of_the_corpus_ends_well() {
    assert!(replay("conversation", conversation::run) > 0);
}

#[test]
fn every_login_of_the_corpus_ends_well() {
    assert!(replay("login_text", login_text::run) > 0);
}

#[test]
fn every_pdu_of_the_corpus_is_read_and_written_again() {
    assert!(replay("pdu", pdu::run) > 0);
}
