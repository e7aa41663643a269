//! The third act: a disk is backed up while it is served, destroyed, and restored.

use std::fs::{self, File};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use lunway_bench::{Cancel, random_seed};
use lunway_block::size::HumanSize;
use lunway_block::{BlockDevice, Buf, Durability};
use lunway_console::{ConfigSource, Console, Sockets};
use lunway_device::OpenOptions;
use lunway_report::{Block, Column, Grid, Row, Section};
use lunway_target::{Config, LunConfig, Overrides};
use serde_json::Value;
use tempfile::TempDir;

use super::{noise, on_loopback, serve};
use crate::failure::Failure;
use crate::this_program::this_program;
use crate::{device, terminal};

const NAME: &str = "iqn.2026-11.io.lunway:demo-backup";

/// Size of the disk, bytes.
const SIZE: u64 = 128 << 20;
/// Size of a write, bytes.
const PIECE: u64 = 1 << 20;
/// Bytes that the full backup finds: at the beginning.
const DATA: u64 = 48 << 20;
/// Changes before the second backup: each of one block of change tracking, as far apart as this.
const CHANGE: u64 = 64 << 10;
const CHANGE_STEP: u64 = 4 << 20;
/// Bytes that are destroyed, from the beginning.
const GARBAGE: u64 = 64 << 20;
/// Time in which the initiator of this process has to log out.
const GRACE: Duration = Duration::from_secs(2);

/// The disk, its daemon, and where its backups are. All of it goes with the folder.
struct Stage {
    folder: TempDir,
    /// The disk as initiators name it.
    address: String,
    seed: u64,
}

/// A step, for the page.
struct Done {
    step: &'static str,
    result: String,
}

/// Shows the act, and returns its part of the page.
pub(super) fn show(cancel: &Cancel) -> Result<Section, Failure> {
    terminal::print(&format!(
        "\n{}",
        terminal::heading("Back up: change, back up, destroy, restore, compare")
    ))?;
    let done = device::run(async {
        let folder = tempfile::tempdir().context("cannot make a folder for the disk and its backups")?;
        let disk = folder.path().join("disk.img");
        File::create(&disk).and_then(|file| file.set_len(SIZE)).context("cannot make the disk")?;
        for name in ["backups", "state"] {
            fs::create_dir(folder.path().join(name)).context("cannot make a folder")?;
        }
        let name = format!("raw:{}", disk.display()).parse().map_err(Failure::failed)?;
        let lun = LunConfig { track: true, ..LunConfig::new(0, name) };
        let state_dir = Some(folder.path().join("state"));
        let config = Config { state_dir, ..on_loopback(NAME, vec![lun])? };
        let (source, _) = ConfigSource::read(None, Overrides::default()).map_err(Failure::failed)?;
        let sockets = Sockets::bind(Some(&folder.path().join("api.sock")), None).map_err(Failure::failed)?;
        let server = Arc::new(serve::start(config).await?);
        let console = Console::start(sockets, Arc::clone(&server), source).map_err(Failure::failed)?;
        let portal = server.addresses().first().map(ToString::to_string).unwrap_or_default();
        let stage = Stage { folder, address: format!("iscsi://{portal}/{NAME}/0"), seed: random_seed() | 1 };
        let done = stage.play(cancel).await;
        console.stop().await;
        let server = Arc::into_inner(server).context("the server is still in use")?;
        let ended = server.shutdown(GRACE).await.map_err(Failure::failed);
        let done = done?;
        ended.map(|()| done)
    })?;
    let mut grid = Grid::new(["Step", "Result"].map(Column::words).into());
    grid.rows = done.iter().map(|done| Row::new([done.step.into(), done.result.as_str().into()])).collect();
    let mut section = Section::new("A disk backed up, destroyed and restored");
    section.blocks.push(Block::Table(grid));
    Ok(section)
}

impl Stage {
    async fn play(&self, cancel: &Cancel) -> Result<Vec<Done>, Failure> {
        let opened = device::open(&device::parse(&self.address)?, &OpenOptions::default()).await?;
        let played = self.steps(&*opened.device, cancel).await;
        opened.close_or_log().await;
        played
    }

    async fn steps(&self, disk: &dyn BlockDevice, cancel: &Cancel) -> Result<Vec<Done>, Failure> {
        let mut all = Vec::new();
        let mut tell = |step: &'static str, result: String| {
            all.push(Done { step, result: result.clone() });
            if cancel.is_cancelled() {
                return Err(Failure::failed(anyhow!("interrupted")));
            }
            terminal::print(&format!("  {step}: {result}"))
        };
        let size = |value: &Value| HumanSize(value.as_u64().unwrap_or(0)).to_string();
        let seconds = |value: &Value| format!("{:.1} s", value["seconds"].as_f64().unwrap_or(0.0));
        let mut random = self.seed;
        self.write(disk, 0..DATA, PIECE, PIECE, &mut random).await?;
        let full = self.back_up().await?;
        tell(
            "full backup",
            format!("{} of {} sent, {}", size(&full["sent_bytes"]), HumanSize(SIZE), seconds(&full)),
        )?;
        self.write(disk, 0..SIZE, CHANGE, CHANGE_STEP, &mut random).await?;
        let increment = self.back_up().await?;
        tell(
            "changed and backed up again",
            format!(
                "{} changed, {} read, {} sent, {}",
                size(&increment["changed_bytes"]),
                size(&increment["read_bytes"]),
                size(&increment["sent_bytes"]),
                seconds(&increment)
            ),
        )?;
        let before = read(disk).await?;
        self.write(disk, 0..GARBAGE, PIECE, PIECE, &mut random).await?;
        tell("destroyed", format!("{} overwritten with random data", HumanSize(GARBAGE)))?;
        let words = ["backup", "restore", "backups", &self.address, "--delta", "--overwrite", "--json"];
        let restored = self.run(&words).await?;
        tell(
            "restored",
            format!(
                "{} compared, {} that differ written, {}",
                size(&restored["compared"]),
                size(&restored["written"]),
                seconds(&restored)
            ),
        )?;
        let after = read(disk).await?;
        if let Some(at) = before.iter().zip(&after).position(|(before, after)| before != after) {
            return Err(Failure::failed(anyhow!(
                "the restored disk differs from the one before, first at {at}"
            )));
        }
        tell("compared", format!("all {} are what they were", HumanSize(after.len() as u64)))?;
        Ok(all)
    }

    /// Random data at each `step` of a range, `len` bytes at a time.
    async fn write(
        &self,
        disk: &dyn BlockDevice,
        range: std::ops::Range<u64>,
        len: u64,
        step: u64,
        state: &mut u64,
    ) -> Result<(), Failure> {
        for at in range.step_by(step as usize) {
            let data = noise(len as usize, state);
            disk.write(at, data, Durability::Volatile).await.context("cannot write to the disk")?;
        }
        disk.flush().await.context("cannot flush the disk")?;
        Ok(())
    }

    async fn back_up(&self) -> Result<Value, Failure> {
        let source = format!("lun:{NAME}/0");
        let words = ["backup", "run", &source, "backups", "--sample", "0", "--socket", "api.sock", "--json"];
        self.run(&words).await
    }

    /// Runs a command of this program, as a person would, in the folder.
    async fn run(&self, words: &[&str]) -> Result<Value, Failure> {
        let mut command = this_program(words);
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        // It asks the daemon that this thread serves.
        let output = tokio::task::spawn_blocking(move || command.output()).await;
        let output = output.context("running a command")?.context("running a command")?;
        if !output.status.success() {
            let said = terminal::clean(String::from_utf8_lossy(&output.stderr).trim());
            return Err(Failure::failed(anyhow!("`lunway {}` has failed: {said}", words.join(" "))));
        }
        Ok(serde_json::from_slice(&output.stdout).context("reading the result of a command")?)
    }
}

/// All that is on the disk.
async fn read(disk: &dyn BlockDevice) -> Result<Vec<u8>, Failure> {
    let mut all = Vec::with_capacity(SIZE as usize);
    for at in (0..SIZE).step_by(PIECE as usize) {
        all.extend_from_slice(
            &disk.read(at, Buf::for_overwrite(PIECE as usize)).await.context("cannot read the disk")?,
        );
    }
    Ok(all)
}
