//! The daemon under test, seen from outside.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub(crate) const TARGET: &str = "iqn.2026-11.com.example:soak";

/// `lunway serve`, killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    pub(crate) address: SocketAddr,
}

/// What a process takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) memory_kib: u64,
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
}

impl Daemon {
    /// Serves two disks of memory: LUN 0 for data, LUN 1 slow and for those who abort and reset.
    pub(crate) fn start(folder: &Path, regions: u64) -> Self {
        let size = regions * crate::region::BLOCKS * crate::region::BLOCK as u64;
        let config = format!(
            "listen = [\"127.0.0.1:0\"]\ncores = 2\n[limits]\nsessions = 1024\nlogins_per_second = 0\n\
             login_timeout = \"3s\"\n[[target]]\nname = \"{TARGET}\"\nopen = true\n\
             [[target.lun]]\nid = 0\ndevice = \"ram:{size}\"\nsector = 4096\n\
             [[target.lun]]\nid = 1\ndevice = \"delay:2ms:ram:{size}\"\nsector = 4096\n"
        );
        let path = folder.join("soak.toml");
        fs::write(&path, config).expect("a folder to write to");
        let program = std::env::var("LUNWAY_SOAK_BINARY").unwrap_or(env!("CARGO_BIN_EXE_lunway").to_owned());
        let mut command = Command::new(program);
        command.arg("serve").arg("-c").arg(path).env("RUST_LOG", "error");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("lunway starts");
        let mut lines = BufReader::new(child.stdout.take().expect("it was asked for")).lines();
        let line = lines.next().and_then(Result::ok).unwrap_or_default();
        let Some(address) = line.strip_prefix("listening on ").and_then(|text| text.parse().ok()) else {
            let _ = child.kill();
            panic!("not ready: {line}");
        };
        // Read on, so that it never finds nobody at the other end.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address }
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_none()
    }

    pub(crate) fn sample(&self) -> Sample {
        let folder = format!("/proc/{}", self.child.id());
        let status = fs::read_to_string(format!("{folder}/status")).unwrap_or_default();
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or(0)
        };
        Sample {
            memory_kib: number("VmRSS:"),
            descriptors: fs::read_dir(format!("{folder}/fd")).map_or(0, Iterator::count),
            threads: number("Threads:") as usize,
        }
    }

    /// What it takes once nobody is there any more: descriptors come down to `descriptors`, or do not in time.
    pub(crate) async fn settled(&self, descriptors: usize, patience: Duration) -> Sample {
        let start = std::time::Instant::now();
        loop {
            let sample = self.sample();
            if sample.descriptors <= descriptors || start.elapsed() > patience {
                return sample;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
