//! Targets: the program itself, as a child on the host that serves.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lunway_block::size::parse_size;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process};

use crate::experiment::measure::run_error::RunError;
use crate::experiment::measure::team::Team;
use crate::network::Network;

/// The name of every target in a lab.
pub(crate) const IQN: &str = "iqn.2026-11.com.example:storage";
/// IANA's port for iSCSI.
pub(crate) const PORT: u16 = 3260;
/// Start timeout of a target, on a busy machine.
const READY: Duration = Duration::from_secs(30);
/// Stop timeout of a target, after which it is killed.
const ENDING: Duration = Duration::from_secs(7);
/// Maximum length of a target's output that is shown, bytes.
const SAID_MAX: u64 = 4096;

/// A target on a host: `serve` with the host's units, listening on all of its cards and for its teams.
///
/// It is a process of its own, so that it can be killed, and so that its processor time is not the initiator's. Units
/// of `scratch:SIZE` are files without a name where temporary files go: they outlive a killed target, and are gone with
/// this.
#[derive(Debug)]
pub(crate) struct Target {
    host: String,
    arguments: Vec<String>,
    /// Open here as long as the target may want them.
    _scratch: Vec<File>,
    child: Mutex<Option<Serving>>,
}

impl Target {
    /// Starts it, and waits until it can be reached.
    pub(crate) fn start(
        network: &Network,
        teams: &[Team],
        host: &str,
        luns: &[String],
        program: &Path,
    ) -> Result<Self, RunError> {
        let mut arguments: Vec<String> =
            ["serve", "--json", "--no-api", "--open", "--iqn", IQN].map(str::to_owned).to_vec();
        let cards = network.host(host)?.cards().map(|(_, address)| SocketAddr::new(address, PORT));
        for portal in cards.chain(teams.iter().flat_map(|team| team.portals(host))) {
            arguments.extend(["--listen".to_owned(), portal.to_string()]);
        }
        let mut scratch = Vec::new();
        for lun in luns {
            arguments.extend(["--lun".to_owned(), with_scratch(lun, &mut scratch)?]);
        }
        let target = Self { host: host.to_owned(), arguments, _scratch: scratch, child: Mutex::new(None) };
        target.revive(network, program)?;
        Ok(target)
    }

    /// The host that it is on.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Starts it again, if it is not there.
    pub(crate) fn revive(&self, network: &Network, program: &Path) -> Result<(), RunError> {
        let mut running = self.child();
        if running.is_some() {
            return Ok(());
        }
        let mut command = Command::new(program);
        command.args(&self.arguments);
        *running = Some(Serving::start(network, &self.host, command)?);
        Ok(())
    }

    /// Kills it as a power failure would: no goodbye, nothing flushed.
    pub(crate) fn kill(&self) {
        if let Some(serving) = self.child().take() {
            serving.kill();
        }
    }

    fn child(&self) -> MutexGuard<'_, Option<Serving>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A daemon that serves on a host. When this is dropped it is asked to end, and killed if it does not.
#[derive(Debug)]
pub(crate) struct Serving {
    child: Child,
}

impl Serving {
    /// Starts `serve --json`, and waits until it is ready.
    pub(crate) fn start(network: &Network, host: &str, mut command: Command) -> Result<Self, RunError> {
        let log = tempfile::tempfile().map_err(RunError::Start)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(Stdio::from(log.try_clone().map_err(RunError::Start)?));
        let mut child = network.host(host)?.spawn(command)?;
        let (ready, is_ready) = mpsc::channel();
        let stdout = child.stdout.take();
        thread::spawn(move || {
            let mut lines = stdout.map(BufReader::new).into_iter().flat_map(BufRead::lines);
            let _ = ready.send(lines.next().and_then(Result::ok));
            // Read on, so that it never writes to a closed pipe.
            lines.for_each(drop);
        });
        match is_ready.recv_timeout(READY) {
            Ok(Some(line)) if line.starts_with('{') => Ok(Self { child }),
            _ => {
                Self { child }.kill();
                Err(RunError::Target { host: host.to_owned(), said: said(log) })
            }
        }
    }

    /// Kills it at once.
    pub(crate) fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Ok(Some(_)) = self.child.try_wait() {
            return;
        }
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let asked = Instant::now();
        while asked.elapsed() < ENDING {
            match self.child.try_wait() {
                Ok(None) => thread::sleep(Duration::from_millis(10)),
                _ => return,
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the last output of a daemon.
fn said(mut log: File) -> String {
    let mut read = || -> io::Result<String> {
        let length = log.metadata()?.len();
        log.seek(SeekFrom::Start(length.saturating_sub(SAID_MAX)))?;
        let mut bytes = Vec::new();
        (&log).take(SAID_MAX).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().replace('\n', "; "))
    };
    match read() {
        Ok(said) if !said.is_empty() => said,
        _ => format!("it said nothing within {} s", READY.as_secs()),
    }
}

/// A unit as `serve` takes it, with a file made for `scratch:SIZE`.
fn with_scratch(lun: &str, files: &mut Vec<File>) -> Result<String, RunError> {
    let Some((number, device)) = lun.split_once("=scratch:") else { return Ok(lun.to_owned()) };
    let (size, options) = device.split_at(device.find(',').unwrap_or(device.len()));
    let folder = || std::env::temp_dir().display().to_string();
    let size = parse_size(size).map_err(|error| RunError::Scratch {
        size: 0,
        folder: folder(),
        source: io::Error::new(io::ErrorKind::InvalidInput, error.to_string()),
    })?;
    let made = tempfile::tempfile().and_then(|file| {
        file.set_len(size)?;
        // The child opens it through its own descriptor: a file without a name cannot be left behind.
        fcntl_setfd(&file, FdFlags::empty())?;
        Ok(file)
    });
    let file = made.map_err(|source| RunError::Scratch { size, folder: folder(), source })?;
    let path = format!("{number}=file:/proc/self/fd/{}{options}", file.as_raw_fd());
    files.push(file);
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_file_has_its_size_and_keeps_the_options_of_its_unit() {
        let mut files = Vec::new();
        let lun = with_scratch("2=scratch:1M,sector=4096", &mut files).unwrap();
        let (number, rest) = lun.split_once("=file:/proc/self/fd/").unwrap();
        assert_eq!((number, rest.split_once(',').unwrap().1), ("2", "sector=4096"));
        assert_eq!(files[0].metadata().unwrap().len(), 1 << 20);
        assert_eq!(with_scratch("1=ram:1G", &mut files).unwrap(), "1=ram:1G");
        assert!(with_scratch("1=scratch:much", &mut files).is_err());
    }
}
