//! Disks whose every free byte is overwritten before they are compacted: all their files are what they were, read by
//! the file systems' own tools, which find nothing wrong.

#[path = "../../filesystem/tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use lunway_compact::{Mode, Plan, drop_dead, estimate};
use lunway_crash::MemoryStorage;
use lunway_vhdx::check::check;
use lunway_vhdx::format::{Guid, MIB};
use lunway_vhdx::pack::pack;
use lunway_vhdx::{
    Chain, CreateOptions, Disk, DiskKind, Storage, VhdxOpenOptions, create, divide_blocks, pack_metadata,
};
use support::fuse::Fuse;
use support::*;

/// Which tool makes a disk, fills it, and reads it.
#[derive(Clone, Copy, Debug)]
enum Format {
    /// mke2fs with these options.
    Ext(&'static str),
    /// mkfs.fat: width, sectors of a cluster, MiB.
    Fat(&'static str, &'static str, u64),
    /// mkntfs: bytes of a cluster.
    Ntfs(&'static str),
    /// The same, filled by ntfs-3g, which also deletes.
    Ntfs3g(&'static str),
    /// mkfs.exfat: bytes of a cluster; filled by exfat-fuse.
    Exfat(&'static str),
    /// mkfs.xfs with these options; filled by the kernel.
    Xfs(&'static str),
    /// mkfs.btrfs with these options, MiB; filled by the kernel.
    Btrfs(&'static str, u64),
}

const FORMATS: [Format; 16] = [
    Format::Ext("-t ext4"),
    Format::Fat("12", "8", 8),
    Format::Ext("-t ext4 -b 4096"),
    Format::Ext("-t ext2"),
    Format::Fat("16", "2", 12),
    Format::Ext("-t ext3 -b 1024"),
    Format::Ext("-t ext4 -O bigalloc -C 16384 -b 1024"),
    Format::Ntfs("4096"),
    Format::Ext("-t ext4 -O meta_bg,^resize_inode -b 1024 -g 2048"),
    Format::Fat("32", "1", 40),
    Format::Ext("-t ext4 -O ^flex_bg -b 1024"),
    Format::Ext("-t ext4 -O ^metadata_csum,uninit_bg"),
    Format::Fat("16", "1", 9),
    Format::Ext("-t ext4 -O sparse_super2 -b 2048"),
    Format::Ntfs("1024"),
    Format::Ext("-t ext4 -O ^64bit -b 1024 -I 128"),
];

/// Formats that have to be mounted to be filled, which takes root, and time: one disk in [`MOUNTED_EACH`].
const MOUNTED: [Format; 6] = [
    Format::Ntfs3g("4096"),
    // Below 300 MiB mkfs.xfs has to be told that nobody supports it.
    Format::Xfs("--unsupported -d agcount=2"),
    Format::Exfat("4K"),
    Format::Btrfs("--mixed -n 4096", 48),
    Format::Xfs("--unsupported -d agcount=2 -m rmapbt=0,reflink=0"),
    Format::Btrfs("-n 4096", 128),
];
const MOUNTED_EACH: u64 = 8;

const TOOLS: [&str; 19] = [
    "mke2fs",
    "debugfs",
    "e2fsck",
    "mkfs.fat",
    "mcopy",
    "mdel",
    "fsck.fat",
    "mkntfs",
    "ntfscp",
    "ntfscat",
    "ntfsfix",
    "ntfs-3g",
    "mkfs.exfat",
    "mount.exfat-fuse",
    "fsck.exfat",
    "mkfs.xfs",
    "xfs_repair",
    "mkfs.btrfs",
    "btrfs",
];

/// Which disk has which format.
fn format(seed: u64) -> Format {
    if seed % MOUNTED_EACH == MOUNTED_EACH - 1 {
        MOUNTED[(seed / MOUNTED_EACH) as usize % MOUNTED.len()]
    } else {
        FORMATS[seed as usize % FORMATS.len()]
    }
}

/// Does something with the files of an image that has to be mounted; `None`, noted, where that is not allowed here.
fn mounted<T>(format: Format, image: &Path, options: &str, work: impl FnOnce(&Path) -> T) -> Option<T> {
    Some(match format {
        Format::Ntfs3g(_) => {
            let mount = Fuse::mount("ntfs-3g", &["-o", "no_detach"], image)?;
            let done = work(mount.at());
            mount.close();
            done
        }
        Format::Exfat(_) => {
            let device = Loop::new(image)?;
            let mount = Fuse::mount("mount.exfat-fuse", &["-d"], &device.0)?;
            let done = work(mount.at());
            mount.close();
            done
        }
        _ => work(&Mounted::new(image, options)?.at),
    })
}

/// How many disks there are.
fn disks() -> u64 {
    std::env::var("LUNWAY_POISONED_DISKS").ok().and_then(|count| count.parse().ok()).unwrap_or(32)
}

/// Runs a tool that reads commands.
fn told(program: &str, args: &[&str], commands: &str) {
    let path = lunway_foreign::program(program).unwrap_or_else(|| program.into());
    let mut command = Command::new(path);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("it starts");
    child.stdin.take().expect("a pipe").write_all(commands.as_bytes()).expect("it listens");
    assert!(child.wait().expect("it ends").success(), "{program} {args:?}");
}

/// A disk that was filled, of which a third was deleted, and that was filled again.
struct Made {
    folder: tempfile::TempDir,
    format: Format,
    seed: u64,
}

impl Made {
    /// `None`, noted, where the disk would have to be mounted, and cannot be here.
    fn new(format: Format, seed: u64) -> Option<Self> {
        let made = Self { folder: tempfile::tempdir().expect("a folder"), format, seed };
        let (first, second) = (made.folder.path().join("first"), made.folder.path().join("second"));
        let mib = match format {
            Format::Ext(_) => 6 + seed % 7,
            Format::Fat(_, _, mib) => mib,
            Format::Ntfs(_) => 6 + seed % 5,
            Format::Ntfs3g(_) | Format::Exfat(_) => 12 + seed / 8 % 5,
            Format::Xfs(_) => 40 + seed / 8 % 5,
            Format::Btrfs(_, mib) => mib + seed / 8 % 5,
        };
        let image = sparse(made.folder.path(), "image", mib << 20);
        let bytes = (mib << 20) / 4;
        tree(&first, seed, bytes);
        tree(&second, seed + 1_000_000, bytes / 2);
        let deleted: Vec<_> = sums(&first).into_keys().step_by(3).collect();
        let inside = |path: &Path| text(path.strip_prefix(&first).expect("inside")).to_owned();
        match format {
            Format::Ext(options) => {
                let mut args: Vec<&str> = options.split(' ').collect();
                args.extend(["-q", "-F", "-d", text(&first), text(&image)]);
                run("mke2fs", &args);
                let mut commands: String =
                    deleted.iter().map(|file| format!("rm {}\n", inside(file))).collect();
                for (number, file) in sums(&second).into_keys().enumerate() {
                    commands += &format!("write {} again{number}\n", file.display());
                }
                told("debugfs", &["-w", text(&image)], &commands);
            }
            Format::Fat(width, cluster, _) => {
                run("mkfs.fat", &["-F", width, "-s", cluster, text(&image)]);
                run("mcopy", &["-s", "-Q", "-o", "-i", text(&image), text(&first), "::"]);
                for file in &deleted {
                    run("mdel", &["-i", text(&image), &format!("::first/{}", inside(file))]);
                }
                run("mcopy", &["-s", "-Q", "-o", "-i", text(&image), text(&second), "::"]);
            }
            Format::Ntfs(cluster) => {
                run("mkntfs", &["-F", "-q", "-c", cluster, text(&image)]);
                for (number, file) in sums(&second).into_keys().take(5).enumerate() {
                    run("ntfscp", &["-q", text(&image), text(&file), &format!("file{number}")]);
                }
            }
            Format::Ntfs3g(_) | Format::Exfat(_) | Format::Xfs(_) | Format::Btrfs(..) => {
                let (program, options) = match format {
                    Format::Exfat(cluster) => ("mkfs.exfat", format!("-c {cluster}")),
                    Format::Xfs(options) => ("mkfs.xfs", format!("-q -f {options}")),
                    Format::Btrfs(options, _) => ("mkfs.btrfs", format!("-q {options}")),
                    Format::Ntfs3g(cluster) => ("mkntfs", format!("-F -q -c {cluster}")),
                    _ => unreachable!("formats of tools that fill images"),
                };
                let mut args: Vec<&str> = options.split(' ').collect();
                args.push(text(&image));
                run(program, &args);
                // Each half is written before the next begins, so that it lies on the disk.
                mounted(format, &image, "rw", |root| tree(&root.join("first"), seed, bytes))?;
                mounted(format, &image, "rw", |root| {
                    let all: Vec<_> = sums(root).into_keys().step_by(3).collect();
                    all.iter().for_each(|file| std::fs::remove_file(file).expect("removed"));
                    tree(&root.join("second"), seed + 1_000_000, bytes / 2);
                })?;
            }
        }
        Some(made)
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    /// All files and their sums, after the tool that checks has found nothing.
    fn contents(&self, image: &Path) -> BTreeMap<PathBuf, (u64, u32)> {
        let out = tempfile::tempdir().expect("a folder");
        match self.format {
            Format::Ext(_) => {
                run("e2fsck", &["-fn", text(image)]);
                run("debugfs", &["-R", &format!("rdump / {}", text(out.path())), text(image)]);
            }
            Format::Fat(..) => {
                run("fsck.fat", &["-n", text(image)]);
                run("mcopy", &["-s", "-Q", "-n", "-i", text(image), "::*", text(out.path())]);
            }
            Format::Ntfs3g(_) | Format::Exfat(_) | Format::Xfs(_) | Format::Btrfs(..) => {
                match self.format {
                    Format::Exfat(_) => run("fsck.exfat", &["-n", text(image)]),
                    Format::Xfs(_) => run("xfs_repair", &["-n", "-f", "-o", "force_geometry", text(image)]),
                    Format::Btrfs(..) => run("btrfs", &["check", "--check-data-csum", text(image)]),
                    _ => run("ntfsfix", &["-n", text(image)]),
                };
                let found = mounted(self.format, image, "ro", |root| {
                    let inside = |path: PathBuf| path.strip_prefix(root).expect("inside").to_owned();
                    sums(root).into_iter().map(|(path, sum)| (inside(path), sum)).collect::<BTreeMap<_, _>>()
                });
                let found = found.expect("it was mounted before");
                assert!(!found.is_empty(), "{:?} {}", self.format, self.seed);
                return found;
            }
            Format::Ntfs(_) => {
                run("ntfsfix", &["-n", text(image)]);
                for number in 0..5 {
                    let program = lunway_foreign::program("ntfscat").expect("ntfscat");
                    let said = Command::new(program).arg(image).arg(format!("file{number}")).output();
                    std::fs::write(out.path().join(format!("{number}")), said.expect("ntfscat").stdout)
                        .expect("a file");
                }
            }
        }
        let inside = |path: PathBuf| path.strip_prefix(out.path()).expect("inside").to_owned();
        let found: BTreeMap<_, _> =
            sums(out.path()).into_iter().map(|(path, sum)| (inside(path), sum)).collect();
        assert!(!found.is_empty(), "{:?} {}: {found:?}", self.format, self.seed);
        found
    }
}

/// GUIDs of one opening, of which no two have the same.
fn guids(seed: u64) -> Box<dyn lunway_vhdx::format::GuidSource> {
    let mut random = Random::new(seed);
    Box::new(move || {
        let mut bytes = [0; 16];
        random.fill(&mut bytes);
        Guid::from_random(bytes)
    })
}

fn open(storage: &Arc<MemoryStorage>, writable: bool, seed: u64) -> Disk<Arc<MemoryStorage>> {
    let options = if writable { VhdxOpenOptions::writable() } else { VhdxOpenOptions::read_only() };
    Disk::open(storage.clone(), &options, guids(seed)).expect("it opens")
}

/// Gives the free ranges of a disk new bytes, all of them.
fn poison(chain: &Chain<Arc<MemoryStorage>>, seed: u64) -> u64 {
    let mut random = Random::new(seed);
    let mut free: Vec<Range<u64>> = Vec::new();
    let plan = Plan::new(chain);
    let mut bytes = vec![0; chain.size() as usize];
    chain.read_at(0, &mut bytes).expect("a read");
    plan.tree.for_each_free(&bytes, &mut |range| free.push(range)).expect("a proven map");
    let mut poisoned = 0;
    for range in free {
        // Whole sectors: what a disk writes.
        let (mut at, end) = (range.start.next_multiple_of(512), range.end / 512 * 512);
        while at < end {
            let mut piece = vec![0; (end - at).min(MIB) as usize];
            random.fill(&mut piece);
            chain.write_at(at, &piece).expect("a write");
            at += piece.len() as u64;
            poisoned += piece.len() as u64;
        }
    }
    poisoned
}

#[test]
fn compaction_of_disks_full_of_poison_leaves_every_file_as_it_was() {
    if !have(&TOOLS) {
        return;
    }
    let (mut poisoned, mut before, mut after) = (0, 0, 0);
    let mut done = 0;
    // Those from another number on are other disks: runs of days go on where the last one ended.
    let first: u64 =
        std::env::var("LUNWAY_POISONED_FIRST").ok().and_then(|first| first.parse().ok()).unwrap_or(0);
    for seed in first..first + disks() {
        let Some(made) = Made::new(format(seed), seed) else { continue };
        done += 1;
        let context = format!("{:?}, disk {seed}", made.format);
        let contents = made.contents(&made.image());
        let bytes = std::fs::read(made.image()).expect("an image");
        let storage = Arc::new(MemoryStorage::default());
        let mut options = CreateOptions::new(DiskKind::Dynamic, bytes.len() as u64, Guid::from_digits(5));
        let mut random = Random::new(seed);
        options.parameters.block_size = (MIB << random.below(3)) as u32;
        create(&storage, &options, guids(seed).as_mut()).expect("a file");
        let chain = Chain::new(vec![open(&storage, true, seed + 1)]).expect("a chain");
        chain.write_at(0, &bytes).expect("a write");
        let here = poison(&chain, seed);
        assert!(here > bytes.len() as u64 / 64, "{context}: {here} of {} are free", bytes.len());
        poisoned += here;
        chain.close().expect("a close");
        before += Storage::len(&storage).expect("memory");

        let block = if random.below(2) == 0 { MIB as u32 } else { options.parameters.block_size };
        let mode = [Mode::Live, Mode::Live, Mode::Full, Mode::Quick][random.below(4) as usize];
        let chain = Chain::new(vec![open(&storage, false, seed + 2)]).expect("a chain");
        let go_on = &mut |_| ControlFlow::Continue(());
        let estimates = estimate(&chain, &Plan::new(&chain), block, go_on).expect("an estimate");
        drop(chain);
        divide_blocks(&storage, block, guids(seed + 3).as_mut()).expect("smaller blocks");
        let chain = Chain::new(vec![open(&storage, true, seed + 4)]).expect("a chain");
        let plan = Plan::new(&chain);
        drop_dead(&chain, &plan, mode, &mut |_| ControlFlow::Continue(())).expect("it is dropped");
        chain.close().expect("a close");
        pack_metadata(&storage, guids(seed + 5).as_mut()).expect("metadata moves");
        let disk = open(&storage, true, seed + 6);
        pack(&disk, &mut |_| ControlFlow::Continue(())).expect("blocks move");
        disk.close().expect("a close");
        assert_eq!(check(&storage).findings, [], "{context}");
        let len = Storage::len(&storage).expect("memory");
        let expected = estimates.into_iter().flatten().find(|estimate| estimate.mode == mode);
        assert_eq!(expected.map(|estimate| estimate.after), Some(len), "{context}: {mode:?}");
        after += len;

        let mut compacted = vec![0; bytes.len()];
        let chain = Chain::new(vec![open(&storage, false, seed + 7)]).expect("a chain");
        chain.read_at(0, &mut compacted).expect("a read");
        let image = made.folder.path().join("compacted");
        std::fs::write(&image, compacted).expect("an image");
        assert!(made.contents(&image) == contents, "{context}");
    }
    println!("{done} disks, {poisoned} bytes poisoned, {before} bytes of files before, {after} after");
}
