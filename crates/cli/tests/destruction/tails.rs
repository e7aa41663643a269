//! Raw files whose last bytes are no whole sector: what is served or attached would lack them without a word.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use super::support::{IQN, PATIENCE, finish, lunway, succeed};

/// 272 bytes more than a mebibyte: fewer than any sector.
fn disk(path: &str) {
    fs::write(path, vec![0xa5; (1 << 20) + 272]).unwrap();
}

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().unwrap().to_owned()
}

fn refused(command: Command) {
    let shown = format!("{command:?}");
    let output = finish(command, PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{shown}: {said}");
    assert!(said.contains("the last 272 of them are no whole sector"), "{shown}: {said}");
}

#[test]
fn a_file_with_a_part_of_a_sector_at_its_end_is_not_served_or_attached_and_read_only_with_a_word() {
    let folder = tempfile::tempdir().unwrap();
    let [file, socket] = ["disk.img", "socket"].map(|name| path(folder.path(), name));
    disk(&file);
    let before = fs::read(&file).unwrap();
    let (lun, unix) = (format!("0={file}"), format!("unix:{socket}"));
    for words in [
        &["serve", "--listen", "127.0.0.1:0", "--no-api", "--open", "--lun", &lun][..],
        &["attach", &file, "--nbd", &unix],
        &["bench", &file, "--rw", "write", "--size", "64K", "--time", "10ms", "--destroy"],
    ] {
        refused(lunway(words));
    }
    for words in [
        &["inspect", &file][..],
        &["inspect", &format!("readonly:{file}")],
        &["bench", &file, "--rw", "read", "--size", "64K", "--time", "10ms"],
    ] {
        let output = finish(lunway(words), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {said}");
        assert!(
            said.contains("its end of 272 bytes is no whole sector and is left out"),
            "{words:?}: {said}"
        );
    }
    assert!(fs::read(&file).unwrap() == before);
    fs::File::options().write(true).open(&file).unwrap().set_len((1 << 20) + 4096).unwrap();
    let words = ["bench", &file, "--rw", "write", "--size", "64K", "--time", "10ms", "--destroy"];
    let output = finish(lunway(&words), PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !said.contains("left out"), "{said}");
}

/// A LUN must not be lost for it: it was served so before.
#[test]
fn a_saved_configuration_serves_such_a_file_as_before_and_says_so_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let [old, new, config, socket, log] =
        ["old.img", "new.img", "lunway.toml", "api.sock", "log"].map(|name| path(folder.path(), name));
    disk(&old);
    disk(&new);
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{IQN}\"\nopen = true\n\
         [[target.lun]]\nid = 0\ndevice = \"old.img\"\n"
    );
    fs::write(&config, text).unwrap();
    let mut command = lunway(&["serve", "-c", &config, "--socket", &socket]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(fs::File::create(&log).unwrap());
    let mut daemon = command.spawn().unwrap();
    let mut lines = BufReader::new(daemon.stdout.take().unwrap()).lines().map_while(Result::ok);
    let served = lines.find(|line| line.contains("lun 0")).unwrap();
    assert!(served.contains("1 MiB"), "{served}");
    let ask = |words: &[&str]| {
        let mut command = lunway(words);
        command.args(["--socket", &socket]);
        command
    };
    refused(ask(&["lun", "add", IQN, "1", &new]));
    succeed(ask(&["lun", "add", IQN, "1", &format!("readonly:{new}")]));
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    let said = fs::read_to_string(&log).unwrap();
    assert!(
        said.contains("old.img has 1048848 bytes, and its end of 272 bytes is no whole sector"),
        "{said}"
    );
}
