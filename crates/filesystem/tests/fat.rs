//! FAT12, FAT16 and FAT32 as mkfs.fat and mtools make them, beside `fsck.fat`, `partclone` and a reading of the table
//! that shares nothing with ours.

mod support;

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use lunway_filesystem::Examined;
use support::*;

/// Width, bytes in a sector, sectors in a cluster, tables, KiB of the volume.
const VARIANTS: [(u32, u32, u32, u32, u64); 13] = [
    (12, 512, 1, 2, 1440),
    (12, 512, 4, 1, 4001),
    (12, 4096, 1, 2, 8008),
    (12, 512, 64, 2, 100_003),
    (16, 512, 1, 2, 16_003),
    (16, 512, 4, 2, 65_537),
    (16, 2048, 2, 1, 100_002),
    (16, 4096, 1, 2, 200_004),
    (16, 512, 64, 2, 1_000_001),
    (32, 512, 1, 2, 40_003),
    (32, 512, 8, 2, 300_007),
    (32, 4096, 1, 2, 300_012),
    (32, 1024, 2, 1, 160_001),
];

const TOOLS: [&str; 5] = ["mkfs.fat", "mcopy", "mdel", "fsck.fat", "partclone.fat"];

fn format(folder: &Path, (width, sector, cluster, tables, kib): (u32, u32, u32, u32, u64)) -> PathBuf {
    let image = sparse(folder, "fat", kib << 10);
    let [width, sector, cluster, tables] = [width, sector, cluster, tables].map(|number| number.to_string());
    let options =
        ["-a", "-n", "DATA", "-i", "12345678", "-F", &width, "-S", &sector, "-s", &cluster, "-f", &tables];
    run("mkfs.fat", &[&options[..], &[text(&image)]].concat());
    image
}

/// Copies files into the volume, deletes some, copies others: holes, and files in several pieces.
fn fill(image: &Path, seed: u64, bytes: u64) {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, seed) in [("first", seed), ("second", seed + 100)] {
        let root = folder.path().join(name);
        std::fs::create_dir(&root).expect("a folder");
        tree(&root, seed, bytes);
        run("mcopy", &["-s", "-Q", "-o", "-i", text(image), text(&root), "::"]);
        if name == "first" {
            let files = sums(&root).into_keys().step_by(3);
            for file in files {
                let inside = file.strip_prefix(folder.path()).expect("inside");
                run("mdel", &["-i", text(image), &format!("::{}", text(inside))]);
            }
        }
    }
}

fn contents(image: &Path) -> Vec<(PathBuf, (u64, u32))> {
    let folder = tempfile::tempdir().expect("a folder");
    run("mcopy", &["-s", "-Q", "-n", "-i", text(image), "::*", text(folder.path())]);
    let inside = |path: PathBuf| path.strip_prefix(folder.path()).expect("inside").to_owned();
    sums(folder.path()).into_iter().map(|(path, sum)| (inside(path), sum)).collect()
}

fn proven(path: &Path) -> (Image, Examined) {
    examined_as("FAT", path)
}

/// Clusters, those in use, and bytes of one: as fsck.fat counts them.
fn fsck(image: &Path) -> (u64, u64, u64) {
    let said = run("fsck.fat", &["-n", "-v", text(image)]);
    let counts = said
        .lines()
        .rev()
        .find_map(|line| line.strip_suffix(" clusters")?.rsplit_once(' ')?.1.split_once('/'));
    let (used, all) = counts.unwrap_or_else(|| panic!("{said}"));
    let cluster =
        said.lines().find_map(|line| line.trim().strip_suffix(" bytes per cluster")).expect("a size");
    let number = |text: &str| text.parse().expect("a number");
    (number(all), number(used), number(cluster))
}

/// Entries of the first table, read one nibble at a time.
fn free_by_table(image: &Path, width: u64, clusters: u64, cluster: u64) -> Vec<Range<u64>> {
    let bytes = std::fs::read(image).expect("an image");
    let le = |at: usize, len: usize| {
        bytes[at..at + len].iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte))
    };
    let sector = le(11, 2);
    let table = if le(22, 2) == 0 { le(36, 4) } else { le(22, 2) };
    let heap = (le(14, 2) + le(16, 1) * table) * sector + (le(17, 2) * 32).div_ceil(sector) * sector;
    let nibble = |at: u64| bytes[(le(14, 2) * sector + at / 2) as usize] >> (4 * (at % 2)) & 0xF;
    let significant = if width == 32 { 7 } else { width / 4 };
    let mut free: Vec<Range<u64>> = Vec::new();
    for number in 2..clusters + 2 {
        if (0..significant).any(|at| nibble(number * width / 4 + at) != 0) {
            continue;
        }
        let at = heap + (number - 2) * cluster;
        match free.last_mut() {
            Some(last) if last.end == at => last.end += cluster,
            _ => free.push(at..at + cluster),
        }
    }
    free
}

#[test]
fn free_is_what_the_table_says_and_may_be_overwritten() {
    if !have(&TOOLS) {
        return;
    }
    for (at, variant) in rounds(&VARIANTS) {
        let folder = tempfile::tempdir().expect("a folder");
        let image = format(folder.path(), variant);
        let (width, _, _, _, kib) = variant;
        fill(&image, at as u64, (kib << 10).min(24 << 20) / 4);

        let (source, found) = proven(&image);
        let identity = &found.identity;
        assert_eq!(
            (identity.kind, identity.uuid.as_deref()),
            (format!("FAT{width}").as_str(), Some("1234-5678"))
        );
        assert_eq!(identity.label.as_deref(), Some("DATA"));
        assert!(found.notes.is_empty(), "{:?}", found.notes);
        let free = free_ranges(volume(&found), &source);
        let (clusters, used, cluster) = fsck(&image);
        assert_eq!(volume(&found).free_bytes(), (clusters - used) * cluster, "{variant:?}");
        assert_eq!(free, free_by_table(&image, width.into(), clusters, cluster), "{variant:?}");

        let before = contents(&image);
        assert!(!before.is_empty(), "{variant:?}");
        poison(&image, &free);
        assert_eq!(fsck(&image), (clusters, used, cluster), "{variant:?}");
        assert_eq!(contents(&image), before, "{variant:?}");
    }
}

#[test]
fn partclone_finds_the_same() {
    if !have(&TOOLS) {
        return;
    }
    // It is wrong about FAT12: of the first variant it would not copy 4 KiB of files, as fsck.fat counts them.
    for variant in VARIANTS.into_iter().filter(|variant| variant.0 != 12) {
        let folder = tempfile::tempdir().expect("a folder");
        let image = format(folder.path(), variant);
        fill(&image, 7, (variant.4 << 10).min(8 << 20) / 4);
        let (source, found) = proven(&image);
        let ours = free_ranges(volume(&found), &source);
        assert_eq!(ours, partclone::free("fat", &image), "{variant:?}");
    }
}

#[test]
fn a_volume_in_doubt_has_nothing_free_and_says_why() {
    if !have(&TOOLS) {
        return;
    }
    let not_unmounted = "it was not unmounted (entry 1 of its file allocation table says so)";
    let errors = "I/O errors were met on it (entry 1 of its file allocation table says so)";
    let boot = "it was not unmounted (its boot sector says so)";
    let begins = "its file allocation table begins with";
    // Sectors before the first table are mkfs.fat's choice; `table` is added where the offset is in it.
    type Case = (bool, u64, &'static [u8], &'static str);
    let fat12: [Case; 3] = [(false, 0x25, &[1], boot), (false, 0x25, &[2], boot), (true, 0, &[0xF0], begins)];
    let fat16: [Case; 5] = [
        (false, 0x25, &[1], boot),
        (true, 2, &[0xFF, 0x7F], not_unmounted),
        (true, 2, &[0xFF, 0xBF], errors),
        (true, 0, &[0xF9], begins),
        (false, 0x13, &[0xFF, 0xFF], "it has 33553920 bytes, more than the"),
    ];
    let fat32: [Case; 8] = [
        (false, 0x41, &[1], boot),
        (true, 4, &[0xFF, 0xFF, 0xFF, 0x07], not_unmounted),
        (true, 4, &[0xFF, 0xFF, 0xFF, 0x0B], errors),
        (true, 0, &[0, 0, 0, 0], begins),
        (true, 8, &[0, 0, 0, 0], "its root directory's cluster 2 is not in use"),
        (true, 8, &[2, 0, 0, 0], "its root directory is longer than a directory can be, or goes in circles"),
        (false, 44, &[0, 0, 0, 1], "its root directory leads to cluster 16777216, which it does not have"),
        (false, 42, &[1], "its version of FAT32 is unknown"),
    ];
    let volumes: [(_, &[Case]); 3] = [
        ((12, 512, 4, 2, 4000), &fat12),
        ((16, 512, 4, 2, 30_000), &fat16),
        ((32, 512, 1, 2, 40_000), &fat32),
    ];
    for (variant, cases) in volumes {
        let folder = tempfile::tempdir().expect("a folder");
        let image = format(folder.path(), variant);
        assert!(proven(&image).1.verdict.is_ok());
        let file = File::options().read(true).write(true).open(&image).expect("an image");
        let mut sectors = [0; 2];
        file.read_exact_at(&mut sectors, 14).expect("a read");
        let table = u64::from(u16::from_le_bytes(sectors)) * 512;
        for (in_table, at, bytes, expected) in cases {
            let at = if *in_table { table + at } else { *at };
            let mut before = vec![0; bytes.len()];
            file.read_exact_at(&mut before, at).expect("a read");
            file.write_all_at(bytes, at).expect("a write");
            let said = proven(&image).1.verdict.err().map(|doubt| doubt.reason).unwrap_or_default();
            assert!(said.starts_with(expected), "{variant:?}: {expected}: {said}");
            file.write_all_at(&before, at).expect("a write");
        }
        assert!(proven(&image).1.verdict.is_ok());
    }
}

#[test]
fn each_entry_of_the_table_that_a_file_needs_is_missed() {
    if !have(&TOOLS) {
        return;
    }
    for variant in
        [(12, 512, 4, 2, 4000), (16, 512, 4, 2, 30_000), (32, 512, 1, 2, 40_000), (32, 512, 8, 1, 300_000)]
    {
        let folder = tempfile::tempdir().expect("a folder");
        let image = format(folder.path(), variant);
        fill(&image, 3, (variant.4 << 10) / 16);
        assert!(proven(&image).1.verdict.is_ok());
        let file = File::options().read(true).write(true).open(&image).expect("an image");
        let mut boot = [0; 64];
        file.read_exact_at(&mut boot, 0).expect("a read");
        let word = |at: usize| u64::from(u16::from_le_bytes([boot[at], boot[at + 1]]));
        let (table, len) = (word(14) * 512, if variant.0 == 32 { word(36) } else { word(22) } * 512);
        let (mut freed, mut random) = (0, Random::new(9));
        while freed < 200 {
            // Even entries, so that those of FAT12 begin with a byte.
            let entry = 2 * (1 + random.below(500));
            let at = table + entry * u64::from(variant.0) / 8;
            let (mut before, mask) = (
                [0; 4],
                match variant.0 {
                    12 => 0xFFFF_F000,
                    16 => 0xFFFF_0000,
                    _ => 0xF000_0000u32,
                },
            );
            file.read_exact_at(&mut before, at).expect("a read");
            let after = (u32::from_le_bytes(before) & mask).to_le_bytes();
            if before == after {
                continue;
            }
            let write = |bytes: &[u8]| {
                for copy in 0..u64::from(variant.3) {
                    file.write_all_at(bytes, at + copy * len).expect("a write");
                }
            };
            write(&after);
            let doubt =
                proven(&image).1.verdict.err().unwrap_or_else(|| panic!("{variant:?}, entry {entry}"));
            assert!(doubt.reason.contains("is free") || doubt.reason.contains("not in use"), "{doubt:?}");
            write(&before);
            freed += 1;
        }
        assert!(proven(&image).1.verdict.is_ok());
    }
}

#[test]
fn directories_that_lead_back_or_nowhere_are_a_doubt() {
    if !have(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let image = format(folder.path(), (32, 512, 1, 2, 40_000));
    run("mmd", &["-i", text(&image), "::folder"]);
    let file = File::options().read(true).write(true).open(&image).expect("an image");
    let bytes = std::fs::read(&image).expect("an image");
    let named = |name: &[u8]| bytes.windows(11).position(|found| found == name).expect("an entry") as u64;
    let (entry, inside) = (named(b"FOLDER     "), named(b"..         ") + 32);
    // The folder is cluster 3. Something in it, with a cluster of its own.
    let child = |first: u32, attributes: u8| {
        let mut child = *b"CHILD      \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x09\0\0\0";
        child[11] = attributes;
        child[20..22].copy_from_slice(&((first >> 16) as u16).to_le_bytes());
        child[26..28].copy_from_slice(&(first as u16).to_le_bytes());
        child
    };
    let said = |at: u64, bytes: &[u8]| {
        let mut before = vec![0; bytes.len()];
        file.read_exact_at(&mut before, at).expect("a read");
        file.write_all_at(bytes, at).expect("a write");
        let said = proven(&image).1.verdict.err().map(|doubt| doubt.reason);
        file.write_all_at(&before, at).expect("a write");
        said
    };
    assert_eq!(said(entry + 26, &[3]), None);
    for (child, expected) in [
        (child(0, 0x20), None),
        (child(3, 0x20), None),
        (child(4, 0x20), Some("a file begins at cluster 4, which is free")),
        (child(4, 0x10), Some("a file begins at cluster 4, which is free")),
        (child(0x7_0004, 0x20), Some("a file begins at cluster 458756, which it does not have")),
        (child(1, 0x20), Some("a file begins at cluster 1, which it does not have")),
        (child(3, 0x10), Some("its directories have more clusters than there are: they go in circles")),
        // A label, and a part of a long name, have no cluster.
        (child(4, 0x08), None),
        (child(4, 0x0F), None),
    ] {
        assert_eq!(said(inside, &child).as_deref(), expected);
    }
}

#[test]
fn where_tables_differ_a_cluster_is_used_that_is_used_in_any() {
    if !have(&TOOLS) {
        return;
    }
    for (variant, entry, lost) in [
        ((12, 512, 4, 2, 4000), 3, 2 * 2048),
        ((16, 512, 4, 2, 30_000), 4, 2 * 2048),
        ((32, 512, 1, 2, 40_000), 8, 2 * 512),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let image = format(folder.path(), variant);
        let (source, found) = proven(&image);
        let all = volume(&found).free_bytes();
        let file = File::options().read(true).write(true).open(&image).expect("an image");
        let mut boot = [0; 64];
        file.read_exact_at(&mut boot, 0).expect("a read");
        let word = |at: usize| u64::from(u16::from_le_bytes([boot[at], boot[at + 1]]));
        let (table, len) = (word(14) * 512, if variant.0 == 32 { word(36) } else { word(22) } * 512);
        // The end of a chain in either table, far from each other.
        let end: &[u8] = match variant.0 {
            12 => &[0xFF, 0x0F],
            16 => &[0xFF, 0xFF],
            _ => &[0xFF, 0xFF, 0xFF, 0x0F],
        };
        for at in [table + entry * 100, table + len + entry * 200] {
            file.write_all_at(end, at).expect("a write");
        }
        let (_, found) = proven(&image);
        assert_eq!(volume(&found).free_bytes(), all - lost, "{variant:?}");
        assert_eq!(free_ranges(volume(&found), &source).len(), 3);
        assert_eq!(
            found.notes,
            ["its file allocation tables differ: a cluster is kept that is used in any of them"]
        );
    }
}

#[test]
fn a_count_of_clusters_that_drivers_disagree_about_is_ambivalent() {
    if !have(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let image = format(folder.path(), (16, 512, 4, 2, 30_000));
    let file = File::options().write(true).open(&image).expect("an image");
    let mut found = Vec::new();
    for clusters in 4083..4090 {
        // mkfs.fat does not make such volumes. Its tables begin at sector 4 and have 59 sectors each.
        let mut boot = [0; 64];
        File::open(&image).expect("an image").read_exact_at(&mut boot, 0).expect("a read");
        let word = |at: usize| u16::from_le_bytes([boot[at], boot[at + 1]]);
        let heap = word(14) + 2 * word(22) + word(17) / 16;
        file.write_all_at(&(heap + clusters * 4).to_le_bytes(), 19).expect("a write");
        let (_, examined) = proven(&image);
        found.push((clusters, examined.identity.kind, examined.verdict.err().map(|doubt| doubt.reason)));
    }
    let disputed =
        |clusters| Some(format!("with {clusters} clusters it is FAT12 to some systems and FAT16 to others"));
    let is = found.iter().map(|(clusters, _, reason)| *reason == disputed(*clusters)).collect::<Vec<_>>();
    assert_eq!(is, [false, false, true, true, false, false, false], "{found:?}");
    assert_eq!((found[0].1, found[6].1), ("FAT12", "FAT16"));
}

#[test]
fn fat32_is_told_by_its_layout_not_by_the_count_of_clusters() {
    if !have(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    // 8496 clusters; the specification would have 65525 at least, but no driver asks for them.
    let image = format(folder.path(), (32, 512, 8, 2, 34_000));
    let (_, found) = proven(&image);
    let (clusters, used, cluster) = fsck(&image);
    assert_eq!(found.identity.kind, "FAT32");
    assert_eq!(volume(&found).free_bytes(), (clusters - used) * cluster);
}
