//! Changes: all or nothing, repeatable, guarded.

use lunway_console::Method;
use serde_json::{Value, json};

use crate::support::{Daemon, FILE, TARGET, lines};

#[tokio::test]
async fn a_put_creates_then_changes_then_does_nothing() {
    let daemon = Daemon::start().await;
    let lun = format!("/v1/targets/{TARGET}/luns/7");
    let created = daemon.put(&lun, json!({ "device": "ram:2M" })).await.unwrap();
    assert_eq!(lines(&created), [format!("+ target {TARGET}, lun 7: device = ram:2M")]);
    assert_eq!((&created["generation"], &created["persisted"]), (&json!(2), &json!(true)));
    let again = daemon.put(&lun, json!({ "device": "ram:2M" })).await.unwrap();
    assert_eq!((&again["generation"], lines(&again).len()), (&json!(2), 0));
    let changed = daemon.put(&lun, json!({ "read_only": true })).await.unwrap();
    assert_eq!((&changed["generation"], lines(&changed).len()), (&json!(3), 1));
    let served = daemon.get(&lun).await;
    assert_eq!(
        (&served["config"]["device"], &served["status"]["read_only"]),
        (&json!("ram:2M"), &json!(true))
    );
    let back = daemon.put(&lun, json!({ "read_only": null })).await.unwrap();
    assert_eq!(lines(&back).len(), 1);
    assert_eq!(daemon.get(&lun).await["status"]["read_only"], json!(false));
    daemon.stop().await;
}

#[tokio::test]
async fn limits_of_io_are_set_kept_shown_and_removed() {
    let daemon = Daemon::start().await;
    let lun = format!("/v1/targets/{TARGET}/luns/0");
    let limits = json!({ "iops_limit": 500, "rate_limit": "100M", "limit_burst": "2s" });
    let changed = daemon.put(&lun, limits.clone()).await.unwrap();
    assert_eq!((lines(&changed).len(), &changed["effects"]), (3, &json!([])));
    let served = &daemon.get(&lun).await["config"];
    for (key, value) in limits.as_object().unwrap() {
        assert_eq!(&served[key], value);
    }
    assert!(daemon.text().contains("iops_limit = 500") && daemon.text().contains("limit_burst = \"2s\""));
    let metrics = daemon.get("/v1/metrics").await;
    let reading = json!({
        "target": TARGET, "lun": 0, "iops": 500, "bytes_per_second": 100 << 20, "throttled": 0, "throttled_us_total": 0,
    });
    assert_eq!(metrics["lun_limits"], json!([reading]));
    let rule = format!("/v1/targets/{TARGET}/acl/guests");
    let guests = json!({ "initiators": ["iqn.2026-11.com.example:guest-*"], "iops_limit": 9 });
    daemon.put(&rule, guests).await.unwrap();
    let rules = daemon.get(&format!("/v1/targets/{TARGET}/acl")).await;
    assert_eq!(rules["rules"][0]["iops_limit"], json!(9));
    let none = json!({ "iops_limit": null, "rate_limit": null, "limit_burst": null });
    daemon.put(&lun, none.clone()).await.unwrap();
    daemon.put(&rule, none).await.unwrap();
    assert_eq!(daemon.get("/v1/metrics").await["lun_limits"], json!([]));
    assert!(!daemon.text().contains("_limit"), "{}", daemon.text());
    daemon.stop().await;
}

#[tokio::test]
async fn a_delete_of_what_is_not_there_succeeds_unless_it_must_be() {
    let daemon = Daemon::start().await;
    let target = format!("/v1/targets/{TARGET}");
    for path in ["/luns/9", "/acl/none", "/chap/nobody"] {
        let path = format!("{target}{path}");
        let answer = daemon.delete(&path).await.unwrap();
        assert_eq!((&answer["generation"], lines(&answer).len()), (&json!(1), 0));
        let (status, sentence) = daemon.delete(&format!("{path}?must_exist=true")).await.unwrap_err();
        assert!(status == 404 && sentence.starts_with("there is no "), "{sentence}");
    }
    assert_eq!(daemon.delete("/v1/targets/iqn.2026-11.com.example:x/luns/0").await.unwrap()["generation"], 1);
    let gone = daemon.delete(&format!("{target}/luns/0")).await.unwrap();
    assert_eq!(lines(&gone), [format!("- target {TARGET}, lun 0")]);
    daemon.stop().await;
}

#[tokio::test]
async fn a_rejected_change_leaves_everything_as_it_was() {
    let daemon = Daemon::start().await;
    let before = daemon.get("/v1/config").await;
    let target = format!("/v1/targets/{TARGET}");
    for (path, body, part) in [
        ("/luns/1", json!({ "device": "/dev/none" }), "no such device here"),
        ("/luns/1", json!({ "device": "rams:1M" }), "rams"),
        ("/luns/1", json!({ "device": "ram:1M", "sector": 17 }), "512 and 4096"),
        ("/luns/1", json!({ "device": "ram:1M", "iops_limit": 0 }), "at least 1 is possible"),
        ("/luns/1", json!({ "device": "ram:1M", "rate_limit": "100" }), "write its unit too"),
        ("/luns/1", json!({ "device": "ram:1M", "colour": 1 }), "unknown field `colour`"),
        ("/luns/1", json!({}), "missing field `device`"),
        ("/luns/20000", json!({ "device": "ram:1M" }), "0 to 16383"),
        ("/chap/u", json!({ "secret_file": "/none" }), "cannot read it"),
        ("/chap/u", json!({ "secret": "hunter2hunter2" }), "unknown field `secret`"),
        ("/acl/r", json!({ "from": ["ten"] }), "acl r"),
        ("", json!({ "name": "iqn.2026-11.com.example:z" }), "the body says"),
        (
            "",
            json!({ "lun": [{ "id": 1, "device": "ram:1M" }, { "id": 1, "device": "ram:1M" }] }),
            "two LUNs",
        ),
    ] {
        let (status, sentence) = daemon.put(&format!("{target}{path}"), body.clone()).await.unwrap_err();
        assert!((400..500).contains(&status), "{path} {body}: {status} {sentence}");
        assert!(sentence.contains(part) && !sentence.contains("hunter2"), "{path} {body}: {sentence}");
    }
    assert_eq!(daemon.get("/v1/config").await, before);
    assert_eq!(daemon.text(), FILE);
    daemon.stop().await;
}

#[tokio::test]
async fn a_dry_run_says_what_would_be_and_changes_nothing() {
    let daemon = Daemon::start().await;
    let lun = format!("/v1/targets/{TARGET}/luns/7?dry_run=true");
    let plan = daemon.put(&lun, json!({ "device": "ram:2M" })).await.unwrap();
    assert_eq!(lines(&plan), [format!("+ target {TARGET}, lun 7: device = ram:2M")]);
    assert_eq!((&plan["generation"], &plan["persisted"]), (&json!(1), &json!(false)));
    assert!(daemon.put(&lun, json!({ "device": "/none" })).await.is_err(), "it opens devices to know");
    assert_eq!(daemon.text(), FILE);
    assert_eq!(daemon.get("/v1/targets").await["targets"][0]["status"]["luns"].as_array().unwrap().len(), 1);
    daemon.stop().await;
}

#[tokio::test]
async fn a_dry_run_says_in_words_who_may_log_in_then() {
    let daemon = Daemon::start().await;
    let target = format!("/v1/targets/{TARGET}");
    let closed = daemon.put(&format!("{target}?dry_run=true"), json!({ "open": false })).await.unwrap();
    let nobody = format!(
        "no initiator may log in to target {TARGET} any more: no access rule allows one, and it is not open"
    );
    assert_eq!(closed["effects"], json!([nobody]));
    let rule = json!({ "initiators": ["iqn.2026-11.com.example:*"], "read_only": true });
    daemon.put(&format!("{target}/acl/some"), rule).await.unwrap();
    let ruled = daemon.put(&target, json!({ "open": false })).await.unwrap();
    let sentence = format!("initiators that match no access rule may not log in to target {TARGET} any more");
    assert_eq!(ruled["effects"], json!([sentence]));
    let emptied = daemon.delete(&format!("{target}/acl/some?dry_run=true")).await.unwrap();
    assert_eq!(emptied["effects"], json!([nobody]));
    let opened = daemon.put(&target, json!({ "open": true })).await.unwrap();
    assert!(
        opened["effects"][0].as_str().unwrap().starts_with("every initiator that reaches target"),
        "{opened}"
    );
    daemon.stop().await;
}

#[tokio::test]
async fn a_rule_that_matches_every_initiator_is_told_of_as_an_open_target_is() {
    let daemon = Daemon::start().await;
    let target = format!("/v1/targets/{TARGET}");
    let rule = json!({ "initiators": ["iqn.2026-11.com.example:h"] });
    daemon.put(&format!("{target}/acl/host"), rule).await.unwrap();
    daemon.put(&target, json!({ "open": false })).await.unwrap();
    assert_eq!(daemon.get("/v1/health").await["warnings"], json!([]));
    let opened = daemon.put(&format!("{target}/acl/host"), json!({ "initiators": [] })).await.unwrap();
    let said = opened["effects"][0].as_str().unwrap();
    assert!(said.starts_with("every initiator that reaches target") && said.contains("rule host"), "{said}");
    let warnings = daemon.get("/v1/health").await["warnings"].clone();
    assert_eq!(warnings[0]["kind"], "open_target", "{warnings}");
    assert!(warnings[0]["text"].as_str().unwrap().contains("access rule host"), "{warnings}");
    daemon.stop().await;
}

#[tokio::test]
async fn a_ram_disk_is_not_made_anew_without_a_word() {
    let daemon = Daemon::start().await;
    let lun = format!("/v1/targets/{TARGET}/luns/7");
    daemon.put(&lun, json!({ "device": "ram:2M" })).await.unwrap();
    for query in ["", "?dry_run=true", "?shrink=true"] {
        for body in [json!({ "sector": 4096 }), json!({ "device": "delay:1ms:ram:2M" })] {
            let (status, sentence) = daemon.put(&format!("{lun}{query}"), body).await.unwrap_err();
            assert!(status == 409 && sentence.contains("its data would be lost"), "{status} {sentence}");
        }
    }
    let gone = daemon.delete(&lun).await.unwrap();
    let lost = format!("what ram:2M held, lun 7 of target {TARGET}, is lost with it");
    assert_eq!(gone["effects"], json!([lost]));
    daemon.stop().await;
}

#[tokio::test]
async fn a_change_of_another_generation_is_refused() {
    let daemon = Daemon::start().await;
    let alias = |generation| format!("/v1/targets/{TARGET}?generation={generation}");
    daemon.put(&alias(1), json!({ "alias": "A" })).await.unwrap();
    let (status, sentence) = daemon.put(&alias(1), json!({ "alias": "B" })).await.unwrap_err();
    assert_eq!(status, 409);
    assert!(sentence.contains("generation 2, not 1"), "{sentence}");
    daemon.put(&alias(2), json!({ "alias": "B" })).await.unwrap();
    daemon.stop().await;
}

#[tokio::test]
async fn what_holds_for_as_long_as_the_process_runs_is_not_changed_silently() {
    let daemon = Daemon::start().await;
    let shown = daemon.get("/v1/config").await;
    for (key, value) in [("cores", json!(2)), ("api", json!({ "socket": "/run/other.sock" }))] {
        let mut other = shown["config"].clone();
        other[key] = value;
        let (status, sentence) = daemon.put("/v1/config", other).await.unwrap_err();
        assert_eq!(
            (status, sentence),
            (
                409,
                format!(
                    "{key} is read only at the start of the daemon: change it in the configuration file, for the next start"
                )
            )
        );
    }
    assert_eq!(daemon.text(), FILE);
    daemon.stop().await;
}

#[tokio::test]
async fn the_whole_configuration_is_shown_and_replaced() {
    let daemon = Daemon::start().await;
    let shown = daemon.get("/v1/config").await;
    assert_eq!(shown["file"], json!(daemon.path()));
    let same = daemon.put("/v1/config", shown["config"].clone()).await.unwrap();
    assert_eq!(lines(&same).len(), 0);
    let mut other = shown["config"].clone();
    other["target"][0]["alias"] = json!("A");
    other["target"].as_array_mut().unwrap().push(json!({ "name": "iqn.2026-11.com.example:b" }));
    let changed = daemon.put("/v1/config", other).await.unwrap();
    assert_eq!(lines(&changed).len(), 2);
    assert_eq!(daemon.get("/v1/targets").await["targets"].as_array().unwrap().len(), 2);
    daemon.stop().await;
}

#[tokio::test]
async fn rules_keep_their_order_and_new_ones_go_where_they_are_put() {
    let daemon = Daemon::start().await;
    let rule = |name: &str| format!("/v1/targets/{TARGET}/acl/{name}");
    daemon
        .put(&rule("b"), json!({ "initiators": ["iqn.2026-11.com.example:b"], "luns": [0] }))
        .await
        .unwrap();
    daemon.put(&rule("c"), json!({ "deny": true })).await.unwrap();
    daemon.put(&format!("{}?at=1", rule("a")), json!({ "from": ["10.0.0.0/8"] })).await.unwrap();
    let again = daemon.put(&format!("{}?at=3", rule("a")), json!({ "from": ["10.0.0.0/8"] })).await.unwrap();
    assert_eq!(lines(&again).len(), 0, "a rule that is there stays where it is");
    let rules = daemon.get(&format!("/v1/targets/{TARGET}/acl")).await;
    let names: Vec<_> = rules["rules"].as_array().unwrap().iter().map(|rule| &rule["name"]).collect();
    assert_eq!(names, ["a", "b", "c"]);
    daemon.stop().await;
}

#[tokio::test]
async fn a_device_gets_another_size() {
    let daemon = Daemon::start().await;
    let lun = format!("/v1/targets/{TARGET}/luns/0");
    let resize = |size: Value| {
        daemon.call(
            Method::POST,
            "/v1/targets/iqn.2026-11.com.example:a/luns/0/resize",
            json!({ "size": size }),
        )
    };
    assert_eq!(lines(&resize(json!(4 << 20)).await.unwrap()).len(), 1);
    assert_eq!(daemon.get(&lun).await["status"]["size"], json!(4 << 20));
    assert_eq!(lines(&resize(json!(4 << 20)).await.unwrap()).len(), 0);
    assert!(daemon.text().contains("ram:4M"), "{}", daemon.text());
    assert!(resize(json!("much")).await.is_err());
    daemon.stop().await;
}
