//! Measurements that write, on disks with data in, before and behind the region that is measured.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use super::support::{PATIENCE, finish, lunway, succeed};

const MIB: u64 = 1 << 20;
/// More than is read completely of one extent, so that the samples are asked too.
const SIZE: u64 = 96 * MIB;

/// Every command that writes to measure, with a region of 1 MiB at the start of the disk.
fn measuring<'a>(disk: &'a str, job: &'a str) -> [Vec<&'a str>; 5] {
    let compare =
        ["compare", disk, "ram:96M", "--pairs", "2", "--rounds", "1", "--time", "10ms", "--ramp", "0ms"];
    [
        vec!["bench", disk, "--rw", "write", "--size", "1M"],
        vec!["bench", disk, "--size", "1M", "--time", "10ms"],
        vec!["bench", disk, "--job", job],
        [&compare[..], &["--rw", "randwrite", "--size", "1M"]].concat(),
        [&compare[..], &["--size", "4M"]].concat(),
    ]
}

/// The zeroes of a disk with data elsewhere were overwritten: those of its file system, and its free space.
#[test]
fn nothing_that_measures_writes_to_a_disk_with_data_beside_its_region() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (disk, job) = (path("disk.img"), path("job.fio"));
    fs::write(&job, "[a]\nrw=write\nsize=512k\n[b]\nstonewall\nrw=write\noffset=512k\nsize=512k\n").unwrap();
    for place in [512 * 1024, 5 * MIB, SIZE - 4096] {
        let file = File::create(&disk).unwrap();
        file.set_len(SIZE).unwrap();
        file.write_all_at(b"precious", place).unwrap();
        drop(file);
        let before = fs::read(&disk).unwrap();
        for words in measuring(&disk, &job) {
            let output = finish(lunway(&words), PATIENCE);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(said.contains("holds data") && said.contains("--destroy"), "{place}: {words:?}: {said}");
            assert!(fs::read(&disk).unwrap() == before, "{place}: {words:?} wrote");
        }
    }
}

#[test]
fn an_empty_disk_is_measured_with_writes_and_its_holes_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.img").to_str().unwrap().to_owned();
    // At a megabyte for each gigabyte it would take hours.
    File::create(&disk).unwrap().set_len(4 << 40).unwrap();
    succeed(lunway(&["bench", &disk, "--rw", "write", "--size", "1M", "--time", "10ms"]));
}
