//! The configuration file: kept in step, and read again.

use std::fs;

use lunway_console::{ConfigSource, Method};
use lunway_target::{IscsiName, LunConfig, Overrides, TargetConfig};
use serde_json::{Value, json};

use crate::support::{Daemon, FILE, TARGET, lines};

#[tokio::test]
async fn a_change_is_in_the_file_when_it_is_answered_and_its_comments_stay() {
    let daemon = Daemon::start().await;
    daemon.put(&format!("/v1/targets/{TARGET}/luns/0"), json!({ "removable": true })).await.unwrap();
    assert_eq!(daemon.text(), FILE.replace("# zero\n", "# zero\nremovable = true\n"));
    daemon.stop().await;
}

#[tokio::test]
async fn without_a_file_a_change_lasts_as_long_as_the_process_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let luns = vec![LunConfig::new(0, "ram:1M".parse().unwrap())];
    let target = TargetConfig { open: true, luns, ..TargetConfig::new(IscsiName::parse(TARGET).unwrap()) };
    let overrides = Overrides {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        target: Some(target),
        ..Overrides::default()
    };
    let (source, config) = ConfigSource::read(None, overrides).unwrap();
    let daemon = Daemon::start_from(folder, source, config).await;
    let answer = daemon.put(&format!("/v1/targets/{TARGET}"), json!({ "alias": "A" })).await.unwrap();
    assert_eq!((&answer["persisted"], lines(&answer).len()), (&json!(false), 1));
    assert_eq!(daemon.get("/v1/config").await["file"], Value::Null);
    // A reload reads secrets; there is no file that it could go back to.
    let reloaded = daemon.call(Method::POST, "/v1/reload", Value::Null).await.unwrap();
    assert!(lines(&reloaded).is_empty(), "{reloaded}");
    assert_eq!(daemon.get(&format!("/v1/targets/{TARGET}")).await["config"]["alias"], "A");
    daemon.stop().await;
}

#[tokio::test]
async fn an_edited_file_counts_after_a_reload_and_is_not_overwritten_before() {
    let daemon = Daemon::start().await;
    let edited = FILE.replace("# zero", "# nought").replace("ram:1M", "ram:2M");
    fs::write(daemon.path(), &edited).unwrap();
    let (status, sentence) =
        daemon.put(&format!("/v1/targets/{TARGET}"), json!({ "alias": "A" })).await.unwrap_err();
    assert!(status == 409 && sentence.contains("lunway reload"), "{status} {sentence}");
    assert_eq!(daemon.text(), edited);
    let plan = daemon.call(Method::POST, "/v1/reload?dry_run=true", Value::Null).await.unwrap();
    assert_eq!(lines(&plan).len(), 1);
    let reloaded = daemon.call(Method::POST, "/v1/reload", Value::Null).await.unwrap();
    assert_eq!((&reloaded["generation"], lines(&reloaded)), (&json!(2), lines(&plan)));
    daemon.put(&format!("/v1/targets/{TARGET}"), json!({ "alias": "A" })).await.unwrap();
    assert!(
        daemon.text().contains("# nought") && daemon.text().contains("alias = \"A\""),
        "{}",
        daemon.text()
    );
    daemon.stop().await;
}

#[tokio::test]
async fn keys_that_are_read_at_the_start_alone_wait_for_the_next_one_and_stay_in_the_file() {
    let daemon = Daemon::start().await;
    let cores = daemon.get("/v1/config").await["config"]["cores"].clone();
    let edited = format!(
        "cores = 7\nstate_dir = \"elsewhere\"\nmachine_id = \"other\"\n{}\n[isns]\nserver = \"192.0.2.1:3205\"\n\
         [api]\nsocket = \"other.sock\"\n",
        FILE.replace("cores = 1\n", "").replace("ram:1M", "ram:2M")
    );
    fs::write(daemon.path(), &edited).unwrap();
    for (path, changes) in [("/v1/reload?dry_run=true", 1), ("/v1/reload", 1), ("/v1/reload", 0)] {
        let answer = daemon.call(Method::POST, path, Value::Null).await.unwrap();
        // The rest of the file is served.
        assert_eq!(lines(&answer).len(), changes, "{path}: {answer}");
        for key in lunway_target::Config::FIXED {
            let told = |effect: &Value| {
                let effect = effect.as_str().unwrap();
                effect.starts_with(key) && effect.ends_with(": takes effect at the next start of the daemon")
            };
            assert!(answer["effects"].as_array().unwrap().iter().any(told), "{path}, {key}: {answer}");
        }
    }
    assert_eq!(daemon.get("/v1/config").await["config"]["cores"], cores);
    // A change of something else leaves them for the next start.
    daemon.put(&format!("/v1/targets/{TARGET}"), json!({ "alias": "A" })).await.unwrap();
    let text = daemon.text();
    for line in [
        "cores = 7",
        "state_dir = \"elsewhere\"",
        "machine_id = \"other\"",
        "server = \"192.0.2.1:3205\"",
        "other.sock",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(text.contains("alias = \"A\""), "{text}");
    daemon.stop().await;
}

/// The advice was to set it, and after a reload the same error came again.
#[tokio::test]
async fn who_needs_a_state_directory_is_told_when_a_new_one_takes_effect() {
    let daemon = Daemon::start().await;
    let lun = format!("/v1/targets/{TARGET}/luns/7");
    let snapshot = json!({ "luns": [{ "target": TARGET, "lun": 0 }] });
    for (method, path, body) in [
        (Method::POST, "/v1/snapshots", snapshot),
        (Method::PUT, lun.as_str(), json!({ "device": "ram:1M", "track": true })),
    ] {
        let (_, sentence) = daemon.call(method, path, body).await.unwrap_err();
        assert!(
            sentence.contains("set state_dir in the configuration; it takes effect at the next start"),
            "{path}: {sentence}"
        );
    }
    daemon.stop().await;
}

#[tokio::test]
async fn a_file_with_an_error_is_not_served_and_the_error_says_where_it_is() {
    let daemon = Daemon::start().await;
    fs::write(daemon.path(), FILE.replace("id = 0", "id = \"x\"")).unwrap();
    let (status, sentence) = daemon.call(Method::POST, "/v1/reload", Value::Null).await.unwrap_err();
    assert!(status == 422 && sentence.contains("lunway.toml, line 10, id"), "{status} {sentence}");
    assert_eq!(daemon.get("/v1/health").await["generation"], 1);
    daemon.stop().await;
}

#[tokio::test]
async fn a_replaced_secret_counts_after_a_reload() {
    let daemon = Daemon::start().await;
    let secret = daemon.folder.path().join("secret");
    fs::write(&secret, "sesame open now").unwrap();
    daemon.put(&format!("/v1/targets/{TARGET}/chap/u"), json!({ "secret_file": secret })).await.unwrap();
    fs::write(&secret, "sesame open later").unwrap();
    let reloaded = daemon.call(Method::POST, "/v1/reload", Value::Null).await.unwrap();
    assert_eq!(lines(&reloaded).len(), 1);
    assert!(!reloaded.to_string().contains("sesame"));
    daemon.stop().await;
}
