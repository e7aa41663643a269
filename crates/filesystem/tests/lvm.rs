//! Physical volumes that LVM2's own tools made, on a loop device and without the kernel's device mapper.

mod support;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use lunway_filesystem::lvm;
use lunway_filesystem::tree::{Disk, Node};
use support::*;

const MIB: u64 = 1 << 20;
const EXTENT: u64 = 4 * MIB;

/// A loop device, for as long as it is needed.
struct Loop(String);

impl Loop {
    fn new(image: &Path) -> Option<Self> {
        let (text, code) = exit("losetup", &["--find", "--show", self::text(image)]);
        if code != 0 {
            lunway_foreign::machine_lacks(&format!("loop devices: {}", text.trim()));
            return None;
        }
        Some(Self(text.trim().to_owned()))
    }

    /// One of LVM2's commands, which shall see this device and no other.
    fn lvm(&self, command: &str) {
        let config = format!(
            "devices{{filter=[\"a|^{}$|\",\"r|.*|\"] use_devicesfile=0}} backup{{backup=0 archive=0}} \
             activation{{udev_sync=0 udev_rules=0}}",
            self.0
        );
        let mut args = vec!["--driverloaded", "n", "--config", &config];
        let command = command.replace("DEVICE", &self.0);
        let mut words = command.split(' ');
        let program = words.next().expect("a command");
        args.extend(words);
        run(program, &args);
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = exit("losetup", &["--detach", &self.0]);
    }
}

/// A physical volume with volumes in pieces: `one` in two, `two`, `striped`, and 20 free extents somewhere.
fn made(folder: &Path) -> Option<std::path::PathBuf> {
    let image = sparse(folder, "pv", 400 * MIB);
    let device = Loop::new(&image)?;
    for command in [
        "pvcreate -q DEVICE",
        "vgcreate -q vg DEVICE",
        "lvcreate -q -an -Zn -Wn -n one -l 10 vg",
        "lvcreate -q -an -Zn -Wn -n two -l 10 vg",
        "lvextend -q -l +10 vg/one",
        "lvcreate -q -an -Zn -Wn -n gone -l 20 vg",
        "lvcreate -q -an -Zn -Wn -n three -l 5 vg",
        "lvremove -q -f vg/gone",
    ] {
        device.lvm(command);
    }
    drop(device);
    Some(image)
}

/// Writes a volume's bytes to where its segments are.
fn put(image: &Path, volume: &lvm::LogicalVolume, bytes: &[u8]) {
    let file = File::options().write(true).open(image).expect("an image");
    let mut at = 0;
    for segment in &volume.segments {
        file.write_all_at(&bytes[at..at + segment.len as usize], segment.at).expect("a write");
        at += segment.len as usize;
    }
}

fn child<'a>(disk: &'a Disk, name: &str) -> &'a Node {
    let children = &disk.root().children;
    children.iter().find(|node| node.name.as_deref() == Some(name)).unwrap_or_else(|| panic!("{name}"))
}

#[test]
fn volumes_in_pieces_are_looked_into_and_extents_of_none_are_free() {
    if !have(&["pvcreate", "lvcreate", "mke2fs", "e2fsck"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let Some(image) = made(folder.path()) else { return };
    let volume = lvm::read(&Image::open(&image)).expect("a physical volume");
    let pieces: Vec<_> =
        volume.volumes.iter().map(|volume| (volume.name.as_str(), volume.segments.len())).collect();
    assert_eq!((volume.group.as_str(), pieces), ("vg", vec![("one", 2), ("two", 1), ("three", 1)]));
    // 400 MiB are 99 extents behind the first MiB: 35 are taken.
    assert_eq!(volume.free.total(), (99 - 35) * EXTENT);

    let inner = sparse(folder.path(), "inner", 20 * EXTENT);
    let files = tempfile::tempdir().expect("a folder");
    tree(files.path(), 1, 30 * MIB);
    run("mke2fs", &["-q", "-F", "-t", "ext4", "-d", text(files.path()), text(&inner)]);
    let one = volume.volumes.iter().find(|volume| volume.name == "one").expect("one");
    put(&image, one, &std::fs::read(&inner).expect("an image"));

    let source = Image::open(&image);
    let disk = Disk::examine(&source, 512);
    assert_eq!(disk.root().kind, Some("LVM2"));
    let ext = child(&disk, "one");
    assert_eq!((ext.kind, ext.len), (Some("ext4"), 20 * EXTENT));
    assert!(ext.free > 20 * MIB, "{}", ext.free);
    assert_eq!(child(&disk, "two").unknown, 10 * EXTENT, "nothing in it is known");
    assert_eq!(disk.root().free, ext.free + volume.free.total());

    // The stream is sorted, whole, and says what the tree says; what it calls free nobody misses.
    let (mut free, mut at, mut sums) = (Vec::new(), 0, [0u64; 3]);
    disk.for_each(&source, 0..u64::MAX, &mut |span| {
        assert_eq!(span.range.start, at);
        at = span.range.end;
        sums[span.what as usize] += span.range.end - span.range.start;
        if span.what == lunway_filesystem::Use::Free {
            free.push(span.range);
        }
    })
    .expect("the same disk");
    assert_eq!(at, 400 * MIB);
    assert_eq!(sums, [disk.root().used, disk.root().free, disk.root().unknown]);
    let before = std::fs::read(&image).expect("an image");
    poison(&image, &free);
    let after = std::fs::read(&image).expect("an image");
    let mut bytes = Vec::new();
    for segment in &one.segments {
        bytes.extend_from_slice(&after[segment.at as usize..(segment.at + segment.len) as usize]);
    }
    assert_ne!(before, after);
    std::fs::write(&inner, bytes).expect("an image");
    run("e2fsck", &["-fn", text(&inner)]);
    assert!(lvm::read(&source).is_ok());

    // A partition of the type that is for physical volumes is looked into.
    let disk = sparse(folder.path(), "disk", 402 * MIB);
    let table = "echo start=1MiB, size=400MiB, type=8e | sfdisk -q --label dos";
    run("sh", &["-c", &format!("{table} {}", text(&disk))]);
    let file = File::options().write(true).open(&disk).expect("a disk");
    file.write_all_at(&after, MIB).expect("a write");
    let disk = Disk::examine(&Image::open(&disk), 512);
    assert_eq!((disk.root().children[0].kind, disk.root().children[0].children.len()), (Some("LVM2"), 3));
}

#[test]
fn a_group_that_cannot_be_believed_is_used() {
    if !have(&["pvcreate", "lvcreate"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let Some(image) = made(folder.path()) else { return };
    let sound = std::fs::read(&image).expect("an image");
    let reason = |bytes: &Vec<u8>| lvm::read(bytes).map(|_| ()).expect_err("a doubt").reason;
    // One bit anywhere in the text, or in the headers.
    let header = 4096;
    assert_eq!(&sound[header + 4..header + 8], b" LVM");
    let place = u64::from_le_bytes(*sound[header + 40..].first_chunk().expect("a field")) as usize;
    for at in [header + 24, header + 40, header + 56, header + place + 100] {
        let mut bytes = sound.clone();
        bytes[at] ^= 4;
        assert!(reason(&bytes).contains("volume group"), "byte {at}: {}", reason(&bytes));
    }
    // A volume that would begin elsewhere.
    let mut bytes = sound.clone();
    let at = bytes.windows(9).rposition(|text| text == b"\"pv0\", 50").expect("a segment") + 8;
    bytes[at] ^= 1;
    assert!(reason(&bytes).contains("checksum"), "{}", reason(&bytes));
    // The label: without it there is no volume.
    let mut bytes = sound.clone();
    bytes[512 + 40] ^= 1;
    assert_eq!(lvm::recognised(&bytes), Ok(false));
    // A disk that was cut.
    assert!(lvm::read(&sound[..(200 * MIB) as usize].to_vec()).is_err());
    // A second disk in the group.
    let device = Loop::new(&image).expect("as before");
    device.lvm("vgchange -q --addtag a_tag vg");
    drop(device);
    assert!(lvm::read(&Image::open(&image)).is_ok(), "the text has moved on in its ring");
}

/// Puts another segment, as LVM2 writes it, in the place of the one of volume `three`.
fn rewritten(folder: &Path, image: &Path, segment: &str) {
    let device = Loop::new(image).expect("as before");
    let text_file = folder.join("metadata");
    device.lvm(&format!("vgcfgbackup -q -f {} vg", text(&text_file)));
    let mut metadata = std::fs::read_to_string(&text_file).expect("metadata");
    let three = metadata.find("three {").expect("the volume");
    let start = three + metadata[three..].find("segment1 {").expect("its segment");
    let end = start + metadata[start..].find('}').expect("its end") + 1;
    metadata.replace_range(start..end, segment);
    std::fs::write(&text_file, metadata).expect("metadata");
    device.lvm(&format!("vgcfgrestore -q --force -f {} vg", text(&text_file)));
}

#[test]
fn volumes_that_are_not_linear_are_used_as_a_whole() {
    if !have(&["pvcreate", "lvcreate", "vgcfgbackup", "vgcfgrestore"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let Some(image) = made(folder.path()) else { return };
    let head = "segment1 {\nstart_extent = 0\nextent_count = 4\n";
    for (segment, what) in [
        // Both stripes lie on the one disk: extents 60 and 61, 70 and 71.
        (
            "type = \"striped\"\nstripe_count = 2\nstripe_size = 128\nstripes = [\"pv0\", 60, \"pv0\", 70]\n}",
            "striped",
        ),
        ("type = \"snapshot\"\nchunk_size = 8\norigin = \"one\"\ncow_store = \"two\"\n}", "snapshot"),
    ] {
        let _ = std::fs::remove_file(&image);
        let Some(image) = made(folder.path()) else { return };
        let before = lvm::read(&Image::open(&image)).expect("a physical volume");
        rewritten(folder.path(), &image, &format!("{head}{segment}"));
        let disk = Disk::examine(&Image::open(&image), 512);
        let root = disk.root();
        // A volume in stripes is taken whole. A snapshot has no extents of its own: its origin and its store have.
        let refused = if what == "striped" { &["three"][..] } else { &["one", "two"] };
        for name in refused {
            let node = child(&disk, name);
            assert!(node.reason.is_some() && node.free == 0, "{what}, {name}: {:?}", node.reason);
        }
        assert_eq!(
            root.free,
            root.children.iter().map(|node| node.free).sum::<u64>()
                + before.free.total()
                + if what == "striped" { EXTENT } else { 5 * EXTENT }
        );
        if what == "striped" {
            let after = lvm::read(&Image::open(&image)).expect("a physical volume");
            assert_eq!(after.free.total(), before.free.total() + EXTENT, "4 extents instead of 5");
            for extent in [60, 61, 70, 71] {
                let range = MIB + extent * EXTENT..MIB + (extent + 1) * EXTENT;
                assert!(!after.free.touches(&range), "extent {extent}");
            }
        }
    }
}
