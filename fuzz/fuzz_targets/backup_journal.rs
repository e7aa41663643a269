//! See the module it runs.

#![no_main]

#[path = "../../crates/backup/tests/fuzzed/folder.rs"]
mod folder;

libfuzzer_sys::fuzz_target!(|input: &[u8]| folder::run(folder::Kind::Journal, input));
