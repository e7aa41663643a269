//! A conversation with a name server: Open-iSNS, in a network namespace.

use std::process::{Child, Command, Stdio};

use lunway_foreign::namespace::ip;

use crate::namespace::inside;
use crate::portals::with_listen;
use crate::support::*;

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// shows RFC 7143 [4.2.7-1]
#[test]
fn open_isns_lists_the_target_with_its_portals_and_forgets_it_at_the_end() {
    // A program that is started beside a stopped file system waits for it.
    let _turn = crate::stopped::Turn::wait();
    let (Some(isnsd), Some(isnsadm)) = (lunway_foreign::program("isnsd"), lunway_foreign::program("isnsadm"))
    else {
        return;
    };
    if !inside("isns::open_isns_lists_the_target_with_its_portals_and_forgets_it_at_the_end") {
        return;
    }
    ip("addr add 10.9.0.1/24 dev nic0");
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let database = folder.path().join("database");
    let settings = file(
        "isnsd.conf",
        &format!(
            "Database = {}\nSecurity = 0\nDefaultDiscoveryDomain = 1\nSourceName = iqn.2026-11.com.example:isns\nPIDFile = {}\nControlSocket = {}\n",
            database.display(),
            folder.path().join("pid").display(),
            folder.path().join("control").display()
        ),
    );
    let admin = file(
        "isnsadm.conf",
        &format!(
            "SourceName = iqn.2026-11.com.example:admin\nServerAddress = 127.0.0.1\nSecurity = 0\nControlSocket = {}\n",
            folder.path().join("control").display()
        ),
    );
    let server = Command::new(isnsd)
        .args(["--foreground", "--config"])
        .arg(settings)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _server = Killed(server);
    let list = |kind: &str| {
        let mut command = Command::new("timeout");
        let command = command.args(["-s", "KILL", "10"]).arg(&isnsadm);
        let output = command.arg("--config").arg(&admin).args(["--local", "--list", kind]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    let mut daemon = Daemon::start("[isns]\nserver = \"127.0.0.1:3205\"");
    daemon.change(with_listen("0.0.0.0:3260")).unwrap();
    until("the target is listed", || list("nodes").contains(TARGET));
    let portals = list("portals");
    assert!(portals.contains("= 10.9.0.1\n") && !portals.contains("127.0.0.1"), "{portals}");
    ip("addr add 10.9.1.1/24 dev nic1");
    until("a new portal is listed", || list("portals").contains("= 10.9.1.1\n"));
    ip("addr del 10.9.1.1/24 dev nic1");
    until("a portal that is gone is not", || !list("portals").contains("= 10.9.1.1\n"));
    daemon.shutdown(std::time::Duration::ZERO).unwrap();
    assert!(!list("nodes").contains(TARGET));
}
