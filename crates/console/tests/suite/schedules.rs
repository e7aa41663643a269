//! Backups by the clock, with a script in the place of the program that makes them.

use std::fs;
use std::time::Duration;

use lunway_console::{ConfigSource, Method};
use lunway_target::Overrides;
use serde_json::{Value, json};

use crate::support::{Daemon, FILE, TARGET};

const POINT: &str = r#"echo '{"point":"p","kind":"full","why":"w","changed_bytes":1,"read_bytes":2,"sent_bytes":3,
    "stored_bytes":4}'"#;

fn file(backups: &[(&str, &str)]) -> String {
    let table = |(name, keys): &(&str, &str)| {
        format!("[[backup]]\nname = \"{name}\"\nsource = \"{TARGET}/0\"\ndestination = \"{name}\"\n{keys}\n")
    };
    format!("state_dir = \"state\"\n{FILE}\n{}", backups.iter().map(table).collect::<String>())
}

/// The schedule of this name, when it is as expected.
async fn until(daemon: &Daemon, name: &str, is_met: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..600 {
        let answer = daemon.get("/v1/schedules").await;
        let schedules = answer["schedules"].as_array().unwrap();
        if let Some(found) = schedules.iter().find(|of| of["name"] == name && is_met(of)) {
            return found.clone();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{name} does not become as expected: {}", daemon.get("/v1/schedules").await)
}

#[tokio::test]
async fn a_schedule_runs_is_shown_is_changed_by_a_reload_and_by_nothing_else() {
    let daemon =
        Daemon::start_on(&file(&[("a", "every = \"1s\""), ("b", "at = [\"03:00\"]\ndays = [\"sun\"]")]))
            .await;
    daemon.begin_backups(POINT);
    let a = until(&daemon, "a", |of| !of["last"].is_null()).await;
    assert_eq!((&a["last"]["error"], &a["last"]["point"]["sent_bytes"]), (&Value::Null, &3.into()), "{a}");
    let first = a["last"]["begun"].as_i64().unwrap();
    let a = until(&daemon, "a", |of| of["last"]["begun"].as_i64() > Some(first)).await;
    assert!(a["last_success"].as_i64() >= Some(first) && a["when"] == "every 1s", "{a}");
    let b = until(&daemon, "b", |of| !of["next"].is_null()).await;
    assert_eq!((&b["when"], &b["last"]), (&"sun 03:00".into(), &Value::Null), "{b}");
    let metrics = daemon.client.text(Method::GET, "/metrics", None).await.unwrap();
    let metrics = String::from_utf8(metrics.to_vec()).unwrap();
    let line =
        format!("lunway_backup_schedule_last_failed{{schedule=\"a\",target=\"{TARGET}\",lun=\"0\"}} 0\n");
    assert!(metrics.contains(&line), "{metrics}");
    assert!(metrics.contains(&line.replace("last_failed", "overdue")), "{metrics}");
    // Asked for, and of no name.
    let asked = daemon.call(Method::POST, "/v1/schedules/b/run", Value::Null).await.unwrap();
    assert_eq!(asked["name"], "b");
    assert_eq!(until(&daemon, "b", |of| !of["last"].is_null()).await["last"]["cause"], "asked");
    assert_eq!(daemon.call(Method::POST, "/v1/schedules/c/run", Value::Null).await.unwrap_err().0, 404);
    // Its commands are run as the daemon's user: the token does not give that.
    let mut config = daemon.get("/v1/config").await["config"].clone();
    config["backup"][0]["on_success"] = json!("touch hacked");
    let (status, sentence) = daemon.put("/v1/config", config).await.unwrap_err();
    assert!(status == 422 && sentence.contains("in the configuration file alone"), "{status} {sentence}");
    fs::write(daemon.path(), file(&[("b", "every = \"9h\"")])).unwrap();
    daemon.call(Method::POST, "/v1/reload", Value::Null).await.unwrap();
    let b = until(&daemon, "b", |of| of["when"] == "every 9h").await;
    assert!(!b["last"].is_null(), "{b}");
    assert_eq!(daemon.get("/v1/schedules").await["schedules"].as_array().unwrap().len(), 1);
    daemon.stop().await;
}

#[tokio::test]
async fn runs_of_one_logical_unit_take_turns_and_a_failure_is_said() {
    let daemon = Daemon::start_on(&file(&[("a", "every = \"1h\""), ("b", "every = \"1h\"")])).await;
    daemon.begin_backups("sleep 0.5; echo 'lunway: no share' >&2; exit 1");
    for name in ["a", "b"] {
        let done = until(&daemon, name, |of| !of["last"].is_null()).await;
        assert_eq!(
            (&done["last"]["error"], &done["last_success"]),
            (&"no share".into(), &Value::Null),
            "{done}"
        );
    }
    let [a, b] = ["a", "b"].map(|name| {
        let known = fs::read_to_string(daemon.folder.path().join("state/backups.json")).unwrap();
        let known: Value = serde_json::from_str(&known).unwrap();
        let record = &known["schedules"][name]["record"];
        assert_eq!(record["attempts"], 0, "{known}");
        record["begun_ms"].as_i64().unwrap()
    });
    assert!(b - a >= 500, "one after the other: {a} {b}");
    daemon.stop().await;
}

#[tokio::test]
async fn one_due_time_has_one_point_however_often_its_prune_fails_or_ends_with_the_daemon() {
    let keys = "every = \"1000h\"\nretries = 9\nretry_after = \"1s\"";
    let daemon = Daemon::start_on(&file(&[("a", keys)])).await;
    let [ran, room] = ["ran", "room"].map(|name| daemon.folder.path().join(name));
    let run = format!("echo run >> {0}; echo $DUE >> {0}.due; {POINT}", ran.display());
    let fails = format!(
        "test -e {} && touch {}.running && exec sleep 60; echo 'lunway: no room' >&2; exit 1",
        room.display(),
        ran.display()
    );
    let lines = || fs::read_to_string(&ran).unwrap_or_default();
    daemon.begin_pruned_backups(&run, Some(&fails));
    let a = until(&daemon, "a", |of| of["last"]["attempt"].as_u64() >= Some(2)).await;
    assert!(a["last"]["error"].as_str().unwrap().ends_with("old ones were not removed: no room"), "{a}");
    assert_eq!(a["last"]["point"]["point"], "p", "{a}");
    let made = a["last_success"].as_i64();
    fs::write(&room, "").unwrap();
    // The next prune does not end by itself.
    let running = format!("{}.running", ran.display());
    for _ in 0..600 {
        if fs::exists(&running).unwrap() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(fs::exists(&running).unwrap(), "{}", lines());
    let Daemon { folder, console, server, .. } = daemon;
    console.stop().await;
    std::sync::Arc::into_inner(server).unwrap().shutdown(Duration::ZERO).await.unwrap();
    let (source, config) =
        ConfigSource::read(Some(&folder.path().join("lunway.toml")), Overrides::default()).unwrap();
    let daemon = Daemon::start_from(folder, source, config).await;
    daemon.begin_pruned_backups(&run, Some(&format!("echo last >> {}", ran.display())));
    let a = until(&daemon, "a", |of| of["last"]["cause"] == "interrupted").await;
    assert_eq!((&a["last"]["error"], &a["last"]["point"]["point"]), (&Value::Null, &"p".into()), "{a}");
    assert_eq!(a["last_success"].as_i64(), made, "{a}");
    let of = |what: &str| lines().lines().filter(|line| *line == what).count();
    assert_eq!((of("run"), of("last")), (1, 1), "{}", lines());
    // One that is asked for is another one.
    daemon.call(Method::POST, "/v1/schedules/a/run", Value::Null).await.unwrap();
    until(&daemon, "a", |of| of["last"]["cause"] == "asked").await;
    assert_eq!((of("run"), of("last")), (2, 2), "{}", lines());
    let due = fs::read_to_string(format!("{}.due", ran.display())).unwrap();
    let [first, second] = due.lines().collect::<Vec<_>>()[..] else { panic!("{due}") };
    assert!(first.len() == 32 && second.len() == 32 && first != second, "{due}");
    daemon.stop().await;
}

/// The clock was ten years ahead, and nothing was made any more by a daemon that started often.
#[tokio::test]
async fn what_is_on_record_of_the_future_counts_as_now_and_one_run_is_made_where_runs_are_caught_up() {
    let keys = "every = \"1000h\"";
    let daemon =
        Daemon::start_on(&file(&[("a", keys), ("b", &format!("{keys}\ncatch_up = false")), ("c", keys)]))
            .await;
    daemon.begin_backups(POINT);
    for name in ["a", "b", "c"] {
        until(&daemon, name, |of| !of["last"].is_null()).await;
    }
    let Daemon { folder, console, server, .. } = daemon;
    console.stop().await;
    std::sync::Arc::into_inner(server).unwrap().shutdown(Duration::ZERO).await.unwrap();
    let kept = folder.path().join("state/backups.json");
    let mut known: Value = serde_json::from_str(&fs::read_to_string(&kept).unwrap()).unwrap();
    let later = |time: &mut Value, unit: i64| *time = json!(time.as_i64().unwrap() + 315_360_000 * unit);
    for name in ["a", "b"] {
        let of = &mut known["schedules"][name];
        for time in ["covered_ms", "begun_ms"] {
            later(&mut of["record"][time], 1000);
        }
        later(&mut of["last"]["begun"], 1);
        later(&mut of["newest"]["made"], 1);
        for time in ["last_success", "known_since"] {
            later(&mut of[time], 1);
        }
    }
    // One that a daemon has recorded that does not note when it saw it first.
    known["schedules"]["c"].as_object_mut().unwrap().remove("known_since");
    fs::write(&kept, known.to_string()).unwrap();
    let (source, config) =
        ConfigSource::read(Some(&folder.path().join("lunway.toml")), Overrides::default()).unwrap();
    let daemon = Daemon::start_from(folder, source, config).await;
    daemon.begin_backups(POINT);
    let a = until(&daemon, "a", |of| of["last"]["cause"] == "missed").await;
    let b = until(&daemon, "b", |of| !of["next"].is_null()).await;
    assert_eq!(b["last"]["cause"], "due", "{b}");
    let known: Value = serde_json::from_str(&fs::read_to_string(&kept).unwrap()).unwrap();
    let latest = a["last_success"].as_i64().unwrap();
    for (name, of) in known["schedules"].as_object().unwrap() {
        let record = ["covered_ms", "begun_ms"].map(|time| of["record"][time].as_i64().unwrap() / 1000);
        let others = [&of["last"]["begun"], &of["newest"]["made"], &of["last_success"], &of["known_since"]];
        let times = others.map(|time| time.as_i64().unwrap());
        assert!(
            record.into_iter().chain(times).all(|time| (latest - 3600..=latest + 1).contains(&time)),
            "{name}: {of}"
        );
    }
    assert_eq!([&a["overdue"], &b["overdue"]], [&json!(false), &json!(false)]);
    daemon.stop().await;
}

#[tokio::test]
async fn a_run_that_the_end_of_the_daemon_ends_is_not_recorded_as_ended() {
    let daemon = Daemon::start_on(&file(&[("a", "every = \"1h\"")])).await;
    daemon.begin_backups("exec sleep 60");
    until(&daemon, "a", |of| !of["running_since"].is_null()).await;
    let conflict = daemon.call(Method::POST, "/v1/schedules/a/run", Value::Null).await.unwrap_err();
    assert_eq!(conflict.0, 409, "{conflict:?}");
    let kept = daemon.folder.path().join("state/backups.json");
    daemon.console.stop().await;
    let known: Value = serde_json::from_str(&fs::read_to_string(kept).unwrap()).unwrap();
    assert_eq!(
        (&known["schedules"]["a"]["record"]["attempts"], &known["schedules"]["a"]["last"]),
        (&1.into(), &Value::Null)
    );
    assert_eq!(known["schedules"]["a"]["due"].as_str().map(str::len), Some(32), "{known}");
}
