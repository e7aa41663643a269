//! Devices that shrink or vanish under a command that reads them: it ends, and says so in one sentence.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::support::{IQN, PATIENCE, Running, Served, image, lunway, succeed, until};

/// What a command says that ends with exit code 1 after `change` has been made under it, once it has `begun`.
fn said_of(words: &[&str], begun: impl Fn() -> bool, change: impl FnOnce()) -> String {
    let command = Running::start(lunway(words));
    until(begun);
    thread::sleep(Duration::from_millis(500));
    change();
    let output = command.end(PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
    // What the log says of it stands before.
    said.lines()
        .rev()
        .find(|line| line.starts_with("lunway: "))
        .unwrap_or_else(|| panic!("{said}"))
        .to_owned()
}

#[test]
fn a_lun_that_shrinks_or_goes_while_it_is_copied_or_measured_ends_that_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (disk, socket) = (path("disk.img"), path("api.sock"));
    image(Path::new(&disk), 64 << 20, 64 << 20);
    let luns = [format!("0={disk}"), "1=ram:64M".to_owned(), "2=ram:64M".to_owned()];
    let mut words = vec!["--socket", &socket];
    luns.iter().for_each(|lun| words.extend(["--lun", lun]));
    let served = Served::start(&words);
    until(|| Path::new(&socket).exists());
    let manage = |words: &[&str]| drop(succeed(lunway(&[words, &["--socket", &socket]].concat())));
    let has_begun = |name: &str| fs::metadata(path(name)).is_ok_and(|file| file.blocks() > 2048);

    let from = format!("rate:8M:{}", served.url(0));
    let shrink = || manage(&["lun", "resize", IQN, "0", "16M", "--shrink", "--force"]);
    let said = said_of(&["copy", &from, &path("copied")], || has_begun("copied.partial"), shrink);
    assert!(said.contains("the source had 64 MiB when the copy began, and has 16 MiB now"), "{said}");
    assert!(said.contains("copied.partial is incomplete; --overwrite starts again"), "{said}");
    succeed(lunway(&["copy", &served.url(0), &path("copied"), "--overwrite", "--verify"]));

    let grow = || manage(&["lun", "resize", IQN, "0", "32M"]);
    let copy = Running::start(lunway(&["copy", &from, &path("grown")]));
    until(|| has_begun("grown.partial"));
    grow();
    let output = copy.end(PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("the source has grown by 16 MiB since the copy began, which are not in it"),
        "{said}"
    );

    let begun = || true;
    let wait = || thread::sleep(Duration::from_secs(2));
    let bench = ["bench", &served.url(1), "--rw", "randread", "--time", "120s"];
    let said = said_of(&bench, begun, || (wait(), manage(&["lun", "remove", IQN, "1", "--force"])).1);
    assert!(said.contains("the device returned only errors; the first error: "), "{said}");

    let (kept, gone) = (served.url(0), served.url(2));
    let compare = ["compare", &kept, &gone, "--rw", "randread", "--pairs", "20", "--time", "1s"];
    let said = said_of(&compare, begun, || (wait(), manage(&["lun", "remove", IQN, "2", "--force"])).1);
    assert!(said.contains("returned only errors; the first: "), "{said}");
    assert!(said.contains("the verdicts are of the pairs until then"), "{said}");
}

#[test]
fn a_file_that_is_truncated_while_it_is_measured_ends_that_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.img");
    image(&disk, 64 << 20, 64 << 20);
    let truncate = || {
        thread::sleep(Duration::from_secs(1));
        fs::File::options().write(true).open(&disk).unwrap().set_len(0).unwrap();
    };
    let bench = ["bench", disk.to_str().unwrap(), "--rw", "randread", "--time", "120s"];
    let said = said_of(&bench, || true, truncate);
    assert!(said.contains("the device returned only errors; the first error: "), "{said}");
}
