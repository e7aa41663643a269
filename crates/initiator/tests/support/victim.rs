//! A process that uses a disk and is killed: the test program itself, told by its environment to be one.

#![allow(dead_code, unreachable_pub, reason = "several test programs use it, of which each needs a part")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// What the process is to open.
const DEVICE: &str = "LUNWAY_TEST_VICTIM";
/// Where it records its sessions.
const RECORDS: &str = "LUNWAY_TEST_VICTIM_RECORDS";
/// What it says when it is connected, and what when its write is under way.
const SAYS: [&str; 2] = ["victim: connected", "victim: writing"];

/// The other process.
pub struct Victim {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Victim {
    /// Runs the test of this program that is named `part`, which must be one that calls [`role`]. It is connected when
    /// this returns.
    pub async fn start(part: &'static str, device: &str, records: &Path) -> Self {
        let (device, records) = (device.to_owned(), records.to_owned());
        tokio::task::spawn_blocking(move || Self::start_now(part, &device, &records)).await.unwrap()
    }

    fn start_now(part: &str, device: &str, records: &Path) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut process = Command::new(program)
            .args(["--exact", part, "--ignored", "--nocapture", "--test-threads=1"])
            .env(DEVICE, device)
            .env(RECORDS, records)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let mut this = Self { process, output };
        this.hear(SAYS[0]);
        this
    }

    /// Lets it write, and waits until the write is under way.
    pub async fn write(mut self) -> Self {
        use std::io::Write;
        self.process.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let heard = move || {
            self.hear(SAYS[1]);
            self
        };
        tokio::task::spawn_blocking(heard).await.unwrap()
    }

    /// `kill -9`.
    pub fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn hear(&mut self, what: &str) {
        let mut line = String::new();
        while !line.contains(what) {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "it has ended");
        }
    }
}

/// In the other process: what to open, and where sessions are recorded.
pub fn role() -> Option<(String, std::path::PathBuf)> {
    Some((std::env::var(DEVICE).ok()?, std::env::var_os(RECORDS)?.into()))
}

/// In the other process: says that it is connected, and waits until it is to write.
pub fn wait_to_write() {
    println!("{}", SAYS[0]);
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

/// In the other process: says that its write is under way.
pub fn is_writing() {
    println!("{}", SAYS[1]);
}
