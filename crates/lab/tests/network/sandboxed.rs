//! The way of a test into a sandbox, for tests of other crates too.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use lunway_lab::{Sandbox, Side};

/// Names the file in which a test notes that it was really run inside.
pub(crate) const RAN: &str = "LUNWAY_LAB_TEST_RAN";

/// What the sandbox says where the kernel gives users no namespaces.
pub(crate) const NOT_TO_BE_HAD: &str = "which is not available here";

/// Whether this process is inside. If it is not, this program is started there to run the same test, and what it finds
/// is the result. Where the kernel gives users no namespaces, that is noted.
pub(crate) fn inside(test: &str) -> bool {
    // The outer process of the sandbox is this program once more: here there are other tests.
    let Some(ran) = env::var_os(RAN) else {
        let folder = tempfile::tempdir().unwrap();
        let ran = folder.path().join("ran");
        let mut outer = Command::new(env::current_exe().unwrap());
        let output = outer.args(["--exact", test, "--nocapture"]).env(RAN, &ran).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        match said.contains(NOT_TO_BE_HAD) {
            true => lunway_foreign::not_run("namespaces of users"),
            false => assert!(output.status.success() && ran.exists(), "{said}"),
        }
        return false;
    };
    match Sandbox::enter(["--exact", test, "--nocapture", "--test-threads=1"]) {
        Ok(Side::Inside(_)) => {
            fs::write(Path::new(&ran), "").unwrap();
            true
        }
        Ok(Side::Outside(code)) => std::process::exit(code.into()),
        Err(error) => panic!("{error}"),
    }
}
