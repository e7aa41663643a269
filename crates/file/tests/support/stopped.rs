//! A file on a FUSE mount whose server is another process, which can be stopped: a file system that does not answer.
//!
//! What a test must not do while the server is stopped: start a program. The child has copies of this process's
//! descriptors until it executes, then the kernel closes them, which asks the server, and the parent waits for the
//! child. So signals are sent and the mount is taken away by system calls, and one test at a time has a mount.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs, process};

use lunway_block::{
    BlockDevice, BlockError, Buf, Durability, Geometry, Io, Permit, ResizeCallback, SharedBuf, Zeroing,
};
use lunway_fuse::Mounted;
use lunway_memory::RamDisk;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::sync::oneshot;

const FOLDER: &str = "LUNWAY_TEST_MOUNT";
const SIZE: u64 = 64 << 20;
/// The server is killed after this time, seconds, whatever became of the test: processes that wait for it cannot be
/// killed, and `ps` waits for them. No test takes a third of it on a busy machine.
const WATCHDOG: &str = "300";
/// How long the mount may take to appear.
const MOUNT_TIME: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);
/// While this file exists reads are not answered.
const HELD: &str = "reads_are_held";

/// The mount, and its server: this test program once more, under `timeout`. Dropping it kills the server, which fails
/// everything that waits for it.
pub(crate) struct Stoppable {
    watchdog: Child,
    server: Option<Pid>,
    /// `mount`, and `pid`, which the server has written.
    folder: TempDir,
    _turn: Turn,
}

/// One test of a process at a time has a mount, and none that starts programs meanwhile.
pub(crate) struct Turn;

static TAKEN: AtomicBool = AtomicBool::new(false);

impl Turn {
    pub(crate) fn wait() -> Self {
        while TAKEN.swap(true, Ordering::AcqRel) {
            thread::sleep(POLL);
        }
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        TAKEN.store(false, Ordering::Release);
    }
}

/// The other process; alone it does nothing.
#[test]
#[ignore = "started by the tests that stop it"]
fn server_of_a_file_system_that_is_stopped() {
    let Some(folder) = env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let disk = RamDisk::new(SIZE, 512).unwrap();
        let disk = Arc::new(HeldReads { disk, held: folder.join(HELD) });
        fs::write(folder.join("pid"), process::id().to_string()).unwrap();
        Mounted::mount(disk, &folder.join("mount"), "disk").unwrap().ended().await;
    });
}

/// The server's disk: memory whose reads wait while they are held, and nothing else does.
struct HeldReads {
    disk: RamDisk,
    held: PathBuf,
}

impl BlockDevice for HeldReads {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        let read = self.disk.read(offset, buf);
        if !self.held.exists() {
            return read;
        }
        let (go, on) = oneshot::channel::<()>();
        let held = self.held.clone();
        thread::spawn(move || {
            while held.exists() {
                thread::sleep(POLL);
            }
            drop(go);
        });
        Io::pending(async move {
            let _ = on.await;
            read.await
        })
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        self.disk.write(offset, data, durability)
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        self.disk.flush()
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        self.disk.write_zeroes(offset, len, zeroing)
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        self.disk.unmap(offset, len)
    }

    fn resize(&self, size: u64, permit: Permit) -> Io<Result<(), BlockError>> {
        self.disk.resize(size, permit)
    }

    fn on_resize(&self, callback: ResizeCallback) {
        self.disk.on_resize(callback);
    }
}

impl Stoppable {
    /// `None`, and noted, where this machine has no FUSE. `module` is this module's in the test program.
    pub(crate) fn mount(module: &str) -> Option<Self> {
        if fs::metadata("/dev/fuse").is_err() || !is_root() {
            lunway_foreign::machine_lacks("/dev/fuse, and root to mount");
            return None;
        }
        let turn = Turn::wait();
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("mount")).unwrap();
        let watchdog = Command::new("timeout")
            .args(["-s", "KILL", WATCHDOG])
            .arg(env::current_exe().unwrap())
            .args(["--exact", &format!("{module}::server_of_a_file_system_that_is_stopped"), "--ignored"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut mount = Self { watchdog, server: None, folder, _turn: turn };
        let begun = Instant::now();
        while fs::metadata(mount.file()).is_err() {
            assert!(begun.elapsed() < MOUNT_TIME, "the mount does not come");
            assert!(mount.watchdog.try_wait().unwrap().is_none(), "the server has ended");
            thread::sleep(POLL);
        }
        let pid = fs::read_to_string(mount.folder.path().join("pid")).unwrap();
        mount.server = Pid::from_raw(pid.parse().unwrap());
        Some(mount)
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("mount/disk")
    }

    /// From here on the file system does not answer.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP).unwrap();
        // A thread that runs on another core answers until it hears of the signal.
        let begun = Instant::now();
        while !self.has_stopped() {
            assert!(begun.elapsed() < MOUNT_TIME, "the server does not stop");
            thread::sleep(POLL);
        }
    }

    /// Whether all threads of the server have stopped (`proc_pid_stat(5)`: state T, behind the name in parentheses).
    fn has_stopped(&self) -> bool {
        let Some(server) = self.server else { return true };
        let tasks = fs::read_dir(format!("/proc/{}/task", server.as_raw_pid())).unwrap();
        tasks.flatten().all(|task| {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
        })
    }

    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT).unwrap();
    }

    /// From here on, or no longer, the file system answers all but reads.
    #[allow(dead_code, reason = "one of the two test programs holds reads")]
    pub(crate) fn hold_reads(&self, hold: bool) {
        let held = self.folder.path().join(HELD);
        if hold { fs::write(held, "").unwrap() } else { fs::remove_file(held).unwrap() }
    }

    fn signal(&self, signal: Signal) -> rustix::io::Result<()> {
        self.server.map_or(Ok(()), |server| kill_process(server, signal))
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl Drop for Stoppable {
    fn drop(&mut self) {
        if self.signal(Signal::KILL).is_err() || self.server.is_none() {
            // `timeout` hands it on.
            let _ = kill_process(Pid::from_child(&self.watchdog), Signal::TERM);
        }
        let _ = self.watchdog.wait();
        let _ = unmount(self.folder.path().join("mount"), UnmountFlags::DETACH);
    }
}
