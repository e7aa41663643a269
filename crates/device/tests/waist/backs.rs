//! Back ends: memory, files, VHDX files and other images.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lunway_backup::{Changed, Guids, Holder, Lease, Level, Request};
use lunway_block::conformance::{Instance, Local, Reopen, SIZE_MIN, Subject};
use lunway_block::{BlockDevice, Buf, Durability, Zeroing};
use lunway_copy::Skipped;
use lunway_device::OpenOptions;
use lunway_file::{Engine, FileDevice, FileOpenError, FileOptions};
use lunway_image::Format;
use lunway_image::vhd::format::{FOOTER_CHECKSUM, HEADER_CHECKSUM, checksum};
use lunway_image::vhd::{Layout, Writer};
use lunway_image_device::{ImageDevice, NewVhd};
use lunway_memory::{NullDisk, RamDisk};
use lunway_repository::{create_repository, open_series, run};
use lunway_vhdx::crash::MemoryStorage;
use lunway_vhdx::format::Guid;
use lunway_vhdx::{CreateOptions, DiskKind, Locator, create};
use lunway_vhdx_device::{VhdxDevice, random_guids};
use tempfile::{NamedTempFile, TempDir};

use super::conforms;

fn memory(name: &'static str, sector: u32) -> Subject {
    Subject::device(name, move || {
        Box::pin(async move { Instance::plain(Arc::new(RamDisk::new(SIZE_MIN, sector).unwrap())) })
    })
}

#[tokio::test]
async fn memory_conforms() {
    conforms(memory("memory", 512)).await;
    conforms(memory("memory, sectors of 4 KiB", 4096)).await;
}

#[tokio::test]
async fn a_sink_conforms() {
    conforms(Subject::device("`null:`", || {
        Box::pin(async { Instance::plain(Arc::new(NullDisk::new(SIZE_MIN, 512).unwrap())) })
    }))
    .await;
}

/// A sparse file of zeroes in a folder.
fn file(name: &'static str, folder: &'static str, options: FileOptions) -> Subject {
    Subject::device(name, move || {
        Box::pin(async move {
            let file = NamedTempFile::new_in(folder).unwrap();
            file.as_file().set_len(SIZE_MIN).unwrap();
            let device = FileDevice::open_on_thread(file.path().to_owned(), options).await.unwrap();
            Instance { keep: Box::new(file), ..Instance::plain(Arc::new(device)) }
        })
    })
}

#[tokio::test]
async fn a_file_conforms() {
    let folder = Box::leak(std::env::temp_dir().to_str().unwrap().to_owned().into_boxed_str());
    conforms(file("file", folder, FileOptions::default())).await;
    conforms(file("file in memory", "/dev/shm", FileOptions::default())).await;
    conforms(file("file, read-only", folder, FileOptions { read_only: true, ..FileOptions::default() }))
        .await;
    for (name, engine) in [
        ("file past the page cache, threads", Engine::Threads),
        ("file past the page cache, io_uring", Engine::Uring),
    ] {
        let options = FileOptions { direct: true, engine, sector: Some(4096), ..FileOptions::default() };
        let probe = NamedTempFile::new().unwrap();
        probe.as_file().set_len(SIZE_MIN).unwrap();
        match FileDevice::open(probe.path(), &options) {
            Err(error @ (FileOpenError::Direct { .. } | FileOpenError::Uring { .. })) => {
                lunway_foreign::machine_lacks(&format!("{name}: {error}"));
            }
            _ => conforms(file(name, folder, options)).await,
        }
    }
}

/// A point of zeroes in a series `disk` of a new repository.
async fn make_point(folder: &Path) {
    create_repository(folder, &[]).unwrap();
    let series = open_series(folder, "disk", None, true).unwrap();
    let guids: Guids = Arc::new(|| random_guids().unwrap());
    let lease = Lease::take(&*series.folder, Holder::this_process(1), &|| false).unwrap();
    let source = RamDisk::new(SIZE_MIN, 512).unwrap();
    let request = Request {
        source: &source,
        source_name: "zeroes".to_owned(),
        changed: Changed::Unknown { why: "it is new".to_owned() },
        skipped: &Skipped::default(),
        skipped_why: "",
        state: None,
        epoch: None,
        due: None,
        level: Level::Crash,
        time: None,
        full: false,
        rename_source: false,
        bytes_per_second: None,
        sample_bytes: 0,
        seed: 1,
        is_cancelled: &|| false,
    };
    run(&series, &lease, &guids, request, &mut |_| ()).await.unwrap();
}

#[tokio::test]
async fn a_point_in_a_repository_conforms() {
    conforms(Subject::device("a point in a repository", || {
        Box::pin(async {
            let folder = tempfile::tempdir().unwrap();
            make_point(folder.path()).await;
            let spec = format!("point:{}/disk", folder.path().display()).parse().unwrap();
            let opened = lunway_device::open(&spec, &OpenOptions::default()).await.unwrap();
            let device = Arc::clone(&opened.device);
            Instance { keep: Box::new((opened, folder)), ..Instance::plain(device) }
        })
    }))
    .await;
}

/// More than a close takes on a busy machine.
const CLOSE_TIME: Duration = Duration::from_secs(30);

fn make(path: &Path, kind: DiskKind, sector: u32, parent: Option<(&str, Guid)>) {
    let mut options = CreateOptions::new(kind, SIZE_MIN, Guid::from_digits(5));
    options.parameters.block_size = 1 << 20;
    options.parameters.logical_sector = sector;
    options.parameters.locator = parent.map(|(name, linkage)| Locator::new(linkage, name, None));
    let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    create(&file, &options, random_guids().unwrap().as_mut()).unwrap();
}

/// A parent whose blocks are allocated, so that what a child gives back would show them.
async fn make_child(folder: &Path, path: &Path, sector: u32) {
    let base = folder.join("base.vhdx");
    make(&base, DiskKind::Dynamic, sector, None);
    let parent = VhdxDevice::open(&base, false).unwrap();
    parent.write_zeroes(0, SIZE_MIN, Zeroing::KeepAllocated).await.unwrap();
    parent.close(CLOSE_TIME).await.unwrap();
    let file = lunway_vhdx::open_file(&base, false).unwrap();
    let options = lunway_vhdx::VhdxOpenOptions::read_only();
    let linkage = lunway_vhdx::Disk::open(file, &options, random_guids().unwrap()).unwrap().data_write_guid();
    make(path, DiskKind::Differencing, sector, Some(("base.vhdx", linkage)));
}

fn opened(folder: Arc<TempDir>, path: PathBuf, read_only: bool) -> Instance {
    let device = VhdxDevice::open(&path, read_only).unwrap_or_else(|error| panic!("{error}"));
    let keep = Arc::clone(&folder);
    let reopen: Reopen =
        Box::new(move || Box::pin(async move { opened(folder, path, read_only) }) as Local<'static, _>);
    Instance { device: Arc::new(device), close: None, reopen: Some(reopen), keep: Box::new(keep) }
}

fn vhdx(name: &'static str, kind: DiskKind, sector: u32, read_only: bool) -> Subject {
    Subject::device(name, move || {
        Box::pin(async move {
            let folder = Arc::new(tempfile::tempdir().unwrap());
            let path = folder.path().join("disk.vhdx");
            match kind {
                DiskKind::Differencing => make_child(folder.path(), &path, sector).await,
                _ => make(&path, kind, sector, None),
            }
            opened(folder, path, read_only)
        })
    })
}

#[tokio::test]
async fn a_vhdx_file_conforms() {
    conforms(vhdx("VHDX, dynamic", DiskKind::Dynamic, 512, false)).await;
    conforms(vhdx("VHDX, dynamic, sectors of 4 KiB", DiskKind::Dynamic, 4096, false)).await;
    conforms(vhdx("VHDX, fixed", DiskKind::Fixed, 512, false)).await;
    conforms(vhdx("VHDX, differencing", DiskKind::Differencing, 512, false)).await;
    conforms(vhdx("VHDX, read-only", DiskKind::Dynamic, 512, true)).await;
}

/// Room for a VHDX of [`SIZE_MIN`], its log and its block table.
pub(crate) const VHDX_ROOM: u64 = 16 * SIZE_MIN;

/// Puts an empty VHDX on a device that holds nothing but zeroes.
pub(crate) async fn format_blank(device: &dyn BlockDevice) {
    let first = device.read(0, Buf::zeroed(512)).await.unwrap();
    if first.iter().any(|&byte| byte != 0) {
        return;
    }
    let storage = MemoryStorage::default();
    let mut options = CreateOptions::new(DiskKind::Dynamic, SIZE_MIN, Guid::from_digits(5));
    options.parameters.block_size = 1 << 20;
    create(&storage, &options, random_guids().unwrap().as_mut()).unwrap();
    let image = storage.to_bytes();
    device.write(0, Buf::copy_of(&image).freeze(), Durability::Volatile).await.unwrap();
    device.flush().await.unwrap();
}

fn opened_on(device: Arc<dyn BlockDevice>) -> Instance {
    let below = device.clone();
    let reopen: Reopen = Box::new(move || Box::pin(async move { opened_on(below) }) as Local<'static, _>);
    let device = VhdxDevice::open_on(device, false).unwrap_or_else(|error| panic!("{error}"));
    Instance { reopen: Some(reopen), ..Instance::plain(Arc::new(device)) }
}

#[tokio::test]
async fn a_vhdx_on_a_device_conforms() {
    conforms(Subject::format("VHDX on a device", VHDX_ROOM, |device| {
        Box::pin(async move {
            format_blank(&*device).await;
            opened_on(device)
        })
    }))
    .await;
}

/// A VHD of zeroes in a folder.
fn new_vhd(folder: &Path, fixed: bool) -> PathBuf {
    let path = folder.join("disk.vhd");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let layout = Layout { size: SIZE_MIN, fixed, block_size: Some(512 << 10), id: VHD, now: 1 << 30 };
    Writer::create(file, &layout).unwrap();
    path
}

/// Identity of the disk of [`new_vhd`].
const VHD: Guid = Guid::from_digits(5);

/// A differencing VHD without any block, so that all of it lies in the parent: what `new_vhd` makes, with another
/// identity and type, and the name of the parent beside it.
fn new_child_vhd(folder: &Path) -> PathBuf {
    const HEADER: usize = 512;
    /// What a new dynamic file has between header and footer ends there: the table, of one sector.
    const TABLE_END: usize = HEADER + 1024 + 512;
    let parent = new_vhd(folder, false);
    let mut bytes = std::fs::read(&parent).unwrap();
    let mut footer = bytes.split_off(bytes.len() - 512);
    assert_eq!(bytes.len(), TABLE_END, "the table is what was written");
    // Type (4: differencing) and identity.
    footer[60..64].copy_from_slice(&4u32.to_be_bytes());
    footer[68] ^= 0xFF;
    bytes[HEADER + 40..HEADER + 56].copy_from_slice(&VHD.to_digits().to_be_bytes());
    let name: Vec<u16> = "disk.vhd".encode_utf16().collect();
    let big_endian: Vec<u8> = name.iter().flat_map(|unit| unit.to_be_bytes()).collect();
    bytes[HEADER + 64..][..big_endian.len()].copy_from_slice(&big_endian);
    // The first locator: a relative path, in a sector behind the table.
    let relative: Vec<u8> = ".\\disk.vhd".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let locator = HEADER + 576;
    bytes[locator..locator + 4].copy_from_slice(b"W2ru");
    bytes[locator + 4..locator + 8].copy_from_slice(&1u32.to_be_bytes());
    bytes[locator + 8..locator + 12].copy_from_slice(&(relative.len() as u32).to_be_bytes());
    bytes[locator + 16..locator + 24].copy_from_slice(&(TABLE_END as u64).to_be_bytes());
    bytes.extend(&relative);
    bytes.resize(TABLE_END + 512, 0);
    let sum = |bytes: &mut [u8], field: usize| {
        let sum = checksum(bytes, field).to_be_bytes();
        bytes[field..field + 4].copy_from_slice(&sum);
    };
    sum(&mut footer, FOOTER_CHECKSUM);
    sum(&mut bytes[HEADER..HEADER + 1024], HEADER_CHECKSUM);
    bytes[..512].copy_from_slice(&footer);
    bytes.extend(&footer);
    let path = folder.join("child.vhd");
    std::fs::write(&path, bytes).unwrap();
    path
}

#[tokio::test]
async fn a_vhd_that_is_filled_conforms() {
    for (name, fixed) in [("VHD that is filled, dynamic", false), ("VHD that is filled, fixed", true)] {
        conforms(Subject::device(name, move || {
            Box::pin(async move {
                let folder = tempfile::tempdir().unwrap();
                let device = Arc::new(NewVhd::open(&new_vhd(folder.path(), fixed)).unwrap());
                Instance { keep: Box::new(folder), ..Instance::plain(device) }
            })
        }))
        .await;
    }
}

/// A qcow2 file of zeroes, or of what its backing file has: version 3, clusters of 64 KiB, an empty L1 table in the
/// second of them and an empty table of reference counts in the third.
fn new_qcow2(folder: &Path, backing: Option<&str>) -> PathBuf {
    const CLUSTER_BITS: u32 = 16;
    const HEADER_LEN: u32 = 104;
    /// Type of the header extension with the format of the backing file; one of type 0 ends them all.
    const BACKING_FORMAT: u32 = 0xE279_2ACA;
    let name = backing.unwrap_or_default();
    // Behind the header: an extension of eight bytes ("raw"), the end, the name.
    let extensions =
        if backing.is_some() { [BACKING_FORMAT, 3, 0x7261_7700, 0, 0, 0].as_slice() } else { &[] };
    let name_at = if backing.is_some() { HEADER_LEN + 4 * extensions.len() as u32 } else { 0 };
    let words: [&[u32]; 5] = [
        // Version; the backing file's name: offset (two words) and length.
        &[3, 0, name_at, name.len() as u32],
        // The disk's size (two words), no encryption, entries of the L1 table.
        &[CLUSTER_BITS, 0, SIZE_MIN as u32, 0, 1],
        // Offsets of the L1 table and of the reference counts, clusters of these; no snapshots.
        &[0, 1 << CLUSTER_BITS, 0, 2 << CLUSTER_BITS, 1, 0, 0, 0],
        // No incompatible, compatible or autoclear features; counts of 16 bits; the header's length.
        &[0, 0, 0, 0, 0, 0, 4, HEADER_LEN],
        extensions,
    ];
    let mut header = b"QFI\xfb".to_vec();
    header.extend(words.concat().into_iter().flat_map(u32::to_be_bytes));
    header.extend(name.as_bytes());
    let path = folder.join("disk.qcow2");
    std::fs::write(&path, header).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(3 << CLUSTER_BITS).unwrap();
    path
}

fn new_qcow2_with_backing(folder: &Path) -> PathBuf {
    File::create_new(folder.join("base.img")).unwrap().set_len(SIZE_MIN).unwrap();
    new_qcow2(folder, Some("base.img"))
}

#[tokio::test]
async fn images_that_are_only_read_conform() {
    type Make = fn(&Path) -> PathBuf;
    let images: [(&str, Format, Make); 5] = [
        ("VHD, dynamic, read", Format::Vhd, |folder| new_vhd(folder, false)),
        ("VHD, fixed, read", Format::Vhd, |folder| new_vhd(folder, true)),
        ("VHD, differencing, read", Format::Vhd, new_child_vhd),
        ("qcow2, read", Format::Qcow2, |folder| new_qcow2(folder, None)),
        ("qcow2 with a backing file, read", Format::Qcow2, new_qcow2_with_backing),
    ];
    for (name, format, make) in images {
        conforms(Subject::device(name, move || {
            Box::pin(async move {
                let folder = tempfile::tempdir().unwrap();
                let device = Arc::new(ImageDevice::open(&make(folder.path()), format).unwrap());
                Instance { keep: Box::new(folder), ..Instance::plain(device) }
            })
        }))
        .await;
    }
}
