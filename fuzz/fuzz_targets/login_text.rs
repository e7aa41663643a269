//! See the module it runs.

#![no_main]

#[path = "../../crates/iscsi/tests/fuzzed/login_text.rs"]
mod login_text;

libfuzzer_sys::fuzz_target!(|input: &[u8]| login_text::run(input));
