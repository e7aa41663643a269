//! See the module it runs.

#![no_main]

#[path = "../../crates/filesystem/tests/fuzzed/volume.rs"]
mod volume;

libfuzzer_sys::fuzz_target!(|input: &[u8]| volume::run(&volume::LVM, input));
