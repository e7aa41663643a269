//! ext2, ext3, ext4 as mke2fs and the kernel make them, beside `dumpe2fs`, `e2fsck` and `partclone`.

mod support;

use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use lunway_filesystem::tree::Disk;
use lunway_filesystem::{Examined, Ranges, ext};
use support::oracle::dumpe2fs;
use support::*;

/// What mke2fs can make: a name, its options.
const VARIANTS: [(&str, &str); 14] = [
    ("default", "-t ext4"),
    ("1k", "-t ext4 -b 1024"),
    ("meta_bg", "-t ext4 -O meta_bg,^resize_inode"),
    ("meta_bg 1k", "-t ext4 -b 1024 -O meta_bg,^resize_inode"),
    ("bigalloc", "-t ext4 -O bigalloc -C 65536"),
    ("bigalloc 1k", "-t ext4 -b 1024 -O bigalloc -C 16384"),
    ("sparse_super2", "-t ext4 -O sparse_super2"),
    ("ext3", "-t ext3"),
    ("ext2", "-t ext2"),
    ("gdt_csum", "-t ext4 -O ^metadata_csum,uninit_bg"),
    ("no flex_bg", "-t ext4 -O ^flex_bg"),
    ("no 64bit", "-t ext4 -O ^64bit"),
    ("mmp", "-t ext4 -O mmp"),
    ("small groups", "-t ext4 -b 1024 -g 2048 -O ^resize_inode"),
];

/// How many bytes of files an image gets.
const FILES: u64 = 16 << 20;

fn proven(path: &Path) -> (Image, Examined) {
    examined_as("ext", path)
}

fn reason(path: &Path, of: &str) -> String {
    match proven(path).1.verdict {
        Ok(_) => panic!("{of}: it is proven"),
        Err(doubt) => doubt.reason,
    }
}

fn fsck(path: &Path) {
    let (text, code) = exit("e2fsck", &["-fn", text(path)]);
    assert_eq!(code, 0, "{text}");
}

/// Makes an image with a tree of files in it, some of which are deleted again.
fn filled(folder: &Path, name: &str, options: &str, size: u64) -> std::path::PathBuf {
    let image = sparse(folder, name, size);
    let files = tempfile::tempdir().expect("a folder");
    tree(files.path(), size, FILES);
    let mut args: Vec<&str> = options.split(' ').collect();
    args.extend(["-q", "-F", "-L", "a label", "-d", text(files.path()), text(&image)]);
    run("mke2fs", &args);
    let commands: String = (0..200)
        .step_by(3)
        .flat_map(|number| (0..35).map(move |place| format!("rm /d{}/e{}/f{number}\n", place / 5, place % 5)))
        .collect();
    let script = folder.join("script");
    std::fs::write(&script, commands).expect("a file");
    run("debugfs", &["-w", "-f", text(&script), text(&image)]);
    image
}

#[test]
fn free_blocks_are_those_of_dumpe2fs_in_every_variant_of_mke2fs() {
    if !have(&["mke2fs", "debugfs", "dumpe2fs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for (name, options) in VARIANTS {
        // Sizes that end in the middle of a group, a cluster, a block.
        for size in [(300 << 20) + 77_777, (2 << 30) + (5 << 20) + 4096] {
            let image = filled(folder.path(), "image", options, size);
            let (source, found) = proven(&image);
            let kind = if name.starts_with("ext") { name } else { "ext4" };
            assert_eq!(
                (found.identity.kind, found.identity.label.as_deref()),
                (kind, Some("a label")),
                "{name}"
            );
            assert_eq!(found.notes, [""; 0]);
            let ours = free_ranges(volume(&found), &source);
            assert_eq!(ours, dumpe2fs(&image), "{name}, {size} bytes");
            poison(&image, &ours);
            fsck(&image);
            std::fs::remove_file(image).expect("it is there");
        }
    }
}

#[test]
fn partclone_finds_the_same_but_where_it_takes_clusters_for_blocks() {
    if !have(&["mke2fs", "debugfs", "dumpe2fs", "e2fsck", "partclone.extfs"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for (name, options) in VARIANTS {
        let image = filled(folder.path(), "image", options, (300 << 20) + 77_777);
        let (source, found) = proven(&image);
        let ours = free_ranges(volume(&found), &source);
        let theirs = partclone::free("extfs", &image);
        if name.starts_with("bigalloc") {
            // The bit of a cluster is one for all of its blocks; partclone takes it for a block's (0.3.x). dumpe2fs
            // agrees with us, and who believes partclone loses what is in use.
            assert_ne!(ours, theirs, "{name}: it has learnt it");
            assert_eq!(ours, dumpe2fs(&image), "{name}");
            fsck(&image);
            poison(&image, &theirs);
            assert_ne!(exit("e2fsck", &["-fn", text(&image)]).1, 0, "{name}");
        } else {
            assert_eq!(ours, theirs, "{name}");
        }
        std::fs::remove_file(image).expect("it is there");
    }
}

/// An image that was in use, of kernel's making: files are made and deleted on a loop device, and the file system is
/// shut down in the middle, so that the log has what the volume has not. `None` where nothing can be mounted here.
fn crashed(folder: &Path, seed: u64, options: &str, mount: &str) -> Option<std::path::PathBuf> {
    let image = sparse(folder, "crashed", 96 << 20);
    let mut args: Vec<&str> = options.split(' ').collect();
    args.extend(["-q", "-F", text(&image)]);
    run("mke2fs", &args);
    let mounted = Mounted::new(&image, mount)?;
    let mut random = Random::new(seed);
    for round in 0..2 + random.below(4) {
        tree(&mounted.at.join(format!("r{round}")), random.next(), 100_000 + random.below(3 << 20));
        if round > 0 && random.below(2) == 0 {
            std::fs::remove_dir_all(mounted.at.join(format!("r{}", round - 1))).expect("it is there");
        }
        // A block of data that looks like one of the log: with data=journal it is escaped there.
        let magic = 0xC03B_3998u32.to_be_bytes().repeat(4096);
        let mut file = std::fs::File::create(mounted.at.join("magic")).expect("a file");
        file.write_all(&magic).expect("a write");
        // That commits what was done so far, and leaves it in the log; `sync` would bring it to its place as well.
        if random.below(2) == 0 {
            file.sync_all().expect("a flush");
        }
    }
    let how = if random.below(2) == 0 { "shutdown -f" } else { "shutdown" };
    run("xfs_io", &["-x", "-c", how, text(&mounted.at)]);
    // Unmounting would write blocks in their places that only the log has now.
    let copy = folder.join("copy");
    run("cp", &["--sparse=always", text(&image), text(&copy)]);
    Some(copy)
}

/// How many images each kind of journal gets.
fn crash_images() -> u64 {
    std::env::var("LUNWAY_CRASH_IMAGES").ok().and_then(|count| count.parse().ok()).unwrap_or(3)
}

#[test]
fn a_log_is_replayed_as_the_kernel_does() {
    if !have(&["mke2fs", "dumpe2fs", "xfs_io", "mount"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (mut dirty, mut images, mut equal) = (0, 0, 0);
    for (options, mount) in [
        ("-t ext4", "rw"),
        ("-t ext4 -b 1024 -O ^64bit", "rw"),
        ("-t ext4", "data=journal"),
        ("-t ext3 -b 1024", "rw"),
        ("-t ext4 -O ^metadata_csum,^orphan_file", "rw"),
    ] {
        for seed in 0..crash_images() {
            let Some(image) = crashed(folder.path(), seed, options, mount) else { return };
            let (source, found) = proven(&image);
            let ours = free_ranges(volume(&found), &source);
            dirty += found.notes.len();
            // The next mount replays what we have read: what is free is overwritten before it.
            poison(&image, &ours);
            drop(Mounted::new(&image, "rw"));
            // A mount frees more where a deletion was under way: it ends what the list of orphans names.
            let theirs = Ranges::union(dumpe2fs(&image));
            assert!(ours.iter().all(|range| theirs.covers(range)), "{options}, {mount}, seed {seed}");
            images += 1;
            equal +=
                u64::from(ours.iter().map(|range| range.end - range.start).sum::<u64>() == theirs.total());
            fsck(&image);
            std::fs::remove_file(image).expect("it is there");
        }
    }
    assert!(dirty > 0, "no image had a log");
    assert!(equal * 4 >= images * 3, "{equal} of {images} are the kernel's to the block");
}

#[test]
fn what_a_power_cut_tore_at_the_end_of_the_log_is_no_part_of_it_as_for_the_kernel() {
    if !have(&["mke2fs", "xfs_io", "mount"]) {
        return;
    }
    const BLOCK: usize = 4096;
    let folder = tempfile::tempdir().expect("a folder");
    let Some(image) = (0..8).find_map(|seed| {
        let image = crashed(folder.path(), seed, "-t ext4 -b 4096", "rw")?;
        (!proven(&image).1.notes.is_empty()).then_some(image)
    }) else {
        return;
    };
    let (source, found) = proven(&image);
    let expected = free_ranges(volume(&found), &source);
    // The log's last commit: all of it lies in one piece.
    let bytes = std::fs::read(&image).expect("an image");
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let blocks = (0..bytes.len()).step_by(BLOCK).filter(|at| word(*at) == 0xC03B_3998);
    let (sequence, commit) = blocks
        .filter(|at| word(at + 4) == 2)
        .map(|at| (word(at + 8), at))
        .max()
        .expect("a transaction that was committed");
    // A descriptor of one block, the last, without its checksum.
    let file = std::fs::File::options().write(true).open(&image).expect("an image");
    let write = |words: &[u32], at: usize| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        file.write_all_at(&bytes, at as u64).expect("a write");
    };
    write(&[0xC03B_3998, 1, sequence + 1, 7, 8], commit + BLOCK);
    let (source, found) = proven(&image);
    assert_eq!(free_ranges(volume(&found), &source), expected);
    let copy = folder.path().join("mounted");
    run("cp", &["--sparse=always", text(&image), text(&copy)]);
    assert!(Mounted::new(&copy, "rw").is_some(), "the kernel replays it");
    // With a commit behind it the transaction is damaged.
    write(&[0xC03B_3998, 2, sequence + 1], commit + 3 * BLOCK);
    assert!(reason(&image, "a damaged transaction").contains("wrong checksum"));
}

/// What of an image is free to somebody who discards while it may be in use, and the reason where nothing is.
fn free_in_use(image: &Path) -> (u64, Option<String>) {
    let mut tree = Disk::examine(&Image::open(image), 512);
    tree.distrust(lunway_filesystem::Mounted::Untold);
    let mut free = 0;
    let given = tree.for_each_free(&Image::open(image), &mut |range| free += range.end - range.start);
    given.expect("the same disk");
    assert_eq!(free, tree.root().free);
    assert_eq!(tree.root().used + free + tree.root().unknown, tree.root().len);
    (free, tree.root().reason.clone())
}

#[test]
fn a_mounted_volume_is_told_from_one_that_is_frozen_or_unmounted() {
    if !have(&["mke2fs", "mount", "fsfreeze", "sync", "xfs_io"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for options in [
        "-t ext4",
        "-t ext4 -O ^orphan_file",
        "-t ext3 -b 1024",
        "-t ext2",
        "-t ext4 -O ^has_journal",
        "-t ext4 -O fast_commit",
    ] {
        let image = sparse(folder.path(), "image", 96 << 20);
        let mut args: Vec<&str> = options.split(' ').collect();
        args.extend(["-q", "-F", text(&image)]);
        run("mke2fs", &args);
        let unmounted = free_in_use(&image);
        assert!(unmounted.0 > 60 << 20 && unmounted.1.is_none(), "{options}: {unmounted:?}");
        let Some(mounted) = Mounted::new(&image, "rw") else { return };
        let idle = free_in_use(&image);
        tree(&mounted.at, 3, 2 << 20);
        run("sync", &["-f", text(&mounted.at)]);
        for found in [idle, free_in_use(&image)] {
            assert!(found.0 == 0 && found.1.is_some(), "{options}: {found:?}");
        }
        if run("fsfreeze", &["--freeze", text(&mounted.at)]).is_empty() {
            let frozen = free_in_use(&image);
            run("fsfreeze", &["--unfreeze", text(&mounted.at)]);
            // Without a journal ext4 has no mark that freezing would clear.
            let tells = options != "-t ext4 -O ^has_journal" && options != "-t ext2";
            assert!(!tells || frozen.0 > 60 << 20, "{options}: {frozen:?}");
        }
        assert_eq!(free_in_use(&image).0, 0, "{options}: thawed");
        drop(mounted);
        assert!(free_in_use(&image).0 > 60 << 20, "{options}");
    }
    // For a detached disk the log is replayed, and what is free then is free; a disk in use may go on.
    let Some(image) = crashed(folder.path(), 1, "-t ext4", "rw") else { return };
    assert!(volume(&proven(&image).1).free_bytes() > 0);
    let (free, reason) = free_in_use(&image);
    assert_eq!(free, 0);
    assert!(reason.is_some_and(|reason| reason.contains("mounted and not frozen")));
}

/// Makes files of `mounted` durable by fast commits (fsync alone), after a full commit.
fn commit_fast(mounted: &Mounted) {
    let file = std::fs::File::create(mounted.at.join("live")).expect("a file");
    run("sync", &["-f", text(&mounted.at)]);
    for _ in 0..4 {
        (&file).write_all(&[0xA5; 3 << 20]).expect("a write");
        file.sync_all().expect("a flush");
    }
}

#[test]
fn fast_commits_are_a_doubt_wherever_the_kernel_would_replay_them() {
    if !have(&["mke2fs", "mount", "cp", "sync"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for options in
        ["-t ext4 -O fast_commit -b 1024", "-t ext4 -O fast_commit", "-t ext4 -O fast_commit,^metadata_csum"]
    {
        let image = sparse(folder.path(), "image", 128 << 20);
        let mut args: Vec<&str> = options.split(' ').collect();
        args.extend(["-q", "-F", text(&image)]);
        run("mke2fs", &args);
        let Some(mounted) = Mounted::new(&image, "rw") else { return };
        commit_fast(&mounted);
        run("sync", &[text(&image)]);
        let crashed = folder.path().join("crashed");
        run("cp", &["--sparse=always", text(&image), text(&crashed)]);
        drop(mounted);
        let said = reason(&crashed, options);
        assert!(said.contains("fast commits"), "{options}: {said}");
        // The image was unmounted, and the next mount of the crashed one replays: nothing is left in doubt.
        for image in [&image, &crashed] {
            if image == &crashed {
                drop(Mounted::new(image, "rw"));
            }
            let (source, found) = proven(image);
            assert_eq!(free_ranges(volume(&found), &source), dumpe2fs(image), "{options}");
        }
    }
}

#[test]
fn metadata_that_lies_beyond_all_addresses_is_a_doubt() {
    if !have(&["mke2fs"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let image = sparse(folder.path(), "image", 16 << 20);
    run("mke2fs", &["-q", "-F", "-t", "ext4", "-O", "^metadata_csum,^uninit_bg", "-b", "1024", text(&image)]);
    let file = std::fs::File::options().write(true).open(&image).expect("an image");
    // Where the inode table of group 0 lies, its lower and its upper half; then the free clusters.
    for at in [0x08, 0x28, 0x0C, 0x2C] {
        let (before, of) = (std::fs::read(&image).expect("an image"), format!("field {at:#x}"));
        file.write_all_at(&[0xFF; 4], 2048 + at).expect("a write");
        let said = reason(&image, &of);
        assert!(!said.is_empty(), "{of}");
        file.write_all_at(&before[2048..4096], 2048).expect("a write");
    }
}

#[test]
fn what_changes_the_map_and_is_not_known_is_a_doubt() {
    if !have(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let fresh = |options: &str| {
        let image = sparse(folder.path(), "image", 64 << 20);
        let mut args: Vec<&str> = options.split(' ').collect();
        args.extend(["-q", "-F", text(&image)]);
        run("mke2fs", &args);
        image
    };
    for (options, command, expected) in [
        ("-t ext4", "ssv state 3", "errors"),
        ("-t ext4", "ssv state 0", "not unmounted"),
        ("-t ext2", "ssv state 0", "not unmounted"),
        ("-t ext4", "ssv feature_incompat 0x1002c2", "not known"),
        ("-t ext4", "ssv feature_ro_compat 0x8046b", "not known"),
        ("-t ext4", "ssv feature_compat 0x8003c", "compatible features that are not known"),
        ("-t ext4", "ssv error_count 1", "errors"),
        ("-t ext4", "ssv free_blocks_count 7", "superblock say"),
        ("-t ext4", "ssv journal_dev 7", "another device"),
        ("-t ext2", "set_block_group 0 free_blocks_count 7", "descriptor says 7"),
        ("-t ext2", "freeb 1", "descriptor says"),
    ] {
        let image = fresh(options);
        run("debugfs", &["-w", "-R", command, text(&image)]);
        let reason = reason(&image, command);
        assert!(reason.contains(expected), "{command}: {reason}");
    }
    // debugfs ends every use of a volume by calling it unmounted.
    let image = fresh("-t ext4 -b 4096 -O mmp");
    let file = std::fs::File::options().read(true).write(true).open(&image).expect("an image");
    let mut block = [0; 8];
    file.read_exact_at(&mut block, 1024 + 0x168).expect("a field");
    file.write_all_at(&5u32.to_le_bytes(), u64::from_le_bytes(block) * 4096 + 4).expect("a write");
    assert!(reason(&image, "mmp").contains("mounted"), "{}", reason(&image, "mmp"));
    // Larger than what it lies in.
    let image = fresh("-t ext4");
    std::fs::File::options()
        .write(true)
        .open(&image)
        .and_then(|file| file.set_len(63 << 20))
        .expect("a length");
    let reason = reason(&image, "cut");
    assert!(reason.contains("only 66060288"), "{reason}");
}

#[test]
fn a_damaged_volume_with_checksums_never_has_more_that_is_free() {
    if !have(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let image = filled(folder.path(), "image", "-t ext4 -b 1024", 40 << 20);
    let mut bytes = std::fs::read(&image).expect("an image");
    let free = |bytes: &Vec<u8>| -> Option<Vec<Range<u64>>> {
        let volume = ext::examine(bytes).ok()?.verdict.ok()?;
        Some(free_ranges(&*volume, bytes))
    };
    let sound = free(&bytes).expect("a proven map");
    let (mut random, mut doubts) = (Random::new(3), 0);
    for _ in 0..2000 {
        // Half of the places are in superblock and descriptors, the rest anywhere in the first groups.
        let end = if random.below(2) == 0 { 4096 } else { 4 << 20 };
        let at = random.below(end) as usize;
        let bit = 1 << random.below(8);
        bytes[at] ^= bit;
        match free(&bytes) {
            None => doubts += 1,
            Some(now) => assert_eq!(now, sound, "bit {bit:#x} of byte {at}"),
        }
        bytes[at] ^= bit;
    }
    assert!(doubts > 100, "{doubts}");
}

/// Where the bitmap of a group lies, by dumpe2fs.
fn bitmap_of(image: &Path, group: u64) -> u64 {
    let dump = run("dumpe2fs", &[text(image)]);
    let block: u64 = dump
        .lines()
        .find_map(|line| line.strip_prefix("Block size:"))
        .expect("a size")
        .trim()
        .parse()
        .expect("a number");
    let group = dump.split(&format!("\nGroup {group}: ")).nth(1).expect("a group");
    let at = group.split("Block bitmap at ").nth(1).expect("a bitmap");
    let digits: String = at.chars().take_while(char::is_ascii_digit).collect();
    digits.parse::<u64>().expect("a block") * block
}

#[test]
fn a_bitmap_without_checksum_that_has_a_block_of_a_file_as_free_is_not_believed() {
    if !have(&["mke2fs", "debugfs", "dumpe2fs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for options in [
        "-t ext2 -b 1024",
        "-t ext3 -b 1024",
        "-t ext2 -b 4096 -r 0",
        "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg",
        "-t ext4 -b 2048 -O ^metadata_csum,^uninit_bg,^flex_bg",
        "-t ext4 -b 1024 -O ^metadata_csum,bigalloc -C 4096",
    ] {
        let image = filled(folder.path(), "image", options, 40 << 20);
        fsck(&image);
        assert!(proven(&image).1.verdict.is_ok(), "{options}");
        let mut bytes = std::fs::read(&image).expect("an image");
        let mut random = Random::new(9);
        let (mut found, mut believed) = (0, 0);
        for group in [0, 1] {
            if group > 0 && !run("dumpe2fs", &[text(&image)]).contains("\nGroup 1:") {
                continue;
            }
            let at = bitmap_of(&image, group) as usize;
            let bits = |value: bool| -> Vec<usize> {
                (0..8000).filter(|bit| (bytes[at + bit / 8] >> (bit % 8) & 1 == 1) == value).collect()
            };
            let (used, free) = (bits(true), bits(false));
            if used.is_empty() || free.is_empty() {
                continue;
            }
            for _ in 0..30 {
                let swapped = [*random.pick(&used), *random.pick(&free)];
                let swap = |bytes: &mut Vec<u8>| {
                    swapped.iter().for_each(|bit| bytes[at + bit / 8] ^= 1 << (bit % 8));
                };
                swap(&mut bytes);
                match ext::examine(&bytes).ok().map(|found| found.verdict.is_ok()) {
                    Some(true) => believed += 1,
                    _ => found += 1,
                }
                swap(&mut bytes);
            }
        }
        assert!(found > 0 && believed == 0, "{options}: {found} found, {believed} believed");
    }
}
