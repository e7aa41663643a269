//! Managing a running daemon from the command line.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{IQN, PATIENCE, finish, lunway, succeed, wait};

/// `lunway serve -c FILE` with an API; killed when dropped.
struct Daemon {
    child: Child,
    folder: tempfile::TempDir,
    /// `127.0.0.1:PORT`.
    address: String,
}

const FILE: &str = "\
listen = [\"127.0.0.1:0\"]   # here
cores = 1
[[target]]
name = \"iqn.2026-11.com.example:disk\"
open = true
[[target.lun]]
id = 0
device = \"ram:1M\"
";

impl Daemon {
    fn start() -> Self {
        Self::start_logging_to(|_| Stdio::inherit())
    }

    /// The same with its log where it says.
    fn start_logging_to(log: impl FnOnce(&Path) -> Stdio) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("lunway.toml"), FILE).unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let mut command =
            lunway(&["serve", "-c", &path("lunway.toml"), "--socket", &path("api.sock"), "--json"]);
        command.env("LUNWAY_RUNTIME_DIR", path("run"));
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log(folder.path())).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        let address = ready["listening"][0].as_str().unwrap().to_owned();
        Self { child, folder, address }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(&self) -> String {
        fs::read_to_string(self.path("lunway.toml")).unwrap()
    }

    fn command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = lunway(arguments);
        command.env("LUNWAY_SOCKET", self.path("api.sock")).current_dir(self.folder.path());
        command.env("LUNWAY_RUNTIME_DIR", self.path("run"));
        command
    }

    fn run(&self, arguments: &[&str]) -> String {
        succeed(self.command(arguments)).trim_end().to_owned()
    }

    /// The sentence of a command that fails.
    fn refused(&self, arguments: &[&str]) -> String {
        let output = finish(self.command(arguments), PATIENCE);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
        stderr
    }

    fn url(&self, lun: u16) -> String {
        format!("iscsi://{}/{IQN}/{lun}", self.address)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_daemons_own_files_are_not_served_as_disks() {
    let daemon = Daemon::start();
    // A whole number of sectors, as a disk has.
    let text = daemon.file();
    let padded = format!("{text}{}\n", "#".repeat(4095 - text.len()));
    fs::write(daemon.path("lunway.toml"), &padded).unwrap();
    daemon.run(&["reload"]);
    fs::hard_link(daemon.path("lunway.toml"), daemon.path("link.img")).unwrap();
    for file in ["lunway.toml", "raw:lunway.toml", "link.img", "readonly:link.img"] {
        let said = daemon.refused(&["lun", "add", IQN, "9", file]);
        assert!(said.contains("belongs to this daemon itself: it is its configuration"), "{file}: {said}");
    }
    assert_eq!(daemon.file(), padded);
    // No word allows a size that cannot be: none is advised.
    for size in ["0", "100"] {
        let said = daemon.refused(&["lun", "resize", IQN, "0", size]);
        assert!(said.contains("not whole sectors") && !said.contains("--shrink"), "{said}");
    }
}

/// `--save disk.img --force` replaced the served disk with the configuration.
#[test]
fn the_file_of_save_is_not_a_disk_and_not_served_later() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (disk, saved, socket) = (path("disk.img"), path("saved.toml"), path("api.sock"));
    fs::write(&disk, vec![7; 1 << 20]).unwrap();
    let lun = format!("0={disk}");
    let mut serve = lunway(&["serve", "--listen", "127.0.0.1:0", "--no-api", "--open", "--lun", &lun]);
    serve.args(["--save", &disk, "--force"]);
    let output = finish(serve, PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("it is not a configuration") && fs::read(&disk).unwrap() == vec![7; 1 << 20],
        "{said}"
    );
    let _served = support::Served::start(&["--lun", &lun, "--save", &saved, "--socket", &socket]);
    support::until(|| fs::metadata(&socket).is_ok());
    // Long enough for a sector.
    let alias = "a".repeat(200);
    succeed(lunway(&["target", "set", IQN, "--alias", &alias, "--socket", &socket]));
    succeed(lunway(&[
        "target",
        "add",
        "iqn.2026-11.com.example:second",
        "--alias",
        &alias,
        "--socket",
        &socket,
    ]));
    assert!(fs::metadata(&saved).unwrap().len() > 512);
    // It is no whole number of sectors, and so refused for writing whatever it is.
    let device = format!("readonly:{saved}");
    let output = finish(lunway(&["lun", "add", IQN, "9", &device, "--socket", &socket]), PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("belongs to this daemon itself"), "{said}");
}

#[test]
fn a_lun_is_added_seen_resized_and_removed() {
    let daemon = Daemon::start();
    fs::write(daemon.path("disk.img"), vec![7; 1 << 20]).unwrap();
    let add = ["lun", "add", IQN, "3", "disk.img", "--sector", "512"];
    let plan = daemon.run(&[&add[..], &["--dry-run"]].concat());
    assert!(plan.starts_with(&format!("+ target {IQN}, lun 3: device = ")), "{plan}");
    assert!(plan.ends_with("dry run: nothing was changed"), "{plan}");
    assert!(daemon.run(&add).contains("disk.img"));
    assert_eq!(daemon.run(&add), "nothing to change");
    let list = daemon.run(&["lun", "list", IQN]);
    assert!(list.contains("disk.img") && list.contains("1 MiB"), "{list}");
    assert!(daemon.run(&["inspect", &daemon.url(3)]).contains("1 MiB"));
    daemon.run(&["lun", "resize", IQN, "3", "2M"]);
    assert_eq!(fs::metadata(daemon.path("disk.img")).unwrap().len(), 2 << 20);
    assert!(daemon.run(&["inspect", &daemon.url(3)]).contains("2 MiB"));
    daemon.run(&["lun", "set", IQN, "3", "--read-only"]);
    assert!(daemon.run(&["lun", "list"]).contains("read-only"));
    assert!(daemon.file().contains("[[target.lun]]\nid = 3\n") && daemon.file().contains("# here"));
    daemon.run(&["lun", "remove", IQN, "3"]);
    assert_eq!(daemon.file(), FILE);
    assert!(daemon.refused(&["lun", "set", IQN, "3", "--read-only"]).contains("there is no lun 3"));
}

#[test]
fn a_lun_of_the_daemon_itself_is_no_device_for_it() {
    let daemon = Daemon::start();
    let own = daemon.url(0);
    let before = daemon.file();
    for url in [own.clone(), own.replace("127.0.0.1", "localhost"), own.replace("://", "://user%a/b@")] {
        let refused = daemon.refused(&["lun", "add", IQN, "3", &url]);
        assert!(
            refused.contains("is a logical unit of this daemon") && refused.contains(&daemon.address),
            "{refused}"
        );
    }
    assert!(
        daemon.refused(&["lun", "add", IQN, "3", &format!("delay:1ms:{own}")]).contains("of this daemon")
    );
    assert_eq!(daemon.file(), before);
    // One of another daemon is.
    let other = support::Served::start(&["--lun", "0=ram:1M"]);
    daemon.run(&["lun", "add", IQN, "3", &other.url(0)]);
    daemon.run(&["lun", "remove", IQN, "3"]);
}

#[test]
fn a_served_virtual_disk_is_resized_and_its_initiators_see_it() {
    let daemon = Daemon::start();
    let disk = daemon.path("disk.vhdx");
    let disk = disk.to_str().unwrap();
    succeed(lunway(&["disk", "create", disk, "--size", "8M", "--block-size", "1M"]));
    daemon.run(&["lun", "add", IQN, "3", disk]);
    assert!(daemon.run(&["inspect", &daemon.url(3)]).contains("8 MiB"));
    daemon.run(&["lun", "resize", IQN, "3", "20M"]);
    assert!(daemon.run(&["inspect", &daemon.url(3)]).contains("20 MiB"));
    let busy = finish(lunway(&["disk", "resize", disk, "30M"]), PATIENCE);
    assert!(String::from_utf8_lossy(&busy.stderr).contains("in use by "), "{busy:?}");
    assert!(succeed(lunway(&["disk", "info", disk])).contains("in use"));
    daemon.run(&["lun", "remove", IQN, "3"]);
    let info = succeed(lunway(&["disk", "info", disk, "--json"]));
    assert!(info.contains(&format!("\"virtual_bytes\":{}", 20 << 20)), "{info}");
    assert!(succeed(lunway(&["disk", "check", disk])).contains("no errors"));
}

#[test]
fn a_smaller_size_cuts_no_file_system_of_a_served_disk_without_its_word() {
    let Some(mkfs) = lunway_foreign::program("mkfs.ext4") else { return };
    let daemon = Daemon::start();
    let raw = daemon.path("fs.img");
    fs::write(&raw, vec![0; 64 << 20]).unwrap();
    assert!(Command::new(mkfs).args(["-q", "-F"]).arg(&raw).arg("48M").status().unwrap().success());
    daemon.run(&["lun", "add", IQN, "3", "raw:fs.img"]);
    let resize = ["lun", "resize", IQN, "3", "32M", "--shrink"];
    for more in [&[][..], &["--dry-run"]] {
        let said = daemon.refused(&[&resize[..], more].concat());
        assert!(said.contains("ext4") && said.contains("--force"), "{said}");
    }
    assert_eq!(fs::metadata(&raw).unwrap().len(), 64 << 20);
    // What lies behind the file system is lost as --shrink says.
    let said = daemon.run(&["lun", "resize", IQN, "3", "50M", "--shrink"]);
    assert!(said.contains("beyond 50 MiB are destroyed"), "{said}");
    daemon.run(&[&resize[..], &["--force"]].concat());
    assert_eq!(fs::metadata(&raw).unwrap().len(), 32 << 20);
}

#[test]
fn the_derived_serial_number_of_another_disk_is_refused() {
    let daemon = Daemon::start();
    daemon.run(&["lun", "add", IQN, "3", "ram:1M"]);
    let list: serde_json::Value = serde_json::from_str(&daemon.run(&["lun", "list", IQN, "--json"])).unwrap();
    let luns = list["luns"].as_array().unwrap();
    let serial =
        luns.iter().find(|lun| lun["config"]["id"] == 3).unwrap()["status"]["serial"].as_str().unwrap();
    let before = daemon.file();
    let said = daemon.refused(&["lun", "add", IQN, "4", "ram:1M", "--serial", serial]);
    assert!(said.contains("lun 3") && said.contains(serial), "{said}");
    assert_eq!(daemon.file(), before);
    // The disk itself may have it in writing.
    daemon.run(&["lun", "set", IQN, "3", "--serial", serial]);
}

#[test]
fn a_target_that_is_there_and_open_is_not_taken_for_a_new_one() {
    let daemon = Daemon::start();
    for name in [IQN.to_owned(), IQN.to_uppercase()] {
        let output = finish(daemon.command(&["target", "add", &name]), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("already exists and is open"), "{name}: {output:?}");
    }
}

#[test]
fn a_number_that_is_taken_is_given_away_only_by_its_own_word() {
    let daemon = Daemon::start();
    for name in ["a.img", "b.img"] {
        fs::write(daemon.path(name), vec![7; 1 << 20]).unwrap();
    }
    daemon.run(&["lun", "add", IQN, "3", "a.img", "--serial", "A"]);
    let before = daemon.file();
    for other in [
        &["lun", "add", IQN, "3", "b.img"][..],
        &["lun", "add", IQN, "3", "a.img"],
        &["lun", "add", IQN, "3", "a.img", "--serial", "A", "--read-only"],
    ] {
        let said = daemon.refused(other);
        assert!(said.contains("lun 3 of target") && said.contains("--replace"), "{other:?}: {said}");
    }
    assert_eq!(daemon.run(&["lun", "add", IQN, "3", "a.img", "--serial", "A"]), "nothing to change");
    assert_eq!(daemon.file(), before);
    daemon.run(&["lun", "add", IQN, "3", "b.img", "--replace"]);
    let file = daemon.file();
    // All of it is replaced: another disk has not the first one's serial number.
    assert!(file.contains("b.img\"") && !file.contains("a.img") && !file.contains("serial"), "{file}");
    let everybody = daemon.refused(&["acl", "add", IQN, "one", "--luns", "3"]);
    assert!(everybody.contains("would let in every initiator"), "{everybody}");
    let one = ["acl", "add", IQN, "one", "--luns", "3", "--from", "10.0.0.7"];
    daemon.run(&one);
    assert!(daemon.refused(&["acl", "add", IQN, "one", "--deny"]).contains("rule one in the acl"));
    assert_eq!(daemon.run(&one), "nothing to change");
    daemon.run(&["acl", "add", IQN, "one", "--deny", "--replace"]);
    daemon.run(&["target", "add", IQN]);
    assert!(daemon.refused(&["target", "add", IQN, "--alias", "mine"]).contains("already exists"));
}

#[test]
fn fewer_bytes_than_a_lun_has_are_given_to_it_only_by_their_own_word() {
    let daemon = Daemon::start();
    fs::write(daemon.path("a.img"), vec![7; 2 << 20]).unwrap();
    daemon.run(&["lun", "add", IQN, "3", "a.img"]);
    for lun in ["0", "3"] {
        for more in [&[][..], &["--dry-run"]] {
            let said = daemon.refused(&[&["lun", "resize", IQN, lun, "512K"], more].concat());
            assert!(said.contains("--shrink") && said.contains("would lose"), "{said}");
        }
    }
    assert_eq!(fs::metadata(daemon.path("a.img")).unwrap().len(), 2 << 20);
    assert!(daemon.file().contains("ram:1M"));
    fs::write(daemon.path("b.img"), vec![8; 1 << 20]).unwrap();
    let said = daemon.refused(&["lun", "add", IQN, "3", "b.img", "--replace"]);
    assert!(said.contains("has 2 MiB; a size of 1 MiB would lose"), "another disk: {said}");
    for more in [&[][..], &["--dry-run"]] {
        let said = daemon.refused(&[&["lun", "resize", IQN, "3", "1000", "--shrink"], more].concat());
        assert!(said.contains("whole sectors of 512 bytes"), "{said}");
    }
    daemon.run(&["lun", "resize", IQN, "3", "4M"]);
    daemon.run(&["lun", "resize", IQN, "3", "512K", "--shrink"]);
    // Another size of the same memory is a resize, whatever asks for it.
    let file = daemon.file().replace("ram:1M", "ram:512K");
    for words in [
        &["lun", "set", IQN, "0", "--device", "ram:512K"][..],
        &["lun", "add", IQN, "0", "ram:512K", "--replace"],
        &["config", "apply", "smaller.toml"],
        &["reload"],
    ] {
        if words[0] == "config" {
            fs::write(daemon.path("smaller.toml"), &file).unwrap();
        }
        if words[0] == "reload" {
            fs::write(daemon.path("lunway.toml"), &file).unwrap();
        }
        let said = daemon.refused(words);
        assert!(said.contains("has 1 MiB; a size of 512 KiB would lose"), "{words:?}: {said}");
        assert!(daemon.run(&["lun", "list"]).contains("1 MiB"), "{words:?}");
    }
    daemon.run(&["reload", "--shrink"]);
    daemon.run(&["lun", "set", IQN, "0", "--device", "ram:1M"]);
    daemon.run(&["lun", "resize", IQN, "0", "512K", "--shrink"]);
    assert_eq!(fs::metadata(daemon.path("a.img")).unwrap().len(), 512 << 10);
    assert!(daemon.file().contains("ram:512K"));
}

/// A growth said "1 MiB -> 2 MiB", and what another program had taken read as zeroes from then on.
#[test]
fn a_lun_whose_file_was_truncated_is_grown_only_after_a_shrink_to_what_is_left() {
    let daemon = Daemon::start();
    let disk = daemon.path("a.img");
    fs::write(&disk, vec![7; 1 << 20]).unwrap();
    daemon.run(&["lun", "add", IQN, "3", "a.img"]);
    fs::File::options().write(true).open(&disk).unwrap().set_len(256 << 10).unwrap();
    let said = daemon.refused(&["lun", "resize", IQN, "3", "2M"]);
    assert!(said.contains("786432 bytes of its data are lost") && said.contains("262144"), "{said}");
    assert_eq!(fs::metadata(&disk).unwrap().len(), 256 << 10);
    // What is cut off cannot be looked at.
    assert!(daemon.refused(&["lun", "resize", IQN, "3", "262144", "--shrink"]).contains("--force cuts it"));
    daemon.run(&["lun", "resize", IQN, "3", "262144", "--shrink", "--force"]);
    daemon.run(&["lun", "resize", IQN, "3", "2M"]);
    assert_eq!(fs::metadata(&disk).unwrap().len(), 2 << 20);
}

#[test]
fn a_file_is_made_with_its_lun_and_only_with_it() {
    let daemon = Daemon::start();
    let plan = daemon.run(&["lun", "add", IQN, "3", "new.img", "--create", "64M", "--dry-run"]);
    assert!(plan.ends_with("dry run: nothing was changed"), "{plan}");
    assert!(!daemon.path("new.img").exists(), "a trial leaves no file");
    daemon.run(&["lun", "add", IQN, "3", "new.img", "--create", "64M"]);
    let made = fs::metadata(daemon.path("new.img")).unwrap();
    assert_eq!(
        (made.len(), made.blocks(), made.mode() & 0o777),
        (64 << 20, 0, 0o600),
        "sparse, and ours alone"
    );
    assert!(daemon.run(&["inspect", &daemon.url(3)]).contains("64 MiB"));
    fs::write(daemon.path("old.img"), vec![7; 1 << 20]).unwrap();
    for (words, part) in [
        (&["lun", "add", IQN, "4", "old.img", "--create", "1M"][..], "already exists and was not changed"),
        (&["lun", "add", IQN, "3", "other.img", "--create", "1M"], "lun 3 of target"),
        (&["lun", "add", IQN, "4", "other.img", "--create", "1000"], "whole sectors"),
        (&["lun", "add", IQN, "4", "other.img", "--create", "0"], "whole sectors"),
        (&["lun", "add", IQN, "4", "ram:1M", "--create", "1M"], "only raw files are created"),
        (&["lun", "add", IQN, "4", "other.vhdx", "--create", "1M"], "lunway disk create"),
        (&["lun", "add", IQN, "4", "none/other.img", "--create", "1M"], "cannot create"),
    ] {
        let said = daemon.refused(words);
        assert!(said.contains(part), "{words:?}: {said}");
        assert!(
            !daemon.path("other.img").exists() && !daemon.path("other.vhdx").exists(),
            "{words:?} leaves no file"
        );
    }
    assert_eq!(fs::read(daemon.path("old.img")).unwrap(), vec![7; 1 << 20]);
}

#[test]
fn a_secret_file_in_an_address_is_found_from_the_folder_of_the_configuration() {
    let daemon = Daemon::start();
    support::secret_file(daemon.folder.path(), "secret", "sesame open now");
    let (folder, served) = (tempfile::tempdir().unwrap(), daemon.path("secret"));
    daemon.run(&["target", "set", IQN, "--chap", &format!("host:{}", served.display())]);
    support::secret_file(folder.path(), "beside", "sesame open now");
    let device = format!("iscsi://host@{}/{IQN}/0?secret_file=beside", daemon.address);
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{IQN}2\"\nopen = true\n[[target.lun]]\nid = 0\ndevice = \"{device}\"\n"
    );
    fs::write(folder.path().join("lunway.toml"), text).unwrap();
    let mut second =
        lunway(&["serve", "-c", folder.path().join("lunway.toml").to_str().unwrap(), "--no-api", "--json"]);
    second.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut second = second.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(second.stdout.take().unwrap()).read_line(&mut line).unwrap();
    second.kill().unwrap();
    second.wait().unwrap();
    assert!(line.contains("1048576"), "it does not serve: {line}");
    // From the command line it is found from where that is typed.
    let third = Daemon::start();
    let mut command = third.command(&["lun", "add", IQN, "1", &device]);
    command.current_dir(folder.path());
    succeed(command);
    let file = third.file();
    assert!(file.contains(&format!("?secret_file={}/beside", folder.path().display())), "{file}");
}

#[test]
fn a_change_of_what_is_not_there_makes_nothing() {
    let daemon = Daemon::start();
    let unknown = "iqn.2026-11.com.example:dsik";
    for words in [
        &["target", "set", unknown, "--open"][..],
        &["target", "set", unknown, "--chap", "u:f"],
        &["target", "disable", unknown],
        &["lun", "set", unknown, "0", "--read-only"],
        &["lun", "add", unknown, "0", "ram:1M"],
    ] {
        assert!(daemon.refused(words).contains("there is no target"), "{words:?}");
    }
    assert!(daemon.refused(&["lun", "set", IQN, "1", "--device", "ram:1M"]).contains("there is no lun 1"));
    assert_eq!(daemon.file(), FILE);
}

#[test]
fn a_command_says_which_daemon_it_asks_where_several_run() {
    let daemon = Daemon::start();
    let folder = tempfile::tempdir().unwrap();
    let alone = finish(daemon.command(&["target", "list"]), PATIENCE);
    assert!(alone.stderr.is_empty(), "{:?}", String::from_utf8_lossy(&alone.stderr));
    let mut second = daemon.command(&["serve", "--listen", "127.0.0.1:0", "--lun", "0=ram:1M"]);
    second.env_remove("LUNWAY_SOCKET").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut second = second.spawn().unwrap();
    let mut lines = BufReader::new(second.stdout.take().unwrap()).lines().map_while(Result::ok);
    let managed = lines.find(|line| line.contains("managed")).unwrap();
    // The usual socket is free: the first daemon has one of its own.
    let usual = daemon.path("run/lunway.sock");
    assert_eq!(managed, format!("managed on {}", usual.display()));
    let said = |words: &[&str], socket: &std::path::Path| {
        let mut command = daemon.command(words);
        command.env("LUNWAY_SOCKET", socket);
        let output = finish(command, PATIENCE);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let (first, second_socket) = (daemon.path("api.sock"), usual.clone());
    let sentence = said(&["target", "list"], &first);
    let asked =
        format!("lunway: asking process {} (-c {})", daemon.child.id(), daemon.path("lunway.toml").display());
    let other = format!("also running: process {} on {}", second.id(), usual.display());
    assert!(sentence.starts_with(&asked) && sentence.trim_end().ends_with(&other), "{sentence}");
    let sentence = said(&["target", "list", "--json"], &second_socket);
    assert!(sentence.contains(&format!("asking process {} on", second.id())), "{sentence}");
    let sentence = said(&["target", "list"], &daemon.path("none.sock"));
    assert!(
        sentence.contains("no daemon answers on") && sentence.contains(&first.display().to_string()),
        "{sentence}"
    );
    let token = support::secret_file(folder.path(), "token", "tttttttttttttttttttttttttttttttttttttttt");
    let tcp = ["--api", "http://127.0.0.1:1", "--token-file", &token];
    let sentence = said(&[&["target", "disable", IQN][..], &tcp].concat(), &first);
    let asked = "lunway: asking the daemon at http://127.0.0.1:1; running on this machine: process ";
    assert!(sentence.starts_with(asked), "{sentence}");
    second.kill().unwrap();
    second.wait().unwrap();
    let alone = finish(daemon.command(&["target", "list"]), PATIENCE);
    assert!(alone.stderr.is_empty(), "a daemon that was killed is not counted");
}

#[test]
fn a_command_that_names_two_daemons_asks_none() {
    let folder = tempfile::tempdir().unwrap();
    let token = support::secret_file(folder.path(), "token", "tttttttttttttttttttttttttttttttttttttttt");
    let refused = |words: &[&str], environment: Option<&str>| {
        let mut command = lunway(words);
        command.args(["--api", "http://127.0.0.1:1", "--token-file", &token]);
        command.envs(environment.map(|socket| ("LUNWAY_SOCKET", socket)));
        let output = finish(command, PATIENCE);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for words in [&["lun", "remove", IQN, "0", "--socket", "/s"][..], &["target", "list", "--socket", "/s"]] {
        for environment in [None, Some("/other")] {
            let (code, said) = refused(words, environment);
            assert!(code == Some(2) && said.contains("name two daemons"), "{words:?}: {code:?} {said}");
        }
    }
    // The environment is not typed.
    let (code, said) = refused(&["target", "list"], Some("/s"));
    assert!(code == Some(1) && said.contains("no daemon answers on 127.0.0.1:1"), "{code:?} {said}");
}

#[test]
fn a_daemon_that_is_not_managed_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let start = |more: &[&str], environment: Option<&str>| {
        let words = [&["serve", "--listen", "127.0.0.1:0", "--lun", "0=ram:1M"], more].concat();
        let mut command = lunway(&words);
        command.env("LUNWAY_RUNTIME_DIR", folder.path()).stdin(Stdio::null()).stdout(Stdio::piped());
        command.envs(environment.map(|socket| ("LUNWAY_SOCKET", socket)));
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let line = lines.find(|line| line.contains("managed"));
        (child, line.expect("it is said"))
    };
    let end = |mut child: Child| {
        child.kill().unwrap();
        child.wait().unwrap();
    };
    let said = |more: &[&str], environment: Option<&str>| {
        let (child, line) = start(more, environment);
        end(child);
        line
    };
    assert_eq!(said(&["--no-api"], None), "not managed: --no-api");
    let named = folder.path().join("named.sock");
    let named = named.to_str().unwrap();
    assert_eq!(said(&[], Some(named)), format!("managed on {named}"));
    assert_eq!(said(&["--no-api"], Some(named)), "not managed: --no-api");
    let (first, _) = start(&[], None);
    let line = said(&[], None);
    assert!(
        line.starts_with("not managed: another daemon listens on ") && line.contains("--socket"),
        "{line}"
    );
    end(first);
    let keys = "listen = [\"127.0.0.1:0\"]\n[api]\nlisten = \"127.0.0.1:0\"\ntoken_file = \"token\"\n";
    fs::write(folder.path().join("lunway.toml"), keys).unwrap();
    let token = folder.path().join("token");
    fs::write(&token, "a-token-of-visible-characters\n").unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let mut command = lunway(&["serve", "-c", "lunway.toml", "--socket", named]);
    command.current_dir(folder.path()).env("LUNWAY_RUNTIME_DIR", folder.path());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let managed: Vec<_> = lines.filter(|line| line.contains("managed")).take(2).collect();
    end(child);
    assert_eq!(managed[0], format!("managed on {named}"));
    let port = managed[1].strip_prefix("managed on http://127.0.0.1:").map(str::parse::<u16>);
    assert!(matches!(port, Some(Ok(1..))), "{managed:?}");
}

#[test]
fn a_configuration_means_the_same_wherever_its_daemon_is_started() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("disk.img"), vec![0; 3 << 20]).unwrap();
    support::secret_file(folder.path(), "s", "sesame open now");
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\n[api]\nsocket = \"api.sock\"\n[[target]]\nname = \"{IQN}\"\nopen = true\n\
         [[target.chap]]\nuser = \"u\"\nsecret_file = \"s\"\n[[target.lun]]\nid = 0\ndevice = \"disk.img\"   # ours\n"
    );
    fs::write(path("lunway.toml"), &text).unwrap();
    let mut command = lunway(&["serve", "-c", path("lunway.toml").to_str().unwrap(), "--json"]);
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    let url = format!(
        "iscsi://u@{}/{IQN}/0?secret_file={}",
        ready["listening"][0].as_str().unwrap(),
        path("s").display()
    );
    // The same file is the secret at both ends, whatever line ends an editor has put behind it.
    fs::write(path("s"), "sesame open now\r\n\n").unwrap();
    succeed(lunway(&["reload", "--socket", path("api.sock").to_str().unwrap()]));
    let shown = succeed(lunway(&["inspect", &url]));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(shown.contains("3 MiB"), "{shown}");
    assert_eq!(fs::read_to_string(path("lunway.toml")).unwrap(), text.replace("disk.img", "raw:disk.img"));
}

#[test]
fn durations_take_units_and_a_host_alone_is_a_portal() {
    let daemon = Daemon::start();
    assert!(daemon.run(&["discover", &daemon.address]).contains(IQN));
    for words in [&["top", "--once", "--interval", "1"][..], &["session", "logout", "1", "--grace", "10"]] {
        let output = finish(daemon.command(words), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("is not a duration: write a number with a unit"), "{said}");
    }
    assert_eq!(daemon.run(&["session", "logout", "60000", "--grace", "2m"]), "there is no session 60000");
}

#[test]
fn a_target_is_added_drained_and_removed() {
    let daemon = Daemon::start();
    let name = "iqn.2026-11.com.example:second";
    support::secret_file(daemon.folder.path(), "s", "sesame open now");
    let added = daemon.run(&["target", "add", name, "--alias", "two", "--chap", "host:s"]);
    assert!(added.contains(&format!("no initiator may log in to target {name}")), "{added}");
    let access = |what: &str| {
        let list = daemon.run(&["target", "list"]);
        assert!(list.lines().any(|line| line.contains(name) && line.contains(what)), "{what}: {list}");
    };
    access("nobody");
    let plan = daemon.run(&["target", "set", name, "--open", "--dry-run"]);
    assert!(plan.contains("every CHAP user may log in"), "{plan}");
    access("nobody");
    daemon.run(&["target", "set", name, "--open"]);
    access("everybody");
    let plan = daemon.run(&["target", "set", name, "--no-open", "--dry-run"]);
    assert!(plan.contains("no initiator may log in to target") && plan.contains("any more"), "{plan}");
    daemon.run(&["target", "set", name, "--chap", "other:s", "--no-chap", "host"]);
    daemon.run(&["target", "disable", name]);
    let list: Value = serde_json::from_str(&daemon.run(&["target", "list", "--json"])).unwrap();
    let target = &list["targets"][1];
    assert_eq!((&target["config"]["alias"], &target["status"]["enabled"]), (&"two".into(), &false.into()));
    assert_eq!(target["config"]["chap"].as_array().unwrap().len(), 1);
    assert_eq!(target["config"]["chap"][0]["user"], "other");
    daemon.run(&["acl", "add", name, "all", "--from", "10.0.0.7", "--deny"]);
    daemon.run(&[
        "acl",
        "add",
        name,
        "some",
        "--initiator",
        "iqn.2026-11.com.example:*",
        "--luns",
        "0,2",
        "--at",
        "1",
    ]);
    let rules = daemon.run(&["acl", "list", name]);
    let places: Vec<_> = ["some", "10.0.0.7/32"].iter().map(|part| rules.find(part).unwrap()).collect();
    assert!(places.is_sorted(), "{rules}");
    daemon.run(&["acl", "remove", name, "some"]);
    daemon.run(&["target", "remove", name]);
    assert_eq!(daemon.file(), FILE);
    assert!(daemon.refused(&["target", "enable", name]).contains("there is no target"));
}

#[test]
fn the_configuration_is_shown_applied_and_reloaded() {
    let mut daemon = Daemon::start();
    let shown = daemon.run(&["config", "show"]);
    fs::write(daemon.path("new.toml"), shown.replace("[[target]]", "[[target]]\nalias = \"A\"")).unwrap();
    assert_eq!(daemon.run(&["config", "apply", "new.toml"]), format!("+ target {IQN}: alias: A"));
    assert!(daemon.file().contains("alias = \"A\"") && daemon.file().contains("# here"));
    fs::write(daemon.path("lunway.toml"), FILE).unwrap();
    assert!(daemon.run(&["reload", "--dry-run"]).contains("alias: A"));
    let process = rustix::process::Pid::from_child(&daemon.child);
    rustix::process::kill_process(process, rustix::process::Signal::HUP).unwrap();
    let start = Instant::now();
    while daemon.run(&["target", "list", "--json"]).contains("\"alias\":\"A\"") {
        assert!(start.elapsed() < PATIENCE, "SIGHUP reloads");
    }
    fs::write(daemon.path("lunway.toml"), "listen = [").unwrap();
    assert!(daemon.refused(&["reload"]).contains("lunway.toml, line 1"));
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    assert!(wait(&mut daemon.child, PATIENCE).unwrap().success());
    assert!(!daemon.path("api.sock").exists());
}

/// Lost was: what `ram:` LUNs held, as a file without them, or with other numbers of them, was applied without a
/// question.
#[test]
fn a_file_that_gives_up_data_in_memory_is_applied_only_with_force_however_it_comes() {
    let log = |folder: &Path| Stdio::from(fs::File::create(folder.join("log")).unwrap());
    let daemon = Daemon::start_logging_to(log);
    fs::write(daemon.path("data.img"), vec![7; 1 << 20]).unwrap();
    daemon.run(&["copy", "data.img", &daemon.url(0)]);
    let process = rustix::process::Pid::from_child(&daemon.child);
    let before = daemon.run(&["config", "show"]);
    let logged =
        || fs::read_to_string(daemon.path("log")).unwrap().matches("`lunway reload --force`").count();
    let edits = [
        ("a target dropped", FILE.replace(IQN, "iqn.2026-11.com.example:other")),
        ("a LUN dropped", FILE.split("[[target.lun]]").next().unwrap().to_owned()),
        ("another number", FILE.replace("id = 0", "id = 5")),
        ("another device", FILE.replace("ram:1M", "raw:data.img")),
    ];
    for (at, (what, file)) in edits.iter().enumerate() {
        fs::write(daemon.path("new.toml"), file).unwrap();
        fs::write(daemon.path("lunway.toml"), file).unwrap();
        let asked: [&[&str]; 4] = [
            &["config", "apply", "new.toml", "--dry-run"],
            &["config", "apply", "new.toml"],
            &["reload", "--dry-run"],
            &["reload"],
        ];
        for arguments in asked {
            let refused = daemon.refused(arguments);
            assert!(
                refused.contains("holds 1 MiB of data, which are lost"),
                "{what}, {arguments:?}: {refused}"
            );
            assert!(refused.contains("--force allows that"), "{what}, {arguments:?}: {refused}");
        }
        rustix::process::kill_process(process, rustix::process::Signal::HUP).unwrap();
        let start = Instant::now();
        while logged() == at {
            assert!(start.elapsed() < PATIENCE, "{what}: SIGHUP is refused, and the log says so");
        }
        assert_eq!(daemon.run(&["config", "show"]), before, "{what}");
    }
    let trial = daemon.run(&["reload", "--dry-run", "--force"]);
    assert!(trial.contains("would be lost with it") && trial.contains("dry run"), "{trial}");
    daemon.run(&["reload", "--force"]);
    let shown = daemon.run(&["config", "show"]);
    assert!(shown.contains("data.img"), "{shown}");
}

/// The daemon read all of a file of 6 GiB, and was killed for want of memory.
#[test]
fn a_file_that_is_too_long_to_be_a_configuration_changes_nothing() {
    let mut daemon = Daemon::start();
    let file = fs::File::options().write(true).open(daemon.path("lunway.toml")).unwrap();
    file.set_len(6 << 30).unwrap();
    assert!(daemon.refused(&["reload"]).contains("it has more than 4 MiB"));
    assert!(daemon.refused(&["lun", "add", IQN, "9", "ram:1M"]).contains("it has more than 4 MiB"));
    let process = rustix::process::Pid::from_child(&daemon.child);
    rustix::process::kill_process(process, rustix::process::Signal::HUP).unwrap();
    fs::write(daemon.path("lunway.toml"), FILE).unwrap();
    assert_eq!(daemon.run(&["reload"]), "nothing to change");
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).unwrap();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let most: u64 = most.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(most < 1 << 20, "{most} KiB");
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    assert!(wait(&mut daemon.child, PATIENCE).unwrap().success());
}

#[test]
fn a_session_is_listed_and_dropped() {
    let daemon = Daemon::start();
    assert_eq!(daemon.run(&["session", "list"]), "no sessions");
    // Longer than the test may take; it is killed at the end.
    let bench = lunway(&["bench", &daemon.url(0), "--rw", "read", "--time", "1h"]);
    let _bench = KilledAtTheEnd::start(bench);
    let start = Instant::now();
    let mut tsih = loop {
        let list: Value = serde_json::from_str(&daemon.run(&["session", "list", "--json"])).unwrap();
        match list["sessions"][0]["tsih"].as_u64() {
            Some(tsih) => break tsih.to_string(),
            None => assert!(start.elapsed() < PATIENCE, "the session is listed"),
        }
    };
    assert!(daemon.run(&["session", "list"]).contains(IQN));
    // It logs in before it reads: on a busy machine more than an interval before.
    loop {
        let top: Value =
            serde_json::from_str(&daemon.run(&["top", "--once", "--json", "--interval", "300ms"])).unwrap();
        // It may log in anew before it reads.
        if let Some(session) = top["sessions"][0]["tsih"].as_u64() {
            tsih = session.to_string();
        }
        if top["luns"][0]["read_iops"].as_f64().unwrap() > 0.0 {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "the reads are counted: {top}");
    }
    let shown = daemon.run(&["top", "--once", "--interval", "100ms"]);
    assert!(shown.contains("READS/s") && shown.contains("MB/s"), "{shown}");
    // The target of these tests is open to all.
    assert!(
        shown.contains("doctor: ") && shown.contains("target-open") && shown.contains("--socket"),
        "{shown}"
    );
    assert_eq!(daemon.run(&["reservation", "list"]), "no reservations");
    assert_eq!(daemon.run(&["reservation", "clear", IQN, "0"]), "nothing to clear");
    assert_eq!(daemon.run(&["session", "drop", &tsih]), format!("session {tsih}: dropped"));
    assert_eq!(daemon.run(&["session", "logout", "60000"]), "there is no session 60000");
}

/// A program that runs for as long as a test.
struct KilledAtTheEnd(Child);

impl KilledAtTheEnd {
    fn start(mut command: std::process::Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for KilledAtTheEnd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The list of a target's portal groups was replaced without a word.
#[test]
fn a_portal_group_is_added_changed_and_removed_beside_the_others() {
    let daemon = Daemon::start();
    daemon.run(&["portal", "add", "127.0.0.1:0", "--group", "2"]);
    let set = |arguments: &[&str]| daemon.run(&[&["target", "set", IQN], arguments].concat());
    let first = set(&["--portal-group", "1"]);
    assert!(
        first.contains("is offered through portal group 1 only (before: all portal groups)"),
        "what was replaced is said: {first}"
    );
    let plan = set(&["--portal-group", "2=standby", "--dry-run"]);
    assert!(plan.contains("portal groups 1, 2 only (before: portal group 1 only)"), "{plan}");
    assert!(plan.contains("+ target") && !plan.contains("- target"), "group 1 stays: {plan}");
    set(&["--portal-group", "2=standby"]);
    assert!(set(&["--portal-group", "2"]).contains("portal_group 2: state: standby -> active-optimized"));
    let removed = set(&["--no-portal-group", "1"]);
    assert!(removed.contains("portal group 2 only (before: portal groups 1, 2 only)"), "{removed}");
    let last = daemon.command(&["target", "set", IQN, "--no-portal-group", "2"]);
    let last = finish(last, PATIENCE);
    assert_eq!(last.status.code(), Some(2), "no list is all groups, which must be said");
    assert!(set(&["--portal-group", ""]).contains("all portal groups (before: portal group 2 only)"));
}

/// `lun set --sector` opened a RAM disk anew, empty, and said nothing; `reload` dropped what no file held.
#[test]
fn memory_is_not_emptied_by_a_change_of_its_settings() {
    let daemon = Daemon::start();
    let word = "ram:1M cannot be reopened while it is served, as its data would be lost";
    assert!(daemon.refused(&["lun", "set", IQN, "0", "--sector", "4096"]).contains(word));
    let smaller = daemon.refused(&["lun", "add", IQN, "0", "ram:2M", "--sector", "4096", "--replace"]);
    assert!(smaller.contains("its data would be lost"), "{smaller}");
    let edited = daemon.file().replace("id = 0", "id = 0\nsector = 4096");
    fs::write(daemon.path("edited.toml"), &edited).unwrap();
    assert!(daemon.refused(&["config", "apply", "edited.toml"]).contains(word));
    fs::write(daemon.path("lunway.toml"), &edited).unwrap();
    assert!(daemon.refused(&["reload"]).contains(word));
    let list = daemon.run(&["lun", "list"]);
    assert!(list.contains(" 512 ") && !list.contains("4096"), "{list}");
}

#[test]
fn a_daemon_without_a_file_keeps_its_changes_over_a_reload() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("api.sock");
    let socket = socket.to_str().unwrap();
    let mut serve = lunway(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--iqn",
        IQN,
        "--open",
        "--lun",
        "0=ram:1M",
        "--socket",
    ]);
    serve.arg(socket).env("LUNWAY_RUNTIME_DIR", folder.path());
    let _serve = KilledAtTheEnd::start(serve);
    let ask = |arguments: &[&str]| {
        let mut command = lunway(arguments);
        command.env("LUNWAY_SOCKET", socket).env("LUNWAY_RUNTIME_DIR", folder.path());
        finish(command, PATIENCE)
    };
    support::until(|| ask(&["target", "list"]).status.success());
    assert!(ask(&["lun", "add", IQN, "1", "ram:2M"]).status.success());
    let reload = ask(&["reload"]);
    assert_eq!(String::from_utf8_lossy(&reload.stdout).trim_end(), "nothing to change");
    assert!(String::from_utf8_lossy(&ask(&["lun", "list"]).stdout).contains("ram:2M"));
}

/// `acl add RULE --luns 0 --replace` without the initiator it was for let every initiator in, without a word.
#[test]
fn a_rule_that_matches_every_initiator_is_said_to_do_so() {
    let daemon = Daemon::start();
    daemon.run(&["acl", "add", IQN, "host-1", "--initiator", "iqn.2026-11.com.example:host-1"]);
    daemon.run(&["target", "set", IQN, "--no-open"]);
    let replace = ["acl", "add", IQN, "host-1", "--luns", "0", "--replace", "--dry-run"];
    assert!(daemon.refused(&replace).contains("rule host-1 would let in every initiator"));
    let replaced = daemon.run(&[&replace[..], &["--initiator", "*"]].concat());
    assert!(replaced.contains("every initiator that reaches target"), "{replaced}");
    assert!(replaced.contains("access rule host-1 matches"), "{replaced}");
}

#[test]
fn where_no_daemon_is_the_sentence_says_where_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("none.sock");
    let output =
        finish(lunway(&["target", "list", "--socket", socket.to_str().unwrap()]), Duration::from_secs(10));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("no daemon answers on") && stderr.contains("none.sock"), "{stderr}");
    assert!(stderr.contains("lunway serve"), "{stderr}");
}

#[test]
fn a_second_daemon_on_the_same_socket_is_refused_before_it_touches_anything() {
    let daemon = Daemon::start();
    let socket = daemon.path("api.sock");
    let sentence = daemon.refused(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--lun",
        "0=ram:1M",
        "--socket",
        socket.to_str().unwrap(),
    ]);
    assert!(sentence.contains("another daemon listens on"), "{sentence}");
    assert!(daemon.run(&["target", "list"]).contains(IQN));
}
