//! Volumes that nobody made in good faith.

#[path = "fuzzed/volume.rs"]
mod fuzzed;
#[path = "../../scsi/tests/model/random.rs"]
#[allow(dead_code, reason = "a part of it is needed")]
mod random;

use fuzzed::{BTRFS, DISK, EXFAT, EXT, FAT, Format, LVM, NTFS, TABLE, XFS};
use random::Random;

/// Tries a format with patches from as many seeds as `LUNWAY_FILESYSTEM_HOSTILE_SEEDS` says.
fn hostile(format: &Format, program: &str) {
    if lunway_foreign::program(program).is_none() {
        return;
    }
    assert!(fuzzed::is_there(format), "{program} makes no volume");
    let seeds = std::env::var("LUNWAY_FILESYSTEM_HOSTILE_SEEDS").ok();
    let seeds =
        seeds.map_or(2000, |seeds| seeds.parse().expect("LUNWAY_FILESYSTEM_HOSTILE_SEEDS is a number"));
    for seed in 0..seeds {
        let mut random = Random::new(seed);
        let mut input = vec![random.next() as u8 & 0x8F];
        for _ in 0..1 + random.below(3) {
            // Boot sectors and superblocks come first, and most fields near the beginning of their structure.
            let page = if random.once_in(2) { random.below(8) } else { random.below(1 << 16) } as u16;
            let offset = if random.once_in(2) { random.below(128) } else { random.below(4096) } as u16;
            let len = 1 + random.below(8) as u8;
            input.extend([page as u8, (page >> 8) as u8, offset as u8, (offset >> 8) as u8, len]);
            input.extend((0..len).map(|_| [0, 1, 0x7F, 0xFF, random.next() as u8][random.below(5) as usize]));
        }
        let result = std::panic::catch_unwind(|| fuzzed::run(format, &input));
        assert!(result.is_ok(), "seed {seed}: {input:?}");
    }
}

#[test]
fn ext_with_any_part_replaced_keeps_the_contract() {
    hostile(&EXT, "mke2fs");
}

#[test]
fn xfs_with_any_part_replaced_keeps_the_contract() {
    hostile(&XFS, "mkfs.xfs");
}

#[test]
fn partition_tables_with_any_part_replaced_are_read_or_refused() {
    hostile(&TABLE, "sfdisk");
}

/// The most memory that this process has had, bytes.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[test]
fn disks_with_any_part_replaced_add_up_in_bounded_memory() {
    if ["sfdisk", "mke2fs", "mkfs.fat"].iter().any(|program| lunway_foreign::program(program).is_none()) {
        return;
    }
    hostile(&DISK, "mkswap");
    // All formats are tried in this process, whose volumes take a third of that.
    let peak = peak_memory();
    assert!(peak < 256 << 20, "{peak}");
}

#[test]
fn lvm_with_any_part_replaced_adds_up() {
    if ["pvcreate", "losetup", "mke2fs"].iter().any(|program| lunway_foreign::program(program).is_none()) {
        return;
    }
    if !fuzzed::is_there(&LVM) {
        return lunway_foreign::machine_lacks("loop devices");
    }
    hostile(&LVM, "vgcreate");
}

#[test]
fn ntfs_with_any_part_replaced_keeps_the_contract() {
    hostile(&NTFS, "mkntfs");
}

#[test]
fn fat_with_any_part_replaced_keeps_the_contract() {
    hostile(&FAT, "mkfs.fat");
}

#[test]
fn exfat_with_any_part_replaced_keeps_the_contract() {
    hostile(&EXFAT, "mkfs.exfat");
}

#[test]
fn btrfs_with_any_part_replaced_keeps_the_contract() {
    hostile(&BTRFS, "mkfs.btrfs");
}
