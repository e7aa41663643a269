//! What is left of a sandbox: nothing.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{SignalKind, signal};

use lunway_lab::{LabError, Network, Topology};

use crate::inside::{RAN, inside, possible, two_hosts};

/// Marks the processes of one test, in their environment.
const MARK: &str = "LUNWAY_LAB_TEST_MARK";

/// The processes that have `mark` in their environment.
fn marked(mark: &str) -> Vec<i32> {
    let entry = format!("{MARK}={mark}");
    let numbers = fs::read_dir("/proc").unwrap().flatten();
    let numbers = numbers.filter_map(|process| process.file_name().to_str()?.parse::<i32>().ok());
    numbers
        .filter(|process| {
            let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|found| found == entry.as_bytes())
        })
        .collect()
}

/// What a sandbox could leave on the machine: links, and mounts (without the numbers that differ when anybody mounts).
fn traces() -> BTreeSet<String> {
    let links = fs::read_to_string("/proc/net/dev").unwrap();
    let links =
        links.lines().skip(2).filter_map(|line| line.split(':').next()).map(|name| name.trim().to_owned());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = mounts.lines().map(|line| line.split(' ').skip(3).collect::<Vec<_>>().join(" "));
    links.chain(mounts).collect()
}

/// Only a machine that stands still takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "never came: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// This program again, to run `test` as the victim called `mark`.
fn victim(test: &str, mark: &str) -> Child {
    let mut outer = Command::new(env::current_exe().unwrap());
    outer.args(["--exact", test, "--nocapture"]).env(MARK, mark).env(RAN, "/dev/null");
    outer.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Waits until it says `word`; `false` where it ends before that.
fn says(outer: &mut Child, word: &str) -> bool {
    let output = BufReader::new(outer.stdout.take().unwrap());
    output.lines().any(|line| line.unwrap().contains(word))
}

fn say(word: &str) {
    println!("{word}");
    std::io::stdout().flush().unwrap();
}

#[test]
fn nothing_is_left_when_the_outer_process_is_killed_at_any_moment() {
    const NAME: &str = "sandbox::nothing_is_left_when_the_outer_process_is_killed_at_any_moment";
    if env::var_os(MARK).is_some() {
        assert!(inside(NAME));
        let network =
            two_hosts("[[cable]]\nname = 'lane1'\nends = ['server.eth0', 'storage.eth0']\nrate = '1Gbit'");
        let mut sleep = Command::new("sleep");
        sleep.arg("1000");
        let mut sleep = network.host("storage").unwrap().spawn(sleep).unwrap();
        say("built");
        sleep.wait().unwrap();
        return;
    }
    if !possible() {
        return;
    }
    let before = traces();
    let mark = format!("{}-killed", std::process::id());
    // First one that was built, which says how long that takes; then at moments of the time before that.
    let began = Instant::now();
    let mut outer = victim(NAME, &mark);
    assert!(says(&mut outer, "built"));
    let takes = began.elapsed().as_secs_f64();
    // A process that is just becoming another program shows no environment.
    until("the three of the sandbox, and the program on a host", || marked(&mark).len() >= 4);
    for round in 0..12 {
        outer.kill().unwrap();
        outer.wait().unwrap();
        until("every process is gone", || marked(&mark).is_empty());
        // The golden ratio: moments that never repeat, spread evenly.
        let moment = takes * (f64::from(round) * 0.618).fract();
        outer = victim(NAME, &mark);
        thread::sleep(Duration::from_secs_f64(moment));
    }
    outer.kill().unwrap();
    outer.wait().unwrap();
    until("every process is gone", || marked(&mark).is_empty());
    assert_eq!(traces(), before);
}

#[test]
fn nothing_is_left_when_any_of_its_processes_is_killed() {
    const NAME: &str = "sandbox::nothing_is_left_when_any_of_its_processes_is_killed";
    if env::var_os(MARK).is_some() {
        assert!(inside(NAME));
        say("inside");
        thread::sleep(Duration::from_secs(1000));
        return;
    }
    if !possible() {
        return;
    }
    let mark = format!("{}-any", std::process::id());
    for which in 0..3 {
        let mut outer = victim(NAME, &mark);
        assert!(says(&mut outer, "inside"));
        let mut processes = marked(&mark);
        processes.sort_unstable();
        assert_eq!(processes.len(), 3);
        kill_process(Pid::from_raw(processes[which]).unwrap(), Signal::KILL).unwrap();
        assert!(!outer.wait().unwrap().success());
        until("every process is gone", || marked(&mark).is_empty());
    }
}

#[test]
fn the_exit_code_passes_out_and_signals_pass_in() {
    const NAME: &str = "sandbox::the_exit_code_passes_out_and_signals_pass_in";
    if env::var_os(MARK).is_some() {
        assert!(inside(NAME));
        assert_eq!(std::process::id(), 1);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let code = runtime.block_on(async {
            let mut interrupts = signal(SignalKind::interrupt()).unwrap();
            let mut ends = signal(SignalKind::terminate()).unwrap();
            say("waits");
            tokio::select! { _ = interrupts.recv() => 7, _ = ends.recv() => 42 }
        });
        std::process::exit(code);
    }
    if !possible() {
        return;
    }
    for (passed, code) in [(Signal::INT, 7), (Signal::TERM, 42)] {
        let mut outer = victim(NAME, "signal");
        assert!(says(&mut outer, "waits"));
        kill_process(Pid::from_child(&outer), passed).unwrap();
        assert_eq!(outer.wait().unwrap().code(), Some(code));
    }
}

#[test]
fn root_needs_no_user_namespace_and_marks_make_no_sandbox() {
    if !inside("sandbox::root_needs_no_user_namespace_and_marks_make_no_sandbox") {
        return;
    }
    // From here on, here, a user namespace is one too many.
    fs::write("/proc/sys/user/max_user_namespaces", "0").unwrap();
    let mut unshare = Command::new(lunway_foreign::program("unshare").unwrap());
    assert!(!unshare.args(["--user", "true"]).status().unwrap().success());
    let mut nested = Command::new(env::current_exe().unwrap());
    nested
        .args(["--exact", "inside::nothing", "--nocapture"])
        .env(RAN, "/dev/null")
        .env_remove("LUNWAY_SANDBOX");
    let output = nested.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));

    // The marks of a sandbox do not make one.
    let mut marked = Command::new(env::current_exe().unwrap());
    marked
        .args(["--exact", "inside::nothing", "--nocapture"])
        .env(RAN, "/dev/null")
        .env("LUNWAY_SANDBOX", "inside");
    let output = marked.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("was not started by a sandbox: unset it"), "{said}");
}

#[test]
fn outside_of_a_sandbox_nothing_is_built() {
    let topology: Topology = toml::from_str("host = [{ name = 'server' }]").unwrap();
    assert!(matches!(Network::build(&topology), Err(LabError::Outside)));
}
