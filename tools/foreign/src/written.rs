//! Pages and documents that are written from the code.

use std::path::Path;
use std::{env, fs};

/// Checks that a file of the repository, named from its root, says what the code says. With `LUNWAY_WRITE_DOCS=1` it is
/// written anew instead.
///
/// # Panics
///
/// Where it says something else: with the first line that differs, and the command that writes it anew (`tests`: the
/// arguments of `cargo test`).
pub fn says(file: &str, expected: &str, tests: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    if env::var_os("LUNWAY_WRITE_DOCS").is_some() {
        fs::write(&path, expected).unwrap_or_else(|error| panic!("cannot write {file}: {error}"));
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    let first = expected.lines().zip(there.lines()).enumerate().find(|(_, (now, then))| now != then);
    assert!(
        there == expected,
        "{file} is not what the code says (LUNWAY_WRITE_DOCS=1 cargo test {tests} writes it anew); first, with its line: {first:?}"
    );
}
