//! The disk that is backed up: a file with data, served by a daemon that keeps track of its changes.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use lunway_block::{Buf, Durability};
use tokio::runtime::Builder;

use crate::experiment::measure::run_error::RunError;
use crate::experiment::measure::storage::open;
use crate::experiment::measure::target::{IQN, PORT, Serving};
use crate::experiment::plan::run::Run;
use crate::network::{LiveHost, Network};

/// Bytes of the disk for each byte of data on it: the rest was never written, as of most disks.
pub(super) const DISK_PER_DATA: u64 = 4;
/// Bytes of a change: the grain of change tracking, so that what is changed is what is sent.
pub(super) const CHANGE: u64 = 64 << 10;
/// Bytes that are written or compared at a time.
const PIECE: usize = 1 << 20;
/// Beginning of the sequence of all data: any but 0 will do, and always the same makes all runs the same.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// A sequence of numbers that does not compress (xorshift64).
pub(super) struct Sequence(u64);

impl Sequence {
    pub(super) fn of(number: u64) -> Self {
        Self(SEED.wrapping_mul(2 * number + 1))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let words = std::iter::repeat_with(|| self.next().to_le_bytes());
        words.take(count.div_ceil(8)).flatten().take(count).collect()
    }
}

/// The disk and its daemon. Both are gone when this is dropped.
pub(super) struct SourceDisk {
    folder: tempfile::TempDir,
    address: SocketAddr,
    /// Bytes of data, from the beginning of the disk.
    pub(super) data: u64,
    _daemon: Serving,
}

impl SourceDisk {
    /// Makes the disk, and starts its daemon on a host.
    pub(super) fn start(
        network: &Network,
        host: &LiveHost,
        address: IpAddr,
        data: u64,
        program: &Path,
    ) -> Result<Self, RunError> {
        let folder = tempfile::tempdir().map_err(RunError::Start)?;
        let address = SocketAddr::new(address, PORT);
        let path = |name: &str| folder.path().join(name);
        make_disk(&path("disk.img"), data).map_err(|source| RunError::Scratch {
            size: data,
            folder: folder.path().display().to_string(),
            source,
        })?;
        let text = format!(
            "listen = [\"{address}\"]\nstate_dir = \"state\"\n[[target]]\nname = \"{IQN}\"\nopen = true\n\
             [[target.lun]]\nid = 0\ndevice = \"raw:disk.img\"\ntrack = true\n"
        );
        fs::write(path("lunway.toml"), text).map_err(RunError::Start)?;
        let mut command = Command::new(program);
        command.args(["serve", "--json", "-c"]).arg(path("lunway.toml"));
        command.arg("--socket").arg(path("api.sock")).env("LUNWAY_RUNTIME_DIR", path("run"));
        let daemon = Serving::start(network, host.name(), command)?;
        Ok(Self { folder, address, data, _daemon: daemon })
    }

    /// Its name for `backup run`.
    pub(super) fn lun(&self) -> String {
        format!("lun:{IQN}/0")
    }

    /// A command beside its daemon.
    pub(super) fn command(&self, program: &Path, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(words);
        command.env("LUNWAY_SOCKET", self.folder.path().join("api.sock"));
        command.env("LUNWAY_RUNTIME_DIR", self.folder.path().join("run"));
        command
    }

    /// The file with its content.
    pub(super) fn file(&self) -> PathBuf {
        self.folder.path().join("disk.img")
    }

    /// Writes so many grains at places that only `number` decides: bytes that were changed.
    pub(super) fn change(
        &self,
        run: &Run,
        host: &LiveHost,
        grains: u64,
        number: u64,
    ) -> Result<u64, RunError> {
        let url = format!("iscsi://{}/{IQN}/0", self.address);
        let mut sequence = Sequence::of(number);
        // Each in a part of the disk of its own: no place twice.
        let part = self.data / CHANGE / grains;
        let changes: Vec<(u64, Vec<u8>)> = (0..grains)
            .map(|grain| {
                let offset = (grain * part + sequence.next() % part) * CHANGE;
                (offset, sequence.bytes(CHANGE as usize))
            })
            .collect();
        host.run(|| {
            let runtime = Builder::new_current_thread().enable_all().build().map_err(RunError::Start)?;
            runtime.block_on(async {
                let opened = open(run, &url).await?;
                let mut failed = None;
                for (offset, bytes) in &changes {
                    let data = Buf::copy_of(bytes).freeze();
                    failed = failed.or(opened.device.write(*offset, data, Durability::Volatile).await.err());
                }
                failed = failed.or(opened.device.flush().await.err());
                opened.close_or_log().await;
                match failed {
                    None => Ok(grains * CHANGE),
                    Some(error) => Err(RunError::Fill { test: run.test.clone(), said: error.to_string() }),
                }
            })
        })?
    }

    /// The first byte at which something else of its size differs from it.
    ///
    /// # Errors
    ///
    /// What cannot be read.
    pub(super) fn differs_at(
        &self,
        mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<Option<u64>> {
        let own = File::open(self.file())?;
        let size = own.metadata()?.len();
        let (mut left, mut right) = (vec![0; PIECE], vec![0; PIECE]);
        for at in (0..size).step_by(PIECE) {
            let len = usize::try_from(size - at).unwrap_or(PIECE).min(PIECE);
            own.read_exact_at(&mut left[..len], at)?;
            read(at, &mut right[..len])?;
            if let Some(place) = left[..len].iter().zip(&right[..len]).position(|(left, right)| left != right)
            {
                return Ok(Some(at + place as u64));
            }
        }
        Ok(None)
    }
}

fn make_disk(path: &Path, data: u64) -> io::Result<()> {
    let file = File::create_new(path)?;
    file.set_len(data * DISK_PER_DATA)?;
    let mut sequence = Sequence::of(1);
    for at in (0..data).step_by(PIECE) {
        let len = usize::try_from(data - at).unwrap_or(PIECE).min(PIECE);
        file.write_all_at(&sequence.bytes(len), at)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_the_same_each_time_and_other_numbers_make_other_data() {
        assert_eq!(Sequence::of(3).bytes(1001), Sequence::of(3).bytes(1001));
        assert_ne!(Sequence::of(3).bytes(64), Sequence::of(2).bytes(64));
        let bytes = Sequence::of(1).bytes(1 << 16);
        assert!(bytes.chunks(512).all(|sector| sector.iter().any(|byte| *byte != 0)));
    }
}
