//! See the module it runs.

#![no_main]

#[path = "../../crates/vhdx/tests/fuzzed/open.rs"]
mod open;

libfuzzer_sys::fuzz_target!(|input: &[u8]| open::run(input));
