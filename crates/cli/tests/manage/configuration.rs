//! The configuration of a running daemon: where it is found, shown, applied and reloaded.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use serde_json::Value;

use crate::support::{IQN, PATIENCE, finish, lunway, secret_file, succeed, until, wait};
use crate::{Daemon, FILE, KilledAtTheEnd};

#[test]
fn a_secret_file_in_an_address_is_found_from_the_folder_of_the_configuration() {
    let daemon = Daemon::start();
    secret_file(daemon.folder.path(), "secret", "sesame open now");
    let (folder, served) = (tempfile::tempdir().unwrap(), daemon.path("secret"));
    daemon.run(&["target", "set", IQN, "--chap", &format!("host:{}", served.display())]);
    secret_file(folder.path(), "beside", "sesame open now");
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
fn a_configuration_means_the_same_wherever_its_daemon_is_started() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("disk.img"), vec![0; 3 << 20]).unwrap();
    secret_file(folder.path(), "s", "sesame open now");
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
    until(|| ask(&["target", "list"]).status.success());
    assert!(ask(&["lun", "add", IQN, "1", "ram:2M"]).status.success());
    let reload = ask(&["reload"]);
    assert_eq!(String::from_utf8_lossy(&reload.stdout).trim_end(), "nothing to change");
    assert!(String::from_utf8_lossy(&ask(&["lun", "list"]).stdout).contains("ram:2M"));
}
