//! Formats that are recognised and left alone: encrypted, shared between disks, or not understood here.

use crate::fields::{le32, le64};
use crate::source::{Source, Unreadable};

/// A format of which nothing but its mark is known.
#[derive(Debug, PartialEq, Eq)]
pub struct Opaque {
    /// Its name.
    pub kind: &'static str,
    /// Why nothing of it is free.
    pub reason: &'static str,
}

/// Where a mark lies, and what it is.
struct Mark {
    at: u64,
    bytes: &'static [u8],
    of: &'static Opaque,
}

const ENCRYPTED: &str = "it is encrypted: which of its blocks are free is known only to who has the key";
const SHARED: &str = "its data belong to an array or a pool with other disks";
const UNREAD: &str = "its free map is not read here";

const LUKS: Opaque = Opaque { kind: "LUKS", reason: ENCRYPTED };
const BITLOCKER: Opaque = Opaque { kind: "BitLocker", reason: ENCRYPTED };
const MD: Opaque = Opaque { kind: "md", reason: SHARED };
const ZFS: Opaque = Opaque { kind: "ZFS", reason: SHARED };
const BCACHE: Opaque = Opaque { kind: "bcache", reason: UNREAD };
const BCACHEFS: Opaque = Opaque { kind: "bcachefs", reason: UNREAD };
const REFS: Opaque = Opaque { kind: "ReFS", reason: UNREAD };
const APFS: Opaque = Opaque { kind: "APFS", reason: UNREAD };
const HFS: Opaque = Opaque { kind: "HFS+", reason: UNREAD };
const F2FS: Opaque = Opaque { kind: "F2FS", reason: UNREAD };
const VDO: Opaque = Opaque { kind: "VDO", reason: UNREAD };
const VMFS: Opaque = Opaque { kind: "VMFS", reason: SHARED };
const SNAPSHOT: Opaque = Opaque { kind: "dm-snapshot", reason: UNREAD };
const INTEGRITY: Opaque = Opaque { kind: "dm-integrity", reason: UNREAD };

/// md's magic, little-endian (struct mdp_superblock_1, and mdp_super_t on little-endian machines).
const MD_MAGIC: [u8; 4] = 0xA92B_4EFCu32.to_le_bytes();

/// The marks at fixed places, as libblkid of util-linux looks for them.
const MARKS: [Mark; 20] = [
    Mark { at: 0, bytes: b"LUKS\xBA\xBE", of: &LUKS },
    Mark { at: 16 << 10, bytes: b"SKUL\xBA\xBE", of: &LUKS },
    Mark { at: 32 << 10, bytes: b"SKUL\xBA\xBE", of: &LUKS },
    Mark { at: 64 << 10, bytes: b"SKUL\xBA\xBE", of: &LUKS },
    Mark { at: 4 << 20, bytes: b"SKUL\xBA\xBE", of: &LUKS },
    Mark { at: 3, bytes: b"-FVE-FS-", of: &BITLOCKER },
    Mark { at: 0, bytes: &MD_MAGIC, of: &MD },
    Mark { at: 4096, bytes: &MD_MAGIC, of: &MD },
    Mark {
        at: 4120,
        bytes: b"\xC6\x85\x73\xF6\x4E\x1A\x45\xCA\x82\x65\xF5\x7F\x48\xBA\x6D\x81",
        of: &BCACHE,
    },
    Mark {
        at: 4120,
        bytes: b"\xC6\x85\x73\xF6\x66\xCE\x90\xA9\xD9\x6A\x60\xCF\x80\x3D\xF7\xEF",
        of: &BCACHEFS,
    },
    Mark { at: 0, bytes: b"\0\0\0ReFS", of: &REFS },
    Mark { at: 3, bytes: b"ReFS", of: &REFS },
    Mark { at: 32, bytes: b"NXSB", of: &APFS },
    Mark { at: 1024, bytes: b"H+\0\x04", of: &HFS },
    Mark { at: 1024, bytes: b"HX\0\x05", of: &HFS },
    Mark { at: 1024, bytes: b"\x10\x20\xF5\xF2", of: &F2FS },
    Mark { at: 0, bytes: b"dmvdo001", of: &VDO },
    Mark { at: 1 << 20, bytes: b"\x0D\xD0\x01\xC0", of: &VMFS },
    Mark { at: 0, bytes: b"SnAp", of: &SNAPSHOT },
    Mark { at: 0, bytes: b"integrt\0", of: &INTEGRITY },
];

/// The magic of ZFS' uberblocks, and where the first label has them.
const ZFS_UBERBLOCK: u64 = 0x00BA_B10C;
const ZFS_UBERBLOCKS: u64 = 128 << 10;

/// The opaque format that has marked the volume, if any.
pub fn recognised(source: &dyn Source) -> Result<Option<&'static Opaque>, Unreadable> {
    for mark in &MARKS {
        if source.has(mark.at, mark.bytes.len() as u64)
            && source.bytes(mark.at, mark.bytes.len())? == mark.bytes
        {
            return Ok(Some(mark.of));
        }
    }
    if bitlocker_to_go(source)? {
        return Ok(Some(&BITLOCKER));
    }
    if md_at_the_end(source)? {
        return Ok(Some(&MD));
    }
    Ok(zfs(source)?.then_some(&ZFS))
}

/// BitLocker To Go looks like FAT32 from outside; a pointer to its own header gives it away (at 440, or 176 where
/// Windows 7 wrote it).
fn bitlocker_to_go(source: &dyn Source) -> Result<bool, Unreadable> {
    if source.len() < 512 {
        return Ok(false);
    }
    let sector: [u8; 512] = source.array(0)?;
    if &sector[3..11] != b"MSWIN4.1" {
        return Ok(false);
    }
    for at in [440, 176] {
        let at = le64(&sector, at);
        if at > 0 && source.has(at, 8) && &source.array::<8>(at)? == b"-FVE-FS-" {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Versions 1.0 and 0.90 keep their superblock at the end, behind whatever begins at byte 0.
fn md_at_the_end(source: &dyn Source) -> Result<bool, Unreadable> {
    let size = source.len();
    for (back, unit) in [(8 << 10, 4 << 10), (64 << 10, 64 << 10)] {
        let Some(at) = (size / unit * unit).checked_sub(back) else { continue };
        if source.has(at, 4) {
            let magic = source.array::<4>(at)?;
            // 0.90 is in the byte order of its machine.
            if magic == MD_MAGIC || le32(&magic, 0).swap_bytes() == u32::from_le_bytes(MD_MAGIC) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn zfs(source: &dyn Source) -> Result<bool, Unreadable> {
    if !source.has(ZFS_UBERBLOCKS, ZFS_UBERBLOCKS) {
        return Ok(false);
    }
    // A label is 256 KiB; its second half is a ring of uberblocks, 1 KiB each or more. Two make it no accident.
    let ring = source.bytes(ZFS_UBERBLOCKS, ZFS_UBERBLOCKS as usize)?;
    let magic = |block: &&[u8]| [ZFS_UBERBLOCK, ZFS_UBERBLOCK.swap_bytes()].contains(&le64(block, 0));
    Ok(ring.chunks_exact(1024).filter(magic).count() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_where_they_belong_and_nowhere_else() {
        for mark in &MARKS {
            let mut disk = vec![0u8; 5 << 20];
            assert_eq!(recognised(&disk), Ok(None));
            let at = mark.at as usize;
            disk[at..at + mark.bytes.len()].copy_from_slice(mark.bytes);
            assert_eq!(recognised(&disk), Ok(Some(mark.of)));
            disk.insert(0, 0);
            assert_ne!(recognised(&disk).map(|found| found.map(|found| found.kind)), Ok(Some(mark.of.kind)));
        }
    }

    #[test]
    fn what_hides_behind_a_file_system_is_found() {
        let mut disk = vec![0u8; 1_000_000];
        let len = disk.len();
        // 1.0: 8 KiB before the end, on 4 KiB.
        let at = len / 4096 * 4096 - 8192;
        disk[at..at + 4].copy_from_slice(&MD_MAGIC);
        assert_eq!(recognised(&disk), Ok(Some(&MD)));
        disk[at..at + 4].fill(0);
        // 0.90, big-endian: 64 KiB before the end, on 64 KiB.
        let at = len / 65536 * 65536 - 65536;
        disk[at..at + 4].copy_from_slice(&0xA92B_4EFCu32.to_be_bytes());
        assert_eq!(recognised(&disk), Ok(Some(&MD)));
        disk[at..at + 4].fill(0);
        disk[3..11].copy_from_slice(b"MSWIN4.1");
        disk[440..448].copy_from_slice(&4096u64.to_le_bytes());
        assert_eq!(recognised(&disk), Ok(None));
        disk[4096..4104].copy_from_slice(b"-FVE-FS-");
        assert_eq!(recognised(&disk), Ok(Some(&BITLOCKER)));
        disk[3] = 0;
        for at in [130, 140] {
            disk[at << 10..(at << 10) + 8].copy_from_slice(&ZFS_UBERBLOCK.to_be_bytes());
        }
        assert_eq!(recognised(&disk), Ok(Some(&ZFS)));
    }
}
