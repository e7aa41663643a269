//! NTFS as mkntfs and ntfs-3g make it, beside `ntfscat`, `partclone`, `ntfsinfo` and `ntfsfix`.

mod support;

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use lunway_filesystem::Examined;
use lunway_filesystem::tree::Disk;
use support::fuse::Fuse;
use support::*;

/// Bytes of a sector, of a cluster, and of the volume: clusters of every size, numbers of them that are not whole bytes
/// of a bitmap, tails that are no cluster.
const VARIANTS: [(u32, u32, u64); 8] = [
    (512, 4096, 100 << 20),
    (512, 512, (40 << 20) + 512),
    (512, 1024, (40 << 20) + 5 * 512),
    (512, 4096, (64 << 20) + 4096 * 5 + 512 * 3),
    (512, 65536, (300 << 20) + 512 * 77),
    (4096, 4096, (64 << 20) + 4096 * 7),
    (4096, 65536, (200 << 20) + 4096 * 3),
    (512, 2 << 20, (900 << 20) + 512 * 3001),
];

/// ntfs-3g as a child of the test.
const FOREGROUND: [&str; 2] = ["-o", "no_detach"];
const TOOLS: [&str; 5] = ["mkntfs", "ntfs-3g", "ntfscat", "ntfsfix", "partclone.ntfs"];

fn format(folder: &Path, (sector, cluster, size): (u32, u32, u64)) -> std::path::PathBuf {
    let image = sparse(folder, "ntfs", size);
    let (sector, cluster) = (sector.to_string(), cluster.to_string());
    run("mkntfs", &["-F", "-q", "-L", "Köln", "-s", &sector, "-c", &cluster, text(&image)]);
    image
}

fn proven(path: &Path) -> (Image, Examined) {
    examined_as("NTFS", path)
}

fn reason(path: &Path) -> String {
    match proven(path).1.verdict {
        Ok(_) => panic!("a proven map"),
        Err(doubt) => doubt.reason,
    }
}

/// What $Bitmap has as free, read by ntfscat.
fn bitmap(image: &Path, cluster: u64, clusters: u64) -> Vec<Range<u64>> {
    let ntfscat = lunway_foreign::program("ntfscat").expect("ntfscat");
    let output = Command::new(ntfscat).args(["-f", "-i", "6", text(image)]).output().expect("ntfscat");
    let mut free: Vec<Range<u64>> = Vec::new();
    for number in 0..clusters {
        if output.stdout[number as usize / 8] >> (number % 8) & 1 == 1 {
            continue;
        }
        let range = number * cluster..(number + 1) * cluster;
        match free.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => free.push(range),
        }
    }
    free
}

#[test]
fn free_is_what_the_bitmap_says_and_may_be_overwritten() {
    if !have(&TOOLS) {
        return;
    }
    for (at, variant) in rounds(&VARIANTS) {
        let folder = tempfile::tempdir().expect("a folder");
        let image = format(folder.path(), variant);
        let (_, cluster, size) = variant;
        let cluster = u64::from(cluster);
        let Some(mount) = Fuse::mount("ntfs-3g", &FOREGROUND, &image) else { return };
        // Filled, every third file deleted, filled again: holes, and files in many runs.
        let bytes = (size / 16).min(8 << 20);
        tree(mount.at(), at as u64, bytes);
        let files = sums(mount.at());
        files.keys().step_by(3).for_each(|file| std::fs::remove_file(file).expect("removed"));
        std::fs::create_dir(mount.at().join("again")).expect("a folder");
        tree(&mount.at().join("again"), at as u64 + 100, bytes);
        mount.close();

        let (source, found) = proven(&image);
        assert_eq!((found.identity.kind, found.identity.label.as_deref()), ("NTFS", Some("Köln")));
        let free = free_ranges(volume(&found), &source);
        let clusters = found.identity.size / cluster;
        assert!(found.identity.size < size, "the last sector is the backup boot sector's");
        assert_eq!(free, bitmap(&image, cluster, clusters), "{variant:?}");
        assert_eq!(free, partclone::free("ntfs", &image).as_slice(), "{variant:?}");

        let Some(mount) = Fuse::mount("ntfs-3g", &FOREGROUND, &image) else { return };
        let before = mount.contents();
        mount.close();
        poison(&image, &free);
        let (said, code) = exit("ntfsfix", &["-n", text(&image)]);
        assert_eq!(code, 0, "{variant:?}: {said}");
        let Some(mount) = Fuse::mount("ntfs-3g", &FOREGROUND, &image) else { return };
        assert_eq!(mount.contents(), before, "{variant:?}");
        mount.close();
    }
}

#[test]
fn a_master_file_table_in_hundreds_of_pieces_is_followed() {
    if !have(&TOOLS) || lunway_foreign::program("ntfsinfo").is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let variant = (512, 512, 16 << 20);
    let image = format(folder.path(), variant);
    let Some(mount) = Fuse::mount("ntfs-3g", &FOREGROUND, &image) else { return };
    // Full, then with holes everywhere; files that fit into their record make the table grow into these.
    let name = |number: u32| mount.at().join(format!("{number}"));
    let full = (0..8000).find(|number| std::fs::write(name(*number), [*number as u8; 3000]).is_err());
    let full = full.expect("a full volume");
    (0..full).step_by(2).for_each(|number| std::fs::remove_file(name(number)).expect("removed"));
    let small = (10_000..20_000).find(|number| std::fs::write(name(*number), [1; 500]).is_err());
    let end = small.unwrap_or(20_000);
    (10_000..end).step_by(5).for_each(|number| std::fs::remove_file(name(number)).expect("removed"));
    let before = mount.contents();
    mount.close();
    let said = run("ntfsinfo", &["-f", "-i", "0", text(&image)]);
    assert!(said.contains("$ATTRIBUTE_LIST"), "{said}");

    let (source, found) = proven(&image);
    let free = free_ranges(volume(&found), &source);
    assert_eq!(free, bitmap(&image, 512, found.identity.size / 512));
    assert_eq!(free, partclone::free("ntfs", &image));
    poison(&image, &free);
    let Some(mount) = Fuse::mount("ntfs-3g", &FOREGROUND, &image) else { return };
    assert_eq!(mount.contents(), before);
    mount.close();
}

/// Bytes of a volume that tests change.
struct Patch(File);

impl Patch {
    fn new(image: &Path) -> Self {
        Self(File::options().read(true).write(true).open(image).expect("an image"))
    }

    fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact_at(&mut bytes, at).expect("a read");
        bytes
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.0.write_all_at(bytes, at).expect("a write");
    }

    /// Where a record of the master file table is, on a volume of sectors of 512 bytes and clusters of 4096.
    fn record(&self, number: u64) -> u64 {
        u64::from_le_bytes(self.bytes(0x30, 8).try_into().expect("8 bytes")) * 4096 + number * 1024
    }

    /// Where an attribute of a record is.
    fn attribute(&self, record: u64, kind: u32) -> u64 {
        let bytes = self.bytes(self.record(record), 1024);
        let mut at = usize::from(u16::from_le_bytes([bytes[20], bytes[21]]));
        while bytes[at..at + 4] != kind.to_le_bytes() {
            at += usize::from(bytes[at + 4]) + 256 * usize::from(bytes[at + 5]);
        }
        self.record(record) + at as u64
    }

    /// Where the first run of an attribute lies.
    fn first_run(&self, record: u64, kind: u32) -> u64 {
        let attribute = self.attribute(record, kind);
        let runs = attribute + u64::from(self.bytes(attribute + 32, 1)[0]);
        let sizes = self.bytes(runs, 1)[0];
        let mut lcn = self.bytes(runs + 1 + u64::from(sizes & 15), usize::from(sizes >> 4));
        lcn.resize(8, 0);
        u64::from_le_bytes(lcn.try_into().expect("8 bytes")) * 4096
    }
}

/// A volume of 32 MiB that was mounted and unmounted, in which `fill` may make files.
fn small(folder: &Path, fill: impl FnOnce(&Path)) -> Option<std::path::PathBuf> {
    if !have(&TOOLS) {
        return None;
    }
    let image = format(folder, (512, 4096, 32 << 20));
    let mount = Fuse::mount("ntfs-3g", &FOREGROUND, &image)?;
    fill(mount.at());
    mount.close();
    Some(image)
}

#[test]
fn a_volume_in_doubt_has_nothing_free_and_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut file = 0;
    let fill = |root: &Path| {
        std::fs::write(root.join("file"), [7; 9000]).expect("a file");
        file = std::fs::metadata(root.join("file")).expect("metadata").ino();
    };
    let Some(image) = small(folder.path(), fill) else { return };
    assert!(proven(&image).1.verdict.is_ok());
    let patch = Patch::new(&image);
    // What ntfs-3g leaves when it is killed: a file, and no bits for it.
    let first = patch.first_run(file, 0x80) / 4096;
    let flags = patch.attribute(3, 0x70) + 24 + 10;
    let bitmap = patch.first_run(6, 0x80);
    let mft = patch.record(0) / 4096;
    let clusters = (32 << 20) / 4096 - 1;
    let lost = patch.bytes(bitmap + first / 8, 1)[0] & !(1 << (first % 8));
    let expected_lost = format!("$Bitmap has clusters of file {file} as free, from {first} to {}", first + 2);
    let of_file = patch.record(file) + 1022;
    let expected_damaged = format!("record {file} of its master file table is damaged");
    let free_mft = patch.bytes(bitmap + mft / 8, 1)[0] & !(1 << (mft % 8));
    let shadows = [
        [0x6B, 0x87, 0x08, 0x38, 0x76, 0xC1, 0x48, 0x4E, 0xB7, 0xAE, 0x04, 0x04, 0x6E, 0x6C, 0xC7, 0x52],
        [1; 16],
        [0; 16],
        [1; 16],
    ]
    .concat();
    let cases: [(u64, &[u8], &str); 12] = [
        (bitmap + first / 8, &[lost], &expected_lost),
        (of_file, &[0x77], &expected_damaged),
        (flags, &[1, 0], "it is marked dirty (in $Volume)"),
        (flags, &[0, 0x40], "chkdsk has begun with it and not ended"),
        (flags, &[0, 0x80], "it is marked as changed by chkdsk (in $Volume)"),
        (flags, &[0x10, 0], "it has changes that wait for Windows (in $Volume)"),
        (bitmap + mft / 8, &[free_mft], "$Bitmap has clusters of file 0 as free, from 4 to"),
        (bitmap + clusters / 8, &[0], "$Bitmap has clusters behind the volume's end as free"),
        (0x1E00, &shadows, "it has shadow copies"),
        (patch.record(6) + 510, &[0x77], "record 6 of its master file table is damaged"),
        (patch.attribute(6, 0x80) + 48, &[7, 0], "$Bitmap has 7 bytes, too few"),
        (0x28, &[0, 0, 2], "it has 67108864 bytes, more than the 33554432"),
    ];
    for (at, bytes, expected) in cases {
        let before = patch.bytes(at, bytes.len());
        patch.write(at, bytes);
        let said = reason(&image);
        assert!(said.starts_with(expected), "{expected}: {said}");
        patch.write(at, &before);
    }
    // As many bits as there cannot be: only those count that were written. (Found by fuzzing: an overflow.)
    let free = volume(&proven(&image).1).free_bytes();
    patch.write(patch.attribute(6, 0x80) + 48, &(1u64 << 62).to_le_bytes());
    assert_eq!(volume(&proven(&image).1).free_bytes(), free);
}

/// A restart page: sequence number, list of clients in use, flags, major and minor version.
fn restart_page(magic: &[u8; 4], lsn: u64, clients: u16, flags: u16, version: (u16, u16)) -> Vec<u8> {
    let mut page = vec![0; 4096];
    page[..4].copy_from_slice(magic);
    let mut words =
        vec![(4, 30), (6, 9), (16, 4096), (20, 4096), (24, 0x50), (26, version.1), (28, version.0)];
    words.extend([(0x50 + 8, 1), (0x50 + 10, 0xFFFF), (0x50 + 12, clients), (0x50 + 14, flags)]);
    // The update sequence: a number at the end of each stride, and the words that it replaced.
    words.push((30, 7));
    words.extend((1..=8).map(|stride| (stride * 512 - 2, 7)));
    for (at, word) in words {
        page[at..at + 2].copy_from_slice(&u16::to_le_bytes(word));
    }
    page[0x50..0x58].copy_from_slice(&lsn.to_le_bytes());
    if magic == b"CHKD" {
        page[8..16].copy_from_slice(&lsn.to_le_bytes());
    }
    page
}

#[test]
fn the_newer_restart_page_of_the_log_decides() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(image) = small(folder.path(), |_| {}) else { return };
    let patch = Patch::new(&image);
    let log = patch.first_run(2, 0x80);
    assert!(patch.bytes(log, 8192).iter().all(|byte| *byte == 0xFF), "ntfs-3g empties the log");
    let closed = |lsn| restart_page(b"RSTR", lsn, 0xFFFF, 0, (1, 1));
    let clean = |lsn| restart_page(b"RSTR", lsn, 0, 2, (1, 1));
    let open = |lsn| restart_page(b"RSTR", lsn, 0, 0, (1, 1));
    let fast = |lsn| restart_page(b"RSTR", lsn, 0xFFFF, 2, (2, 0));
    let chkdsk = |lsn| restart_page(b"CHKD", lsn, 0, 0, (1, 1));
    let rubbish = vec![0x55; 4096];
    let mut torn = closed(9);
    torn[1022] = 8;
    let not_closed = Some("$LogFile was not closed: the volume was not unmounted");
    let cases = [
        (closed(1), closed(2), None),
        (clean(1), open(0), None),
        (chkdsk(5), open(4), None),
        (closed(1), open(2), not_closed),
        (open(2), closed(1), not_closed),
        (open(2), closed(3), None),
        (torn.clone(), open(2), not_closed),
        (torn.clone(), closed(2), None),
        (fast(1), closed(0), Some("$LogFile is of version 2.0")),
        (
            restart_page(b"RSTR", 1, 0xFFFF, 2, (3, 0)),
            closed(0),
            Some("$LogFile is of version 3.0, which is unknown"),
        ),
        (rubbish, torn, Some("$LogFile has no restart page that is whole")),
    ];
    for (at, (first, second, expected)) in cases.into_iter().enumerate() {
        patch.write(log, &first);
        patch.write(log + 4096, &second);
        match (proven(&image).1.verdict, expected) {
            (Ok(_), None) => {}
            (Err(doubt), Some(expected)) if doubt.reason.starts_with(expected) => {}
            (found, _) => panic!("case {at}: {expected:?}, not {:?}", found.err()),
        }
    }
}

#[test]
fn a_torn_block_of_the_root_directory_that_is_not_in_use_is_no_damage() {
    let folder = tempfile::tempdir().expect("a folder");
    let fill = |root: &Path| {
        (0..500).for_each(|number| drop(File::create(root.join(format!("{number:0100}"))).expect("a file")));
    };
    let Some(image) = small(folder.path(), fill) else { return };
    assert!(proven(&image).1.verdict.is_ok());
    let patch = Patch::new(&image);
    let (block, bitmap) = (patch.first_run(5, 0xA0), patch.attribute(5, 0xB0));
    assert_eq!(patch.bytes(block, 4), b"INDX");
    // Half of it is of another write.
    patch.write(block + 2046, &[0x77]);
    assert_eq!(reason(&image), "its root directory is damaged");
    let value = bitmap + u64::from(patch.bytes(bitmap + 20, 1)[0]);
    patch.write(value, &[patch.bytes(value, 1)[0] & !1]);
    assert!(proven(&image).1.verdict.is_ok());
}

/// A record of a file whose data are `clusters` in runs of one cluster, every second one from `first` on.
fn record_of_runs(number: u32, first: u64, clusters: u64) -> Vec<u8> {
    let mut record = vec![0; 1024];
    record[..4].copy_from_slice(b"FILE");
    // Fix-ups at 30h, sequence 1, a link, the attribute behind them; in use.
    for (at, word) in [(4, 0x30), (6, 3), (0x10, 1), (0x12, 1), (0x14, 0x38), (0x16, 1), (0x30, 0x1111)] {
        record[at..at + 2].copy_from_slice(&u16::to_le_bytes(word));
    }
    record[0x1C..0x20].copy_from_slice(&1024u32.to_le_bytes());
    record[0x2C..0x30].copy_from_slice(&number.to_le_bytes());
    let mut runs = vec![0x41, 1];
    runs.extend((first as u32).to_le_bytes());
    runs.extend([0x11, 1, 2].repeat(clusters as usize - 1));
    runs.push(0);
    let len = (64 + runs.len()).next_multiple_of(8);
    let at = 0x38;
    record[at..at + 4].copy_from_slice(&0x80u32.to_le_bytes());
    record[at + 4..at + 8].copy_from_slice(&(len as u32).to_le_bytes());
    record[at + 8] = 1;
    record[at + 24..at + 32].copy_from_slice(&(clusters - 1).to_le_bytes());
    record[at + 32] = 64;
    for field in [40, 48, 56] {
        record[at + field..at + field + 8].copy_from_slice(&(clusters * 4096).to_le_bytes());
    }
    record[at + 64..at + 64 + runs.len()].copy_from_slice(&runs);
    record[at + len..at + len + 4].fill(0xFF);
    record[0x18..0x1C].copy_from_slice(&((at + len + 8) as u32).to_le_bytes());
    // The words that the fix-ups replace.
    for stride in 1..=2 {
        let end = stride * 512 - 2;
        let word = [record[end], record[end + 1]];
        record[0x30 + 2 * stride..0x32 + 2 * stride].copy_from_slice(&word);
        record[end..end + 2].copy_from_slice(&[0x11, 0x11]);
    }
    record
}

#[test]
fn a_volume_in_hundreds_of_thousands_of_runs_is_not_refused_for_what_it_costs() {
    const FILES: u64 = 1600;
    const RUNS: u64 = 256;
    if !have(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    // Without writing zeroes to all of it.
    let image = sparse(folder.path(), "ntfs", 8 << 30);
    run("mkntfs", &["-F", "-q", "-Q", "-s", "512", "-c", "4096", text(&image)]);
    let Some(mount) = Fuse::mount("ntfs-3g", &FOREGROUND, &image) else { return };
    // The table grows to as many records.
    (0..FILES).for_each(|number| drop(File::create(mount.at().join(format!("{number}"))).expect("a file")));
    let first = std::fs::metadata(mount.at().join("0")).expect("metadata").ino();
    mount.close();
    let patch = Patch::new(&image);
    let (bitmap, start) = (patch.first_run(6, 0x80), 1_100_000);
    // In the second half, behind the copy of the table's first records.
    let mut random = Random::new(7);
    let mut order: Vec<u64> = (0..FILES).collect();
    (1..order.len()).for_each(|at| order.swap(at, random.below(at as u64 + 1) as usize));
    for (file, place) in order.into_iter().enumerate() {
        let (number, at) = (first + file as u64, start + place * 2 * RUNS);
        let runs = record_of_runs(number as u32, at, RUNS);
        assert_eq!(patch.bytes(patch.record(number), 4), b"FILE");
        patch.write(patch.record(number), &runs);
        patch.write(bitmap + at / 8, &[0x55; (2 * RUNS / 8) as usize]);
    }
    let tree = Disk::examine(&Image::open(&image), 512);
    assert_eq!(tree.root().reason, None);
    // Every second cluster between the first and the last of them is free.
    let mut alternate = 0;
    tree.for_each_free(&Image::open(&image), &mut |range| {
        alternate += u64::from(range.end - range.start == 4096);
    })
    .expect("a proven map");
    assert!(alternate > FILES * RUNS - 10, "{alternate}");
    // One of them that is not allocated is still found.
    let (file, run) = (FILES / 3, 77);
    let mut runs = patch.bytes(patch.record(first + file), 1024);
    let cluster = u64::from(u32::from_le_bytes(runs[0x38 + 66..0x38 + 70].try_into().expect("4 bytes")));
    let lost = cluster + 2 * run;
    patch.write(bitmap + lost / 8, &[0x55 & !(1 << (lost % 8))]);
    runs.clear();
    let said = Disk::examine(&Image::open(&image), 512).root().reason.clone().unwrap_or_default();
    let expected = format!("$Bitmap has clusters of file {} as free, from {lost} to {lost}", first + file);
    assert_eq!(said, expected);
}

#[test]
fn a_hibernated_windows_keeps_the_whole_volume() {
    let hibernated = "Windows is hibernated in it (hiberfil.sys), as after a shutdown with Fast Startup";
    // In the root of the index, and in one of its blocks.
    for others in [0, 3000] {
        let fill = |content: &'static [u8]| {
            move |root: &Path| {
                for number in 0..others {
                    File::create(root.join(format!("{number:0100}"))).expect("a file");
                }
                std::fs::write(root.join("HiberFil.sys"), content).expect("a file");
            }
        };
        const WINDOWS_8: &[u8] = &{
            let mut image = [0xAA; 9000];
            (image[0], image[1], image[2], image[3]) = (b'H', b'I', b'B', b'R');
            image
        };
        for (content, expected) in
            [(WINDOWS_8, true), (b"hibr", true), (&[0; 9000], false), (b"wake", false), (b"", false)]
        {
            let folder = tempfile::tempdir().expect("a folder");
            let Some(image) = small(folder.path(), fill(content)) else { return };
            let found = proven(&image).1.verdict.err();
            // It has other volumes of the disk mounted, too.
            assert_eq!(found.as_ref().map(|doubt| doubt.suspended), expected.then_some(true));
            let found = found.map(|doubt| doubt.reason);
            assert_eq!(found.as_deref(), expected.then_some(hibernated), "{others} others");
            if expected && others > 0 {
                // What remains of it in the index does not count. ntfs-3g looks for another spelling of the name.
                let Some(mount) = Fuse::mount("ntfs-3g", &FOREGROUND, &image) else { return };
                std::fs::remove_file(mount.at().join("HiberFil.sys")).expect("removed");
                mount.close();
                assert!(proven(&image).1.verdict.is_ok());
            }
        }
    }
}
