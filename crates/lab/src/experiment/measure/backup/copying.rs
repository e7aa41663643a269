//! The old way: a VHDX file is made on the share, attached as a disk, written block by block, and detached.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use futures_util::stream::{FuturesUnordered, StreamExt};
use lunway_bench::Cancel;
use lunway_block::spec::DeviceSpec;
use lunway_block::{Buf, Durability};
use lunway_device::{OpenOptions, Opened};
use lunway_vhdx::{CreateOptions, DiskKind, create};
use lunway_vhdx_device::random_guids;
use tokio::runtime::{Builder, Runtime};

use super::source::SourceDisk;
use crate::experiment::plan::run::BackupRun;
use crate::experiment::result::backups::LeftBehind;

/// The file on the share.
pub(super) const DISK: &str = "disk.vhdx";

/// Makes the file, and copies the data of the disk into it. Returns the bytes that were read, and why it ended early.
pub(super) fn copy(
    source: &SourceDisk,
    file: &Path,
    kind: DiskKind,
    how: &BackupRun,
    cancel: &Cancel,
) -> (u64, Result<(), String>) {
    let mut read = 0;
    let done = try_copy(source, file, kind, how, cancel, &mut read);
    (read, done.map_err(|error| error.to_string()))
}

fn try_copy(
    source: &SourceDisk,
    file: &Path,
    kind: DiskKind,
    how: &BackupRun,
    cancel: &Cancel,
    read: &mut u64,
) -> io::Result<()> {
    let own = File::open(source.file())?;
    let new = File::options().read(true).write(true).create_new(true).open(file)?;
    let mut guids = random_guids().map_err(io::Error::other)?;
    let options = CreateOptions::new(kind, own.metadata()?.len(), guids.next());
    create(&new, &options, guids.as_mut()).map_err(io::Error::other)?;
    drop(new);
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let opened = attach(&runtime, file, false)?;
    let copied = runtime.block_on(async {
        let device = &opened.device;
        let block = u64::from(how.block_size);
        let (mut at, mut running) = (0, FuturesUnordered::new());
        loop {
            while at < source.data && running.len() < how.queue_depth as usize && !cancel.is_cancelled() {
                let len = block.min(source.data - at);
                let mut bytes = vec![0; len as usize];
                own.read_exact_at(&mut bytes, at)?;
                *read += len;
                let write = device.write(at, Buf::copy_of(&bytes).freeze(), Durability::Volatile);
                running.push(write.into_future());
                at += len;
            }
            match running.next().await {
                Some(written) => written.map_err(io::Error::other)?,
                None => break,
            }
        }
        device.flush().await.map_err(io::Error::other)
    });
    let closed = runtime.block_on(opened.close()).map_err(io::Error::other);
    copied.and(closed)?;
    if cancel.is_cancelled() { Err(io::Error::other("interrupted")) } else { Ok(()) }
}

fn attach(runtime: &Runtime, file: &Path, read_only: bool) -> io::Result<Opened> {
    let spec = DeviceSpec::parse(&format!("vhdx:{}", file.display())).map_err(io::Error::other)?;
    let options = OpenOptions { read_only, ..OpenOptions::default() };
    runtime.block_on(lunway_device::open(&spec, &options)).map_err(io::Error::other)
}

/// What a VHDX file holds of the disk.
pub(super) fn left_of(source: &SourceDisk, file: &Path) -> LeftBehind {
    let compared = || -> io::Result<Option<u64>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let opened = attach(&runtime, file, true)?;
        let differs = source.differs_at(|at, bytes| {
            let read = opened.device.read(at, Buf::for_overwrite(bytes.len()));
            let read = runtime.block_on(read.into_future());
            bytes.copy_from_slice(&read.map_err(io::Error::other)?);
            Ok(())
        });
        runtime.block_on(opened.close_or_log());
        differs
    };
    let (is_whole, what) = match compared() {
        Ok(None) => (true, "a file that is the whole disk".to_owned()),
        Ok(Some(at)) => {
            let (held, data) = (at as f64 / 1e6, source.data as f64 / 1e6);
            (
                false,
                format!(
                    "a file that opens as a disk and is torn: right for the first {held:.1} of {data:.1} MB"
                ),
            )
        }
        Err(error) => (false, format!("a file that cannot be opened: {error}")),
    };
    LeftBehind { is_whole, what }
}
