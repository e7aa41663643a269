//! Disks over several paths, from outside: `lunway paths`, `lunway top DEVICE`, and other commands on such a disk.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs;
use std::net::TcpListener;

use serde_json::Value;
use support::{IQN, PATIENCE, Served, finish, lunway, succeed};

/// A target with a portal on each of two loopback addresses, which stand for ports.
struct TwoPortals {
    served: Served,
    second: String,
}

impl TwoPortals {
    fn start() -> Self {
        let served = Served::start(&["--listen", "127.0.0.2:0", "--lun", "0=ram:16M"]);
        let line = served.ready.iter().find(|line| line.contains("127.0.0.2:")).unwrap();
        let second = line.split_whitespace().find(|word| word.starts_with("127.0.0.2:")).unwrap().to_owned();
        Self { served, second }
    }

    fn url(&self, more: &str) -> String {
        format!("{}?portal={}&from=127.0.0.3&from=127.0.0.4{more}", self.served.url(0), self.second)
    }

    fn lanes(&self) -> [String; 2] {
        [format!("127.0.0.3 > {}", self.served.address), format!("127.0.0.4 > {}", self.second)]
    }
}

fn json(arguments: &[&str]) -> Value {
    let text = succeed(lunway(arguments));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The exit code and standard error of a command that fails.
fn failure(arguments: &[&str]) -> (i32, String) {
    let output = finish(lunway(arguments), PATIENCE);
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn names(document: &Value) -> Vec<&str> {
    document["lanes"].as_array().unwrap().iter().map(|lane| lane["name"].as_str().unwrap()).collect()
}

#[test]
fn paths_shows_the_plan_and_every_lane() {
    let target = TwoPortals::start();
    let url = target.url("&policy=least-queue-depth");
    let document = json(&["paths", &url, "--json"]);
    assert_eq!((&document["plan"], &document["policy"]), (&"paired".into(), &"least-queue-depth".into()));
    assert_eq!((&document["size"], &document["sector"]), (&(16 << 20).into(), &512.into()));
    assert_eq!(names(&document), target.lanes());
    for lane in document["lanes"].as_array().unwrap() {
        assert_eq!((&lane["state"], &lane["session"]), (&"up".into(), &1.into()), "{lane}");
        assert!(lane["latency_us"].as_f64().is_none_or(|time| time > 0.0), "{lane}");
    }
    let reads = document["lanes"].as_array().unwrap().iter().map(|lane| lane["read_ios"].as_u64().unwrap());
    assert_eq!(reads.sum::<u64>(), 8, "{document}");
    let text = succeed(lunway(&["paths", &url]));
    for part in ["paired: 2 lanes", "least-queue-depth", "LAST EVENT", "connected", "rule 5"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(target.lanes().iter().all(|lane| text.contains(lane)), "{text}");
}

#[test]
fn an_address_of_one_portal_is_one_lane_for_paths_and_top_as_for_bench() {
    let target = TwoPortals::start();
    let one = format!("127.0.0.1 > {}", target.served.address);
    let url = target.served.url(0);
    for command in [&["paths"][..], &["top", "--once", "--interval", "100ms"]] {
        let words = [command, &[url.as_str(), "--json"]].concat();
        assert_eq!(names(&json(&words)), [one.as_str()], "{command:?}");
    }
    let text = succeed(lunway(&["paths", &target.served.url(0)]));
    assert!(text.contains("explicit: 1 lane") && text.contains("every command uses this one"), "{text}");
    let from = format!("{}?from=127.0.0.5", target.served.url(0));
    assert_eq!(
        names(&json(&["paths", &from, "--json"])),
        [one.replace("127.0.0.1 >", "127.0.0.5 >").as_str()]
    );
    let all = format!("{}?plan=balanced", target.served.url(0));
    assert_eq!(names(&json(&["paths", &all, "--json"])).len(), 2);
    assert_eq!(
        json(&["paths", &target.served.url(0), "--plan", "balanced", "--json"])["lanes"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[test]
fn another_plan_or_policy_is_shown_without_opening_the_disk() {
    let target = TwoPortals::start();
    let document = json(&["paths", &target.url(""), "--plan", "mesh", "--json"]);
    assert_eq!(document["lanes"].as_array().unwrap().len(), 4);
    assert_eq!(document["warnings"][0]["rule"], 6, "{document}");
    let text = succeed(lunway(&["paths", &target.url(""), "--plan", "mesh"]));
    assert!(text.contains("lunway doctor 'iscsi://"), "{text}");
    let first =
        |policy: &str| json(&["paths", &target.url(""), "--policy", policy, "--json"])["first_lanes"].clone();
    assert_eq!(first("round-robin"), serde_json::json!([1, 2, 1, 2, 1, 2, 1, 2]));
    assert_eq!(first("failover"), serde_json::json!([1, 1, 1, 1, 1, 1, 1, 1]));
    // Nobody listens there, and nobody has to.
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url =
        format!("iscsi://{unused}/{IQN}/0?lane=127.0.0.3>{unused},reserve&lane=127.0.0.4>{unused},weight=7");
    let text = succeed(lunway(&["paths", &url, "--policy", "weighted"]));
    assert!(text.contains("explicit: 1 lane, 1 more in reserve") && text.contains("reserve"), "{text}");
}

#[test]
fn top_shows_what_goes_over_the_lanes() {
    let target = TwoPortals::start();
    let arguments = ["top", &target.url("&policy=round-robin"), "--load", "--once", "--json"];
    let document = json(&arguments);
    assert_eq!(names(&document), target.lanes());
    for lane in document["lanes"].as_array().unwrap() {
        assert!(lane["read_bytes_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{lane}");
    }
}

#[test]
fn a_file_of_paths_is_a_device_for_every_command() {
    let target = TwoPortals::start();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(
        file("paths.toml"),
        format!(
            "target = \"{IQN}\"\nlun = 0\nportal = [\"{}\", \"{}\"]\nfrom = [\"127.0.0.3\", \"127.0.0.4\"]\n",
            target.served.address, target.second
        ),
    )
    .unwrap();
    let bytes: Vec<u8> = (0..16_u32 << 20).map(|n| (n % 251) as u8).collect();
    fs::write(file("in.img"), &bytes).unwrap();
    succeed(lunway(&["copy", &file("in.img"), &file("paths.toml"), "--verify"]));
    succeed(lunway(&["copy", &format!("paths:{}", file("paths.toml")), &file("out.img")]));
    assert!(fs::read(file("out.img")).unwrap() == bytes);
    fs::write(file("bad-paths.toml"), "portal = [\"h\"]\nlun = 0\ntarget = \"iqn.x:y\"\ncolour = 1\n")
        .unwrap();
    let (code, said) = failure(&["paths", &file("bad-paths.toml")]);
    assert!(code == 2 && said.contains("line 4") && said.contains("colour"), "{code}: {said}");
}

#[test]
fn what_cannot_be_meant_is_exit_code_2_and_what_does_not_work_1() {
    let (code, said) = failure(&["paths", "ram:1M"]);
    assert!(code == 2 && said.contains("ram:1M has no paths"), "{code}: {said}");
    let (code, said) = failure(&["paths", "iscsi://127.0.0.1/iqn.x:y/0?plan=best"]);
    assert!(code == 2 && said.contains("`best` is not a plan"), "{code}: {said}");
    let (code, said) = failure(&["paths", "iscsi://127.0.0.1/iqn.x:y/0", "--plan", "best"]);
    assert!(code == 2 && said.contains("best"), "{code}: {said}");
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("iscsi://{unused}/{IQN}/0?lane=127.0.0.3>{unused}");
    let (code, said) = failure(&["paths", &url]);
    assert!(code == 1 && said.contains("no lane could be connected"), "{code}: {said}");
    assert!(said.contains("127.0.0.3 >") && said.contains("refused"), "{said}");
}

#[test]
fn no_output_shows_a_secret() {
    let target = TwoPortals::start();
    let url = target.url("").replace("iscsi://", "iscsi://joe%hunter2hunter2@");
    for arguments in [vec!["paths", &url], vec!["paths", &url, "--plan", "mesh", "--json"]] {
        let output = finish(lunway(&arguments), PATIENCE);
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(!text.contains("hunter2") && text.contains("joe"), "{text}");
    }
}

/// Each of the eight reads was waited for, with its timeouts, and the exit code was 0.
#[test]
fn paths_of_a_disk_that_cannot_be_read_are_shown_and_the_first_error_is_told() {
    let served = Served::start(&["--lun", "0=fault:read:ram:16M"]);
    let output = finish(lunway(&["paths", &served.url(0), "--json"]), PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && said.contains("cannot be read"), "{said}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let lane = &document["lanes"][0];
    assert_eq!((&lane["state"], &lane["errors"]), (&"up".into(), &1.into()), "{document}");
}

#[test]
fn paths_of_a_slow_disk_are_shown_after_fewer_reads_and_it_says_what_it_waits_for() {
    let served = Served::start(&["--lun", "0=delay:4s:ram:16M"]);
    let output = finish(lunway(&["paths", &served.url(0), "--json"]), PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("which has not answered a read"), "{said}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["lanes"][0]["read_ios"], 2, "two take longer than the time for all: {document}");
}
