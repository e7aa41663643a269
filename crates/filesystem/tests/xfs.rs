//! XFS as mkfs.xfs and the kernel make it, beside `xfs_db`, `xfs_repair` and `partclone`.

mod support;

use std::ops::Range;
use std::path::{Path, PathBuf};

use lunway_filesystem::{Examined, Ranges, xfs};
use support::oracle::xfs_db;
use support::*;

/// What mkfs.xfs can make.
const VARIANTS: [&str; 7] = [
    "-m crc=1",
    "-m crc=0,finobt=0",
    "-m crc=1,rmapbt=1,reflink=1",
    "-m crc=1,finobt=0 -i sparse=0",
    "-b size=1024",
    "--unsupported -d agcount=7 -s size=4096 -l size=10m",
    "--unsupported -m bigtime=1,inobtcount=1 -d agsize=64m -l size=10m",
];

/// The size of the images: the smallest that mkfs.xfs makes is 300 MiB; the last group is shorter.
const SIZE: u64 = (400 << 20) + 36864;

/// How many bytes are in the free lists of all groups, by xfs_db.
fn free_lists(image: &Path) -> u64 {
    let number = |commands: &[&str]| -> u64 {
        let mut args = vec!["-r"];
        args.extend(commands.iter().flat_map(|command| ["-c", command]));
        args.push(text(image));
        run("xfs_db", &args).rsplit(' ').next().and_then(|value| value.trim().parse().ok()).expect("a number")
    };
    let (block, groups) = (number(&["sb 0", "p blocksize"]), number(&["sb 0", "p agcount"]));
    (0..groups).map(|group| number(&[&format!("agf {group}"), "p flcount"])).sum::<u64>() * block
}

fn made(folder: &Path, options: &str) -> PathBuf {
    let image = sparse(folder, "image", SIZE);
    let mut args: Vec<&str> = options.split(' ').collect();
    args.extend(["-q", "-f", "-L", "a label", text(&image)]);
    run("mkfs.xfs", &args);
    image
}

fn found(path: &Path) -> (Image, Examined) {
    let (image, found) = examined_as("XFS", path);
    assert_eq!((found.identity.kind, found.identity.label.as_deref()), ("XFS", Some("a label")));
    (image, found)
}

/// A file system into which mkfs.xfs copied a tree: for kernels that do not mount what the options make.
fn populated(folder: &Path, options: &str, seed: u64) -> PathBuf {
    let source = folder.join("source");
    tree(&source, seed, 12 << 20);
    // xfs protofile: a boot block, blocks and inodes (0: the defaults), then the root; `$` ends a folder.
    let mut proto = "/dev/null\n0 0\nd--755 0 0\n".to_owned();
    entries(&source, &mut proto);
    proto.push_str("$\n");
    let list = folder.join("proto");
    std::fs::write(&list, proto).expect("a file");
    let image = made(folder, &format!("{options} -p {}", text(&list)));
    std::fs::remove_dir_all(source).expect("it is there");
    image
}

/// The lines of a protofile for all that a folder holds.
fn entries(folder: &Path, proto: &mut String) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8");
        let kind = std::fs::symlink_metadata(&path).expect("metadata").file_type();
        if kind.is_dir() {
            proto.push_str(&format!("{name} d--755 0 0\n"));
            entries(&path, proto);
            proto.push_str("$\n");
        } else if kind.is_symlink() {
            let target = std::fs::read_link(&path).expect("a link");
            proto.push_str(&format!("{name} l--777 0 0 {}\n", text(&target)));
        } else {
            proto.push_str(&format!("{name} ---644 0 0 {}\n", text(&path)));
        }
    }
}

/// Files are made, fragmented, deleted and cloned.
fn used(at: &Path, seed: u64) {
    tree(&at.join("one"), seed, 12 << 20);
    tree(&at.join("two"), seed + 1, 12 << 20);
    std::fs::remove_dir_all(at.join("one/d3")).expect("it is there");
    let mut number = 0;
    for (path, _) in sums(&at.join("two")) {
        number += 1;
        if number % 3 == 0 {
            std::fs::remove_file(path).expect("it is there");
        } else if number % 7 == 0 {
            // Where it cannot be cloned it is copied.
            let _ = exit("cp", &["--reflink=auto", text(&path), text(&at.join(format!("clone{number}")))]);
        }
    }
}

#[test]
fn free_blocks_are_those_of_xfs_db_in_every_variant_of_mkfs() {
    if !have(&["mkfs.xfs", "xfs_db", "xfs_repair", "mount", "partclone.xfs"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for (seed, options) in VARIANTS.into_iter().enumerate() {
        let mut image = made(folder.path(), options);
        for filled in [false, true] {
            let mut before = None;
            if filled {
                if let Some(mounted) = Mounted::new(&image, "rw") {
                    used(&mounted.at, seed as u64);
                    before = Some(sums(&mounted.at).into_values().collect::<Vec<_>>());
                } else {
                    image = populated(folder.path(), options, seed as u64);
                }
            }
            let (source, found) = found(&image);
            let volume = found.verdict.unwrap_or_else(|doubt| panic!("{options}: {doubt:?}"));
            let ours = free_ranges(&*volume, &source);
            // xfs_db counts the free lists, whose blocks the trees will need.
            let theirs = Ranges::union(xfs_db(&image));
            assert!(ours.iter().all(|range| theirs.covers(range)), "{options}, filled: {filled}");
            let lists = free_lists(&image);
            assert_eq!(theirs.total() - lists, volume.free_bytes(), "{options}, filled: {filled}");
            // partclone does not copy the blocks of the free lists: nothing is in them. To us they are used, as they
            // are to the kernel, which counts them apart.
            assert_eq!(Ranges::union(partclone::free("xfs", &image)), theirs, "{options}, filled: {filled}");
            poison(&image, &ours);
            run("xfs_repair", &["-n", text(&image)]);
            if let Some(before) = before {
                let mounted = Mounted::new(&image, "ro").expect("it was mounted before");
                assert_eq!(sums(&mounted.at).into_values().collect::<Vec<_>>(), before, "{options}");
            }
        }
        std::fs::remove_file(image).expect("it is there");
    }
}

#[test]
fn a_volume_that_was_not_unmounted_is_a_doubt() {
    if !have(&["mkfs.xfs", "xfs_io", "xfs_freeze", "xfs_logprint", "mount"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let image = made(folder.path(), "--unsupported -l size=10m");
    let refused = |how: &str| {
        let doubt = found(&image).1.verdict.err().unwrap_or_else(|| panic!("{how}: it is proven"));
        assert!(doubt.reason.contains("log"), "{how}: {doubt:?}");
    };
    for round in 0..8 {
        let Some(mounted) = Mounted::new(&image, "rw") else { return };
        tree(&mounted.at.join(format!("r{round}")), round, 1 << 20);
        // Round by round over the ring's end: a log of 10 MiB is full after some thousand files.
        for file in 0..4000 {
            std::fs::write(mounted.at.join(format!("{round}.{file}")), "").expect("a file");
        }
        run("sync", &["-f", text(&mounted.at)]);
        refused("mounted");
        run("xfs_freeze", &["-f", text(&mounted.at)]);
        refused("frozen");
        run("xfs_freeze", &["-u", text(&mounted.at)]);
        if round % 2 == 0 {
            run("xfs_io", &["-x", "-c", "shutdown -f", text(&mounted.at)]);
            drop(mounted);
            refused("shut down");
            drop(Mounted::new(&image, "rw"));
        } else {
            drop(mounted);
        }
        if let Err(doubt) = found(&image).1.verdict {
            panic!("unmounted, round {round}: {doubt:?}");
        }
    }
    let log = run("xfs_logprint", &["-t", text(&image)]);
    assert!(!log.contains("cycle: 1 "), "the log has not come round: {log}");
}

#[test]
fn a_damaged_volume_with_checksums_never_has_more_that_is_free() {
    if !have(&["mkfs.xfs"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut bytes = std::fs::read(made(folder.path(), "-d agcount=2")).expect("an image");
    let free = |bytes: &Vec<u8>| -> Option<Vec<Range<u64>>> {
        let volume = xfs::examine(bytes).ok()?.verdict.ok()?;
        Some(free_ranges(&*volume, bytes))
    };
    let sound = free(&bytes).expect("a proven map");
    let (mut random, mut doubts) = (Random::new(5), 0);
    for _ in 0..300 {
        // Headers, and the first blocks of the trees.
        let at = random.below(32 << 10) as usize;
        let bit = 1 << random.below(8);
        bytes[at] ^= bit;
        match free(&bytes) {
            None => doubts += 1,
            Some(now) => assert_eq!(now, sound, "bit {bit:#x} of byte {at}"),
        }
        bytes[at] ^= bit;
    }
    assert!(doubts > 50, "{doubts}");
}
