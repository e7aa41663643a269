//! A Ceph cluster of one monitor and one OSD, which `script/ceph` starts.

use std::path::{Path, PathBuf};
use std::process::{self, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs};

/// Place of an OSD's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// Memory: fast, and gone with the OSD.
    Memory,
    /// BlueStore on a file: outlives an OSD that is killed.
    BlueStore,
}

/// A running cluster in a folder of its own, with a pool `rbd`; it ends when this is dropped.
#[derive(Debug)]
pub struct Ceph {
    folder: PathBuf,
}

impl Ceph {
    /// Starts one, or says that Ceph is not installed. Takes some 15 s.
    ///
    /// # Panics
    ///
    /// Where it is installed and does not start.
    pub fn start(store: Store) -> Option<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        for name in ["ceph-mon", "ceph-osd", "rbd", "python3"] {
            super::program(name)?;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("lunway-ceph-{}-{number}", process::id()));
        let cluster = Self { folder };
        let store = if store == Store::Memory { "memstore" } else { "bluestore" };
        cluster.script(&["start"], store);
        Some(cluster)
    }

    fn script(&self, arguments: &[&str], store: &str) {
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../script/ceph"));
        command.arg(arguments[0]).arg(&self.folder).args(&arguments[1..]).env("CEPH_STORE", store);
        // A pipe would stay open for as long as the daemons run.
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
        let status = status.expect("script/ceph can be started");
        assert!(status.success(), "script/ceph {arguments:?}: {status}; see {}", self.folder.display());
    }

    /// Its configuration.
    pub fn conf(&self) -> PathBuf {
        self.folder.join("ceph.conf")
    }

    /// The name of an image of its pool, as a device: options may follow with `&`.
    pub fn device(&self, image: &str) -> String {
        format!("rbd:rbd/{image}?conf={}", self.conf().display())
    }

    /// Starts a gateway that speaks S3, with a bucket `lunway`, or says that it is not installed: the file with its
    /// access key, which names its endpoint too. Takes some 10 s.
    pub fn gateway(&self) -> Option<PathBuf> {
        super::program("radosgw")?;
        self.script(&["start", "radosgw"], "");
        Some(self.folder.join("credentials"))
    }

    /// Kills the OSD (`osd`), the monitor (`mon`) or the gateway (`radosgw`).
    pub fn kill(&self, daemon: &str) {
        self.script(&["stop", daemon], "");
    }

    /// Starts what was killed.
    pub fn revive(&self, daemon: &str) {
        self.script(&["start", daemon], "");
    }

    /// One of Ceph's own commands, `rbd` or `ceph`, and what it printed.
    ///
    /// # Panics
    ///
    /// Where it fails.
    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.output(program, arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The same, whatever comes of it.
    ///
    /// # Panics
    ///
    /// Where it cannot be started.
    pub fn output(&self, program: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(program);
        command.arg("--conf").arg(self.conf()).args(arguments);
        command.output().expect("Ceph's commands can be started")
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        self.script(&["stop"], "");
        let _ = fs::remove_dir_all(&self.folder);
    }
}
