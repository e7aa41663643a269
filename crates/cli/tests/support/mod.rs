//! Running `lunway` and foreign programs, with limits on their time.

#![allow(dead_code, reason = "each test program uses its part of this")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

pub(crate) mod json;
pub(crate) mod places;

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The target that `serve` adds here.
pub(crate) const IQN: &str = "iqn.2026-11.com.example:disk";

/// What any command here must be done with, unless it says how long it needs: it tells one that hangs from one on a
/// busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

/// `lunway` with these arguments: the one that was built with the test, or the one that `LUNWAY_PROGRAM` names, for
/// instruments that measure a release build.
pub(crate) fn lunway<S: AsRef<str>>(arguments: &[S]) -> Command {
    let program = std::env::var_os("LUNWAY_PROGRAM").unwrap_or_else(|| env!("CARGO_BIN_EXE_lunway").into());
    let mut command = Command::new(program);
    command.args(arguments.iter().map(AsRef::as_ref)).env("LUNWAY_RUNTIME_DIR", runtime_folder());
    // What was seen of repositories is not kept among the user's own.
    command.env("XDG_STATE_HOME", runtime_folder().with_extension("state"));
    command.env_remove("RUST_LOG").env_remove("LUNWAY_CHAP_SECRET").env_remove("LUNWAY_SOCKET");
    command
}

/// The runtime folder of all commands of this test program: it meets neither a daemon of this machine nor another test
/// program.
fn runtime_folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("run-{}", std::process::id()));
        // What an earlier process of this number has left.
        let _ = fs::remove_dir_all(&folder);
        let _ = fs::remove_dir_all(folder.with_extension("state"));
        fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
        folder
    })
}

/// Runs a command to its end, which must come in time.
pub(crate) fn finish(command: Command, patience: Duration) -> Output {
    Running::start(command).end(patience)
}

/// Starts a command and interrupts it when `ready` says so, as timeout(1) does: itself, and its group a moment later.
pub(crate) fn interrupted(command: Command, ready: impl Fn() -> bool) -> Output {
    let running = Running::start(command);
    until(ready);
    for _ in 0..3 {
        // It may be so quick that it has ended: then nobody has waited for it yet, and the signal goes nowhere.
        running.signal(Signal::INT);
        thread::sleep(Duration::from_millis(2));
    }
    running.end(PATIENCE)
}

/// Waits until it is so, for as long as a command may take.
pub(crate) fn until(it_is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !it_is_so() && start.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(10));
    }
}

/// Whether the stream of a `bench` shows that it measures.
pub(crate) fn measures(stream: impl AsRef<Path>) -> bool {
    fs::read_to_string(stream).is_ok_and(|lines| lines.contains("\"interval\""))
}

/// A command that runs, with what it says.
pub(crate) struct Running {
    name: String,
    child: Child,
    stdout: JoinHandle<Vec<u8>>,
    stderr: JoinHandle<Vec<u8>>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        let stdout = drain(child.stdout.take().unwrap());
        let stderr = drain(child.stderr.take().unwrap());
        Self { name, child, stdout, stderr }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end, which must come in time.
    pub(crate) fn end(mut self, patience: Duration) -> Output {
        let status = wait(&mut self.child, patience);
        if status.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let (stdout, stderr) = (self.stdout.join().unwrap(), self.stderr.join().unwrap());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let Some(status) = status else {
            panic!("{} did not end within {patience:?}\n{}\n{}", self.name, text(&stdout), text(&stderr));
        };
        Output { status, stdout, stderr }
    }
}

/// Runs a command that must succeed; gives its standard output.
pub(crate) fn succeed(command: Command) -> String {
    let shown = format!("{command:?}");
    let output = finish(command, PATIENCE);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{shown}: {}\n{stdout}\n{stderr}", output.status);
    stdout
}

fn drain(mut stream: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        bytes
    })
}

/// Waits for a child, `None` when it takes too long.
pub(crate) fn wait(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if start.elapsed() > patience {
            return None;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// `lunway serve` on a port of its own; killed when dropped.
pub(crate) struct Served {
    child: Child,
    /// `127.0.0.1:PORT`.
    pub(crate) address: String,
    /// All lines that it printed when it was ready.
    pub(crate) ready: Vec<String>,
}

impl Served {
    /// Starts it with these arguments besides `--listen`, and waits until it is ready.
    pub(crate) fn start<S: AsRef<str>>(arguments: &[S]) -> Self {
        let mut command = lunway(&["serve", "--listen", "127.0.0.1:0", "--iqn", IQN, "--open"]);
        command.args(arguments.iter().map(AsRef::as_ref));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut ready = Vec::new();
        let address = lines.next().and_then(Result::ok).and_then(|line| {
            let address = line.strip_prefix("listening on ").map(str::to_owned);
            ready.push(line);
            address
        });
        // The rest of the announcement came with one write.
        let address = address.unwrap_or_else(|| {
            let _ = child.kill();
            panic!("not ready: {ready:?}")
        });
        let count = |flag| arguments.iter().filter(|argument| argument.as_ref() == flag).count();
        let rest = count("--lun") + count("--listen") + 1;
        ready.extend(lines.by_ref().take(rest).map_while(Result::ok));
        // Read on, so that it never finds nobody at the other end.
        thread::spawn(move || lines.for_each(drop));
        Self { child, address, ready }
    }

    /// The address of a logical unit of that target.
    pub(crate) fn url(&self, lun: u16) -> String {
        self.url_as("", lun)
    }

    /// The same with `user%secret`.
    pub(crate) fn url_as(&self, login: &str, lun: u16) -> String {
        let at = if login.is_empty() { "" } else { "@" };
        format!("iscsi://{login}{at}{}/{IQN}/{lun}", self.address)
    }

    /// The daemon is still there.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// The daemon's process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Asks it to end as an init system does, and waits for that.
    pub(crate) fn terminate(mut self) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        wait(&mut self.child, PATIENCE).expect("the daemon ends when asked")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file that holds a CHAP secret.
pub(crate) fn secret_file(folder: &Path, name: &str, secret: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join(name);
    fs::write(&path, format!("{secret}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Writes a sparse image: random data in stretches of different lengths, `data` bytes in all, holes and written zeroes
/// between.
pub(crate) fn image(path: &Path, size: u64, data: u64) {
    use std::os::unix::fs::FileExt;
    let file = fs::File::create(path).unwrap();
    file.set_len(size).unwrap();
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let stretches = 64;
    let (len, room) = (data / stretches, size / stretches);
    for index in 0..stretches {
        // Lengths and places that are not aligned to anything but a sector.
        let len = len / 2 + random() % len / 512 * 512;
        let start = index * room + random() % (room - len.min(room - 512)) / 512 * 512;
        let bytes: Vec<u8> = (0..len / 8).flat_map(|_| random().to_le_bytes()).collect();
        file.write_all_at(&bytes[..bytes.len().min((room * (index + 1) - start) as usize)], start).unwrap();
    }
    file.write_all_at(&[0; 1 << 20], size - (1 << 20)).unwrap();
}

/// Panics with the place where two files differ.
pub(crate) fn assert_same_bytes(one: &Path, other: &Path) {
    let (mut one_file, mut other_file) = (fs::File::open(one).unwrap(), fs::File::open(other).unwrap());
    assert_eq!(one_file.metadata().unwrap().len(), other_file.metadata().unwrap().len(), "sizes");
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut at = 0;
    loop {
        let len = one_file.read(&mut left).unwrap();
        if len == 0 {
            return;
        }
        other_file.read_exact(&mut right[..len]).unwrap();
        if left[..len] != right[..len] {
            let offset = left[..len].iter().zip(&right[..len]).position(|(left, right)| left != right);
            panic!("{} and {} differ at {}", one.display(), other.display(), at + offset.unwrap());
        }
        at += len;
    }
}

/// A port that nobody listened on a moment ago.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
