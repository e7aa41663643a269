//! Commands that are asked to end while a target is silent: they say what they wait for, and what they leave.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::support::{self, PATIENCE, Running, Served, image, lunway, succeed, until};

/// What a command says that is interrupted twice while the target does not answer, once it has `begun`. The target
/// answers again afterwards.
fn interrupted_twice(served: &Served, words: &[&str], begun: impl Fn() -> bool) -> String {
    let command = Running::start(lunway(words));
    until(begun);
    served.signal(Signal::STOP);
    thread::sleep(Duration::from_millis(500));
    command.signal(Signal::INT);
    thread::sleep(Duration::from_millis(1500));
    let again = Instant::now();
    command.signal(Signal::INT);
    let output = command.end(PATIENCE);
    served.signal(Signal::CONT);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(again.elapsed() < Duration::from_secs(5), "{words:?}: {:?}: {said}", again.elapsed());
    assert_eq!(output.status.code(), Some(130), "{words:?}: {said}");
    said
}

/// They were silent for 35 s, and then said nothing of what they had left.
#[test]
fn a_command_that_is_interrupted_while_a_target_is_silent_says_what_it_waits_for_and_what_it_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (disk, source) = (path("disk.img"), path("source"));
    image(Path::new(&disk), 64 << 20, 64 << 20);
    image(Path::new(&source), 64 << 20, 64 << 20);
    let served = Served::start(&["--lun", &format!("0={disk}"), "--lun", "1=ram:64M", "--lun", "2=ram:64M"]);
    let has_begun = |name: &str| fs::metadata(path(name)).is_ok_and(|file| file.blocks() > 2048);
    let from = format!("rate:8M:{}", served.url(0));
    let waits = format!("stopping; waiting for {from}, which has not answered ");

    let said = interrupted_twice(&served, &["copy", &from, &path("copied")], || has_begun("copied.partial"));
    assert!(said.contains(&waits), "{said}");
    let left = format!("ended at once: {} is incomplete; --resume continues it", path("copied.partial"));
    assert!(said.contains(&left), "{said}");
    succeed(lunway(&["copy", &served.url(0), &path("copied"), "--resume", "--verify"]));
    support::assert_same_bytes(Path::new(&disk), Path::new(&path("copied")));

    let convert = ["disk", "convert", &from, &path("made.vhdx")];
    let said = interrupted_twice(&served, &convert, || has_begun("made.vhdx.partial"));
    assert!(said.contains(&waits) && said.contains("made.vhdx.partial is incomplete"), "{said}");

    fs::create_dir(path("points")).unwrap();
    let point = || {
        let files = fs::read_dir(path("points")).unwrap().flatten();
        files.filter_map(|file| file.metadata().ok()).map(|file| file.blocks()).sum::<u64>() > 8192
    };
    let said = interrupted_twice(&served, &["backup", "run", &from, &path("points")], point);
    assert!(said.contains(&waits), "{said}");
    assert!(said.contains("the data that was sent is kept, and the next run continues"), "{said}");

    // A service manager asks once.
    let command = Running::start(lunway(&["backup", "run", &from, &path("points"), "--full"]));
    thread::sleep(Duration::from_secs(3));
    served.signal(Signal::STOP);
    let asked = Instant::now();
    command.signal(Signal::TERM);
    let output = command.end(PATIENCE);
    served.signal(Signal::CONT);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(asked.elapsed() < Duration::from_secs(25), "{:?}: {said}", asked.elapsed());
    assert!(said.contains("ended at once: the data that was sent is kept"), "{said}");

    let slow = format!("rate:8M:{source}");
    let to = served.url(1);
    let begun = Instant::now();
    let some = || begun.elapsed() > Duration::from_secs(3);
    let said = interrupted_twice(&served, &["copy", &slow, &to], some);
    assert!(said.contains(&format!("stopping; waiting for {to}, which has not answered ")), "{said}");
    assert!(said.contains("ended at once: the destination is incomplete; --resume completes it"), "{said}");
}

#[test]
fn a_command_that_ends_in_time_says_nothing_of_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (source, copied, partial) = (path("source"), path("copied"), path("copied.partial"));
    image(Path::new(&source), 64 << 20, 32 << 20);
    let slow = format!("rate:32M:{source}");
    let begun = || fs::metadata(&partial).is_ok_and(|file| file.blocks() > 0);
    let output = support::interrupted(lunway(&["copy", &slow, &copied]), begun);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(!said.contains("waiting for"), "{said}");
}
