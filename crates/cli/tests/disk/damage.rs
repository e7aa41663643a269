//! Damage: found, named, repaired.

use std::fs;
use std::path::Path;

use super::support::{PATIENCE, finish, lunway};
use super::{Folder, MIB, image};

#[test]
fn damage_is_found_named_and_repaired_where_that_is_certain() {
    let folder = Folder::new();
    image(&folder.path("disk.img"), 4 * MIB);
    folder.disk("convert disk.img disk.vhdx --block-size 1M");
    let whole = fs::read(folder.path("disk.vhdx")).unwrap();
    let data = folder.contents("disk.vhdx");
    assert!(folder.disk("check disk.vhdx").contains("no errors"));
    assert!(folder.disk("repair disk.vhdx").contains("nothing to repair"));

    let mut bytes = whole.clone();
    bytes[64 << 10] ^= 1;
    fs::write(folder.path("disk.vhdx"), &bytes).unwrap();
    assert!(folder.disk("check disk.vhdx").contains("no errors, with notes"));
    let repaired = folder.json("repair disk.vhdx");
    assert_eq!(repaired["headers"], 1);
    assert!(folder.disk("check disk.vhdx").trim_end().ends_with("no errors"));
    assert!(folder.contents("disk.vhdx") == data);
    let kept = fs::read(folder.path("disk.vhdx.before-repair")).unwrap();
    assert!(kept[..MIB as usize] == bytes[..MIB as usize], "the headers as they were");
    folder.disk("repair disk.vhdx --undo");
    assert!(fs::read(folder.path("disk.vhdx")).unwrap() == bytes, "undone to the byte");
    fs::remove_file(folder.path("disk.vhdx.before-repair")).unwrap();
    // A header of zeroes comes back as zeroes, and a disk that was written since is left alone.
    bytes[64 << 10..68 << 10].fill(0);
    fs::write(folder.path("disk.vhdx"), &bytes).unwrap();
    folder.disk("repair disk.vhdx");
    let repaired = fs::read(folder.path("disk.vhdx")).unwrap();
    assert!(repaired != bytes);
    folder.disk("repair disk.vhdx --undo");
    assert!(fs::read(folder.path("disk.vhdx")).unwrap() == bytes, "undone to the byte");
    fs::write(folder.path("disk.vhdx"), &repaired).unwrap();
    folder.write("disk.vhdx", 0, 7, 512);
    let written = fs::read(folder.path("disk.vhdx")).unwrap();
    folder.refused("repair disk.vhdx --undo");
    assert!(fs::read(folder.path("disk.vhdx")).unwrap() == written);
    fs::remove_file(folder.path("disk.vhdx.before-repair")).unwrap();

    // A state that does not exist: nobody knows what was there.
    let mut bytes = whole;
    bytes[3 << 20] = (bytes[3 << 20] & !7) | 4;
    fs::write(folder.path("disk.vhdx"), &bytes).unwrap();
    let output = finish(folder.command("check disk.vhdx"), PATIENCE);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("payload block 0, byte 3145728"), "{said}");
    folder.refused("repair disk.vhdx");
    assert!(fs::read(folder.path("disk.vhdx")).unwrap() == bytes, "left as it was");
    assert!(!Path::new(&folder.path("disk.vhdx.before-repair")).exists());
}

/// The file is looked at as its log would leave it, before the log is replayed.
#[test]
fn a_repair_that_is_refused_has_not_replayed_the_log() {
    let folder = Folder::new();
    // Two pages of the table: the log holds the first one, the damage lies in the second one.
    folder.disk("create disk.vhdx --size 1G --block-size 1M");
    {
        let guids = || lunway_vhdx_device::random_guids().unwrap();
        let file = lunway_vhdx::open_file(Path::new(&folder.path("disk.vhdx")), true).unwrap();
        let disk = lunway_vhdx::Disk::open(file, &lunway_vhdx::VhdxOpenOptions::writable(), guids()).unwrap();
        let chain = lunway_vhdx::Chain::new(vec![disk]).unwrap();
        chain.write_at(0, &[7; 4096]).unwrap();
        // As a killed process leaves it.
        chain.flush().unwrap();
    }
    let mut bytes = fs::read(folder.path("disk.vhdx")).unwrap();
    bytes[(3 << 20) + 4096] = 4;
    fs::write(folder.path("disk.vhdx"), &bytes).unwrap();
    let said = folder.refused("repair disk.vhdx");
    assert!(said.contains("payload block 512") && said.contains("state 4 is reserved"), "{said}");
    assert!(fs::read(folder.path("disk.vhdx")).unwrap() == bytes, "left as it was");
    assert!(!Path::new(&folder.path("disk.vhdx.before-repair")).exists());
}

/// Before, such a file was extended by the next write, and a check found nothing.
#[test]
fn a_file_that_another_program_cuts_has_lost_data_until_a_repair_makes_zeroes_of_it() {
    let folder = Folder::new();
    let bytes = image(&folder.path("disk.img"), 24 * MIB);
    folder.disk("convert disk.img cut.vhdx --fixed");
    let len = || fs::metadata(folder.path("cut.vhdx")).unwrap().len();
    let whole = len();
    fs::File::options().write(true).open(folder.path("cut.vhdx")).unwrap().set_len(whole - 4 * MIB).unwrap();
    let refused = finish(folder.command("check cut.vhdx"), PATIENCE);
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8(refused.stdout).unwrap();
    assert!(
        said.contains("4194304 bytes of data are lost") && said.contains("  loss    payload block"),
        "{said}"
    );
    // Nothing that writes opens it; what is left can be copied.
    let [from, to] =
        [format!("raw:{}", folder.path("disk.img")), format!("vhdx:{}", folder.path("cut.vhdx"))];
    let output = finish(lunway(&["copy", &from, &to, "--resume", "--overwrite"]), PATIENCE);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("lunway disk repair"), "{said}");
    assert!(folder.refused("resize cut.vhdx 48M").contains("4194304 bytes of data are lost"));
    assert_eq!(len(), whole - 4 * MIB);

    let repaired = folder.json("repair cut.vhdx");
    assert_eq!([&repaired["lost_bytes"], &repaired["lengthened_bytes"]], [4 * MIB, 4 * MIB], "{repaired}");
    assert_eq!(len(), whole);
    folder.disk("check cut.vhdx");
    let mut zeroed = bytes;
    zeroed[20 << 20..].fill(0);
    assert!(folder.contents("cut.vhdx") == zeroed);
    folder.disk("repair cut.vhdx --undo");
    assert_eq!(len(), whole - 4 * MIB);
    folder.refused("check cut.vhdx");
}
