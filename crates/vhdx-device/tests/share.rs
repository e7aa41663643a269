//! Bytes that do not pass through this process (`lend`, `adopt`): space shared on XFS, which a loop device brings, and
//! copies by the kernel on tmpfs. Contents, and who holds them.
#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use lunway_block::{BlockDevice, Buf, Durability, FileRange};
use lunway_file::{FileDevice, FileOptions};
use lunway_foreign::{machine_lacks, program};
use lunway_vhdx::format::Guid;
use lunway_vhdx::{CreateOptions, DiskKind, create};
use lunway_vhdx_device::{VhdxDevice, random_guids};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 8 * MIB;
const CLOSE_TIME: Duration = Duration::from_secs(60);

/// An XFS whose files share blocks; the smallest that mkfs.xfs makes is 300 MiB.
struct Xfs {
    folder: tempfile::TempDir,
}

impl Xfs {
    /// `None`, noted, where there is none.
    fn new() -> Option<Self> {
        let (mkfs, mount) = (program("mkfs.xfs")?, program("mount")?);
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        File::create(&image).unwrap().set_len(320 * MIB).unwrap();
        std::fs::create_dir(folder.path().join("at")).unwrap();
        let made = Command::new(mkfs).args(["-q", "-m", "reflink=1"]).arg(&image).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let mut mounting = Command::new(mount);
        let mounted =
            mounting.args(["-o", "loop"]).arg(&image).arg(folder.path().join("at")).output().unwrap();
        if !mounted.status.success() {
            machine_lacks(&format!("a kernel that mounts XFS: {}", String::from_utf8_lossy(&mounted.stderr)));
            return None;
        }
        Some(Self { folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("at").join(name)
    }
}

impl Drop for Xfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.folder.path().join("at")).status();
    }
}

fn make(path: &Path, block: u32) {
    let mut options = CreateOptions::new(DiskKind::Dynamic, SIZE, Guid::from_digits(5));
    options.parameters.block_size = block;
    let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    create(&file, &options, random_guids().unwrap().as_mut()).unwrap();
}

fn open(path: &Path, read_only: bool) -> VhdxDevice {
    VhdxDevice::open(path, read_only).unwrap_or_else(|error| panic!("{error}"))
}

async fn write(device: &VhdxDevice, offset: u64, len: u64, byte: u8) {
    let data = Buf::copy_of(&vec![byte; len as usize]).freeze();
    device.write(offset, data, Durability::Volatile).await.unwrap();
}

async fn read(device: &VhdxDevice) -> Vec<u8> {
    device.read(0, Buf::zeroed(SIZE as usize)).await.unwrap().to_vec()
}

#[tokio::test]
async fn what_is_adopted_reads_as_what_was_lent_and_takes_no_space() {
    let Some(xfs) = Xfs::new() else { return };
    make(&xfs.path("from.vhdx"), 4 << 20);
    let from = open(&xfs.path("from.vhdx"), false);
    write(&from, 0, 4 * MIB, 1).await;
    write(&from, MIB + 4096, 4096, 2).await;
    write(&from, 6 * MIB, MIB, 3).await;
    assert!(from.lend(0, MIB).await.unwrap().is_none(), "what may change is not lent");
    from.close(CLOSE_TIME).await.unwrap();
    let from = open(&xfs.path("from.vhdx"), true);
    assert!(from.lend(3 * MIB, 2 * MIB).await.unwrap().is_none_or(|range| range.len == 2 * MIB));
    // Into blocks of another size: some that are there, some that are not, some in part.
    make(&xfs.path("to.vhdx"), 1 << 20);
    let to = open(&xfs.path("to.vhdx"), false);
    write(&to, 0, MIB, 9).await;
    write(&to, 5 * MIB, 2 * MIB, 9).await;
    to.flush().await.unwrap();
    let free = || {
        let mut stat = Command::new("stat");
        let output = stat.args(["-f", "-c", "%f %S"]).arg(xfs.path("")).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (blocks, size) = text.trim().split_once(' ').unwrap();
        blocks.parse::<u64>().unwrap() * size.parse::<u64>().unwrap()
    };
    let before = free();
    let mut adopted = 0;
    for at in (0..4).chain(6..7) {
        let (offset, len) = (at * MIB + if at == 2 { 4096 } else { 0 }, MIB - if at == 2 { 8192 } else { 0 });
        let lent = from.lend(offset, len).await.unwrap().unwrap();
        assert!(to.adopt(offset, lent).await.unwrap(), "XFS shares");
        adopted += len;
    }
    to.flush().await.unwrap();
    assert!(free() + adopted / 2 > before, "{} bytes were taken for {adopted}", before - free());
    let mut expected = vec![0; SIZE as usize];
    expected[..4 << 20].copy_from_slice(&read(&from).await[..4 << 20]);
    expected[2 << 20..(2 << 20) + 4096].fill(0);
    expected[(3 << 20) - 4096..3 << 20].fill(0);
    expected[5 << 20..6 << 20].fill(9);
    expected[6 << 20..7 << 20].fill(3);
    assert!(read(&to).await == expected);
    // Each has its own from now on.
    write(&to, 0, 4096, 4).await;
    expected[..4096].fill(4);
    to.close(CLOSE_TIME).await.unwrap();
    assert!(read(&open(&xfs.path("to.vhdx"), true)).await == expected);
    assert!(read(&from).await[..4096] == [1; 4096]);
}

/// A range that goes to two blocks, of which the file system shares the first alone: what it refuses is copied, since
/// the first is changed already.
#[tokio::test]
async fn a_refusal_in_the_middle_is_copied_and_one_at_the_beginning_changes_nothing() {
    let Some(xfs) = Xfs::new() else { return };
    let path = xfs.path("disk.vhdx");
    make(&path, 1 << 20);
    let device = open(&path, false);
    // In the file: blocks 0, 2, 1.
    for block in [0, 2, 1] {
        write(&device, block * MIB, MIB, block as u8 + 1).await;
    }
    device.flush().await.unwrap();
    let lent = {
        // The same file once more, which the device has locked.
        let file = File::open(&path).unwrap();
        let mut offset = 0;
        let mut page = [0; 4096];
        while page != [3; 4096] {
            offset += MIB;
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut page, offset).unwrap();
        }
        FileRange { file: Arc::new(file), offset, len: 2 * MIB }
    };
    // Block 1 onto itself is what no file system does.
    assert!(device.adopt(0, lent.clone()).await.unwrap());
    let bytes = read(&device).await;
    let firsts: Vec<u8> = bytes.chunks(MIB as usize).map(|block| block[0]).collect();
    assert_eq!(firsts[..4], [3, 2, 3, 0]);
    let own = FileRange { offset: lent.offset + MIB, len: MIB, ..lent };
    assert!(!device.adopt(MIB, own).await.unwrap());
    assert!(read(&device).await == bytes);
    device.close(CLOSE_TIME).await.unwrap();
}

/// Lost would be the sparseness of what is converted: the kernel copies zeroes as any other bytes.
#[tokio::test]
async fn a_file_system_that_shares_nothing_copies_what_has_no_zeroes() {
    let memory = Path::new("/dev/shm");
    if !memory.is_dir() {
        machine_lacks("a tmpfs on /dev/shm");
        return;
    }
    let folder = tempfile::tempdir_in(memory).unwrap();
    let mut image = vec![7; 4 << 20];
    // The beginnings of two units are zero, and one whole unit is, which is the last of its range.
    image[64 << 10..96 << 10].fill(0);
    image[128 << 10..192 << 10].fill(0);
    image[160 << 10] = 1;
    image[(2 << 20) + (960 << 10)..3 << 20].fill(0);
    std::fs::write(folder.path().join("image"), &image).unwrap();
    let options = FileOptions { read_only: true, ..FileOptions::default() };
    let from = FileDevice::open(folder.path().join("image"), &options).unwrap();
    let path = folder.path().join("to.vhdx");
    make(&path, 2 << 20);
    let to = open(&path, false);
    let mut taken = Vec::new();
    for at in 0..4 {
        let lent = from.lend(at * MIB, MIB).await.unwrap().unwrap();
        taken.push(to.adopt(4096 + at * MIB, lent).await.unwrap());
    }
    assert_eq!(taken, [true, true, false, true]);
    to.close(CLOSE_TIME).await.unwrap();
    let mut expected = vec![0; SIZE as usize];
    expected[4096..4096 + (4 << 20)].copy_from_slice(&image);
    expected[4096 + (2 << 20)..4096 + (3 << 20)].fill(0);
    assert!(read(&open(&path, true)).await == expected);
    // And the other way round, over two blocks.
    let from = open(&path, true);
    File::create(folder.path().join("back")).unwrap().set_len(SIZE).unwrap();
    let back = FileDevice::open(folder.path().join("back"), &FileOptions::default()).unwrap();
    for offset in [4096, MIB] {
        let lent = from.lend(offset, MIB - 4096).await.unwrap().unwrap();
        assert!(back.adopt(offset, lent).await.unwrap());
    }
    let bytes = back.read(0, Buf::zeroed(2 << 20)).await.unwrap();
    assert!(bytes[4096..(2 << 20) - 4096] == expected[4096..(2 << 20) - 4096]);
}
