//! `lunway disk inside`, on disks that other tools and Windows have made.
#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

mod support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lunway_foreign::program;
use serde_json::Value;
use support::{PATIENCE, finish, lunway, succeed};

const MIB: u64 = 1 << 20;

/// What is in a disk, after what must hold of every part: all its bytes are used, free or unknown.
fn inside(device: &str) -> Value {
    let tree: Value = serde_json::from_str(&succeed(lunway(&["disk", "inside", device, "--json"]))).unwrap();
    fn check(node: &Value) {
        let [bytes, used, free, dead, unknown] =
            ["bytes", "used", "free", "dead", "unknown"].map(|field| node[field].as_u64().unwrap());
        assert_eq!(used + free + unknown, bytes, "{node}");
        assert!(dead <= free, "{node}");
        node["children"].as_array().unwrap().iter().for_each(check);
    }
    check(&tree);
    tree
}

/// Kind, used and free bytes of all volumes, in order.
fn volumes(tree: &Value) -> Vec<(String, u64, u64)> {
    let mut all = Vec::new();
    fn add(node: &Value, all: &mut Vec<(String, u64, u64)>) {
        let children = node["children"].as_array().unwrap();
        if children.is_empty() {
            let kind = node["kind"].as_str().unwrap_or("-").to_owned();
            all.push((kind, node["used"].as_u64().unwrap(), node["free"].as_u64().unwrap()));
        }
        children.iter().for_each(|child| add(child, all));
    }
    add(tree, &mut all);
    all
}

fn run(program: &Path, args: &[&str], input: &str) {
    let mut command = Command::new(program);
    let mut child = command.args(args).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{program:?} {args:?}");
}

/// A raw disk with a table that sfdisk makes by `script`.
fn partitioned(folder: &Path, size: u64, script: &str) -> Option<String> {
    let path = folder.join("disk.img").to_str().unwrap().to_owned();
    File::create(&path).unwrap().set_len(size).unwrap();
    run(&program("sfdisk")?, &["-q", &path], script);
    Some(path)
}

#[test]
fn partitions_of_gpt_and_mbr_are_shown_with_what_is_in_them() {
    let (Some(mke2fs), Some(mkswap)) = (program("mke2fs"), program("mkswap")) else { return };
    let folder = tempfile::tempdir().unwrap();
    let gpt = "label: gpt\nstart=1MiB, size=40MiB, name=root\nsize=20MiB\nsize=8MiB\nsize=4MiB\n";
    let mbr = "label: dos\nstart=1MiB, size=40MiB\ntype=5\nsize=20MiB\nsize=8MiB\nsize=4MiB\n";
    for (script, table, logical) in [(gpt, "GPT", 0), (mbr, "MBR", 2048)] {
        let Some(path) = partitioned(folder.path(), 100 * MIB, script) else { return };
        run(&mke2fs, &["-q", "-F", "-t", "ext4", "-E", "offset=1048576", &path, "40M"], "");
        // What mkswap made goes where sfdisk has put the second partition.
        let tree = inside(&path);
        assert_eq!((tree["kind"].as_str(), tree["children"].as_array().unwrap().len()), (Some(table), 4));
        let swap = folder.path().join("swap");
        File::create(&swap).unwrap().set_len(20 * MIB).unwrap();
        run(&mkswap, &["-q", swap.to_str().unwrap()], "");
        let at = |number: usize| tree["children"][number]["offset"].as_u64().unwrap();
        assert_eq!(at(1), (41 << 20) + logical * 512, "{table}");
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&fs::read(&swap).unwrap(), at(1)).unwrap();
        file.write_all_at(b"LUKS\xBA\xBE\0\x02", at(2)).unwrap();
        let tree = inside(&path);
        let found = volumes(&tree);
        assert_eq!(
            found.iter().map(|volume| volume.0.as_str()).collect::<Vec<_>>(),
            ["ext4", "swap", "LUKS", "-"]
        );
        assert!(found[0].2 > 30 * MIB && found[0].1 + found[0].2 == 40 * MIB, "{found:?}");
        assert_eq!(found[1].1, 4096);
        assert_eq!((found[2].2, found[3].2), (0, 0), "unknown is not free");
        assert!(tree["children"][2]["reason"].as_str().unwrap().contains("encrypted"));
        let text = succeed(lunway(&["disk", "inside", &path]));
        assert!(text.contains("WHAT") && text.contains("it is encrypted"), "{text}");
        let page = folder.path().join("page.html");
        succeed(lunway(&["disk", "inside", &path, "--html-file", page.to_str().unwrap()]));
        assert!(fs::read_to_string(&page).unwrap().contains("never written: "));
    }
}

#[test]
fn two_formats_on_one_volume_and_broken_tables_are_used() {
    let (Some(mke2fs), Some(mkswap)) = (program("mke2fs"), program("mkswap")) else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img").to_str().unwrap().to_owned();
    File::create(&path).unwrap().set_len(64 * MIB).unwrap();
    run(&mkswap, &["-q", &path], "");
    let swap = inside(&path);
    assert_eq!((swap["kind"].as_str(), swap["used"].as_u64()), (Some("swap"), Some(4096)));
    let mut page = [0; 10];
    let file = File::options().read(true).write(true).open(&path).unwrap();
    file.read_exact_at(&mut page, 4086).unwrap();
    run(&mke2fs, &["-q", "-F", &path], "");
    assert_eq!(inside(&path)["kind"], "ext2");
    file.write_all_at(&page, 4086).unwrap();
    let both = inside(&path);
    assert_eq!(both["free"], 0);
    assert!(both["reason"].as_str().unwrap().contains("ext and swap at once"), "{both}");
    drop(file);

    // Both copies of a GPT, then one, then none; then two that do not agree.
    let script = "label: gpt\nstart=1MiB, size=40MiB\n";
    let Some(path) = partitioned(folder.path(), 64 * MIB, script) else { return };
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let swap_at = |at: u64| {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    };
    let partitions = || inside(&path)["children"].as_array().unwrap().len();
    assert_eq!(partitions(), 1);
    swap_at(1024 + 16);
    assert_eq!(partitions(), 1, "the copy at the end");
    assert!(succeed(lunway(&["disk", "inside", &path])).contains("its copy was read"));
    swap_at(64 * MIB - 512 + 16);
    assert_eq!(partitions(), 0);
    assert!(inside(&path)["reason"].as_str().unwrap().contains("neither"));
}

/// The folder of Windows' disks.
fn samples() -> Option<PathBuf> {
    let usual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/samples/vhdx");
    let folder = std::env::var_os("LUNWAY_VHDX_SAMPLES").map_or(usual, PathBuf::from);
    if !folder.is_dir() {
        lunway_foreign::machine_lacks("Windows' VHDX files (LUNWAY_VHDX_SAMPLES)");
        return None;
    }
    Some(folder)
}

/// Unpacks one of them, sparse.
fn unpacked(samples: &Path, name: &str, folder: &Path) -> String {
    let path = folder.join(name);
    let packed = samples.join(format!("{name}.gz"));
    let mut gzip = Command::new("gzip").arg("-dc").arg(packed).stdout(Stdio::piped()).spawn().unwrap();
    let (mut from, to) = (gzip.stdout.take().unwrap(), File::create(&path).unwrap());
    let (mut buf, mut at) = (vec![0; MIB as usize], 0);
    loop {
        let count = from.read(&mut buf).unwrap();
        if count == 0 {
            break;
        }
        if buf[..count].iter().any(|byte| *byte != 0) {
            to.write_all_at(&buf[..count], at).unwrap();
        }
        at += count as u64;
    }
    to.set_len(at).unwrap();
    assert!(gzip.wait().unwrap().success());
    path.to_str().unwrap().to_owned()
}

/// Numbers that readers of other making have found.
#[test]
fn windows_disks_hold_what_is_known_of_them() {
    let Some(samples) = samples() else { return };
    let folder = tempfile::tempdir().unwrap();
    let found = |name: &str| volumes(&inside(&unpacked(&samples, name, folder.path())));
    // 16 groups of version 4, and 4 of version 5: the sums are those of every group and of the superblock.
    assert_eq!(found("xfs.vhdx"), [("XFS".to_owned(), 1_654_931_456, 9_081_417_728)]);
    assert_eq!(found("xfs5.vhdx"), [("XFS".to_owned(), 1_655_459_840, 9_080_909_824)]);
    assert_eq!(found("swap.vhdx"), [("swap".to_owned(), 4096, (10 << 30) - 4096)]);
    // A group with three volumes, of which the third is NTFS that Windows has never mounted: dirty, all of it unknown.
    let lvm = found("lvm2.vhdx");
    let kinds: Vec<_> = lvm.iter().map(|volume| volume.0.as_str()).collect();
    assert_eq!(kinds, ["ext3", "FAT32", "NTFS"]);
    assert_eq!((lvm[0].2, lvm[2].2), (199_586 * 4096, 0));
    // dosfstools' count: 56,361 of 156,362 clusters of 4 KiB.
    assert_eq!(lvm[1].2, 56_361 * 4096);
    // Mixed block groups, no free space tree; 15 extents of 98,304 bytes, by `btrfs inspect-internal dump-tree`, of
    // which one of 4096 lies in the first MiB, which is kept as a whole like the place of the second superblock.
    let used = (1 << 20) + (64 << 10) + 98_304 - 4096;
    assert_eq!(found("btrfs.vhdx"), [("btrfs".to_owned(), used, (1 << 30) - (1 << 20) - used)]);
}

#[test]
fn a_disk_that_cannot_be_read_is_shown_as_unknown_and_that_is_a_failure() {
    let output = finish(lunway(&["disk", "inside", "fault:read:ram:64M", "--json"]), PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(1) && said.contains("not all of fault:read:ram:64M can be read"),
        "{said}"
    );
    let tree: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(tree["unknown"].as_u64(), Some(64 << 20), "{tree}");
}
