//! See the module it runs.

#![no_main]

#[path = "../../crates/iscsi/tests/fuzzed/conversation.rs"]
mod conversation;

libfuzzer_sys::fuzz_target!(|input: &[u8]| conversation::run(input));
