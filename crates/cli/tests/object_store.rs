//! Repositories in object stores: all verbs, kills at any moment; against Ceph's gateway, and against a small store of
//! the test's own.
//!
//! 12 kills; `LUNWAY_BACKUP_KILLS=200` makes more.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../object/tests/support/server.rs"]
mod server;
mod support;

use std::env;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lunway_foreign::ceph::{Ceph, Store};
use rustix::process::Signal;
use serde_json::Value;
use server::{Answer, Server};
use support::{PATIENCE, Running, assert_same_bytes, finish, image, lunway, succeed};

/// A disk, and what a store is reached with.
struct Fixture {
    folder: tempfile::TempDir,
    environment: Vec<(&'static str, String)>,
}

impl Fixture {
    fn new(environment: Vec<(&'static str, String)>) -> Self {
        let fixture = Self { folder: tempfile::tempdir().unwrap(), environment };
        image(&fixture.path("disk"), 48 << 20, 24 << 20);
        fixture
    }

    /// Beside a store of the test's own.
    fn of(server: &Server) -> Self {
        Self::new(vec![
            ("AWS_ENDPOINT_URL", format!("http://{}", server.address())),
            ("AWS_ACCESS_KEY_ID", "key".into()),
            ("AWS_SECRET_ACCESS_KEY", "hidden".into()),
        ])
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = lunway(words);
        for name in ["AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_ENDPOINT_URL", "AWS_REGION"] {
            command.env_remove(name);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.env("XDG_CACHE_HOME", self.path("cache")).current_dir(self.folder.path());
        command
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&succeed(self.command(&[words, &["--json"]].concat()))).unwrap()
    }

    fn run(&self, series: &str) -> Value {
        self.json(&["backup", "run", "disk", series])
    }

    /// What a command that must fail says.
    fn refused(&self, words: &[&str]) -> String {
        let output = finish(self.command(words), PATIENCE);
        assert!(!output.status.success(), "{words:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!said.contains("hidden"), "{said}");
        said
    }

    /// Writes something at an offset of the disk.
    fn change(&self, offset: u64, byte: u8) {
        let disk = fs::File::options().write(true).open(self.path("disk")).unwrap();
        disk.write_all_at(&[byte; 500_000], offset).unwrap();
    }

    /// Restores a point, and compares it with a file.
    fn check(&self, series: &str, point: &str, expected: &Path) {
        let _ = fs::remove_file(self.path("out"));
        succeed(self.command(&["backup", "restore", series, "out", "--point", point]));
        assert_same_bytes(&self.path("out"), expected);
    }
}

/// All verbs, one after another.
fn story(fixture: &Fixture, repository: &str) {
    let [one, two] = ["one", "two"].map(|name| format!("{repository}/{name}"));
    let made = succeed(fixture.command(&["backup", "init", repository]));
    assert_eq!(
        made.trim_end(),
        format!("{repository} is a repository, not encrypted: `lunway backup run SRC {repository}/NAME`")
    );
    assert!(fixture.refused(&["backup", "init", repository]).contains("is a repository already"));
    let said = fixture.refused(&["backup", "run", "disk", repository]);
    assert!(said.contains(&format!("name one of its series, {repository}/NAME")), "{said}");
    let said = fixture.refused(&["backup", "restore", &one, "out"]);
    assert!(said.contains("has no series one, none yet"), "{said}");

    fs::copy(fixture.path("disk"), fixture.path("before")).unwrap();
    let first = fixture.run(&one);
    assert_eq!((&first["kind"], &first["why"]), (&"full".into(), &"it is the first".into()));
    fixture.change(20 << 20, 9);
    let second = fixture.run(&one);
    assert_eq!(second["kind"], "increment");
    assert!(second["sent_bytes"].as_u64().unwrap() < 1 << 20, "{second}");
    let [first, second] = [first, second].map(|run| run["point"].as_str().unwrap().to_owned());
    fixture.check(&one, &first, &fixture.path("before"));
    fixture.check(&one, "latest", &fixture.path("disk"));
    // Another disk that holds the same.
    let other = fixture.json(&["backup", "run", "before", &two]);
    assert_eq!(other["sent_bytes"], 0);

    let listed = fixture.json(&["backup", "list", repository]);
    let series = |at: usize| (listed[at]["series"].as_str().unwrap(), listed[at]["points"].as_u64().unwrap());
    assert_eq!((series(0), series(1)), (("one", 2), ("two", 1)));
    assert_eq!(fixture.json(&["backup", "list", &one])[1]["parent"], first.as_str());
    let verified = fixture.json(&["backup", "verify", repository]);
    assert_eq!((verified["points"].as_u64(), verified["findings"].as_array().unwrap().len()), (Some(3), 0));
    let status = fixture.json(&["backup", "status", &one]);
    assert_eq!((&status["newest_verified"], &status["points"]), (&second.as_str().into(), &2.into()));
    assert!(succeed(fixture.command(&["backup", "report", &one])).contains(&second));

    // A point as a device, and as a disk of its own.
    succeed(fixture.command(&["copy", &format!("point:{one}@{first}"), "copied.img"]));
    assert_same_bytes(&fixture.path("copied.img"), &fixture.path("before"));
    succeed(fixture.command(&[
        "copy",
        &format!("point:{one}?into={}", fixture.text("own.vhdx")),
        "pulled.img",
    ]));
    assert_same_bytes(&fixture.path("pulled.img"), &fixture.path("disk"));
    let writes = format!("point:{one}?writes=discard");
    let said = fixture.refused(&["copy", "before", &writes, "--overwrite"]);
    assert!(said.contains("into=FILE.vhdx"), "{said}");
}

/// A prune, and what is there afterwards.
fn pruned(fixture: &Fixture, repository: &str) {
    let [one, two] = ["one", "two"].map(|name| format!("{repository}/{name}"));
    // It has not been completed from its point, and is no more.
    fs::remove_file(fixture.path("own.vhdx")).unwrap();
    let pruned = fixture.json(&["backup", "prune", &one, "--keep-last", "1"]);
    assert_eq!((&pruned["kept"], &pruned["deferred"]), (&1.into(), &Value::Null), "{pruned}");
    fixture.check(&one, "latest", &fixture.path("disk"));
    fixture.check(&two, "latest", &fixture.path("before"));
}

#[test]
fn all_verbs_take_an_address() {
    let server = Server::start();
    let fixture = Fixture::of(&server);
    story(&fixture, "s3://bucket/some/repo");
    pruned(&fixture, "s3://bucket/some/repo");
    let left: Vec<_> = server.keys().into_iter().filter(|key| !key.starts_with("some/repo/")).collect();
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn an_encrypted_repository_is_read_with_a_key_and_the_address_may_name_the_endpoint() {
    let server = Server::start();
    let mut fixture = Fixture::of(&server);
    fixture.environment.retain(|(name, _)| *name != "AWS_ENDPOINT_URL");
    let key = succeed(fixture.command(&["backup", "key", "new", "own.key"]));
    let with = |path: &str| format!("s3://bucket/{path}?endpoint=http://{}&region=eu-1", server.address());
    let (repository, series) = (with("repo"), with("repo/one"));
    let made = succeed(fixture.command(&["backup", "init", &repository, "--for", key.trim()]));
    assert!(made.contains(&format!("`lunway backup run SRC {}`", with("repo/NAME"))), "{made}");
    let key = ["--key-file", "own.key"];
    fixture.json(&[&["backup", "run", "disk", &series], &key[..]].concat());
    let said = fixture.refused(&["backup", "restore", &series, "out"]);
    assert!(said.contains("is encrypted for 1 recipient"), "{said}");
    succeed(fixture.command(&[&["backup", "restore", &series, "out"], &key[..]].concat()));
    assert_same_bytes(&fixture.path("out"), &fixture.path("disk"));
    // Options of the address come before the point, those of the device behind it.
    let point = format!("point:{series}@latest?key-file={}", fixture.text("own.key"));
    succeed(fixture.command(&["copy", &point, "copied.img"]));
    assert_same_bytes(&fixture.path("copied.img"), &fixture.path("disk"));
    // Its random data cannot be compressed, and would lie in a pack as it is.
    let disk = fs::read(fixture.path("disk")).unwrap();
    let page = disk.chunks(64 << 10).find(|leaf| leaf.iter().take(64).all(|byte| *byte != 0)).unwrap();
    let there = |bytes: &[u8]| bytes.windows(16).any(|window| window == &page[..16]);
    assert!(server.keys().iter().all(|key| !there(&server.bytes(key).unwrap())));
}

#[test]
fn what_is_wrong_with_an_address_or_a_store_is_said_in_a_sentence() {
    let server = Server::start();
    let mut fixture = Fixture::of(&server);
    for (address, part) in [
        ("s3://bucket/none", "neither a repository nor a series"),
        ("s3://Bucket/x", "name of a bucket"),
        ("s3://bucket/x?secret=hidden", "`secret` is no option"),
        ("s3://bucket/x?endpoint=http://192.0.2.1", "plain-http=yes"),
    ] {
        for verb in [&["list"][..], &["verify"], &["prune", "--keep-last", "1"]] {
            let said = fixture.refused(&[&["backup", verb[0], address], &verb[1..]].concat());
            assert!(said.contains(part), "{address}: {said}");
        }
    }
    server.ignore_conditions(true, false);
    let said = fixture.refused(&["backup", "init", "s3://bucket/repo"]);
    assert!(said.contains("conditional writes"), "{said}");
    assert_eq!(server.keys(), Vec::<String>::new());
    fixture.environment.retain(|(name, _)| *name != "AWS_SECRET_ACCESS_KEY");
    fixture.environment.push(("HOME", fixture.text("home")));
    let said = fixture.refused(&["backup", "list", "s3://bucket/repo"]);
    assert!(
        said.contains("AWS_SECRET_ACCESS_KEY") && said.contains("home/.aws/credentials is not there"),
        "{said}"
    );
}

/// The access key of a `[[backup]]` is in a file of its own.
#[test]
fn serve_check_asks_the_store_of_a_backup_with_its_own_access_key() {
    let server = Server::start();
    let fixture = Fixture::of(&server);
    succeed(fixture.command(&["backup", "init", "s3://bucket/repo"]));
    let keys = format!(
        "[default]\naws_access_key_id = key\naws_secret_access_key = hidden\nendpoint_url = http://{}\n",
        server.address()
    );
    fs::write(fixture.path("keys"), keys).unwrap();
    let check = |destination: &str, credentials: &str| {
        let iqn = support::IQN;
        let text = format!(
            "state_dir = \"state\"\n[[target]]\nname = \"{iqn}\"\nopen = true\n[[target.lun]]\nid = 0\n\
             device = \"raw:disk\"\n[[backup]]\nname = \"db\"\nsource = \"{iqn}/0\"\nat = [\"02:00\"]\n\
             destination = \"{destination}\"\n{credentials}\n"
        );
        fs::write(fixture.path("lunway.toml"), text).unwrap();
        let mut command = lunway(&["serve", "-c", &fixture.text("lunway.toml"), "--check"]);
        // What runs of the daemon do not use either.
        command.env("AWS_ACCESS_KEY_ID", "other").env("AWS_SECRET_ACCESS_KEY", "other");
        command.env("AWS_ENDPOINT_URL", format!("http://{}", server.address()));
        finish(command, PATIENCE)
    };
    let said = |output: std::process::Output| {
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        assert!(!text.contains("hidden"), "{text}");
        (output.status.success(), text)
    };
    // Only its own key is let in.
    server.rule(|asked| match asked.headers["authorization"].contains("Credential=key/") {
        true => Answer::Served,
        false => Answer::Refused(403, "InvalidAccessKeyId", ""),
    });
    let file = format!("credentials_file = \"{}\"", fixture.text("keys"));
    let (is_good, text) = said(check("s3://bucket/repo/db", &file));
    assert!(is_good && text.contains("1 backup") && !text.contains("warning: backup"), "{text}");
    for (destination, credentials, part) in [
        ("s3://bucket/repo", &*file, "is a repository: name one of its series"),
        ("s3://bucket/none/db", &*file, "neither a repository nor a series"),
        ("s3://bucket/repo/db", "", "access key"),
    ] {
        let (is_good, text) = said(check(destination, credentials));
        assert!(!is_good && text.contains("backup db: destination: ") && text.contains(part), "{text}");
    }
    server.rule(|_| Answer::Late(Duration::from_secs(30)));
    for credentials in [&*file, ""] {
        let (is_good, text) = said(check("s3://bucket/repo/db", credentials));
        let late = "s3://bucket/repo/db did not answer within 4 s: see whether the object store is there";
        assert!(is_good && text.contains(late), "{text}");
    }
}

#[test]
fn runs_and_prunes_that_are_killed_leave_all_points() {
    let server = Server::start();
    let fixture = Fixture::of(&server);
    let series = "s3://bucket/repo/one";
    succeed(fixture.command(&["backup", "init", "s3://bucket/repo"]));
    let kills: u32 = env::var("LUNWAY_BACKUP_KILLS").map_or(12, |text| text.parse().unwrap());
    // The first kill comes with the first changes, the last ones near the end, if not behind it.
    let mut made = Vec::new();
    for kill in 0..kills {
        fixture.change(u64::from(kill % 40) << 20, kill as u8 + 1);
        let words: &[&str] = match kill % 3 {
            2 => &["backup", "prune", series, "--keep-last", "2"],
            _ => &["backup", "run", "disk", series, "--limit", "60MB/s"],
        };
        let (before, wanted) = (server.changes(), kill as usize * 2 % 19);
        let running = Running::start(fixture.command(words));
        let began = std::time::Instant::now();
        while server.changes() - before < wanted && began.elapsed() < Duration::from_secs(3) {
            std::thread::yield_now();
        }
        running.signal(Signal::KILL);
        running.end(PATIENCE);
        // What it was is known to have ended after half a minute, which this does not wait for.
        for key in server.keys() {
            let name = key.rsplit('/').next().unwrap();
            if ["lease-", "writer-", "sweeper-"].iter().any(|prefix| name.starts_with(prefix)) {
                server.remove(&key);
            }
        }
        let run = fixture.run(series);
        fs::copy(fixture.path("disk"), fixture.path(&format!("disk{kill}"))).unwrap();
        made.push((run["point"].as_str().unwrap().to_owned(), format!("disk{kill}")));
        let there = fixture.json(&["backup", "list", series]);
        let there: Vec<&str> =
            there.as_array().unwrap().iter().map(|point| point["point"].as_str().unwrap()).collect();
        for (point, disk) in made.iter().filter(|(point, _)| there.contains(&point.as_str())).rev().take(2) {
            fixture.check(series, point, &fixture.path(disk));
        }
    }
    let verified = fixture.json(&["backup", "verify", "s3://bucket/repo"]);
    assert_eq!(verified["findings"].as_array().unwrap().len(), 0, "{verified}");
}

#[test]
fn cephs_gateway_is_a_store() {
    let Some(ceph) = Ceph::start(Store::Memory) else { return };
    let Some(credentials) = ceph.gateway() else { return };
    let fixture =
        Fixture::new(vec![("AWS_SHARED_CREDENTIALS_FILE", credentials.to_str().unwrap().to_owned())]);
    let said = fixture.refused(&["backup", "init", "s3://nobucket/repo"]);
    assert!(said.contains("has no bucket nobucket"), "{said}");
    story(&fixture, "s3://lunway/repo");
    pruned(&fixture, "s3://lunway/repo");
    // A run that is killed is known to have ended half a minute later; the next one goes on.
    fixture.change(30 << 20, 77);
    let running = Running::start(fixture.command(&[
        "backup",
        "run",
        "disk",
        "s3://lunway/repo/one",
        "--limit",
        "200kB/s",
    ]));
    std::thread::sleep(Duration::from_secs(1));
    running.signal(Signal::KILL);
    running.end(PATIENCE);
    fixture.run("s3://lunway/repo/one");
    fixture.check("s3://lunway/repo/one", "latest", &fixture.path("disk"));
    // The gateway is killed under a run, and comes back.
    fixture.change(31 << 20, 78);
    ceph.kill("radosgw");
    let running = Running::start(fixture.command(&["backup", "run", "disk", "s3://lunway/repo/one"]));
    std::thread::sleep(Duration::from_secs(2));
    ceph.revive("radosgw");
    let output = running.end(PATIENCE);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fixture.check("s3://lunway/repo/one", "latest", &fixture.path("disk"));
    let verified = fixture.json(&["backup", "verify", "s3://lunway/repo"]);
    assert_eq!(verified["findings"].as_array().unwrap().len(), 0, "{verified}");
    // A key that is wrong.
    let wrong = fixture.path("wrong");
    let text = fs::read_to_string(&credentials).unwrap();
    let line = text.lines().find(|line| line.starts_with("aws_secret_access_key")).unwrap();
    fs::write(&wrong, text.replace(line, "aws_secret_access_key = hidden")).unwrap();
    let wrong = Fixture {
        environment: vec![("AWS_SHARED_CREDENTIALS_FILE", wrong.to_str().unwrap().to_owned())],
        ..fixture
    };
    let said = wrong.refused(&["backup", "list", "s3://lunway/repo"]);
    assert!(said.contains("refuses access: SignatureDoesNotMatch"), "{said}");
}
