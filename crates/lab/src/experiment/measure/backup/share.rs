//! A share: a folder of the storage host, which the other host reaches over the network and sees as its own.
//!
//! ```text
//!   server                                    storage
//!   folder ─ FUSE ─ sshfs ══ TCP over cables ══ sftp-server ─ folder
//! ```
//!
//! SMB and NFS need mounts of the kernel, which only the machine's root may make. SFTP without SSH is the share that a
//! namespace may have: its client is in FUSE, its server is a process for each connection, and neither knows of the
//! lab. What a kernel's client does after its time-out, the connection does here: it is reset, and every file of the
//! mount fails.

use std::env;
use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::net::sockopt;

use crate::experiment::measure::run_error::RunError;
use crate::network::LiveHost;

/// Port of the share: any that nothing else of an experiment has.
const PORT: u16 = 2022;
/// Folders in which distributions put `sftp-server`, which no user calls.
const SERVER_FOLDERS: [&str; 4] =
    ["/usr/lib/openssh", "/usr/libexec/openssh", "/usr/lib/ssh", "/usr/libexec"];
/// Interval at which a connection is waited for, and the end of a wait.
const POLL: Duration = Duration::from_millis(10);
/// Time for a connection, and for a mount on one: a round trip takes some milliseconds.
const MOUNTING: Duration = Duration::from_secs(2);
/// Most of what a program said that is shown, bytes.
const SAID_MAX: u64 = 1024;

/// The programs of a share.
#[derive(Clone, Debug)]
pub(super) struct Programs {
    client: PathBuf,
    server: PathBuf,
}

impl Programs {
    /// Finds them.
    pub(super) fn find() -> Result<Self, RunError> {
        let path = env::var_os("PATH").unwrap_or_default();
        let found = |program: &'static str, package: &'static str| {
            let folders = env::split_paths(&path).chain(SERVER_FOLDERS.map(PathBuf::from));
            let mut files = folders.map(|folder| folder.join(program));
            files.find(|file| file.is_file()).ok_or(RunError::NoShare { program, package })
        };
        Ok(Self {
            client: found("sshfs", "sshfs")?,
            server: found("sftp-server", "openssh-sftp-server (openssh-server on some systems)")?,
        })
    }
}

/// The server of a share: it lets everybody who reaches it at a folder, and ends when this is dropped.
pub(super) struct ShareServer {
    address: SocketAddr,
    folder: PathBuf,
    programs: Programs,
    /// A connection over which nothing is heard for so long is given up, at both ends.
    patience: Duration,
    /// The client answers a write before the server has.
    write_behind: bool,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<io::Result<()>>>>,
}

impl ShareServer {
    /// Serves a folder on the first card of a host.
    pub(super) fn start(
        host: &LiveHost,
        address: SocketAddr,
        folder: &Path,
        programs: Programs,
        (patience, write_behind): (Duration, bool),
    ) -> Result<Self, RunError> {
        let address = SocketAddr::new(address.ip(), PORT);
        let listener = host.run(|| TcpListener::bind(address))?.map_err(RunError::Start)?;
        listener.set_nonblocking(true).map_err(RunError::Start)?;
        let end = Arc::new(AtomicBool::new(false));
        let (is_ended, server) = (Arc::clone(&end), programs.server.clone());
        // Processes that it starts are on the host: the thread is.
        let thread = host.start(move || serve(&listener, &server, patience, &is_ended))?;
        let (folder, thread) = (folder.to_owned(), Some(thread));
        Ok(Self { address, folder, programs, patience, write_behind, end, thread })
    }

    /// Mounts it on a host, as soon as that reaches it. Returns `None` if it does not by then, or `is_cancelled`.
    pub(super) fn mount(
        &self,
        host: &LiveHost,
        until: Instant,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<Mounted>, RunError> {
        while Instant::now() < until && !is_cancelled() {
            let connected = host.run(|| TcpStream::connect_timeout(&self.address, MOUNTING))?;
            let Ok(stream) = connected else {
                thread::sleep(POLL);
                continue;
            };
            limit(&stream, self.patience).map_err(RunError::Start)?;
            if let Some(mounted) = self.mount_over(host, stream)? {
                return Ok(Some(mounted));
            }
        }
        Ok(None)
    }

    /// `None`: the connection did not last until it was mounted.
    fn mount_over(&self, host: &LiveHost, stream: TcpStream) -> Result<Option<Mounted>, RunError> {
        let point = tempfile::tempdir().map_err(RunError::Start)?;
        let before = point.path().metadata().map_err(RunError::Start)?.dev();
        let mut log = tempfile::tempfile().map_err(RunError::Start)?;
        let mut command = Command::new(&self.programs.client);
        // What other clients do is seen. Each write waits for its answer, as of a disk that is attached over a share,
        // or none does before the file is flushed, as kernels do it.
        let options = match self.write_behind {
            true => "passive,dir_cache=no",
            false => "passive,sshfs_sync,dir_cache=no",
        };
        command.args(["-f", "-o", options]);
        // The host is never called.
        command.arg(format!("storage:{}", self.folder.display())).arg(point.path());
        let input = OwnedFd::from(stream.try_clone().map_err(RunError::Start)?);
        command.stdin(Stdio::from(input)).stdout(Stdio::from(OwnedFd::from(stream)));
        command.stderr(Stdio::from(log.try_clone().map_err(RunError::Start)?));
        let mut mounted = Mounted { client: host.spawn(command)?, point: Some(point) };
        let began = Instant::now();
        while began.elapsed() < MOUNTING {
            if mounted.path().metadata().is_ok_and(|folder| folder.dev() != before) {
                return Ok(Some(mounted));
            }
            if let Ok(Some(status)) = mounted.client.try_wait() {
                let mut said = String::new();
                let read = log
                    .seek(SeekFrom::Start(0))
                    .and_then(|_| log.take(SAID_MAX).read_to_string(&mut said).map(drop));
                // One that says nothing has lost its connection.
                match read.is_ok() && !said.trim().is_empty() {
                    true => {
                        let said = format!("{} ({status})", said.trim().replace('\n', "; "));
                        return Err(RunError::Share { said });
                    }
                    false => return Ok(None),
                }
            }
            thread::sleep(POLL);
        }
        Ok(None)
    }
}

impl Drop for ShareServer {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A share as it is mounted. It is unmounted when this is dropped.
pub(super) struct Mounted {
    client: Child,
    point: Option<tempfile::TempDir>,
}

impl Mounted {
    /// The folder.
    pub(super) fn path(&self) -> &Path {
        self.point.as_ref().map_or(Path::new("/"), |point| point.path())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Some(point) = self.point.take() else { return };
        // What still has files open there keeps them; the client ends with the mount, or has ended.
        let _ = unmount(point.path(), UnmountFlags::DETACH);
        let _ = self.client.kill();
        let _ = self.client.wait();
        // What is below the mount point is never removed with it.
        let path = point.keep();
        let _ = fs::remove_dir(path);
    }
}

/// A server process for each connection, until the share ends.
fn serve(listener: &TcpListener, server: &Path, patience: Duration, is_ended: &AtomicBool) -> io::Result<()> {
    let mut processes: Vec<Child> = Vec::new();
    while !is_ended.load(Ordering::Relaxed) {
        processes.retain_mut(|process| !matches!(process.try_wait(), Ok(Some(_))));
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                limit(&stream, patience)?;
                let input = Stdio::from(OwnedFd::from(stream.try_clone()?));
                let output = Stdio::from(OwnedFd::from(stream));
                let mut command = Command::new(server);
                processes.push(command.stdin(input).stdout(output).stderr(Stdio::null()).spawn()?);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(POLL),
            Err(error) => return Err(error),
        }
    }
    for process in &mut processes {
        let _ = process.kill();
        let _ = process.wait();
    }
    Ok(())
}

/// Gives a connection up when nothing was heard of its other end for so long, whether something is to be sent or not.
fn limit(stream: &TcpStream, patience: Duration) -> io::Result<()> {
    const PROBE: Duration = Duration::from_secs(1);
    let probes = u32::try_from(patience.as_secs()).unwrap_or(u32::MAX).max(1);
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE)?;
    sockopt::set_tcp_keepintvl(stream, PROBE)?;
    sockopt::set_tcp_keepcnt(stream, probes)?;
    let millis = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(stream, millis)?;
    Ok(())
}
