//! See the module it runs.

#![no_main]

#[path = "../../crates/iscsi/tests/fuzzed/pdu.rs"]
mod pdu;

libfuzzer_sys::fuzz_target!(|input: &[u8]| pdu::run(input));
