//! What is named by mistake, silent, endless or hostile costs a sentence and seconds.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, finish, lunway};
use crate::{doctor, findings, verdicts};

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_port_that_is_not_there_is_refused_with_those_that_are() {
    let folder = tempfile::tempdir().unwrap();
    let output = finish(doctor(&["--port", "nope"], folder.path()), PATIENCE);
    let said = said(&output);
    assert!(output.status.code() == Some(2) && said.lines().count() == 1, "{said}");
    assert!(said.contains("--port nope: there is no such port, the machine has"), "{said}");
}

/// It ended with a sentence, and said nothing of the machine, just when that is asked for.
#[test]
fn a_disk_that_nobody_leads_to_is_bad_and_the_machine_is_looked_at_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    // A port that nobody listens on any more.
    let portal = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let disk = format!("iscsi://{portal}/iqn.2026-11.com.example:gone/0");
    let output = finish(doctor(&[&disk, "--all"], folder.path()), PATIENCE);
    let found = findings(&output);
    assert_eq!(verdicts(&found, "lane-lun"), ["bad"], "{found:?}");
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(verdicts(&found, "lane-single").is_empty(), "no lane keeps a rule: {found:?}");
    assert!(!verdicts(&found, "mount-full").is_empty(), "{found:?}");
}

#[test]
fn a_socket_that_never_answers_costs_five_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("silent");
    // It accepts connections by its backlog, and no more comes.
    let _listener = UnixListener::bind(&socket).unwrap();
    let began = Instant::now();
    let output = finish(doctor(&["--socket", socket.to_str().unwrap()], folder.path()), PATIENCE);
    let (said, took) = (said(&output), began.elapsed());
    assert!(output.status.code() == Some(1) && said.contains("did not answer within 5 s"), "{said}");
    assert!(took < Duration::from_secs(60), "{took:?}");
}

#[test]
fn a_pipe_in_the_place_of_facts_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let output = finish(doctor(&["--from", pipe.to_str().unwrap()], folder.path()), Duration::from_secs(60));
    let said = said(&output);
    assert!(output.status.code() == Some(1) && said.contains("it is not a regular file"), "{said}");
}

#[test]
fn a_copy_is_read_within_its_folder_and_its_page_is_headed_by_its_own_name() {
    let folder = tempfile::tempdir().unwrap();
    let (copy, page) = (folder.path().join("copy"), folder.path().join("page.html"));
    fs::create_dir_all(copy.join("etc")).unwrap();
    fs::write(copy.join("etc/hostname"), "storage-7\n").unwrap();
    // A line of swap that a link leads to, outside of the copy: it must not be found.
    fs::create_dir_all(copy.join("proc")).unwrap();
    fs::write(folder.path().join("outside"), "Filename\n/dev/outside partition 1 0 -2\n").unwrap();
    symlink(folder.path().join("outside"), copy.join("proc/swaps")).unwrap();
    let run = |more: &[&str]| {
        let arguments = [&["--root", copy.to_str().unwrap()], more].concat();
        finish(doctor(&arguments, folder.path()), PATIENCE)
    };
    let output = run(&["--html-file", page.to_str().unwrap()]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["subject"], "storage-7");
    assert_eq!(verdicts(&findings(&output), "swap-iscsi"), ["unknown"], "the link leads out");
    let text = fs::read_to_string(page).unwrap();
    let here = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert!(text.contains("storage-7") && !text.contains(here.trim()), "it tells of this machine");
    // Without a name it is not called a target that runs.
    fs::remove_file(copy.join("etc/hostname")).unwrap();
    let document: serde_json::Value = serde_json::from_slice(&run(&[]).stdout).unwrap();
    assert!(document["subject"].as_str().unwrap().starts_with("the copy in "), "{}", document["subject"]);
}

#[test]
fn looks_that_cannot_be_read_are_told_and_the_run_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let socket = socket.to_str().unwrap();
    let served = crate::support::Served::start(&["--lun", "0=ram:1M", "--socket", socket]);
    crate::support::until(|| std::path::Path::new(socket).exists());
    fs::create_dir_all(folder.path().join("lunway")).unwrap();
    fs::write(folder.path().join("lunway/doctor-looks.json"), "nonsense").unwrap();
    let output = finish(doctor(&["--socket", socket], folder.path()), PATIENCE);
    assert!(said(&output).contains("remove the file to begin again") && !findings(&output).is_empty());
    drop(served);
    let list = finish(lunway(&["doctor", "--list"]), PATIENCE);
    assert!(String::from_utf8_lossy(&list.stdout).contains("store-forecast"));
}
