//! exFAT as mkfs.exfat and exfat-fuse make it, beside `dump.exfat`, `fsck.exfat` and `partclone`.

mod support;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use lunway_filesystem::tree::Disk;
use lunway_filesystem::{Examined, exfat};
use support::fuse::Fuse;
use support::*;

/// Bytes of a cluster, alignment of tables and clusters, and bytes of the volume.
const VARIANTS: [(&str, &str, u64); 6] = [
    ("4K", "1M", 100 << 20),
    ("512", "512", (20 << 20) + 512 * 3),
    ("4K", "4K", (64 << 20) + 512 * 11),
    ("32K", "64K", (300 << 20) + 512 * 77),
    ("1M", "1M", (700 << 20) + 512 * 1001),
    ("4M", "1M", (1200 << 20) + 512),
];

const TOOLS: [&str; 6] =
    ["mkfs.exfat", "mount.exfat-fuse", "dump.exfat", "fsck.exfat", "partclone.exfat", "losetup"];

fn format(folder: &Path, (cluster, align, size): (&str, &str, u64)) -> PathBuf {
    let image = sparse(folder, "exfat", size);
    run("mkfs.exfat", &["-L", "DATA", "-c", cluster, "-b", align, text(&image)]);
    image
}

/// Mounts a volume by exfat-fuse, which wants a loop device.
fn mount(device: &Loop) -> Option<Fuse> {
    Fuse::mount("mount.exfat-fuse", &["-d"], &device.0)
}

fn proven(path: &Path) -> (Image, Examined) {
    examined_as("exFAT", path)
}

fn dumped(image: &Path) -> u64 {
    let said = run("dump.exfat", &[text(image)]);
    let field = |name: &str| -> u64 {
        let line = said.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{said}"));
        line.trim().parse().expect("a number")
    };
    field("Cluster size:") * field("Free Clusters:")
}

#[test]
fn free_is_what_the_bitmap_says_and_may_be_overwritten() {
    if !have(&TOOLS) {
        return;
    }
    for (at, variant) in rounds(&VARIANTS) {
        let folder = tempfile::tempdir().expect("a folder");
        let image = format(folder.path(), variant);
        let Some(device) = Loop::new(&image) else { return };
        let Some(mounted) = mount(&device) else { return };
        let bytes = (variant.2 / 16).min(3 << 20) / if variant.0 == "4M" { 8 } else { 1 };
        tree(mounted.at(), at as u64, bytes);
        let files = sums(mounted.at());
        files.keys().step_by(3).for_each(|file| std::fs::remove_file(file).expect("removed"));
        std::fs::create_dir(mounted.at().join("again")).expect("a folder");
        tree(&mounted.at().join("again"), at as u64 + 100, bytes);
        let files = sums(mounted.at());
        files.keys().step_by(5).for_each(|file| std::fs::remove_file(file).expect("removed"));
        let before = mounted.contents();
        mounted.close();
        drop(device);

        let (source, found) = proven(&image);
        assert_eq!((found.identity.kind, found.identity.label.as_deref()), ("exFAT", Some("DATA")));
        let free = free_ranges(volume(&found), &source);
        assert_eq!(volume(&found).free_bytes(), dumped(&image), "{variant:?}");
        let mut theirs = partclone::free("exfat", &image);
        // partclone calls the tail behind the last cluster free, which belongs to nobody.
        let patch = Patch::new(&image);
        let cluster = 512 << patch.bytes(109, 1)[0];
        if let Some(last) = theirs.last_mut() {
            last.end = last.end.min(patch.u32(88) * 512 + patch.u32(92) * cluster);
        }
        assert_eq!(free, theirs, "{variant:?}");
        assert!(variant.0 == "4M" || free.len() > 2, "{variant:?}: {free:?}");

        poison(&image, &free);
        run("fsck.exfat", &["-n", text(&image)]);
        let Some(device) = Loop::new(&image) else { return };
        let Some(mounted) = mount(&device) else { return };
        assert_eq!(mounted.contents(), before, "{variant:?}");
        mounted.close();
    }
}

/// A volume whose bytes are changed.
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

    fn u32(&self, at: u64) -> u64 {
        u64::from(u32::from_le_bytes(self.bytes(at, 4).try_into().expect("4 bytes")))
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.0.write_all_at(bytes, at).expect("a write");
    }

    /// Where a cluster of 4 KiB is.
    fn cluster(&self, number: u64) -> u64 {
        self.u32(88) * 512 + (number - 2) * 4096
    }

    /// Makes the checksum of the boot region right.
    fn seal(&self) {
        let mut sum = 0u32;
        for (at, byte) in self.bytes(0, 11 * 512).into_iter().enumerate() {
            if ![106, 107, 112].contains(&at) {
                sum = sum.rotate_right(1).wrapping_add(u32::from(byte));
            }
        }
        self.write(11 * 512, &sum.to_le_bytes().repeat(128));
    }
}

#[test]
fn a_volume_in_doubt_has_nothing_free_and_says_why() {
    if !have(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let image = format(folder.path(), ("4K", "1M", 32 << 20));
    assert!(proven(&image).1.verdict.is_ok());
    let patch = Patch::new(&image);
    let (table, root) = (patch.u32(80) * 512, patch.cluster(patch.u32(96)));
    let bitmap_entry =
        (0..).map(|at| root + at * 32).find(|at| patch.bytes(*at, 1) == [0x81]).expect("an entry");
    let bitmap = patch.cluster(patch.u32(bitmap_entry + 20));
    let in_chain = |number: u64| table + number * 4;
    let cases: [(u64, &[u8], bool, &str); 11] = [
        (106, &[2], false, "it was not unmounted (it is marked dirty)"),
        (106, &[4], false, "I/O errors were met on it (it is marked so)"),
        (100, &[1, 2, 3, 4], false, "the checksum of its boot region is wrong"),
        (72, &[0, 0, 2], true, "it has 67108864 bytes, more than the 33554432"),
        (
            bitmap,
            &[0],
            false,
            "its allocation bitmap has clusters 2 to 2 as free, which hold its own structures",
        ),
        (
            bitmap,
            &[7],
            false,
            "its allocation bitmap has clusters 5 to 5 as free, which hold its own structures",
        ),
        (bitmap_entry, &[0x05], false, "its root directory names no allocation bitmap"),
        (bitmap_entry + 24, &[1, 0], false, "its allocation bitmap has 1 bytes, and"),
        (bitmap_entry + 20, &[0, 0, 1, 0], false, "a chain leads to cluster 65536, which it does not have"),
        (
            in_chain(3),
            &[3, 0, 0, 0],
            false,
            "the chain that begins at cluster 3 is too long, or goes in circles",
        ),
        (
            in_chain(5),
            &[5, 0, 0, 0],
            false,
            "the chain that begins at cluster 5 is too long, or goes in circles",
        ),
    ];
    for (at, bytes, sealed, expected) in cases {
        let (before, boot) = (patch.bytes(at, bytes.len()), patch.bytes(0, 12 * 512));
        patch.write(at, bytes);
        if sealed {
            patch.seal();
        }
        let said = proven(&image).1.verdict.err().map(|doubt| doubt.reason).unwrap_or_default();
        assert!(said.starts_with(expected), "{expected}: {said}");
        patch.write(0, &boot);
        patch.write(at, &before);
    }
    assert!(proven(&image).1.verdict.is_ok());
}

/// A file's or a directory's entries (§7.4, §7.6) without a name.
fn entries(attributes: u8, flags: u8, first: u32, len: u64) -> [u8; 64] {
    let mut set = [0; 64];
    (set[0], set[1], set[4]) = (0x85, 1, attributes);
    (set[32], set[33]) = (0xC0, flags);
    set[52..56].copy_from_slice(&first.to_le_bytes());
    set[56..64].copy_from_slice(&len.to_le_bytes());
    set
}

#[test]
fn files_that_the_bitmap_does_not_have_whole_are_a_doubt() {
    if !have(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let image = format(folder.path(), ("4K", "1M", 32 << 20));
    let patch = Patch::new(&image);
    let (table, root) = (patch.u32(80) * 512, patch.cluster(patch.u32(96)));
    let entry =
        |kind: u8| (0..).map(|at| root + at * 32).find(|at| patch.bytes(*at, 1) == [kind]).expect("an entry");
    let (bitmap, end) = (patch.cluster(patch.u32(entry(0x81) + 20)), entry(0));
    // Clusters 100 to 109 are used, and chained in the table; 105 leads to 107, 106 to 108.
    let used = |number: u64| {
        let at = bitmap + (number - 2) / 8;
        patch.write(at, &[patch.bytes(at, 1)[0] | 1 << ((number - 2) % 8)]);
    };
    (100..110).for_each(used);
    for (at, next) in [(100, 101), (101, u32::MAX), (105, 107), (107, 106), (106, 200)] {
        patch.write(table + at * 4, &u32::to_le_bytes(next));
    }
    let said = |entries: &[u8]| {
        patch.write(end, entries);
        proven(&image).1.verdict.err().map(|doubt| doubt.reason)
    };
    let free = "its allocation bitmap has clusters of a file as free, from ";
    let (directory, contiguous, chained) = (0x10, 3, 1);
    for (set, expected) in [
        (entries(0x20, contiguous, 100, 10 * 4096), None),
        (entries(0x20, contiguous, 100, 40_961), Some(format!("{free}100 to 110"))),
        (entries(0x20, contiguous, 99, 5), Some(format!("{free}99 to 99"))),
        (entries(0x20, chained, 100, 8192), None),
        (
            entries(0x20, chained, 100, 8193),
            Some("the chain that begins at cluster 100 is too short for 8193 bytes".into()),
        ),
        (entries(0x20, chained, 105, 3 * 4096), None),
        (entries(0x20, chained, 105, 4 * 4096), Some(format!("{free}200 to 200"))),
        (
            entries(0x20, chained, 102, 4097),
            Some("a chain leads to cluster 0, which it does not have".into()),
        ),
        (
            entries(0x20, contiguous, 100, 32 << 20),
            Some("its files have more clusters than there are".into()),
        ),
        (entries(0x20, contiguous, 0, 1), Some("a chain leads to cluster 0, which it does not have".into())),
        (entries(0x20, chained, 0, 0), None),
        (entries(directory, contiguous, 100, 4096), None),
    ] {
        let said = said(&set);
        match expected {
            None => assert_eq!(said, None),
            Some(expected) => {
                assert!(
                    said.as_ref().is_some_and(|said| said.starts_with(&expected)),
                    "{expected}: {said:?}"
                );
            }
        }
    }
    // A file below the directory in cluster 100.
    patch.write(patch.cluster(100), &entries(0x20, contiguous, 103, 3 * 4096));
    assert_eq!(said(&entries(directory, contiguous, 100, 4096)), None);
    patch.write(patch.cluster(100), &entries(0x20, contiguous, 103, 8 * 4096));
    assert_eq!(said(&entries(directory, contiguous, 100, 4096)), Some(format!("{free}103 to 110")));
    // A directory that leads back to itself.
    patch.write(patch.cluster(100), &entries(directory, contiguous, 100, 4096));
    let looped = said(&entries(directory, contiguous, 100, 4096)).expect("a doubt");
    assert!(looped.starts_with("its files have more clusters than there are"), "{looped}");
    // An allocation of a vendor (§7.9).
    let mut vendor = entries(0x20, chained, 0, 0);
    vendor[32..].copy_from_slice(&entries(0, contiguous, 150, 9)[32..]);
    vendor[32] = 0xE1;
    assert_eq!(said(&vendor), Some(format!("{free}150 to 150")));
}

#[test]
fn a_volume_in_hundreds_of_thousands_of_runs_is_not_refused_for_what_it_costs() {
    // 16 files, each in 25,000 runs of one cluster all over the volume.
    const FILES: u64 = 16;
    const RUNS: u64 = 25_000;
    if !have(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let image = format(folder.path(), ("4K", "1M", 4 << 30));
    let patch = Patch::new(&image);
    let (table, root) = (patch.u32(80) * 512, patch.cluster(patch.u32(96)));
    let entry =
        |kind: u8| (0..).map(|at| root + at * 32).find(|at| patch.bytes(*at, 1) == [kind]).expect("an entry");
    let (bitmap, end) = (patch.cluster(patch.u32(entry(0x81) + 20)), entry(0));
    let (start, mut fat) = (1000, vec![0; (2 * FILES * RUNS * 4) as usize]);
    let mut set = Vec::new();
    for file in 0..FILES {
        // Every second cluster is used, and the files take them in turn, from the end to the beginning.
        let cluster = |run: u64| start + 2 * (FILES * (RUNS - 1 - run) + file);
        for run in 0..RUNS {
            let next = if run + 1 < RUNS { cluster(run + 1) as u32 } else { u32::MAX };
            let at = ((cluster(run) - start) * 4) as usize;
            fat[at..at + 4].copy_from_slice(&next.to_le_bytes());
        }
        set.extend(entries(0x20, 1, cluster(0) as u32, RUNS * 4096));
    }
    patch.write(table + start * 4, &fat);
    patch.write(end, &set);
    // Cluster 1000 is bit 998: the byte before the one that the pattern is whole in has 6 bits of others.
    let bits = FILES * RUNS * 2;
    patch.write(bitmap + (start - 2) / 8, &[0x40 | patch.bytes(bitmap + (start - 2) / 8, 1)[0]]);
    patch.write(bitmap + (start - 2) / 8 + 1, &vec![0x55; (bits / 8) as usize]);
    let tree = Disk::examine(&Image::open(&image), 512);
    assert_eq!(tree.root().reason, None);
    let lost = start + 2 * 12_345;
    patch.write(bitmap + (lost - 2) / 8, &[0x55 & !(1 << ((lost - 2) % 8))]);
    let said = Disk::examine(&Image::open(&image), 512).root().reason.clone().unwrap_or_default();
    let expected = format!("its allocation bitmap has clusters of a file as free, from {lost} to {lost}");
    assert_eq!(said, expected);
}

#[test]
fn each_cluster_that_files_have_is_missed_in_the_bitmap() {
    if !have(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let image = format(folder.path(), ("4K", "1M", 32 << 20));
    let Some(device) = Loop::new(&image) else { return };
    let Some(mounted) = mount(&device) else { return };
    tree(mounted.at(), 5, 3 << 20);
    sums(mounted.at()).keys().step_by(3).for_each(|file| std::fs::remove_file(file).expect("removed"));
    tree(&mounted.at().join("again"), 6, 3 << 20);
    mounted.close();
    drop(device);
    assert!(proven(&image).1.verdict.is_ok());
    let patch = Patch::new(&image);
    let root = patch.cluster(patch.u32(96));
    let entry = (0..).map(|at| root + at * 32).find(|at| patch.bytes(*at, 1) == [0x81]).expect("an entry");
    let bitmap = patch.cluster(patch.u32(entry + 20));
    let mut cleared = 0;
    for bit in 0..patch.u32(92) {
        let (at, mask) = (bitmap + bit / 8, 1 << (bit % 8));
        let byte = patch.bytes(at, 1)[0];
        if byte & mask != 0 {
            patch.write(at, &[byte & !mask]);
            assert!(proven(&image).1.verdict.is_err(), "cluster {}", bit + 2);
            patch.write(at, &[byte]);
            cleared += 1;
        }
    }
    assert!(cleared > 500, "{cleared}");
}

#[test]
fn with_two_bitmaps_a_cluster_is_used_that_is_used_in_either() {
    if !have(&TOOLS) {
        return;
    }
    // No tool makes TexFAT. Between the table and the clusters there is room for another one.
    let folder = tempfile::tempdir().expect("a folder");
    let image = format(folder.path(), ("4K", "1M", 32 << 20));
    let one = volume(&proven(&image).1).free_bytes();
    let patch = Patch::new(&image);
    let (table, len) = (patch.u32(80) * 512, patch.u32(84) * 512);
    let root = patch.cluster(patch.u32(96));
    let entry = (0..).map(|at| root + at * 32).find(|at| patch.bytes(*at, 1) == [0x81]).expect("an entry");
    let end = (0..).map(|at| root + at * 32).find(|at| patch.bytes(*at, 1) == [0]).expect("an end");
    // The second bitmap is cluster 100, which both have in use. Each has one cluster that the other does not have.
    let bitmap = patch.cluster(patch.u32(entry + 20));
    patch.write(bitmap + 98 / 8, &[1 << (98 % 8)]);
    patch.write(patch.cluster(100), &patch.bytes(bitmap, 4096));
    patch.write(bitmap + 200, &[1]);
    patch.write(patch.cluster(100) + 300, &[1 << 7]);
    let mut second = patch.bytes(entry, 32);
    (second[1], second[20]) = (1, 100);
    patch.write(end, &second);
    patch.write(table + len, &patch.bytes(table, len as usize));
    for at in [table, table + len] {
        patch.write(at + 400, &[0xFF; 4]);
    }
    patch.write(110, &[2]);
    for active in 0..2 {
        patch.write(106, &[active]);
        patch.seal();
        let (source, found) = proven(&image);
        assert_eq!(volume(&found).free_bytes(), one - 3 * 4096);
        assert_eq!(free_ranges(volume(&found), &source).len(), 4);
    }
    patch.write(110, &[1]);
    patch.seal();
    let doubt = examined(&Image::open(&image), exfat::examine)
        .err()
        .expect("the second of one table cannot be active");
    assert!(doubt.reason.ends_with("the second of one file allocation table is active"), "{doubt:?}");
}
