//! See the module it runs.

#![no_main]

#[path = "../../crates/image/tests/fuzzed/images.rs"]
mod images;

libfuzzer_sys::fuzz_target!(|input: &[u8]| images::run(input));
