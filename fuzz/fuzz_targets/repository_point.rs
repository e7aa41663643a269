//! See the module it runs.

#![no_main]

#[path = "../../crates/repository/tests/fuzzed/repository.rs"]
mod repository;

libfuzzer_sys::fuzz_target!(|input: &[u8]| repository::run(repository::Kind::Point, input));
