//! Whole disks with tables that sfdisk made: what one part says about others.

mod support;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use lunway_filesystem::tree::{Disk, Node};
use support::*;

const MIB: u64 = 1 << 20;
const TOOLS: [&str; 4] = ["sfdisk", "mke2fs", "mkswap", "mkfs.fat"];

/// A disk of 26 MiB with a partition from 1 to 17 MiB of this type, and one from 17 to 25 MiB.
fn partitioned(folder: &Path, label: &str, kind: &str) -> PathBuf {
    let image = sparse(folder, "disk", 26 * MIB);
    let script = folder.join("script");
    let table = format!("label: {label}\nstart=1MiB, size=16MiB, type={kind}\nstart=17MiB, size=8MiB\n");
    std::fs::write(&script, table).expect("a script");
    run("sh", &["-c", &format!("sfdisk -q --wipe never {} <{}", text(&image), text(&script))]);
    image
}

/// Formats a partition by `command`, in which IMAGE is a file of `mib` MiB.
fn format(disk: &Path, at: u64, mib: u64, command: &str) {
    let image = sparse(disk.parent().expect("a folder"), "volume", mib * MIB);
    let mut words = command.split(' ').map(|word| if word == "IMAGE" { text(&image) } else { word });
    let program = words.next().expect("a program");
    run(program, &words.collect::<Vec<_>>());
    let bytes = std::fs::read(&image).expect("a volume");
    File::options()
        .write(true)
        .open(disk)
        .and_then(|file| file.write_all_at(&bytes, at * MIB))
        .expect("a write");
}

fn tree(image: &Path) -> Disk {
    Disk::examine(&Image::open(image), 512)
}

fn free(disk: &Disk) -> Vec<u64> {
    disk.root().children.iter().map(|child| child.free).collect()
}

fn reason(node: &Node) -> &str {
    node.reason.as_deref().unwrap_or_default()
}

#[test]
fn a_file_system_in_a_partition_of_another_type_is_ambivalent() {
    if !have(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for (label, kind, name) in [
        ("gpt", "A19D880F-05FC-4D3B-A006-743F0F84911E", "Linux RAID"),
        ("gpt", "E6D6D379-F507-44C2-A23C-238F2A3DF928", "LVM"),
        ("gpt", "CA7D7CCB-63ED-4C53-861C-1742536059CC", "LUKS"),
        ("gpt", "21686148-6449-6E6F-744E-656564454649", "BIOS boot"),
        ("gpt", "E3C9E316-0B5C-4DB8-817D-F92DF00215AE", "Microsoft reserved"),
        ("gpt", "4FBD7E29-9D25-41B8-AFD0-062C0CEFF05D", "Ceph"),
        ("gpt", "7C3457EF-0000-11AA-AA11-00306543ECAC", "Apple (HFS+, APFS)"),
        ("gpt", "516E7CBA-6ECF-11D6-8FF8-00022D09712B", "FreeBSD (UFS, ZFS)"),
        ("gpt", "AA31E02A-400F-11DB-9590-000C2911D1B8", "VMware"),
        ("dos", "fd", "Linux RAID"),
        ("dos", "8e", "LVM"),
        ("dos", "fb", "VMware"),
        ("dos", "a5", "FreeBSD (UFS, ZFS)"),
        ("dos", "af", "Apple (HFS+, APFS)"),
    ] {
        for (command, content) in
            [("mke2fs -q -F -t ext4 IMAGE", "ext4"), ("mkfs.fat -F 16 -s 4 IMAGE", "FAT16")]
        {
            let image = partitioned(folder.path(), label, kind);
            format(&image, 1, 16, command);
            format(&image, 17, 8, "mke2fs -q -F -t ext4 IMAGE");
            let disk = tree(&image);
            let [first, second] = disk.root().children.as_slice() else { panic!("two partitions") };
            assert_eq!(
                reason(first),
                format!("it is {content} by its content, and {name} by its type in the partition table")
            );
            assert_eq!((first.used, first.free, first.unknown), (0, 0, 16 * MIB), "{kind}");
            assert!(second.free > 4 * MIB && second.free == disk.root().free, "{kind}");
        }
    }
    for (label, kind) in
        [("gpt", "linux"), ("gpt", "uefi"), ("gpt", "swap"), ("dos", "83"), ("dos", "7"), ("dos", "82")]
    {
        let image = partitioned(folder.path(), label, kind);
        format(&image, 1, 16, "mke2fs -q -F -t ext4 IMAGE");
        assert!(free(&tree(&image))[0] > 8 * MIB, "{kind}");
    }
}

/// Bytes at offsets.
type Marks = &'static [(u64, &'static [u8])];

/// Marks as their makers write them, with the reason that is given for each: the whole of it is kept like used space.
#[test]
fn what_is_recognised_and_left_alone_is_kept_and_says_why() {
    const ENCRYPTED: &str = "it is encrypted: which of its blocks are free is known only to who has the key";
    const SHARED: &str = "its data belong to an array or a pool with other disks";
    const UNREAD: &str = "its free map is not read here";
    const LEN: u64 = 8 * MIB;
    // ZFS: uberblocks (magic number, little-endian) in the ring of the first label, from 128 KiB on.
    const UBERBLOCK: &[u8] = &[0x0C, 0xB1, 0xBA, 0, 0, 0, 0, 0];
    // md 1.2: magic number, version 1, 4 KiB into the device; 1.0 has the same 8 KiB before its end.
    const MD: &[u8] = &[0xFC, 0x4E, 0x2B, 0xA9, 1, 0, 0, 0];
    let cases: [(&str, &str, Marks); 10] = [
        ("LUKS", ENCRYPTED, &[(0, b"LUKS\xBA\xBE\0\x01aes")]),
        ("LUKS", ENCRYPTED, &[(0, b"LUKS\xBA\xBE\0\x02\0\0\0\0\0\0\x40\0")]),
        ("BitLocker", ENCRYPTED, &[(0, b"\xEB\x58\x90-FVE-FS-\0\x02\x08"), (510, b"\x55\xAA")]),
        ("ZFS", SHARED, &[(136 << 10, UBERBLOCK), (137 << 10, UBERBLOCK), (138 << 10, UBERBLOCK)]),
        ("APFS", UNREAD, &[(24, b"\x01\0\0\x80\0\0\0\0NXSB\0\x10\0\0")]),
        ("ReFS", UNREAD, &[(0, b"\0\0\0ReFS\0\0\0\0\0\0\0\0\0FSRS")]),
        ("md", SHARED, &[(4096, MD)]),
        ("md", SHARED, &[(LEN - (8 << 10), MD)]),
        ("VMFS", SHARED, &[(1 << 20, b"\x0D\xD0\x01\xC0\x03\0\0\0")]),
        ("VMFS", SHARED, &[(1 << 20, b"\x0D\xD0\x01\xC0\x05\0\0\0")]),
    ];
    let folder = tempfile::tempdir().expect("a folder");
    let image = sparse(folder.path(), "disk", LEN);
    let assert_kept = |kind: &str, why: &str| {
        let disk = tree(&image);
        let root = disk.root();
        assert_eq!((root.kind, reason(root)), (Some(kind), why));
        assert_eq!((root.used, root.free, root.unknown), (0, 0, LEN), "{kind}");
        disk.for_each_free(&Image::open(&image), &mut |range| panic!("{kind}: {range:?}")).expect("a map");
    };
    for (kind, why, marks) in cases {
        // Whatever lies around the mark.
        std::fs::write(&image, vec![0; LEN as usize]).expect("a disk");
        let file = File::options().write(true).open(&image).expect("a disk");
        for (at, bytes) in marks {
            file.write_all_at(bytes, *at).expect("a write");
        }
        assert_kept(kind, why);
    }
    if have(&["cryptsetup"]) {
        for version in ["luks1", "luks2"] {
            std::fs::write(&image, vec![0; LEN as usize]).expect("a disk");
            let key = sparse(folder.path(), "key", 32);
            let quick = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
            let made = ["-q", "luksFormat", "--type", version, "--key-file", text(&key), text(&image)];
            let small: &[&str] = if version == "luks2" { &["--luks2-keyslots-size", "256k"] } else { &[] };
            run("cryptsetup", &[&quick[..], small, &made[..]].concat());
            assert_kept("LUKS", ENCRYPTED);
        }
    }
    // Storage Spaces have no mark that would be documented: the type of the partition is one (Microsoft's GPT types).
    if have(&TOOLS) {
        let disk = partitioned(folder.path(), "gpt", "E75CAF8F-F680-4CEE-AFA3-B001E56EFC2D");
        let disk = tree(&disk);
        let spaces = &disk.root().children[0];
        assert_eq!((spaces.used, spaces.free, spaces.unknown), (0, 0, 16 * MIB));
        assert!(reason(spaces).contains("storage spaces of Windows"), "{}", reason(spaces));
    }
}

#[test]
fn a_suspended_system_keeps_the_whole_disk() {
    if !have(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let image = partitioned(folder.path(), "gpt", "linux");
    format(&image, 1, 16, "mke2fs -q -F -t ext4 IMAGE");
    format(&image, 17, 8, "mkswap -q -p 4096 IMAGE");
    let [ext, swap] = free(&tree(&image))[..] else { panic!("two partitions") };
    assert!(ext > 8 * MIB && swap == 8 * MIB - 4096, "{ext}, {swap}");
    let file = File::options().read(true).write(true).open(&image).expect("an image");
    let write = |at: u64, bytes: &[u8]| file.write_all_at(bytes, 17 * MIB + at).expect("a write");
    let alone = |why: &str| {
        let disk = tree(&image);
        assert_eq!(free(&disk), [0, 0], "{why}");
        assert_eq!((disk.root().free, disk.root().used + disk.root().unknown), (0, 26 * MIB), "{why}");
        disk.for_each_free(&Image::open(&image), &mut |range| panic!("{why}: {range:?}")).expect("a map");
        let [first, second] = disk.root().children.as_slice() else { panic!("two partitions") };
        assert_eq!(first.kind, Some("ext4"));
        assert_eq!(reason(first), "a suspended system on this disk may have it mounted");
        reason(second).to_owned()
    };
    write(4086, b"S1SUSPEND\0");
    assert_eq!(alone("suspended"), "a suspended system lies in it");
    // Stale signatures in front of it and around it.
    write(0, b"LUKS\xBA\xBE");
    assert!(alone("in LUKS").contains("encrypted"));
    write(0, &[0; 6]);
    write(1024 + 0x38, &[0x53, 0xEF]);
    write(1024 + 0x04, &[1]);
    write(1024 + 0x20, &[1]);
    write(1024 + 0x28, &[1]);
    let said = alone("beside ext");
    assert!(said.contains("at once") || said.contains("suspended"), "{said}");
    write(4086, b"SWAPSPACE2");
    assert_eq!(free(&tree(&image))[0], ext);
    // In a partition that its table has no room for, in a partition that is for something else.
    let nested = partitioned(folder.path(), "dos", "82");
    format(&nested, 1, 16, "mkswap -q -p 4096 IMAGE");
    let mut inner = std::fs::read(&nested).expect("a disk");
    inner[MIB as usize + 4086..][..9].copy_from_slice(b"S1SUSPEND");
    let disk = partitioned(folder.path(), "dos", "fd");
    format(&disk, 17, 8, "mke2fs -q -F -t ext4 IMAGE");
    let outer = File::options().write(true).open(&disk).expect("a disk");
    outer.write_all_at(&inner[..16 << 20], MIB).expect("a write");
    let disk = tree(&disk);
    assert_eq!(free(&disk), [0, 0]);
    assert_eq!(reason(&disk.root().children[1]), "a suspended system on this disk may have it mounted");
}

#[test]
fn volumes_are_found_four_containers_deep_and_no_deeper() {
    if !have(&TOOLS) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let image = sparse(folder.path(), "inner", 16 * MIB);
    run("mke2fs", &["-q", "-F", "-t", "ext4", text(&image)]);
    let mut inner = std::fs::read(&image).expect("a volume");
    for depth in 1..=6 {
        // A disk with the last one in its only partition.
        let disk = sparse(folder.path(), "outer", inner.len() as u64 + 2 * MIB);
        let mib = inner.len() as u64 / MIB;
        let table = format!("printf 'label: gpt\nstart=1MiB, size={mib}MiB\n' | sfdisk -q --wipe never");
        run("sh", &["-c", &format!("{table} {}", text(&disk))]);
        let file = File::options().write(true).open(&disk).expect("a disk");
        file.write_all_at(&inner, MIB).expect("a write");
        inner = std::fs::read(&disk).expect("a disk");

        let tree = tree(&disk);
        let mut node = tree.root();
        for level in 0..depth {
            match node.children.first() {
                Some(child) => {
                    assert_eq!((child.offset, child.len), (node.offset + MIB, node.len - 2 * MIB));
                    node = child;
                }
                None => assert!(level > lunway_filesystem::DEPTH, "{depth}: nothing at level {level}"),
            }
        }
        if depth <= lunway_filesystem::DEPTH {
            assert_eq!(node.kind, Some("ext4"));
            assert!(node.free > 8 * MIB && tree.root().free == node.free, "{depth}");
        } else {
            assert_eq!((tree.root().free, reason(node)), (0, "it lies more than 4 containers deep"));
        }
        let (mut at, mut free) = (0, 0);
        tree.for_each(&Image::open(&disk), 0..u64::MAX, &mut |span| {
            assert_eq!(span.range.start, at);
            at = span.range.end;
            free +=
                if span.what == lunway_filesystem::Use::Free { span.range.end - span.range.start } else { 0 };
        })
        .expect("the same disk");
        assert_eq!((at, free), (tree.root().len, tree.root().free));
    }
}
