//! The OpenAPI document: that it is what the daemon does.

use std::collections::BTreeSet;
use std::fs;

use lunway_console::Method;
use serde_json::{Value, json};

use crate::schema::check;
use crate::support::{Daemon, FILE, TARGET};

const LUN: &str = "/v1/targets/{target}/luns/{lun}";
const SNAPSHOTS: &str = "/v1/snapshots";
const SNAPSHOT: &str = "/v1/snapshots/{name}";
const EPOCHS: &str = "/v1/targets/{target}/luns/{lun}/epochs";

/// One request for each operation, in an order in which all of them succeed.
fn requests() -> Vec<(&'static str, &'static str, String, Value)> {
    let target = format!("/v1/targets/{TARGET}");
    let none = Value::Null;
    vec![
        ("GET", "/v1/health", "/v1/health".into(), none.clone()),
        ("GET", "/v1/ready", "/v1/ready".into(), none.clone()),
        ("GET", "/v1/openapi.json", "/v1/openapi.json".into(), none.clone()),
        ("POST", "/v1/reload", "/v1/reload?dry_run=true".into(), none.clone()),
        ("GET", "/v1/config", "/v1/config".into(), none.clone()),
        (
            "PUT",
            "/v1/targets/{target}",
            "/v1/targets/iqn.2026-11.com.example:b".into(),
            json!({ "alias": "B" }),
        ),
        ("DELETE", "/v1/targets/{target}", "/v1/targets/iqn.2026-11.com.example:b".into(), none.clone()),
        ("PUT", "/v1/targets/{target}/luns/{lun}", format!("{target}/luns/3"), json!({ "device": "ram:1M" })),
        (
            "POST",
            "/v1/targets/{target}/luns/{lun}/resize",
            format!("{target}/luns/3/resize"),
            json!({ "size": 2 << 20 }),
        ),
        (
            "PUT",
            "/v1/targets/{target}/luns/{lun}",
            format!("{target}/luns/5"),
            json!({ "device": "disk.vhdx" }),
        ),
        (
            "POST",
            "/v1/targets/{target}/luns/{lun}/snapshot",
            format!("{target}/luns/5/snapshot?dry_run=true"),
            json!({ "leaf": "leaf.avhdx" }),
        ),
        ("PUT", LUN, format!("{target}/luns/6"), json!({ "device": "ram:1M", "track": true })),
        ("POST", EPOCHS, format!("{target}/luns/6/epochs"), none.clone()),
        ("GET", EPOCHS, format!("{target}/luns/6/epochs"), none.clone()),
        (
            "GET",
            "/v1/targets/{target}/luns/{lun}/changes",
            format!("{target}/luns/6/changes?since=EPOCH&offset=0&length=4096"),
            none.clone(),
        ),
        (
            "DELETE",
            "/v1/targets/{target}/luns/{lun}/epochs/{epoch}",
            format!("{target}/luns/6/epochs/EPOCH"),
            none.clone(),
        ),
        (
            "POST",
            SNAPSHOTS,
            SNAPSHOTS.into(),
            json!({ "luns": [{ "target": TARGET, "lun": 6, "epoch": "0".repeat(31) + "1" }], "area": 1 << 20 }),
        ),
        ("GET", SNAPSHOTS, SNAPSHOTS.into(), none.clone()),
        (
            "POST",
            "/v1/targets/{target}/luns/{lun}/backups",
            format!("{target}/luns/6/backups"),
            json!({ "destination": "/mnt/b", "error": "the destination is full" }),
        ),
        ("GET", SNAPSHOT, "/v1/snapshots/SNAPSHOT".into(), none.clone()),
        ("DELETE", SNAPSHOT, "/v1/snapshots/SNAPSHOT".into(), none.clone()),
        (
            "POST",
            "/v1/targets/{target}/luns/{lun}/compaction",
            format!("{target}/luns/5/compaction"),
            json!({ "rate": 1 << 20 }),
        ),
        (
            "GET",
            "/v1/targets/{target}/luns/{lun}/compaction",
            format!("{target}/luns/5/compaction"),
            none.clone(),
        ),
        (
            "DELETE",
            "/v1/targets/{target}/luns/{lun}/compaction",
            format!("{target}/luns/5/compaction"),
            none.clone(),
        ),
        (
            "PUT",
            "/v1/targets/{target}/acl/{rule}",
            format!("{target}/acl/all?at=1"),
            json!({ "from": ["10.0.0.0/8"] }),
        ),
        (
            "PUT",
            "/v1/targets/{target}/chap/{user}",
            format!("{target}/chap/u"),
            json!({ "secret_file": "SECRET" }),
        ),
        ("GET", "/v1/targets", "/v1/targets".into(), none.clone()),
        ("GET", "/v1/targets/{target}", target.clone(), none.clone()),
        ("GET", "/v1/targets/{target}/luns", format!("{target}/luns"), none.clone()),
        ("GET", "/v1/targets/{target}/luns/{lun}", format!("{target}/luns/3"), none.clone()),
        ("GET", "/v1/targets/{target}/acl", format!("{target}/acl"), none.clone()),
        ("GET", "/v1/targets/{target}/chap", format!("{target}/chap"), none.clone()),
        ("DELETE", "/v1/targets/{target}/luns/{lun}", format!("{target}/luns/3"), none.clone()),
        ("DELETE", "/v1/targets/{target}/acl/{rule}", format!("{target}/acl/all"), none.clone()),
        ("DELETE", "/v1/targets/{target}/chap/{user}", format!("{target}/chap/u"), none.clone()),
        ("GET", "/v1/portals", "/v1/portals".into(), none.clone()),
        (
            "PUT",
            "/v1/portals/{group}/{listen}",
            "/v1/portals/2/127.0.0.1:0?dry_run=true".into(),
            none.clone(),
        ),
        ("DELETE", "/v1/portals/{group}/{listen}", "/v1/portals/2/10.0.0.0%2F8".into(), none.clone()),
        ("GET", "/v1/metrics", "/v1/metrics".into(), none.clone()),
        ("GET", "/v1/sessions", "/v1/sessions".into(), none.clone()),
        ("DELETE", "/v1/sessions/{tsih}", "/v1/sessions/7".into(), none.clone()),
        ("POST", "/v1/sessions/{tsih}/logout", "/v1/sessions/7/logout?grace_s=1".into(), none.clone()),
        ("GET", "/v1/reservations", "/v1/reservations".into(), none.clone()),
        (
            "DELETE",
            "/v1/targets/{target}/luns/{lun}/reservations",
            format!("{target}/luns/0/reservations"),
            none.clone(),
        ),
        ("POST", "/v1/schedules/{name}/run", "/v1/schedules/db/run".into(), none.clone()),
        ("GET", "/v1/schedules", "/v1/schedules".into(), none),
        (
            "PUT",
            "/v1/config",
            "/v1/config?dry_run=true".into(),
            json!({ "listen": ["127.0.0.1:0"], "cores": 1, "state_dir": "STATE", "target": [{ "name": TARGET }],
                "backup": [backup()] }),
        ),
    ]
}

/// A backup by the clock, as the configuration says it.
fn backup() -> Value {
    json!({ "name": "db", "source": format!("{TARGET}/0"), "destination": "/mnt/share/db", "at": ["03:00"] })
}

#[tokio::test]
async fn every_operation_answers_as_the_document_says_and_none_is_undocumented() {
    let backup = "[[backup]]\nname = \"db\"\ndestination = \"/mnt/share/db\"\nat = [\"03:00\"]\n";
    let file = format!("state_dir = \"state\"\n{FILE}\n{backup}source = \"{TARGET}/0\"\n");
    let daemon = Daemon::start_on(&file).await;
    daemon.begin_backups("echo '{}'");
    let secret = daemon.folder.path().join("secret");
    fs::write(&secret, "sesame open now").unwrap();
    let document = daemon.get("/v1/openapi.json").await;
    let (mut asked, mut epoch, mut snapshot) = (BTreeSet::new(), String::new(), String::new());
    for (method, path, uri, mut body) in requests() {
        if body["secret_file"] == "SECRET" {
            body["secret_file"] = json!(secret);
        }
        if body["state_dir"] == "STATE" {
            body["state_dir"] = json!(daemon.folder.path().join("state"));
        }
        let uri = uri.replace("EPOCH", &epoch).replace("SNAPSHOT", &snapshot);
        let answer = daemon.call(method.parse::<Method>().unwrap(), &uri, body).await;
        let answer = answer.unwrap_or_else(|error| panic!("{method} {uri}: {error:?}"));
        if path == EPOCHS && method == "POST" {
            epoch = answer["epoch"].as_str().unwrap().to_owned();
        }
        if path == SNAPSHOTS {
            snapshot = answer["snapshots"][0]["snapshot"]["name"].as_str().unwrap().to_owned();
        }
        let operation = &document["paths"][path][method.to_ascii_lowercase()];
        let schema = &operation["responses"]["200"]["content"]["application/json"]["schema"];
        assert!(schema.is_object() || schema.is_boolean(), "{method} {path} is not in the document");
        check(&document, schema, &answer, &format!("{method} {path}")).unwrap();
        asked.insert((path.to_owned(), method.to_ascii_lowercase()));
    }
    let metrics = daemon.client.text(Method::GET, "/metrics", None).await.unwrap();
    let metrics = String::from_utf8(metrics.to_vec()).unwrap();
    assert!(metrics.starts_with("# HELP ") && metrics.contains("\nlunway_sessions 0\n"), "{metrics}");
    assert!(document["paths"]["/metrics"]["get"]["responses"]["200"]["content"]["text/plain"].is_object());
    asked.insert(("/metrics".to_owned(), "get".to_owned()));
    // The router is made of the same table as the document, so what is not here does not exist.
    let documented: BTreeSet<_> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, methods)| {
            methods.as_object().unwrap().keys().map(|method| (path.clone(), method.clone()))
        })
        .collect();
    assert_eq!(asked, documented, "each operation is asked here");
    daemon.stop().await;
}

#[tokio::test]
async fn what_is_not_there_is_said_in_the_documented_shape() {
    let daemon = Daemon::start().await;
    let document = daemon.get("/v1/openapi.json").await;
    let schema = json!({ "$ref": "#/components/schemas/ErrorBody" });
    for (method, path, status) in [
        (Method::GET, "/v1/nothing", 404),
        (Method::PATCH, "/v1/config", 405),
        (Method::GET, "/v1/targets/iqn.2026-11.com.example:none", 404),
        (Method::GET, "/v1/targets/none", 400),
        (Method::GET, "/v1/targets/iqn.2026-11.com.example:a/luns/x", 400),
        (Method::DELETE, "/v1/targets/iqn.2026-11.com.example:a?dry=1", 400),
        (Method::PUT, "/v1/targets/iqn.2026-11.com.example:a", 400),
    ] {
        let (code, sentence) = daemon.call(method.clone(), path, Value::Null).await.unwrap_err();
        assert_eq!(code, status, "{method} {path}: {sentence}");
        check(&document, &schema, &json!({ "error": sentence }), path).unwrap();
        assert!(!sentence.contains("answered"), "{method} {path} has no sentence");
    }
    daemon.stop().await;
}

#[test]
fn the_document_in_the_repository_is_the_one_that_is_served() {
    let text = format!("{:#}\n", lunway_console::openapi());
    lunway_foreign::written::says("docs/openapi.json", &text, "-p lunway-console --test suite");
}
