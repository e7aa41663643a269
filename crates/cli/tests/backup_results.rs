//! Results of backup runs: `lunway backup report` as text, JSON and a page, and what the daemon's metrics show of runs
//! of its LUNs.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/daemon.rs"]
mod daemon;
mod support;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use daemon::{Daemon, refused};
use lunway_console::{Client, Endpoint};
use lunway_foreign::{Looked, View, look};
use serde_json::Value;
use support::{IQN, image, lunway, succeed};

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().unwrap().to_owned()
}

#[test]
fn a_report_says_what_each_run_did_and_why_it_was_a_full() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (disk, destination) = (path(folder, "disk"), path(folder, "dest"));
    fs::create_dir(&destination).unwrap();
    image(Path::new(&disk), 24 << 20, 6 << 20);
    succeed(lunway(&["backup", "run", &disk, &destination]));
    fs::File::options().write(true).open(&disk).unwrap().write_all_at(&[7; 5000], 3 << 20).unwrap();
    succeed(lunway(&["backup", "run", &disk, &destination]));

    let text = succeed(lunway(&["backup", "report", &destination]));
    for said in ["WHY", "it is the first", "compared by hash", "No point is verified"] {
        assert!(text.contains(said), "{said}: {text}");
    }
    succeed(lunway(&["backup", "verify", &destination]));
    let (page, json) = (path(folder, "page.html"), path(folder, "data.json"));
    let words = ["backup", "report", &destination, "--html-file", &page, "--json-file", &json];
    succeed(lunway(&words));
    // The second time they are reports of ours, which may be replaced.
    succeed(lunway(&words));
    let data: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let points = data["points"].as_array().unwrap();
    assert_eq!((points.len(), &data["damage"]), (2, &Value::from(0)));
    let sum = |key: &str| points.iter().map(|point| point[key].as_u64().unwrap()).sum::<u64>();
    for key in ["read_bytes", "sent_bytes", "stored_bytes"] {
        assert_eq!(data[key], sum(key), "{key}");
    }
    assert_eq!(points[1]["sent_bytes"], 64 << 10);
    assert!(fs::read_to_string(&page).unwrap().contains("is verified."));
    for view in View::ALL {
        let Some(Looked { charts, problems, .. }) = look(Path::new(&page), folder, view) else { break };
        assert_eq!((charts, problems), (3, Vec::new()));
    }
}

#[test]
fn a_report_of_a_repository_has_what_the_runs_of_each_series_did() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (disk, repository) = (path(folder, "disk"), path(folder, "repo"));
    fs::create_dir(&repository).unwrap();
    image(Path::new(&disk), 24 << 20, 6 << 20);
    succeed(lunway(&["backup", "init", &repository]));
    let words = ["backup", "report", &repository];
    assert_eq!(succeed(lunway(&words)).trim(), "no series yet");
    let run = |series: &str| {
        let series = path(folder, &format!("repo/{series}"));
        succeed(lunway(&["backup", "run", &disk, &series, "--rename-source"]));
    };
    run("one");
    run("two");
    fs::File::options().write(true).open(&disk).unwrap().write_all_at(&[7; 5000], 3 << 20).unwrap();
    run("two");

    let text = succeed(lunway(&words));
    for said in ["one\n", "two\n", "it is the first", "compared by hash", "2 series, 3 points: "] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let (page, json) = (path(folder, "page.html"), path(folder, "data.json"));
    succeed(lunway(&[&words[..], &["--html-file", &page, "--json-file", &json]].concat()));
    let data: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let printed: Value = serde_json::from_str(&succeed(lunway(&[&words[..], &["--json"]].concat()))).unwrap();
    assert_eq!(data, printed);
    let series = data["series"].as_array().unwrap();
    let names: Vec<_> = series.iter().map(|one| one["series"].as_str().unwrap()).collect();
    assert_eq!((names, &data["damage"]), (vec!["one", "two"], &0.into()));
    for (one, name) in series.iter().zip(["one", "two"]) {
        let alone = ["backup", "report", &path(folder, &format!("repo/{name}")), "--json"];
        let alone: Value = serde_json::from_str(&succeed(lunway(&alone))).unwrap();
        assert_eq!(one["points"], alone["points"], "{name}");
    }
    for key in ["read_bytes", "sent_bytes", "stored_bytes"] {
        let sum = series.iter().map(|one| one[key].as_u64().unwrap()).sum::<u64>();
        assert_eq!(data[key], sum, "{key}");
    }
    for view in View::ALL {
        let Some(Looked { charts, problems, .. }) = look(Path::new(&page), folder, view) else { break };
        assert_eq!((charts, problems), (6, Vec::new()));
    }
}

#[test]
fn the_metrics_of_a_daemon_tell_when_its_lun_was_backed_up_last_and_why_a_run_failed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::File::create(folder.join("disk.img")).unwrap().set_len(16 << 20).unwrap();
    fs::create_dir(folder.join("one")).unwrap();
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\nstate_dir = \"state\"\ncores = 1\n[[target]]\nname = \"{IQN}\"\nopen = true\n\
         [[target.lun]]\nid = 0\ndevice = \"raw:disk.img\"\n"
    );
    fs::write(folder.join("lunway.toml"), text).unwrap();
    let _daemon = Daemon::start(folder);
    let run = |more: &[&str]| {
        let source = format!("lun:{IQN}/0");
        let mut command: Command = lunway(&[&["backup", "run", &source, "one"], more].concat());
        command.env("LUNWAY_SOCKET", folder.join("api.sock")).current_dir(folder);
        command.env("LUNWAY_RUNTIME_DIR", folder.join("run"));
        command
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let backups = || {
        let client = Client::new(Endpoint::Unix(folder.join("api.sock")));
        let metrics: Value = runtime.block_on(client.get("/v1/metrics")).unwrap();
        metrics["backups"].as_array().unwrap().clone()
    };
    assert!(backups().is_empty());
    let made: Value = serde_json::from_str(&succeed(run(&["--json"]))).unwrap();
    let [first] = &backups()[..] else { panic!("one destination") };
    assert_eq!(first["destination"], path(&folder.canonicalize().unwrap(), "one"));
    assert_eq!((&first["succeeded"], &first["failed"]), (&Value::from(1), &Value::from(0)));
    for key in ["point", "why", "changed_bytes", "read_bytes", "sent_bytes", "stored_bytes"] {
        assert_eq!(first["last_point"][key], made[key], "{key}");
    }
    assert_eq!(first["last_point"]["full"], true);
    assert!(first["last_success"].as_u64().unwrap() > 1_700_000_000);

    // The source of another backup.
    fs::rename(folder.join("one"), folder.join("kept")).unwrap();
    let said = refused(run(&[]));
    assert!(said.contains("make the folder first"), "{said}");
    let all = backups();
    let failed = all.iter().find(|reading| reading["failed"] == 1).unwrap();
    assert!(failed["error"].as_str().unwrap().contains("make the folder first"), "{failed}");
}
