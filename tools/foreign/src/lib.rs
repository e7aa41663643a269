//! Finds the programs that tests converse with, and says when one is missing.
//!
//! For tests only. A conversation with a program that is not installed must be neither a failure on a developer's
//! machine nor a silent pass: what was left out is printed, and noted in the file that `LUNWAY_NOT_RUN` names, whose
//! lines `script/test` shows at its end. Where `CI=true` everything must be there that can be installed.
//!
//! [`written`] compares pages that are written from the code. Two of them need more than finding: [`look`] opens a page
//! in a browser, and [`namespace`] runs a test in a network of its own.

mod browser;
pub mod ceph;
pub mod namespace;
pub mod written;

use std::env;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

pub use browser::{Looked, View, look};

/// A foreign program, or `None` where it is not installed, which is noted.
///
/// # Panics
///
/// Where it is missing and `CI=true`.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    // Daemons are where only root looks.
    let folders = env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let found = folders.map(|folder| folder.join(name)).find(|file| file.is_file());
    if found.is_none() {
        not_run(name);
    }
    found
}

/// Notes that something was left out.
///
/// # Panics
///
/// Where `CI=true`, or where the note cannot be written.
pub fn not_run(what: &str) {
    println!("NOT RUN: {what}");
    assert!(env::var_os("CI").is_none_or(|ci| ci != "true"), "{what} is needed in CI");
    note(what);
}

/// Notes that this machine does not have what no package brings: a device node, a right. A container may be refused
/// that for good reasons, so unlike [`not_run`] it fails nowhere, not even where `CI=true`.
///
/// # Panics
///
/// Where the note cannot be written.
pub fn machine_lacks(what: &str) {
    let what = format!("{what} (this machine has none)");
    println!("NOT RUN: {what}");
    note(&what);
}

/// Adds a line to the file of notes, if there is one. A foreign program's message of several lines becomes one, because
/// `script/test` judges line by line.
fn note(what: &str) {
    let Some(file) = env::var_os("LUNWAY_NOT_RUN") else { return };
    let what = what.split_whitespace().collect::<Vec<_>>().join(" ");
    let file = OpenOptions::new().create(true).append(true).open(file);
    file.and_then(|mut file| writeln!(file, "{what}"))
        .expect("LUNWAY_NOT_RUN names a file that can be written");
}
