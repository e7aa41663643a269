//! Gets a test into a sandbox.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::{env, fs};

use lunway_lab::{Network, Topology};

#[path = "sandboxed.rs"]
mod sandboxed;

use sandboxed::NOT_TO_BE_HAD;
pub(crate) use sandboxed::{RAN, inside};

/// What a test says that goes without packet devices, which a machine may keep to root.
const NO_PACKET_DEVICES: &str = "without packet devices: /dev/net/tun is not for this user";

/// Whether this user may make packet devices, of which cables with delay or loss are made. Says so where it may not.
pub(crate) fn packet_devices() -> bool {
    let tun = fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun");
    if tun.is_err() {
        println!("{NO_PACKET_DEVICES}");
    }
    tun.is_ok()
}

/// Whether a sandbox can be had; where not, that is noted.
pub(crate) fn possible() -> bool {
    let mut outer = Command::new(env::current_exe().unwrap());
    let output =
        outer.args(["--exact", "inside::nothing", "--nocapture"]).env(RAN, "/dev/null").output().unwrap();
    if !output.status.success() {
        lunway_foreign::not_run("namespaces of users");
    }
    output.status.success()
}

/// What [`possible`] tries.
#[test]
fn nothing() {
    if env::var_os(RAN).is_some() {
        assert!(inside("inside::nothing"));
    }
}

/// The same test by a user who is not root, where this user is. What is missing then is missing to everybody.
pub(crate) fn as_nobody(test: &str) {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() || env::var_os(RAN).is_some() {
        return;
    }
    // A copy: what lies above this program may be closed to others.
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("test");
    fs::copy(env::current_exe().unwrap(), &program).unwrap();
    let mut outer = Command::new(&program);
    outer.args(["--exact", test, "--nocapture"]).env(RAN, "/dev/null").current_dir("/");
    let output = outer.uid(NOBODY).gid(NOBODY).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    match said.contains(NOT_TO_BE_HAD) {
        true => lunway_foreign::not_run("namespaces of users"),
        false => assert!(output.status.success() && said.contains("1 passed"), "{said}"),
    }
    if said.contains(NO_PACKET_DEVICES) {
        lunway_foreign::machine_lacks("/dev/net/tun for users who are not root");
    }
}

/// Builds a network from its description.
pub(crate) fn build(description: &str) -> Network {
    let topology: Topology = toml::from_str(description).unwrap();
    Network::build(&topology).unwrap()
}

/// Two hosts, `server` and `storage`, and cables as given.
pub(crate) fn two_hosts(cables: &str) -> Network {
    build(&format!("[[host]]\nname = 'server'\n[[host]]\nname = 'storage'\n{cables}"))
}
