//! Tests in network namespaces of their own.

use std::env;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::{not_run, program};

/// Set in the process that runs inside.
const INSIDE: &str = "LUNWAY_TEST_NAMESPACE";

/// Returns `true` if this process is inside a user and network namespace of the test's own, where it is root over a
/// network without anything.
///
/// If it is not, another one is started there that runs the same test and nothing else, and what it finds is the
/// result: the test that asked returns at once. `test` is its name as `--exact` wants it, modules included. Where user
/// namespaces cannot be had, that is noted.
///
/// # Panics
///
/// Where the test fails inside, or is not there by that name; where something is missing and `CI=true`.
pub fn inside(test: &str) -> bool {
    enter(test, &["--map-root-user", "--net"])
}

/// The same, with mounts of its own as well.
///
/// # Panics
///
/// As [`inside`].
pub fn inside_with_mounts(test: &str) -> bool {
    enter(test, &["--map-root-user", "--net", "--mount"])
}

fn enter(test: &str, namespaces: &[&str]) -> bool {
    if env::var_os(INSIDE).is_some() {
        return true;
    }
    let (Some(unshare), Some(_)) = (program("unshare"), program("ip")) else { return false };
    let apart = |what: &OsStr| {
        let mut command = Command::new(&unshare);
        command.args(namespaces).arg(what);
        command
    };
    if !apart("true".as_ref()).output().is_ok_and(|output| output.status.success()) {
        not_run("namespaces of users");
        return false;
    }
    let this = env::current_exe().expect("a test knows its program");
    let mut inside = apart(this.as_os_str());
    inside.args(["--exact", test, "--nocapture", "--include-ignored"]).env(INSIDE, "1");
    let mut child = inside.stdout(Stdio::piped()).spawn().expect("what started `true` starts this program");
    let said = BufReader::new(child.stdout.take().expect("it is a pipe"));
    let mut passed = false;
    // By the lines, and at once: it may take minutes.
    for line in said.lines().map_while(Result::ok) {
        passed |= line.contains("1 passed");
        println!("{line}");
    }
    let status = child.wait().expect("it was started");
    assert!(status.success() && passed, "inside of a namespace: {status}");
    false
}

/// Runs `ip` with arguments that are apart by one space each.
///
/// # Panics
///
/// Where it is not there, or does not do it.
pub fn ip(arguments: &str) {
    let ip = program("ip").expect("`inside` looked for it");
    let output = Command::new(ip).args(arguments.split(' ')).output().expect("ip can be started");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}
