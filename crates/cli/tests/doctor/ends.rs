//! Two ends of a session, and two looks at a target.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::{IQN, PATIENCE, Running, Served, finish, lunway, succeed, until};
use crate::{doctor, findings, verdicts};

/// A copy of a machine whose kernel takes itself for logged in to a target, over a portal.
fn copied_host(folder: &Path, name: &str, portal: &str, seconds: u32) -> String {
    let copy = folder.join(name);
    let put = |path: &str, text: &str| {
        let path = copy.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    put("proc/sys/kernel/hostname", name);
    put("etc/iscsi/initiatorname.iscsi", "InitiatorName=iqn.2026-11.com.example:image\n");
    put("etc/iscsi/iscsid.conf", "node.startup = manual\n");
    let session = "sys/class/iscsi_session/session1";
    for (file, text) in [
        ("targetname", IQN),
        ("state", "LOGGED_IN"),
        ("recovery_tmo", &seconds.to_string()),
        ("device/target2:0:0/2:0:0:0/block/sdb/x", ""),
    ] {
        put(&format!("{session}/{file}"), text);
    }
    for (file, text) in [("address", portal), ("recv_tmo", "5"), ("ping_tmo", "5")] {
        put(&format!("sys/class/iscsi_connection/connection1:0/{file}"), text);
    }
    put("sys/block/sdb/size", "16384");
    put("sys/devices/2:0:0:0/x", "");
    symlink("../../devices/2:0:0:0", copy.join("sys/block/sdb/device")).unwrap();
    put("proc/self/mounts", "/dev/sdb /data ext4 rw,relatime 0 0\n");
    let mut facts = lunway(&["doctor", "--facts", "--root", copy.to_str().unwrap()]);
    facts.env("XDG_STATE_HOME", folder);
    let file = folder.join(format!("{name}.json"));
    fs::write(&file, succeed(facts)).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn hosts_and_their_target_are_judged_together() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let socket = socket.to_str().unwrap();
    let served = Served::start(&["--lun", "0=ram:16M", "--socket", socket]);
    until(|| Path::new(socket).exists());
    let one = copied_host(folder.path(), "one", "127.0.0.1", 15);
    let two = copied_host(folder.path(), "two", "127.0.0.1", 120);
    let found = findings(&finish(
        doctor(&["--from", &one, "--from", &two, "--socket", socket], folder.path()),
        PATIENCE,
    ));
    let what = |rule: &str, verdict: &str| -> Vec<String> {
        let of_rule = found.iter().filter(|one| one["id"] == rule && one["verdict"] == verdict);
        of_rule.map(|one| one["what"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(what("ends-login", "bad").len(), 2, "the target knows neither session: {found:#?}");
    assert!(what("ends-name", "bad")[0].contains("one and two are both iqn.2026-11.com.example:image"));
    assert!(what("ends-writers", "bad")[0].contains("mounted for writing by one at /data and two at /data"));
    assert!(what("ends-timers", "warn")[0].contains("session1 of two fails its I/O after 120 s"));
    assert_eq!(what("ends-timers", "ok").len(), 1);
    // 8 MiB of 16: neither has looked since it grew.
    assert_eq!(what("ends-size", "bad").len(), 2);
    // Each machine's own findings bear its name.
    let places: Vec<&str> = found.iter().filter_map(|one| one["where"].as_str()).collect();
    assert!(places.iter().any(|place| place.starts_with("two: ")), "{places:?}");
    // One end alone is not compared with anything.
    let alone = findings(&finish(doctor(&["--from", &one], folder.path()), PATIENCE));
    assert!(alone.iter().all(|one| !one["id"].as_str().unwrap().starts_with("ends-")), "{alone:#?}");
    drop(served);
}

#[test]
fn a_disk_that_lunway_attaches_is_met_at_the_target_by_its_isid() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let socket = path("socket");
    let served = Served::start(&["--lun", "0=ram:16M", "--socket", &socket]);
    until(|| Path::new(&socket).exists());
    let disk = path("disk");
    let attached = lunway(&["attach", &served.url(0), "--nbd", &format!("unix:{disk}")]);
    let attached = Running::start(attached);
    until(|| Path::new(&disk).exists());
    let logins = || {
        let found = findings(&finish(doctor(&["--socket", &socket], folder.path()), PATIENCE));
        let of_rule = found.iter().filter(|one| one["id"] == "ends-login");
        // A machine with open-iscsi has sessions of its own.
        let ours = of_rule.map(|one| format!("{}: {}", one["verdict"], one["what"]));
        ours.filter(|what| what.contains("of lunway (process")).collect::<Vec<_>>()
    };
    let found = logins();
    assert!(
        found.len() == 1 && found[0].starts_with("\"ok\"") && found[0].contains("of the target"),
        "{found:?}"
    );
    // Its facts in a file tell the same elsewhere.
    let mut facts = lunway(&["doctor", "--facts"]);
    facts.env("XDG_STATE_HOME", folder.path());
    fs::write(path("host.json"), succeed(facts)).unwrap();
    let together = doctor(&["--from", &path("host.json"), "--socket", &socket], folder.path());
    let found = findings(&finish(together, PATIENCE));
    assert!(verdicts(&found, "ends-login").contains(&"ok".to_owned()), "{found:#?}");
    attached.signal(rustix::process::Signal::INT);
    attached.end(PATIENCE);
    assert_eq!(logins(), Vec::<String>::new());
    drop(served);
}

#[test]
fn a_second_look_at_a_target_forecasts_when_its_store_is_full() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::File::create(path("small.img")).unwrap().set_len(1 << 20).unwrap();
    let socket = path("socket");
    let served = Served::start(&["--lun", &format!("0={}", path("small.img")), "--socket", &socket]);
    until(|| Path::new(&socket).exists());
    let look = || findings(&finish(doctor(&["--socket", &socket], folder.path()), PATIENCE));
    let first = look();
    assert_eq!(verdicts(&first, "store-forecast"), ["unknown"], "there is only one look: {first:#?}");
    assert_eq!(verdicts(&look(), "store-forecast"), ["unknown"], "the second came at once");
    // The first look was ten hours ago, and as much again was left as is left now.
    let kept = path("lunway/doctor-looks.json");
    let mut looks: Value = serde_json::from_str(&fs::read_to_string(&kept).unwrap()).unwrap();
    let then = &mut looks["daemons"][0]["looks"][0];
    then["looked_at"] = json!(then["looked_at"].as_u64().unwrap() - 36_000);
    let left = then["devices"][0]["space"]["available"].as_u64().unwrap();
    then["devices"][0]["space"]["available"] = json!(2 * left);
    fs::write(&kept, looks.to_string()).unwrap();
    let found = look();
    let forecast = found.iter().find(|one| one["id"] == "store-forecast").unwrap();
    assert_eq!(forecast["verdict"], "bad", "{forecast}");
    let what = forecast["what"].as_str().unwrap();
    assert!(what.contains("is full in 10 h") || what.contains("is full in 9 h"), "{what}");
    drop(served);
}
