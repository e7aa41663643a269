//! Logical units of a running daemon: added, resized, removed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use crate::support::{IQN, PATIENCE, Served, finish, lunway, succeed, until};
use crate::{Daemon, FILE};

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
    let _served = Served::start(&["--lun", &lun, "--save", &saved, "--socket", &socket]);
    until(|| fs::metadata(&socket).is_ok());
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
    let other = Served::start(&["--lun", "0=ram:1M"]);
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
