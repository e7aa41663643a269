//! What people and scripts hold on to: exit codes, messages, JSON, and that no secret is shown.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use serde_json::Value;
use support::{
    IQN, PATIENCE, Running, Served, finish, free_port, image, interrupted, lunway, measures, secret_file,
    succeed, until,
};

/// Exit code, standard output, standard error.
fn outcome(arguments: &[&str]) -> (i32, String, String) {
    let output = finish(lunway(arguments), PATIENCE);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().expect("no crash"), text(&output.stdout), text(&output.stderr))
}

fn json(arguments: &[&str]) -> Value {
    let text = succeed(lunway(arguments));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}\n{text}"))
}

#[test]
fn wrong_usage_ends_with_2_and_says_what_is_expected() {
    for (arguments, part) in [
        (&["frobnicate"][..], "unrecognized subcommand"),
        (&["backup", "check", "x"], "tip: a similar subcommand exists: 'verify'"),
        (&["-v", "backup", "forget", "x"], "'prune'"),
        (&["backup", "snapshots"], "'list'"),
        (&["copy", "ram:1M"], "<DST>"),
        (&["inspect", "rams:1M"], "not a kind of device"),
        (&["inspect", "ram:1X"], "is not a size"),
        (&["inspect", "iscsi://127.0.0.1/no-name/0"], "not an iSCSI name"),
        (&["discover", "http://127.0.0.1"], "iscsi://"),
        (&["bench", "ram:1M", "--rw", "sideways"], "sideways"),
        (&["bench", "ram:1M", "--bs", "4K"], "--rw"),
        (&["bench", "ram:1M", "--rw", "read", "--qd", "4x"], "a whole number is expected"),
        (&["bench", "ram:1M", "--rw", "read", "--mix", "70"], "--mix"),
        (&["bench", "ram:1M", "--rw", "read", "--bs", "1000"], "multiple of the sector"),
        (&["bench", "ram:1M", "--rw", "read", "--time", "5"], "`5` is not a duration"),
        (&["serve"], "--lun"),
        (&["serve", "--lun", "ram:1M"], "0=ram:1G"),
        (&["serve", "--lun", "0=rams:1M"], "not a kind of device"),
        (&["serve", "--lun", "0=ram:1M", "--lun", "0=ram:2M"], "two LUNs"),
        (&["serve", "--lun", "0=ram:1M", "--listen", "no/where"], "no/where"),
    ] {
        let (code, stdout, stderr) = outcome(arguments);
        assert_eq!((code, stdout.as_str()), (2, ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains(part), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_file_of_settings_that_is_missing_ends_with_1_and_one_that_cannot_be_meant_with_2_in_all_commands() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("paths.toml"), "x = [").unwrap();
    for words in [
        &["serve", "-c", "FILE"][..],
        &["config", "apply", "FILE"],
        &["lab", "run", "FILE"],
        &["bench", "ram:1M", "--job", "FILE"],
        &["compare", "ram:1M", "ram:1M", "--job", "FILE"],
        &["inspect", "paths:FILE"],
        &["paths", "paths:FILE"],
        &["copy", "paths:FILE", "ram:1M"],
        &["attach", "paths:FILE", "--nbd", "unix:/nonexistent/socket"],
    ] {
        for (file, expected) in [(path("missing/paths.toml"), 1), (path("paths.toml"), 2)] {
            let words: Vec<_> = words.iter().map(|word| word.replace("FILE", &file)).collect();
            let (code, _, stderr) = outcome(&words.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(code, expected, "{words:?}: {stderr}");
        }
    }
}

/// A pipe that nobody writes to was waited for without end, and `/dev/zero` read until the memory was full.
#[test]
fn a_pipe_or_a_device_in_the_place_of_a_small_file_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    mknodat(CWD, path("paths.toml"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    std::os::unix::fs::symlink("/dev/zero", path("zero.toml")).unwrap();
    let secret = "iscsi://u@127.0.0.1:1/iqn.2026-11.com.example:x/0?secret_file=FILE";
    for words in [
        &["serve", "--check", "-c", "FILE"][..],
        &["config", "apply", "FILE"],
        &["lab", "run", "FILE"],
        &["bench", "ram:1M", "--job", "FILE"],
        &["inspect", "paths:FILE"],
        &["inspect", secret],
        &["report", "show", "FILE"],
        &["doctor", "--from", "FILE"],
        &["session", "list", "--api", "http://127.0.0.1:1", "--token-file", "FILE"],
    ] {
        for file in [path("paths.toml"), path("zero.toml")] {
            let words: Vec<_> = words.iter().map(|word| word.replace("FILE", &file)).collect();
            let (code, _, stderr) = outcome(&words.iter().map(String::as_str).collect::<Vec<_>>());
            assert!((1..=2).contains(&code), "{words:?}: {code} {stderr}");
            assert!(stderr.contains("it is not a regular file"), "{words:?}: {stderr}");
        }
    }
}

/// A value of some MiB in a file was repeated whole.
#[test]
fn a_long_value_of_a_configuration_is_not_repeated_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lunway.toml");
    fs::write(&path, format!("listen = [\"{}\"]", "x".repeat(3 << 20))).unwrap();
    let (code, _, stderr) = outcome(&["serve", "--check", "-c", path.to_str().unwrap()]);
    assert!(
        code == 2 && stderr.len() < 4096 && stderr.contains("more characters"),
        "{code}: {}",
        stderr.len()
    );
}

#[test]
fn no_key_occurs_twice_in_what_a_command_prints_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    image(&folder.path().join("a.img"), 1 << 20, 1 << 20);
    let served = Served::start(&["--lun", &format!("0={}", path("a.img"))]);
    let (url, short) = (served.url(0), ["--time", "20ms", "--ramp", "0ms"]);
    let [stream, plus, page] = ["stream", "plus.json", "page.html"].map(path);
    let measured = [
        &["bench", "ram:1M", "--rw", "randrw", "--mix", "50", "--json", "--stream", &stream][..],
        &["--json-plus-file", &plus, "--html-file", &page],
        &short,
    ]
    .concat();
    let older = path("older.html");
    succeed(lunway(&[&["bench", "ram:1M", "--rw", "randrw", "--html-file", &older][..], &short].concat()));
    for words in
        [
            &["inspect", &url, "--json"][..],
            &["inspect", "ram:1M", "--json"],
            &["discover", &format!("iscsi://{}", served.address), "--json"],
            &["paths", &url, "--json"],
            &["copy", "ram:1M", &path("b.img"), "--json"],
            &measured,
            &[
                &[
                    "compare", "ram:1M", "ram:1M", "--rw", "randread", "--size", "1M", "--json", "--pairs",
                    "6",
                ][..],
                &["--rounds", "1"],
                &short,
            ]
            .concat(),
            &["report", "show", &page, "--json"],
            &["report", "diff", &older, &page, "--json"],
            &["net", "--time", "10ms", "--json"],
        ]
    {
        let printed = succeed(lunway(words));
        for line in
            if printed.starts_with("{\"") { printed.lines().collect() } else { vec![printed.as_str()] }
        {
            support::json::parse(line).unwrap_or_else(|error| panic!("{words:?}: {error}"));
        }
    }
    support::json::parse(&fs::read_to_string(&plus).unwrap()).unwrap();
    for line in fs::read_to_string(&stream).unwrap().lines() {
        support::json::parse(line).unwrap();
    }
}

#[test]
fn rates_of_bytes_are_megabytes_per_second_in_everything_that_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    image(&folder.path().join("a.img"), 1 << 20, 1 << 20);
    let saved = path("saved.json");
    let mut rates = 0;
    for words in [
        &["copy", &path("a.img"), &path("b.img")][..],
        &[
            "bench",
            "ram:1M",
            "--rw",
            "randrw",
            "--time",
            "1200ms",
            "--live",
            "--json-file",
            &saved,
            "--html-file",
            "-",
        ],
        &["bench", "ram:1M", "--rw", "read", "--time", "100ms"],
        &["bench", "ram:16M", "--profile", "h2bench", "--destroy", "--time", "10ms"],
        &["report", "show", &saved],
        &["net", "--time", "10ms", "--block", "4K"],
        &["help"],
        &["help", "bench"],
    ] {
        let output = finish(lunway(words), PATIENCE);
        assert!(output.status.success(), "{words:?}: {output:?}");
        let said = [output.stdout, output.stderr].concat();
        // The name of the folder is random, and may look like anything.
        let said = String::from_utf8_lossy(&said).replace(&path(""), "");
        assert!(!said.contains(" 0.000"), "times have a unit that shows them: {words:?}: {said}");
        for (at, _) in said.match_indices("B/s") {
            let unit = said[..at].rsplit(|c: char| !c.is_alphabetic()).next().unwrap_or("");
            assert_eq!(unit, "M", "{words:?}: …{}", &said[at.saturating_sub(40)..at + 3]);
            rates += 1;
        }
    }
    assert!(rates > 10, "{rates}");
}

#[test]
fn what_fails_ends_with_1_and_one_sentence_on_standard_error() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.img").to_str().unwrap().to_owned();
    let nobody = format!("iscsi://127.0.0.1:{}/{IQN}/0", free_port());
    for (arguments, parts) in [
        (&["inspect", missing.as_str()][..], &[missing.as_str()][..]),
        (&["inspect", "disk.vhdx"], &["cannot open disk.vhdx", "No such file"]),
        (&["inspect", &nobody], &["cannot connect", "127.0.0.1"]),
        (&["discover", &nobody[..nobody.len() - IQN.len() - 2]], &["cannot connect"]),
        (&["copy", "ram:2M", "ram:1M"], &["copying ram:2M to ram:1M", "take a larger one"]),
        (
            &["copy", "ram:2M", "/dev/lunway-none"],
            &["/dev/lunway-none does not exist", "a file in /dev is not a disk"],
        ),
        (&["copy", "ram:2M", "readonly:ram:2M"], &["read-only"]),
        (&["serve", "--listen", "127.0.0.1:0", "--lun", &format!("0={missing}")], &["lun 0", &missing]),
        (&["serve", "-c", &missing], &[&missing]),
        (&["bench", "fault:read:ram:1M", "--rw", "read", "--time", "200ms"], &["errors"]),
    ] {
        let (code, _, stderr) = outcome(arguments);
        assert_eq!(code, 1, "{arguments:?}: {stderr}");
        assert!(
            stderr.starts_with("lunway: ") && stderr.trim_end().lines().count() == 1,
            "{arguments:?}: {stderr}"
        );
        assert!(parts.iter().all(|part| stderr.contains(part)), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_portal_that_is_taken_is_named() {
    let served = Served::start(&["--lun", "0=ram:1M"]);
    let (code, _, stderr) = outcome(&["serve", "--listen", &served.address, "--lun", "0=ram:1M"]);
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains(&served.address), "{stderr}");
}

#[test]
fn help_and_version_go_to_standard_output() {
    let (code, stdout, stderr) = outcome(&["--help"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    for part in ["demo", "serve", "discover", "inspect", "copy", "bench", "iscsi://", "Exit codes"] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    assert!(outcome(&["--version"]).1.starts_with("lunway "));
}

#[test]
fn serve_says_what_it_serves_and_ends_when_asked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let lun = format!("7={},read-only", path.display());
    let served = Served::start(&["--lun", "0=ram:1M,sector=4096", "--lun", &lun]);
    let shown = served.ready.join("\n");
    for part in [
        "listening on 127.0.0.1:",
        &format!("target {IQN}"),
        "lun 0: ram:1M, 1 MiB, sectors of 4096",
        &format!("lun 7: raw:{}, 1 MiB, sectors of 512, read-only", path.display()),
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(served.terminate().success());
}

#[test]
fn one_line_serves_at_once_and_warns_once_that_anybody_may_write_unless_that_is_meant() {
    let folder = tempfile::tempdir().unwrap();
    let secret = secret_file(folder.path(), "s", "sesame open now");
    let chap = format!("host:{secret}");
    let says = |more: &[&str]| {
        let mut command = lunway(&["serve", "--listen", "127.0.0.1:0", "--iqn", IQN, "--lun", "0=ram:8M"]);
        command.args(more).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let shown: Vec<_> =
            lines.by_ref().map_while(Result::ok).take_while(|line| !line.contains("managed")).collect();
        let address = shown[0].strip_prefix("listening on ").unwrap().to_owned();
        let discovered = outcome(&["discover", &format!("iscsi://{address}")]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(discovered.1.contains(IQN), "{discovered:?}");
        let mut logged = String::new();
        child.stderr.take().unwrap().read_to_string(&mut logged).unwrap();
        format!("{}\n{logged}", shown.join("\n"))
    };
    let said = says(&[]);
    let warning = "is open: every initiator that can reach it may read and write; restrict it with CHAP ([[target.chap]])";
    assert!(said.contains(warning) && said.matches("open").count() == 2, "`is open`, `open = true`: {said}");
    for meant in [&["--open"][..], &["--chap", &chap]] {
        let said = says(meant);
        assert!(!said.contains("open") && !said.contains("WARN"), "{said}");
    }
}

#[test]
fn a_configuration_file_serves_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("lunway.toml");
    let text = "listen = [\"127.0.0.1:3260\"]\n[[target]]\nname = \"iqn.2026-11.com.example:file\"\nopen = true\n[[target.lun]]\nid = 4\ndevice = \"ram:1M\"\n";
    fs::write(&config, text).unwrap();
    let served = Served::start(&["-c", config.to_str().unwrap(), "--lun", "0=ram:2M"]);
    let list = json(&["discover", &format!("iscsi://{}", served.address), "--json"]);
    let names: Vec<_> = list["targets"].as_array().unwrap().iter().map(|target| &target["name"]).collect();
    assert_eq!(names, [IQN, "iqn.2026-11.com.example:file"], "in order of names");
    fs::write(&config, text.replace("device", "devise")).unwrap();
    let (code, _, stderr) = outcome(&["serve", "-c", config.to_str().unwrap()]);
    assert_eq!(code, 2);
    assert!(
        stderr.contains("lunway.toml") && stderr.contains("line 7") && stderr.contains("devise"),
        "{stderr}"
    );
}

#[test]
fn json_has_the_fields_that_scripts_rely_on() {
    let served = Served::start(&["--lun", "0=ram:8M,sector=4096"]);
    let list = json(&["discover", &format!("iscsi://{}", served.address), "--json"]);
    assert_eq!(list["targets"][0]["portals"][0]["address"], served.address);
    assert_eq!(list["targets"][0]["portals"][0]["portal_group"], 1);

    let unit = json(&["inspect", &served.url(0), "--json"]);
    assert_eq!(unit["luns"], serde_json::json!([0]));
    assert_eq!(unit["unit"]["capacity"]["size"], 8 << 20);
    assert_eq!(unit["unit"]["capacity"]["block_length"], 4096);
    assert_eq!(unit["unit"]["inquiry"]["vendor"], "LUNWAY");
    assert_eq!(unit["session"]["target"], IQN);

    let plain = json(&["inspect", "ram:8M", "--json"]);
    assert_eq!((&plain["size"], &plain["logical_sector"]), (&(8 << 20).into(), &512.into()));
    assert_eq!(plain["content"]["unallocated"], 8 << 20);

    let copied = json(&["copy", "ram:8M", &served.url(0), "--verify", "--json"]);
    assert_eq!((&copied["size"], &copied["verified"]), (&(8 << 20).into(), &true.into()));

    let job = ["--rw", "randread", "--bs", "4K", "--qd", "4", "--time", "200ms", "--json"];
    let measured = json(&[&["bench", &served.url(0)], &job[..]].concat());
    let read = &measured["jobs"][0]["read"];
    assert!(read["iops"].as_f64() > Some(0.0) && read["bw_bytes"].as_u64() > Some(0), "{read}");
    assert!(read["clat_ns"]["percentile"]["99.000000"].as_u64() > Some(0), "{read}");
}

#[test]
fn a_copy_to_a_larger_destination_says_what_it_left() {
    let folder = tempfile::tempdir().unwrap();
    let [small, large] =
        ["small.img", "large.img"].map(|name| folder.path().join(name).display().to_string());
    fs::write(&small, vec![1; 1 << 20]).unwrap();
    fs::write(&large, vec![2; 3 << 20]).unwrap();
    let said = succeed(lunway(&["copy", &small, &large, "--overwrite"]));
    assert!(said.contains("the destination is larger: its last 2 MiB were not changed"), "{said}");
    assert_eq!(fs::read(&large).unwrap()[1 << 20..], vec![2; 2 << 20]);
}

#[test]
fn a_copy_to_a_new_file_keeps_its_holes_and_an_old_file_that_is_too_small_is_refused() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (source, copy, small) = (path("source"), path("copy"), path("small"));
    image(Path::new(&source), 64 << 20, 4 << 20);
    fs::File::create(&small).unwrap().set_len(1 << 20).unwrap();
    succeed(lunway(&["copy", &source, &copy, "--verify"]));
    support::assert_same_bytes(Path::new(&source), Path::new(&copy));
    let allocated = fs::metadata(&copy).unwrap().blocks() * 512;
    assert!(allocated < 32 << 20, "{allocated} bytes are allocated for 4 MiB of data");
    let (code, _, stderr) = outcome(&["copy", &source, &small]);
    assert_eq!(code, 1, "{stderr}");
    assert_eq!(fs::metadata(&small).unwrap().len(), 1 << 20);
    let (code, _, stderr) = outcome(&["copy", &source, &source]);
    assert_eq!(code, 2, "a file is not copied onto itself: {stderr}");
}

#[test]
fn a_file_that_ends_within_a_sector_is_not_copied_in_part() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    fs::write(&source, [7; 1000]).unwrap();
    let (code, _, stderr) = outcome(&["copy", source.to_str().unwrap(), "ram:8K"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("its end of 488 bytes"), "{stderr}");
}

#[test]
fn a_copy_over_our_own_ends_arrives_with_both_digests() {
    let folder = tempfile::tempdir().unwrap();
    let (source, back) = (folder.path().join("source"), folder.path().join("back"));
    image(&source, 64 << 20, 16 << 20);
    for sector in [512, 4096] {
        let served = Served::start(&["--lun", &format!("0=ram:64M,sector={sector}")]);
        let url = served.url(0) + "?header_digest=crc32c&data_digest=crc32c";
        succeed(lunway(&["copy", source.to_str().unwrap(), &url, "--verify"]));
        succeed(lunway(&["copy", &url, back.to_str().unwrap(), "--verify", "--overwrite"]));
        support::assert_same_bytes(&source, &back);
    }
}

#[test]
fn the_daemon_ends_in_order_while_it_is_used() {
    let served = Served::start(&["--lun", "0=ram:8M"]);
    let job = ["bench", &served.url(0), "--rw", "randread", "--qd", "8", "--time", "1m"];
    let mut user =
        lunway(&job).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
    thread::sleep(Duration::from_millis(500));
    let status = served.terminate();
    let _ = user.kill();
    let _ = user.wait();
    assert!(status.success(), "{status}");
}

#[test]
fn a_comparison_that_fails_names_the_first_offset() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (source, copy) = (path("source"), path("copy"));
    fs::write(&source, vec![7; 8 << 20]).unwrap();
    fs::write(&copy, vec![0; 8 << 20]).unwrap();
    let (code, _, stderr) =
        outcome(&["copy", &source, &format!("fault:corrupt@3M-4M:{copy}"), "--verify", "--overwrite"]);
    assert_eq!(code, 1, "{stderr}");
    let offset = stderr.split("first at offset ").nth(1).and_then(|rest| rest.trim().parse::<u64>().ok());
    assert!(offset.is_some_and(|offset| (3 << 20..4 << 20).contains(&offset)), "{stderr}");
}

#[test]
fn no_secret_is_shown_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let ours = secret_file(folder.path(), "ours", "hunter2hunter2");
    let theirs = secret_file(folder.path(), "theirs", "swordfish-sword");
    let (chap, mutual) = (format!("someone:{ours}"), format!("lunway:{theirs}"));
    let served = Served::start(&["--chap", &chap, "--mutual-chap", &mutual, "--lun", "0=ram:8M"]);
    let query = "?target_user=lunway&target_password=swordfish-sword";
    let url = served.url_as("someone%hunter2hunter2", 0) + query;
    let portal = format!("iscsi://someone%hunter2hunter2@{}", served.address);
    let wrong = served.url_as("someone%hunter2hunter3", 0) + query;
    let (html, json_file, config) = (path("report.html"), path("report.json"), path("lunway.toml"));
    fs::write(
        &config,
        format!("[[target]]\nname = \"{IQN}\"\nopen = true\n[[target.lun]]\nid = 0\ndevice = \"{wrong}\"\n"),
    )
    .unwrap();
    let bench = ["--rw", "read", "--time", "100ms", "--html-file", &html, "--json-file", &json_file];
    for (arguments, code) in [
        (vec!["-vvv", "inspect", &url], 0),
        (vec!["-vvv", "inspect", &url, "--json"], 0),
        (vec!["-vvv", "discover", &portal], 0),
        (vec!["-vvv", "copy", "ram:8M", &url, "--verify", "--json"], 0),
        ([&["-vvv", "bench", &url], &bench[..]].concat(), 0),
        (vec!["-vvv", "inspect", &wrong], 1),
        (vec!["copy", "ram:16M", &url], 1),
        (
            vec![
                "-vvv",
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--open",
                "--no-api",
                "--lun",
                &format!("0={wrong}"),
            ],
            1,
        ),
        (vec!["inspect", "ram:1M", &url], 2),
        (vec!["inspect", &url, "--no-such-flag"], 2),
        (vec!["serve", "--lun", &url], 2),
        (vec!["bench", "ram:1M", "--html-file", &url, "--rw", &url], 2),
    ] {
        let (found, stdout, stderr) = outcome(&arguments);
        assert_eq!(found, code, "{arguments:?}: {stderr}");
        for text in [&stdout, &stderr] {
            assert!(!text.contains("hunter2") && !text.contains("swordfish"), "{arguments:?}: {text}");
        }
    }
    // A file of devices that cannot be opened is served without them, and says so.
    let log = path("log");
    let mut serve = lunway(&["-vvv", "serve", "-c", &config, "--listen", "127.0.0.1:0", "--no-api"]);
    serve.stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap());
    let mut serve = serve.spawn().unwrap();
    until(|| fs::read_to_string(&log).unwrap().contains("is offline: "));
    serve.kill().unwrap();
    serve.wait().unwrap();
    for file in [&html, &json_file, &log] {
        let text = fs::read_to_string(file).unwrap();
        assert!(!text.contains("hunter2") && !text.contains("swordfish"), "{file}");
    }
}

#[test]
fn a_target_that_requires_chap_says_how_to_give_a_user_and_a_wrong_secret_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let secret = secret_file(folder.path(), "s", "sesame open now");
    let wrong = secret_file(folder.path(), "wrong", "sesame shut now");
    let served = Served::start(&["--lun", "0=ram:1M", "--chap", &format!("host:{secret}")]);
    for (address, sentence) in [
        (served.url(0), "the target requires CHAP: use iscsi://USER@…?secret_file=FILE"),
        (
            format!("{}?secret_file={wrong}", served.url_as("host", 0)),
            "the target refused the CHAP user or secret",
        ),
    ] {
        let (code, _, said) = outcome(&["inspect", &address]);
        assert_eq!(code, 1, "{said}");
        assert!(said.contains(sentence), "{said}");
    }
}

#[test]
fn the_secret_may_come_from_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let chap = format!("someone:{}", secret_file(folder.path(), "secret", "hunter2hunter2"));
    let served = Served::start(&["--chap", &chap, "--lun", "0=ram:8M"]);
    let mut inspect = lunway(&["inspect", &served.url_as("someone", 0)]);
    inspect.env("LUNWAY_CHAP_SECRET", "hunter2hunter2");
    assert!(succeed(inspect).contains("LUNWAY"));
}

#[test]
fn an_interrupted_measurement_gives_its_figures() {
    let folder = tempfile::tempdir().unwrap();
    let stream = folder.path().join("run.ndjson");
    let mut command = lunway(&["bench", "ram:8M", "--rw", "randread", "--time", "1m", "--json", "--stream"]);
    command.arg(&stream);
    let output = interrupted(command, || measures(&stream));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(document["jobs"][0]["read"]["total_ios"].as_u64() > Some(0), "{document}");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted"));
}

#[test]
fn a_second_interrupt_does_not_wait_for_what_is_in_flight() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, copied) = (folder.path().join("disk.img"), folder.path().join("copied.img"));
    image(&disk, 4 << 20, 1 << 20);
    let source = format!("delay:10m:{}", disk.display());
    let running = Running::start(lunway(&["copy", &source, copied.to_str().unwrap()]));
    until(|| folder.path().join("copied.img.partial").exists());
    for _ in 0..2 {
        // Until it reads; and what comes half a second after another is one of its own.
        thread::sleep(Duration::from_secs(1));
        running.signal(Signal::INT);
    }
    let output = running.end(PATIENCE);
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_demo_finishes_within_a_minute_and_its_report_renders() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = lunway(&["demo"]);
    demo.current_dir(folder.path());
    let text = succeed(demo);
    for part in [
        "Serve",
        "Reach and copy",
        "all equal",
        "read 4K QD16",
        "write seq 4 MiB",
        "Two lanes: a cable is pulled out",
        "lane1 pulled",
        "lane2 writes",
        "blocks read back hold what was written",
        "full backup: 48 MiB of 128 MiB sent",
        "changed and backed up again: 2 MiB changed, 2 MiB read, 2 MiB sent",
        "destroyed: 64 MiB",
        "compared: all 128 MiB are what they were",
        "Report",
        "lunway-demo.html",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let page = folder.path().join("lunway-demo.html");
    assert!(fs::read_to_string(&page).unwrap().contains("<svg"), "the report has charts");
    for view in lunway_foreign::View::ALL {
        let Some(looked) = lunway_foreign::look(&page, folder.path(), view) else { break };
        assert!(looked.charts >= 3, "charts are missing: {looked:?}");
        assert!(looked.problems.is_empty(), "{:#?}", looked.problems);
    }
}

#[test]
fn the_volumes_of_the_demo_can_be_vhdx_files_which_are_gone_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = lunway(&["demo", "--vhdx"]);
    demo.current_dir(folder.path()).env("TMPDIR", folder.path());
    let text = succeed(demo);
    for part in ["two volumes, each a VHDX file", "all equal", "lane1 pulled", "blocks read back hold"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["lunway-demo.html"]);
}

#[test]
fn the_demos_lanes_are_shown_over_proxies_where_no_network_can_be_built() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = lunway(&["demo", "--lanes", "--no-namespaces", "--vhdx"]);
    demo.current_dir(folder.path());
    let text = succeed(demo);
    for part in ["the lanes are proxies", "lane1 pulled", "lane2 writes", "none failed, and all"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let page = fs::read_to_string(folder.path().join("lunway-demo.html")).unwrap();
    assert!(page.contains("one pulled out in mid-write") && page.contains("<svg"));
}
