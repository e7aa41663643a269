//! Disks whose power was cut while the kernel wrote them: one recording of writes and flushes, cut at many moments,
//! with any of what was not flushed lost. What is called free of each is compared with what the file system's own
//! recovery makes of it: for ext block by block with e2fsck's replay, for XFS and btrfs with their tools; and for every
//! one it is overwritten before the recovery, after which all files are the same and the checker finds nothing.
//!
//! `LUNWAY_CRASH_IMAGES` is the number of images for each variant.

#[path = "support/recorded.rs"]
mod recorded;
mod support;

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use lunway_filesystem::Ranges;
use lunway_filesystem::probe::{Found, probe};
use recorded::{Mount, cut, moments, record, store};
use support::oracle::{dump_tree, dumpe2fs, xfs_db};
use support::*;

/// Images of one recording: the next ones come from another.
const EACH_RECORDING: u64 = 50;

/// A file system, how it is made, mounted and checked.
struct Case {
    /// Program that makes it, with its options.
    make: &'static [&'static str],
    mib: u64,
    mount: Mount,
    /// Program that finds nothing wrong with a volume after its recovery.
    check: &'static [&'static str],
    /// Compares free ranges with those of the file system's tools, on an image of one's own.
    compare: fn(&Path, &[Range<u64>], &str),
    /// Asked about a volume that is left alone, with the reason.
    left_alone: fn(&Path, &str, &str),
    /// Program that mends what the driver would not mount.
    repair: &'static [&'static str],
}

/// What became of the images of one case.
#[derive(Default, Debug)]
struct Outcome {
    /// Their map was proven.
    proven: u64,
    /// Of those, how many the file system's own driver does not mount.
    unmountable: u64,
    /// Reason of a doubt: how many images.
    doubts: BTreeMap<String, u64>,
}

fn images() -> u64 {
    std::env::var("LUNWAY_CRASH_IMAGES").ok().and_then(|count| count.parse().ok()).unwrap_or(4)
}

/// Files are made, made durable, changed and deleted.
fn change(root: &Path, seed: u64, bytes: u64) {
    let mut random = Random::new(seed);
    for round in 0..6 {
        let folder = root.join(format!("r{round}"));
        tree(&folder, random.next(), bytes / 8 + random.below(bytes / 8));
        let files: Vec<PathBuf> = sums(root).into_keys().collect();
        for _ in 0..files.len() / 4 {
            let file = random.pick(&files);
            match random.below(5) {
                0 => drop(std::fs::remove_file(file)),
                1 => drop(std::fs::rename(file, root.join(format!("n{}", random.next() % 1000)))),
                2 => {
                    let opened = std::fs::File::options().write(true).open(file);
                    drop(opened.and_then(|file| file.set_len(random.below(300 << 10))));
                }
                _ => {
                    // A block that looks like one of a log: with data=journal it is escaped there.
                    let magic = 0xC03B_3998u32.to_be_bytes().repeat(1 << (4 + random.below(9)));
                    let opened = std::fs::File::options().append(true).open(file);
                    let written = opened.and_then(|mut file| file.write_all(&magic).map(|()| file));
                    if let Ok(file) = written
                        && random.once_in(2)
                    {
                        file.sync_all().expect("a flush");
                    }
                }
            }
        }
        match random.below(3) {
            0 if round > 0 => {
                let _ = std::fs::remove_dir_all(root.join(format!("r{}", round - 1)));
            }
            1 => {
                // What follows a commit and is not much is a fast commit where there are any.
                let mut file = std::fs::File::create(root.join("log")).expect("a file");
                run("sync", &["-f", text(root)]);
                for _ in 0..4 {
                    file.write_all(&[0xA5; 40_000]).expect("a write");
                    file.sync_all().expect("a flush");
                }
            }
            _ => {}
        }
    }
}

/// All files after the recovery, or what the driver says that does not mount it.
fn contents(case: &Case, image: &Path) -> Result<Readable, String> {
    let _ = exit(case.repair[0], &[&case.repair[1..], &[text(image)]].concat());
    let device = Loop::new(image).expect("a loop device, as before");
    case.mount.on(&device.0, |root| {
        let inside = |path: PathBuf| path.strip_prefix(root).expect("inside").to_owned();
        readable(root).into_iter().map(|(path, sum)| (inside(path), sum)).collect()
    })
}

fn examine(case: &Case, image: &Path, context: &str, outcome: &mut Outcome) {
    let source = Image::open(image);
    let found = match probe(&source, 512).expect("readable") {
        Found::Volume(format) => examined(&source, format.examine),
        other => return *outcome.doubts.entry(format!("{other:?}")).or_default() += 1,
    };
    let volume = match found.and_then(|found| found.verdict) {
        Ok(volume) => volume,
        Err(doubt) => {
            (case.left_alone)(image, &doubt.reason, context);
            let reason: String = doubt.reason.chars().filter(|char| !char.is_ascii_digit()).collect();
            return *outcome.doubts.entry(reason).or_default() += 1;
        }
    };
    outcome.proven += 1;
    let ours = free_ranges(&*volume, &source);
    let copy = |name: &str| {
        let copy = image.with_file_name(name);
        run("cp", &["--sparse=always", text(image), text(&copy)]);
        copy
    };
    (case.compare)(&copy("compared"), &ours, context);
    let poisoned = copy("poisoned");
    poison(&poisoned, &ours);
    let (expected, now) = (contents(case, image), contents(case, &poisoned));
    match (expected, now) {
        (Ok(expected), Ok(now)) => {
            assert!(expected == now, "{context}: other files");
            let (said, code) = exit(case.check[0], &[&case.check[1..], &[text(&poisoned)]].concat());
            assert_eq!(code, 0, "{context}: {said}");
        }
        (Err(_), Err(_)) => outcome.unmountable += 1,
        (expected, now) => panic!("{context}: {:?}, poisoned {:?}", expected.err(), now.err()),
    }
}

fn cut_at_many_moments(name: &str, case: &Case) -> Option<Outcome> {
    let mut outcome = Outcome::default();
    let total = images();
    for seed in 0..total.div_ceil(EACH_RECORDING) {
        let count = EACH_RECORDING.min(total - seed * EACH_RECORDING);
        let folder = tempfile::tempdir().expect("a folder");
        let image = sparse(folder.path(), "image", case.mib << 20);
        run(case.make[0], &[&case.make[1..], &[text(&image)]].concat());
        let recorder = record(&image, case.mount, |root| change(root, seed, case.mib << 17))?;
        let mut random = Random::new(seed ^ 0x15C0_FFEE);
        let moments = moments(count, recorder.count(), &mut random);
        recorder.each_crash(|crash| {
            for _ in moments.iter().filter(|moment| **moment == crash.done) {
                let (disk, how) = cut(crash, &mut random);
                let context =
                    format!("{name}, seed {seed}, cut {} of {}, {how}", crash.done, recorder.count());
                let image = folder.path().join("cut");
                store(&disk, &image);
                examine(case, &image, &context, &mut outcome);
            }
        });
    }
    println!("{name}: {total} images, {outcome:?}");
    Some(outcome)
}

/// e2fsck replays the journal and does no more, the kernel then ends the deletions that the list of orphans names: what
/// either calls free is free here, to the block, and nothing else where no deletion was under way.
fn compare_ext(image: &Path, ours: &[Range<u64>], context: &str) {
    let kernel = image.with_file_name("kernel");
    run("cp", &["--sparse=always", text(image), text(&kernel)]);
    let device = Loop::new(&kernel).expect("a loop device, as before");
    Mount::Kernel("rw").on(&device.0, |_| ()).unwrap_or_else(|said| panic!("{context}: {said}"));
    drop(device);
    let theirs = dumpe2fs(&kernel);
    let covered = Ranges::union(theirs.clone());
    assert!(ours.iter().all(|range| covered.covers(range)), "{context}: {ours:?}, the kernel {theirs:?}");
    // e2fsck 1.47.0 goes wrong where a log that may have fast commits has none: it ends with “Invalid argument”.
    if !run("dumpe2fs", &["-h", text(image)]).contains("fast_commit") {
        let (said, code) = exit("e2fsck", &["-y", "-E", "journal_only", text(image)]);
        assert!(code < 4, "{context}: {said}");
        assert_eq!(ours, dumpe2fs(image), "{context}: e2fsck");
        let replayed = run("dumpe2fs", &["-h", text(image)]);
        let orphans = ["First orphan inode", "orphan_present"].iter().any(|mark| replayed.contains(mark));
        assert!(orphans || ours == theirs, "{context}: {ours:?}, the kernel {theirs:?}");
    }
}

/// A log that is not replayed here: of fast commits, or one that the kernel does not replay either.
fn left_alone_ext(image: &Path, reason: &str, context: &str) {
    if !reason.contains("fast commits") {
        let device = Loop::new(image).expect("a loop device, as before");
        let mounted = Mount::Kernel("rw").on(&device.0, |_| ());
        assert!(mounted.is_err(), "{context}: the kernel mounts it, although {reason}");
    }
}

/// xfs_db counts the free lists as well.
fn compare_xfs(image: &Path, ours: &[Range<u64>], context: &str) {
    let theirs = Ranges::union(xfs_db(image));
    assert!(ours.iter().all(|range| theirs.covers(range)), "{context}");
}

fn compare_btrfs(image: &Path, ours: &[Range<u64>], context: &str) {
    assert_eq!(ours, dump_tree(image), "{context}");
}

/// A program that finds nothing and mends nothing.
const NONE: &[&str] = &["true"];
const EXT_CHECK: &[&str] = &["e2fsck", "-fn"];

fn ext(make: &'static [&'static str], options: &'static str) -> Case {
    Case {
        make,
        mib: 48,
        mount: Mount::Kernel(options),
        check: EXT_CHECK,
        compare: compare_ext,
        left_alone: left_alone_ext,
        repair: NONE,
    }
}

#[test]
fn a_log_of_ext_cut_anywhere_is_replayed_as_e2fsck_and_the_kernel_do() {
    if !have(&["mke2fs", "e2fsck", "dumpe2fs", "mount", "losetup"]) {
        return;
    }
    // A log of 4 MiB is wound around several times.
    for (name, make, options) in [
        ("ext4", &["mke2fs", "-q", "-F", "-t", "ext4", "-J", "size=4"][..], "rw"),
        ("ext4, checkpoints", &["mke2fs", "-q", "-F", "-t", "ext4", "-b", "1024", "-J", "size=1"], "rw"),
        ("ext4, data=journal", &["mke2fs", "-q", "-F", "-t", "ext4", "-J", "size=4"], "data=journal"),
        ("ext4 without 64bit", &["mke2fs", "-q", "-F", "-t", "ext4", "-O", "^64bit", "-J", "size=4"], "rw"),
        (
            "ext4 without checksums",
            &["mke2fs", "-q", "-F", "-t", "ext4", "-O", "^metadata_csum,^orphan_file", "-J", "size=4"],
            "discard",
        ),
        ("ext3", &["mke2fs", "-q", "-F", "-t", "ext3", "-b", "1024", "-J", "size=1"], "rw"),
        (
            "ext4, fast commits",
            &["mke2fs", "-q", "-F", "-t", "ext4", "-O", "fast_commit", "-J", "size=8"],
            "rw",
        ),
    ] {
        let Some(outcome) = cut_at_many_moments(name, &ext(make, options)) else { return };
        assert!(outcome.proven > 0 || name.contains("fast"), "{name}: {outcome:?}");
    }
}

#[test]
fn an_xfs_cut_anywhere_is_left_alone_unless_it_was_clean() {
    if !have(&["mkfs.xfs", "xfs_db", "xfs_repair", "mount", "losetup"]) {
        return;
    }
    for (name, make) in [
        ("XFS", &["mkfs.xfs", "-q", "-f", "--unsupported", "-d", "agcount=2"][..]),
        (
            "XFS, rmapbt and reflink",
            &["mkfs.xfs", "-q", "-f", "--unsupported", "-d", "agcount=2", "-m", "rmapbt=1,reflink=1"],
        ),
    ] {
        let case = Case {
            make,
            mib: 48,
            mount: Mount::Kernel("rw"),
            check: &["xfs_repair", "-n", "-f", "-o", "force_geometry"],
            compare: compare_xfs,
            left_alone: |_, _, _| {},
            repair: NONE,
        };
        if cut_at_many_moments(name, &case).is_none() {
            return;
        }
    }
}

#[test]
fn a_btrfs_cut_anywhere_is_free_by_the_tree_of_its_last_superblock() {
    if !have(&["mkfs.btrfs", "btrfs", "mount", "losetup"]) {
        return;
    }
    for (name, make, options) in [
        ("btrfs, logs", &["mkfs.btrfs", "-q"][..], "rw"),
        // Without logs each fsync is a commit.
        ("btrfs", &["mkfs.btrfs", "-q"], "notreelog"),
        ("btrfs, mixed", &["mkfs.btrfs", "-q", "--mixed", "-n", "4096"], "notreelog,nodiscard"),
        ("btrfs, space cache", &["mkfs.btrfs", "-q", "-R", "^free-space-tree"], "notreelog"),
    ] {
        let case = Case {
            make,
            mib: 128,
            mount: Mount::Kernel(options),
            check: &["btrfs", "check", "--check-data-csum"],
            compare: compare_btrfs,
            left_alone: |_, _, _| {},
            repair: NONE,
        };
        if cut_at_many_moments(name, &case).is_none() {
            return;
        }
    }
}

#[test]
fn an_ntfs_and_an_exfat_cut_anywhere_lose_no_file_to_what_is_called_free() {
    if !have(&["mkntfs", "ntfs-3g", "ntfsfix", "mkfs.exfat", "mount.exfat-fuse", "fsck.exfat", "losetup"]) {
        return;
    }
    let ntfs = Case {
        make: &["mkntfs", "-F", "-q", "-Q"],
        mib: 24,
        mount: Mount::Program("ntfs-3g", &["-o", "no_detach"]),
        check: NONE,
        compare: |_, _, _| {},
        left_alone: |_, _, _| {},
        repair: &["ntfsfix"],
    };
    let exfat = Case {
        make: &["mkfs.exfat"],
        mib: 24,
        mount: Mount::Program("mount.exfat-fuse", &["-d"]),
        check: NONE,
        compare: |_, _, _| {},
        left_alone: |_, _, _| {},
        repair: &["fsck.exfat", "-y"],
    };
    for (name, case) in [("NTFS", ntfs), ("exFAT", exfat)] {
        if cut_at_many_moments(name, &case).is_none() {
            return;
        }
    }
}
