//! Disks made of others.

use std::fs;
use std::path::{Path, PathBuf};

use super::support::{PATIENCE, finish, interrupted, lunway, succeed};
use super::{Folder, MIB, image};

#[test]
fn a_disk_is_converted_there_and_back() {
    let folder = Folder::new();
    let bytes = image(&folder.path("disk.img"), 40 * MIB);
    for layout in ["", "--block-size 1M", "--fixed", "--block-size 256M"] {
        folder.disk(&format!("convert disk.img disk.vhdx --verify {layout}"));
        folder.qemu_check("disk.vhdx");
        folder.qemu_equal("disk.vhdx", "disk.img");
        folder.disk("convert disk.vhdx back.img");
        assert!(fs::read(folder.path("back.img")).unwrap() == bytes, "{layout}");
        folder.disk("convert disk.vhdx other.vhdx --block-size 2M --verify");
        assert!(folder.contents("other.vhdx") == bytes, "{layout}");
        for name in ["disk.vhdx", "back.img", "other.vhdx"] {
            fs::remove_file(folder.path(name)).unwrap();
        }
    }
    // What is too small is left as it was.
    folder.disk("create wide.vhdx --size 3M --sector 4096");
    assert_eq!(folder.json("info wide.vhdx")["logical_sector"], 4096);
    let before = fs::read(folder.path("wide.vhdx")).unwrap();
    assert!(folder.refused("convert disk.img wide.vhdx").contains("already exists"));
    let copied = finish(lunway(&["copy", &folder.path("disk.img"), &folder.path("wide.vhdx")]), PATIENCE);
    assert!(String::from_utf8_lossy(&copied.stderr).contains("take a larger one"), "{copied:?}");
    assert!(fs::read(folder.path("wide.vhdx")).unwrap() == before);
}

#[test]
fn a_disk_is_converted_to_what_differs_from_a_parent() {
    let folder = Folder::new();
    let mut bytes = image(&folder.path("disk.img"), 40 * MIB);
    folder.disk("convert disk.img base.vhdx");
    // Data over data, zeroes over data, and an end of its own.
    bytes[(3 << 20) + 4096..(3 << 20) + 8192].fill(251);
    bytes[20 << 20..24 << 20].fill(0);
    bytes.truncate(36 << 20);
    fs::write(folder.path("other.img"), &bytes).unwrap();
    folder.disk("convert other.img child.avhdx --parent base.vhdx --verify");
    assert!(folder.contents("child.avhdx") == bytes);
    let info = folder.json("info child.avhdx");
    assert_eq!(
        (&info["kind"], info["chain"].as_array().unwrap().len()),
        (&"differencing".into(), 2),
        "{info}"
    );
    // A block for each of the changed mebibytes, not for the whole disk.
    assert!(info["file_bytes"].as_u64().unwrap() < 12 * MIB, "{info}");
    folder.disk("check child.avhdx");
    assert!(folder.refused("convert disk.img child.avhdx --parent base.vhdx").contains("already exists"));
    assert!(folder.refused("convert disk.img new.img --parent base.vhdx").contains("*.avhdx"));
    assert!(folder.contents("child.avhdx") == bytes);
}

#[test]
fn a_conversion_that_was_interrupted_goes_on() {
    let folder = Folder::new();
    let bytes = image(&folder.path("disk.img"), 24 * MIB);
    let source = format!("rate:8M:{}", folder.path("disk.img"));
    let convert = |more: &[&str]| {
        let destination = folder.path("disk.vhdx");
        lunway(&[&["disk", "convert", &source, &destination], more].concat())
    };
    let unfinished = PathBuf::from(folder.path("disk.vhdx.partial"));
    let output =
        interrupted(convert(&[]), || fs::metadata(&unfinished).is_ok_and(|file| file.len() > 8 * MIB));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(unfinished.exists() && !Path::new(&folder.path("disk.vhdx")).exists());
    let said = finish(convert(&[]), PATIENCE);
    assert!(String::from_utf8_lossy(&said.stderr).contains("--resume continues it"), "{said:?}");
    succeed(convert(&["--resume", "--verify"]));
    assert!(folder.contents("disk.vhdx") == bytes && !unfinished.exists());
}

/// `--resume` refused its own file: no VHDX, no VHD, or a raw file "of another copy".
#[test]
fn a_conversion_that_was_killed_while_it_made_its_file_begins_anew() {
    let folder = Folder::new();
    let bytes = image(&folder.path("disk.img"), 4 * MIB);
    folder.disk("create whole.vhdx --size 4M");
    succeed(lunway(&["disk", "create", &folder.path("whole.vhd"), "--size", "4M"]));
    for name in ["new.vhdx", "new.vhd", "new.img"] {
        let (made, unfinished) = (folder.path(name), folder.path(&format!("{name}.partial")));
        // What each step of making an empty disk leaves, the last of which is the signature.
        let mut lefts = vec![Vec::new()];
        if name != "new.img" {
            let mut whole = fs::read(folder.path(&name.replace("new", "whole"))).unwrap();
            whole[..512].fill(0);
            let end = whole.len() - 512;
            if name == "new.vhd" {
                // The header; and with it the table, which is all ones. The footer comes behind it.
                lefts.extend([whole[..1536].to_vec(), whole[..end].to_vec()]);
                assert!(whole[..end].ends_with(&[0xFF; 512]));
            }
            whole[end..].fill(0);
            lefts.extend([vec![0; whole.len()], whole]);
        }
        for left in lefts {
            fs::write(&unfinished, left).unwrap();
            let convert = || lunway(&["disk", "convert", &folder.path("disk.img"), &made, "--resume"]);
            let resumed = finish(convert(), PATIENCE);
            let said = String::from_utf8_lossy(&resumed.stderr);
            assert!(resumed.status.success() && said.contains("starting again"), "{name}: {said}");
            let shown = folder.path("shown");
            succeed(lunway(&["copy", &format!("readonly:{made}"), &format!("raw:{shown}")]));
            assert!(fs::read(&shown).unwrap() == bytes && !Path::new(&unfinished).exists(), "{name}");
            fs::remove_file(shown).unwrap();
            fs::remove_file(&made).unwrap();
        }
        // What is not a copy's is left alone.
        let foreign = vec![7; 8192];
        fs::write(&unfinished, &foreign).unwrap();
        let refused =
            finish(lunway(&["disk", "convert", &folder.path("disk.img"), &made, "--resume"]), PATIENCE);
        assert!(!refused.status.success(), "{name}: {refused:?}");
        assert!(fs::read(&unfinished).unwrap() == foreign && !Path::new(&made).exists(), "{name}");
    }
}
