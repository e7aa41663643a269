//! A daemon that was killed while a disk of its hangs: who asks it, and the next daemon, are told so at once.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/attached.rs"]
mod attached;
#[path = "support/daemon.rs"]
mod daemon;
mod support;

use std::fs;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use attached::Attached;
use daemon::{Daemon, lun, refused};
use rustix::process::Signal;
use support::{IQN, PATIENCE, Served, finish, lunway, wait};

/// The new daemon said "another daemon listens: stop it", and `lunway lun list` waited for two minutes.
#[test]
fn a_daemon_that_was_killed_and_waits_for_a_disk_is_named_as_such() {
    let outer = tempfile::tempdir().unwrap();
    // The file system has the request, and its own disk does not answer: then the kernel lets no reader go.
    let below = Served::start(&["--lun", "0=ram:64M"]);
    let Some(attached) = Attached::start(&below.url(0), outer.path(), &[]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (folder, disk) = (folder.path(), attached.file());
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\ncores = 1\n[[target]]\nname = \"{IQN}\"\nopen = true\n\
         [[target.lun]]\nid = 0\ndevice = \"raw:{}\"\n",
        disk.display()
    );
    fs::write(folder.join("lunway.toml"), text).unwrap();
    let mut daemon = Daemon::start(folder);
    below.signal(Signal::STOP);
    let url = format!("iscsi://{}/{IQN}/0", daemon.address);
    let mut reader = lunway(&["bench", &url, "--rw", "read", "--size", "1M", "--time", "60s"]);
    let mut reader = reader.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    thread::sleep(Duration::from_secs(3));
    daemon.child.kill().unwrap();
    thread::sleep(Duration::from_secs(1));
    assert!(daemon.child.try_wait().unwrap().is_none(), "it waits for the disk");
    let start = Instant::now();
    let said = refused(lun(folder, "list", &[]));
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let mut next = lunway(&["serve", "-c", &path("lunway.toml"), "--socket", &path("api.sock")]);
    next.env("LUNWAY_RUNTIME_DIR", path("run"));
    let next = finish(next, PATIENCE);
    assert!(start.elapsed() < Duration::from_secs(25), "{:?}", start.elapsed());
    let also = String::from_utf8_lossy(&next.stderr).into_owned();
    for said in [&said, &also] {
        let process = format!("process {} was killed and waits for ", daemon.child.id());
        assert!(said.contains(&process) && said.contains("detach it"), "{said}");
    }
    assert_eq!(next.status.code(), Some(1), "{also}");
    below.signal(Signal::CONT);
    assert!(wait(&mut daemon.child, PATIENCE).is_some(), "it ends when the disk answers");
    reader.kill().unwrap();
    reader.wait().unwrap();
    drop(Daemon::start(folder));
    attached.detach();
}
