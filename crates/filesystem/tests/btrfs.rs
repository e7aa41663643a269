//! btrfs as mkfs.btrfs and the kernel make it, beside `btrfs inspect-internal dump-tree`, `btrfs check`
//! and `partclone`.

mod support;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use lunway_filesystem::{Examined, Ranges, btrfs};
use support::oracle::{chunks, dump_tree, inner_nodes_and_caches, number};
use support::*;

/// Options of mkfs.btrfs.
const VARIANTS: [&str; 12] = [
    "",
    "-m single",
    "-d dup",
    "--mixed",
    "--mixed -m dup -d dup -R ^free-space-tree",
    "-n 4096",
    "-n 65536",
    "-R ^free-space-tree",
    "-O ^skinny-metadata,^no-holes -R ^free-space-tree",
    "--csum xxhash",
    "--csum sha256 -m single",
    "--csum blake2 -n 32768",
];

const TOOLS: [&str; 2] = ["mkfs.btrfs", "btrfs"];
const MIB: u64 = 1 << 20;

fn format(folder: &Path, options: &str, size: u64) -> PathBuf {
    let image = sparse(folder, "btrfs", size);
    let mut all: Vec<&str> = options.split_whitespace().collect();
    all.extend(["-q", "-L", "Köln", text(&image)]);
    run("mkfs.btrfs", &all);
    image
}

fn proven(path: &Path) -> (Image, Examined) {
    examined_as("btrfs", path)
}

fn reason(path: &Path) -> Option<String> {
    proven(path).1.verdict.err().map(|doubt| doubt.reason)
}

/// Mounts, fills, deletes, fills again, and unmounts: files in extents of all sizes, holes, a snapshot that keeps some
/// of what is deleted.
fn fill(image: &Path, seed: u64) -> Option<()> {
    let mounted = Mounted::new(image, "noatime")?;
    let root = mounted.at.join("volume");
    run("btrfs", &["-q", "subvolume", "create", text(&root)]);
    tree(&root, seed, 12 << 20);
    // Holes of one sector, more than a block group keeps as extents.
    for number in 0..2000 {
        std::fs::write(root.join(format!("small{number}")), [number as u8; 3000]).expect("a file");
    }
    run("sync", &["-f", text(&root)]);
    run("btrfs", &["-q", "subvolume", "snapshot", text(&root), text(&mounted.at.join("kept"))]);
    let files = sums(&root);
    files.keys().step_by(2).for_each(|file| std::fs::remove_file(file).expect("removed"));
    (0..2000).step_by(3).for_each(|number| {
        let _ = std::fs::remove_file(mounted.at.join(format!("kept/small{number}")));
    });
    run("sync", &["-f", text(&root)]);
    std::fs::create_dir(root.join("again")).expect("a folder");
    tree(&root.join("again"), seed + 100, 12 << 20);
    Some(())
}

fn contents(image: &Path) -> Option<Vec<(PathBuf, (u64, u32))>> {
    let mounted = Mounted::new(image, "ro")?;
    let inside = |path: PathBuf| path.strip_prefix(&mounted.at).expect("inside").to_owned();
    Some(sums(&mounted.at).into_iter().map(|(path, sum)| (inside(path), sum)).collect())
}

#[test]
fn free_is_what_no_extent_has_and_may_be_overwritten() {
    if !have(&TOOLS) || !have(&["partclone.btrfs"]) {
        return;
    }
    for (at, options) in rounds(&VARIANTS) {
        let folder = tempfile::tempdir().expect("a folder");
        // Not a whole number of MiB, nor of sectors.
        let image = format(folder.path(), options, 400 * MIB + 5 * 4096 + 512);
        if fill(&image, at as u64).is_none() {
            return;
        }
        let (source, found) = proven(&image);
        assert_eq!((found.identity.kind, found.identity.label.as_deref()), ("btrfs", Some("Köln")));
        let free = free_ranges(volume(&found), &source);
        let expected = dump_tree(&image);
        let differ = free.iter().zip(&expected).find(|(ours, theirs)| ours != theirs);
        assert_eq!((differ, free.len()), (None, expected.len()), "{options}");
        if !options.contains("^free-space-tree") {
            let tree = run("btrfs", &["inspect-internal", "dump-tree", "-t", "10", text(&image)]);
            assert!(
                tree.contains("FREE_SPACE_EXTENT") && tree.contains("FREE_SPACE_BITMAP"),
                "{options}: {tree}"
            );
        }

        let theirs = partclone::free("btrfs", &image);
        let Some(before) = contents(&image) else { return };
        poison(&image, &free);
        run("btrfs", &["check", "--check-data-csum", text(&image)]);
        assert_eq!(contents(&image), Some(before), "{options}");

        // partclone (0.3.x) counts in nodes, so it keeps more. Of the first mebibyte and of the 64 KiB of the second
        // superblock, which belong to the file system and to boot loaders, it copies the superblocks alone; of what is
        // written twice one copy; and neither the old form of the free-space cache nor some inner nodes of subvolumes.
        // dump-tree has extents at all of these, as we do. The kernel makes a new cache; but in a clone by partclone,
        // `btrfs check` finds bad tree blocks where the inner nodes were.
        let (ours, theirs) = (Ranges::union(free), Ranges::union(theirs));
        let known = inner_nodes_and_caches(&image);
        let known = Ranges::union([0..MIB, 64 * MIB..64 * MIB + (64 << 10)].into_iter().chain(known));
        let chunks = chunks(&image);
        let mut halves = 0;
        for range in theirs.as_slice() {
            ours.missing_from(range.clone(), &mut |lost| {
                known.missing_from(lost, &mut |lost| {
                    for sector in lost.step_by(4096) {
                        let copy = chunks.iter().flat_map(|chunk| chunk.copies(sector)).next();
                        let copy =
                            copy.unwrap_or_else(|| panic!("{options}: {sector}, written once, is lost"));
                        assert!(
                            !theirs.touches(&(copy..copy + 4096)),
                            "{options}: {sector} and {copy} are lost"
                        );
                        halves += 1;
                    }
                });
            });
        }
        let once = ["-m single", "--mixed"].iter().any(|word| options.contains(word));
        assert_eq!(halves > 0, !once || options.contains("dup"), "{options}");
    }
}

#[test]
fn a_copy_of_a_running_disk_has_free_what_the_next_mount_does_not_need() {
    if !have(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let image = format(folder.path(), "", 400 * MIB);
    let copy = folder.path().join("copy");
    let Some(mounted) = Mounted::new(&image, "noatime,commit=300") else { return };
    tree(&mounted.at, 1, 8 << 20);
    run("sync", &["-f", text(&mounted.at)]);
    let before: Vec<_> = sums(&mounted.at).into_values().collect();
    // These are in the kernel's memory, and may be on the disk: no commit has them.
    std::fs::write(mounted.at.join("later"), vec![7; 4 << 20]).expect("a file");
    run("cp", &["--sparse=always", text(&image), text(&copy)]);
    // An fsync goes into a log, which is in no tree.
    run("sync", &["-f", text(&mounted.at)]);
    std::fs::write(mounted.at.join("fsynced"), vec![9; 9000]).expect("a file");
    File::open(mounted.at.join("fsynced")).and_then(|file| file.sync_all()).expect("synchronised");
    let logged = folder.path().join("logged");
    run("cp", &["--sparse=always", text(&image), text(&logged)]);
    drop(mounted);

    let (source, found) = proven(&copy);
    let free = free_ranges(volume(&found), &source);
    poison(&copy, &free);
    run("btrfs", &["check", "--check-data-csum", text(&copy)]);
    let after = contents(&copy).expect("a mount");
    assert_eq!(after.into_iter().map(|(_, sum)| sum).collect::<Vec<_>>().len(), before.len());

    assert_eq!(reason(&logged).as_deref(), Some("it has a log of fsynced data from before a crash"));
    // The kernel replays it.
    drop(Mounted::new(&logged, "noatime"));
    let (source, found) = proven(&logged);
    assert_eq!(free_ranges(volume(&found), &source), dump_tree(&logged));
}

/// A volume whose bytes are changed, with sums that are right.
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

    fn u64(&self, at: u64) -> u64 {
        u64::from_le_bytes(self.bytes(at, 8).try_into().expect("8 bytes"))
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.0.write_all_at(bytes, at).expect("a write");
    }

    /// Changes a structure of `len` bytes.
    fn sealed(&self, structure: u64, len: usize, at: u64, bytes: &[u8]) {
        self.write(structure + at, bytes);
        let sum = crc32c::crc32c(&self.bytes(structure, len)[32..]);
        self.write(structure, &sum.to_le_bytes());
    }
}

/// Where the first superblock is, and the second.
const SUPERBLOCK: u64 = 64 << 10;
const MIRROR: u64 = 64 * MIB;

#[test]
fn a_volume_in_doubt_has_nothing_free_and_says_why() {
    if !have(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let image = format(folder.path(), "", 300 * MIB);
    assert_eq!(reason(&image), None);
    let patch = Patch::new(&image);
    let newer = (patch.u64(SUPERBLOCK + 0x48) + 1).to_le_bytes();
    let cases: [(u64, u64, &[u8], &str); 13] = [
        (SUPERBLOCK, 0x88, &[2], "it is spread over 2 devices"),
        (SUPERBLOCK, 0x3C, &[1], "its superblock has flags 100000000h"),
        (SUPERBLOCK, 0x38, &[5], "its superblock has flags 4h"),
        (SUPERBLOCK, 0xBC + 1, &[0x13], "it has features that are not read here (incompat 1000h)"),
        (SUPERBLOCK, 0xBC + 2, &[0x02], "it has features that are not read here (incompat 20000h)"),
        (SUPERBLOCK, 0xB4, &[0x13], "it has features that are not read here (compat_ro 10h)"),
        (SUPERBLOCK, 0x60, &[0, 0x10], "it has a log of fsynced data from before a crash"),
        (SUPERBLOCK, 0x78, &[0, 0x10, 0], "its superblock counts"),
        (SUPERBLOCK, 0xD1 + 4, &[1], "it has 4609540096 bytes, more than the 314572800"),
        (SUPERBLOCK, 0x94, &[1], "its superblock makes no sense: the size of sectors or blocks"),
        (SUPERBLOCK, 0xC6, &[8], "its superblock makes no sense: the levels of its trees"),
        (SUPERBLOCK, 0x50, &[0, 0x10], "the block "),
        (MIRROR, 0x48, &newer, "its superblock at 67108864 is newer than its first"),
    ];
    for (superblock, at, bytes, expected) in cases {
        let before = patch.bytes(superblock, 4096);
        patch.sealed(superblock, 4096, at, bytes);
        let said = reason(&image).unwrap_or_default();
        assert!(said.starts_with(expected), "{expected}: {said}");
        patch.write(superblock, &before);
    }
    // A mirror of another file system, or of an older commit, means nothing; a damaged first superblock does.
    let before = patch.bytes(MIRROR, 4096);
    patch.sealed(MIRROR, 4096, 0x20, &[1, 2, 3, 4]);
    assert_eq!(reason(&image), None);
    patch.write(MIRROR, &before);
    patch.sealed(MIRROR, 4096, 0x48, &[1]);
    assert_eq!(reason(&image), None);
    patch.write(SUPERBLOCK + 0x900, &[1]);
    let doubt = examined(&Image::open(&image), btrfs::examine).err().expect("no identity");
    assert_eq!(doubt.reason, "its first superblock is damaged");
}

/// Where the copies of a block are, by `btrfs inspect-internal map-logical`, with its bytes.
fn copies(image: &Path, block: u64) -> Vec<u64> {
    let said = run("btrfs-map-logical", &["-l", &block.to_string(), text(image)]);
    said.lines().map(|line| number(line, "physical")).collect()
}

/// The root block of a tree.
fn root(image: &Path, tree: &str) -> u64 {
    let said = run("btrfs", &["inspect-internal", "dump-tree", "-t", tree, text(image)]);
    number(said.lines().find(|line| line.starts_with("leaf ")).expect("a leaf"), "leaf")
}

#[test]
fn a_damaged_block_is_read_from_its_second_copy_and_sums_that_differ_are_doubted() {
    if !have(&TOOLS) || lunway_foreign::program("btrfs-map-logical").is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let image = format(folder.path(), "", 300 * MIB);
    let sound = volume(&proven(&image).1).free_bytes();
    let patch = Patch::new(&image);
    let places = copies(&image, root(&image, "extent"));
    assert_eq!(places.len(), 2);
    let before = patch.bytes(places[0], 16384);
    patch.write(places[0] + 300, &[0x55; 16]);
    assert_eq!(volume(&proven(&image).1).free_bytes(), sound);
    patch.write(places[1] + 301, &[0x55; 16]);
    assert!(reason(&image).is_some_and(|reason| reason.ends_with("of its trees is damaged")));
    for place in &places {
        patch.write(*place, &before);
    }
    assert_eq!(reason(&image), None);

    // An extent that is missing in the tree is missing in its group's sum: keys of leaves are at 101 + 25 n.
    let key = (0..).map(|at| 101 + at * 25).find(|at| before[at + 8] == 169).expect("a metadata item");
    for place in &places {
        patch.sealed(*place, 16384, key as u64 + 8, &[170]);
    }
    let said = reason(&image).unwrap_or_default();
    assert!(said.contains("differ in the block group at"), "{said}");
    // The same without a free space tree.
    patch.sealed(SUPERBLOCK, 4096, 0xB4, &[0]);
    let said = reason(&image).unwrap_or_default();
    assert!(said.contains("bytes are used, and its extents say something else"), "{said}");
}

#[test]
fn superblocks_are_kept_wherever_they_lie() {
    if !have(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let image = format(folder.path(), "", 300 << 30);
    let (source, found) = proven(&image);
    let free = free_ranges(volume(&found), &source);
    assert_eq!(
        volume(&found).metadata().as_slice(),
        [0..MIB, 64 * MIB..64 * MIB + (64 << 10), 256 << 30..(256 << 30) + (64 << 10)]
    );
    assert!(free.iter().any(|range| range.start == (256 << 30) + (64 << 10)), "{free:?}");
    poison(&image, &free);
    run("btrfs", &["check", "--check-data-csum", text(&image)]);
}
