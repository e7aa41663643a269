//! Formats that are recognised and left alone: encrypted, shared between disks, or not understood here.

use crate::fields::{be32, le32, le64};
use crate::source::{ByteSource, Unreadable};

/// A format of which nothing but its mark is known.
#[derive(Debug, PartialEq, Eq)]
pub struct Opaque {
    /// Its name.
    pub kind: &'static str,
    /// Reason why nothing of it is free.
    pub reason: &'static str,
}

/// Magic number of a format, with its offset.
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
const UFS: Opaque = Opaque { kind: "UFS", reason: UNREAD };
const JFS: Opaque = Opaque { kind: "JFS", reason: UNREAD };
const REISERFS: Opaque = Opaque { kind: "ReiserFS", reason: UNREAD };
const OCFS2: Opaque = Opaque { kind: "OCFS2", reason: SHARED };
const GFS2: Opaque = Opaque { kind: "GFS2", reason: SHARED };
const ISO9660: Opaque = Opaque { kind: "ISO 9660", reason: UNREAD };
const UDF: Opaque = Opaque { kind: "UDF", reason: UNREAD };
const STRATIS: Opaque = Opaque { kind: "Stratis", reason: SHARED };
const BLUESTORE: Opaque = Opaque { kind: "BlueStore", reason: SHARED };
const DRBD: Opaque = Opaque { kind: "DRBD", reason: SHARED };
const FIRMWARE_RAID: Opaque = Opaque { kind: "firmware RAID", reason: SHARED };

/// The magic numbers of UFS1 and UFS2, at `fs_magic` (1372) of a superblock at 8, 64 or 256 KiB, in either byte order.
const UFS1_MAGIC: u32 = 0x0001_1954;
const UFS2_MAGIC: u32 = 0x1954_0119;
const UFS_MAGIC_AT: u64 = 1372;

/// Magic of the second header of LUKS2.
const LUKS2_SECOND: &[u8] = b"SKUL\xBA\xBE";

/// md's magic, little-endian (struct mdp_superblock_1, and mdp_super_t on little-endian machines).
const MD_MAGIC: [u8; 4] = 0xA92B_4EFCu32.to_le_bytes();

/// The marks at fixed places, as libblkid of util-linux looks for them.
const MARKS: [Mark; 50] = [
    Mark { at: 0, bytes: b"LUKS\xBA\xBE", of: &LUKS },
    // The second header of LUKS2, behind a first of any size that there is (LUKS2_HDR2_OFFSETS of cryptsetup).
    Mark { at: 16 << 10, bytes: LUKS2_SECOND, of: &LUKS },
    Mark { at: 32 << 10, bytes: LUKS2_SECOND, of: &LUKS },
    Mark { at: 64 << 10, bytes: LUKS2_SECOND, of: &LUKS },
    Mark { at: 128 << 10, bytes: LUKS2_SECOND, of: &LUKS },
    Mark { at: 256 << 10, bytes: LUKS2_SECOND, of: &LUKS },
    Mark { at: 512 << 10, bytes: LUKS2_SECOND, of: &LUKS },
    Mark { at: 1 << 20, bytes: LUKS2_SECOND, of: &LUKS },
    Mark { at: 2 << 20, bytes: LUKS2_SECOND, of: &LUKS },
    Mark { at: 4 << 20, bytes: LUKS2_SECOND, of: &LUKS },
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
    // The second superblock of F2FS, in block 1.
    Mark { at: 4096 + 1024, bytes: b"\x10\x20\xF5\xF2", of: &F2FS },
    Mark { at: (8 << 10) + UFS_MAGIC_AT, bytes: &UFS1_MAGIC.to_le_bytes(), of: &UFS },
    Mark { at: (8 << 10) + UFS_MAGIC_AT, bytes: &UFS1_MAGIC.to_be_bytes(), of: &UFS },
    Mark { at: (64 << 10) + UFS_MAGIC_AT, bytes: &UFS2_MAGIC.to_le_bytes(), of: &UFS },
    Mark { at: (64 << 10) + UFS_MAGIC_AT, bytes: &UFS2_MAGIC.to_be_bytes(), of: &UFS },
    Mark { at: (256 << 10) + UFS_MAGIC_AT, bytes: &UFS2_MAGIC.to_le_bytes(), of: &UFS },
    Mark { at: (256 << 10) + UFS_MAGIC_AT, bytes: &UFS2_MAGIC.to_be_bytes(), of: &UFS },
    Mark { at: 32 << 10, bytes: b"JFS1", of: &JFS },
    Mark { at: (8 << 10) + 0x14, bytes: b"ReIsErFs", of: &REISERFS },
    Mark { at: (8 << 10) + 0x34, bytes: b"ReIsErFs", of: &REISERFS },
    Mark { at: (64 << 10) + 0x34, bytes: b"ReIsErFs", of: &REISERFS },
    Mark { at: (64 << 10) + 0x34, bytes: b"ReIsEr2Fs", of: &REISERFS },
    Mark { at: (64 << 10) + 0x34, bytes: b"ReIsEr3Fs", of: &REISERFS },
    Mark { at: 64 << 10, bytes: b"ReIsEr4", of: &REISERFS },
    // The superblock of OCFS2 is block 2, of 512 to 4096 bytes.
    Mark { at: 1024, bytes: b"OCFSV2", of: &OCFS2 },
    Mark { at: 2048, bytes: b"OCFSV2", of: &OCFS2 },
    Mark { at: 4096, bytes: b"OCFSV2", of: &OCFS2 },
    Mark { at: 8192, bytes: b"OCFSV2", of: &OCFS2 },
    // GFS2_MAGIC, and the type of a superblock.
    Mark { at: 64 << 10, bytes: b"\x01\x16\x19\x70\0\0\0\x01", of: &GFS2 },
    // Volume descriptors begin in sector 16 (ECMA-119, 6.2.1; ECMA-167, 2/9.1), of 2048 bytes.
    Mark { at: (32 << 10) + 1, bytes: b"CD001", of: &ISO9660 },
    Mark { at: (32 << 10) + 1, bytes: b"BEA01", of: &UDF },
    Mark { at: (34 << 10) + 1, bytes: b"NSR0", of: &UDF },
    Mark { at: 512 + 4, bytes: b"!Stra0tis\x86\xFF\x02^\x41rh", of: &STRATIS },
    Mark { at: 9 * 512 + 4, bytes: b"!Stra0tis\x86\xFF\x02^\x41rh", of: &STRATIS },
    Mark { at: 0, bytes: b"bluestore block device", of: &BLUESTORE },
];

/// DRBD's internal metadata take the last block of 4 KiB; the magic number is one of three (versions 8.0 to 8.3, 8.4
/// unclean, 9), big-endian, at an offset that depends on the version.
const DRBD_BLOCK: u64 = 4096;
const DRBD_MAGICS: [u32; 3] = [0x8374_026B, 0x8374_026C, 0x8374_026D];
const DRBD_HEADER: usize = 128;

/// Marks of firmware RAID: sectors of 512 bytes before the end, and what begins there. Intel's IMSM, SNIA's DDF in
/// either byte order (on the last sector, or 257 before it with a workspace behind), NVIDIA, LSI.
const FIRMWARE_MARKS: [(u64, &[u8]); 7] = [
    (2, b"Intel Raid ISM Cfg Sig. "),
    (1, b"\xDE\x11\xDE\x11"),
    (1, b"\x11\xDE\x11\xDE"),
    (257, b"\xDE\x11\xDE\x11"),
    (257, b"\x11\xDE\x11\xDE"),
    (2, b"NVIDIA  "),
    (1, b"$XIDE$"),
];

/// The magic of ZFS' uberblocks, and where the first label has them.
const ZFS_UBERBLOCK: u64 = 0x00BA_B10C;
const ZFS_UBERBLOCKS: u64 = 128 << 10;

/// The opaque format that has marked the volume, if any.
pub fn recognised(source: &dyn ByteSource) -> Result<Option<&'static Opaque>, Unreadable> {
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
    if drbd(source)? {
        return Ok(Some(&DRBD));
    }
    if firmware_raid(source)? {
        return Ok(Some(&FIRMWARE_RAID));
    }
    Ok(zfs(source)?.then_some(&ZFS))
}

/// BitLocker To Go looks like FAT32 from outside; a pointer to its own header gives it away (at 440, or 176 where
/// Windows 7 wrote it).
fn bitlocker_to_go(source: &dyn ByteSource) -> Result<bool, Unreadable> {
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
fn md_at_the_end(source: &dyn ByteSource) -> Result<bool, Unreadable> {
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

fn drbd(source: &dyn ByteSource) -> Result<bool, Unreadable> {
    let Some(at) = (source.len() / DRBD_BLOCK).checked_sub(1) else { return Ok(false) };
    let header: [u8; DRBD_HEADER] = source.array(at * DRBD_BLOCK)?;
    Ok(header.chunks_exact(4).any(|word| DRBD_MAGICS.contains(&be32(word, 0))))
}

/// Its superblock lies at the end of the disk, behind the partition table and the file systems of the array.
fn firmware_raid(source: &dyn ByteSource) -> Result<bool, Unreadable> {
    for (sectors, mark) in FIRMWARE_MARKS {
        let at = (source.len() / 512).checked_sub(sectors).map(|sector| sector * 512);
        if let Some(at) = at
            && source.bytes(at, mark.len())? == mark
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn zfs(source: &dyn ByteSource) -> Result<bool, Unreadable> {
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
        let at = len / 4096 * 4096 - 4096 + 60;
        disk[at..at + 4].copy_from_slice(&0x8374_026Bu32.to_be_bytes());
        assert_eq!(recognised(&disk), Ok(Some(&DRBD)));
        disk[at..at + 4].fill(0);
        for (sectors, mark) in FIRMWARE_MARKS {
            let at = (len / 512 - sectors as usize) * 512;
            disk[at..at + mark.len()].copy_from_slice(mark);
            assert_eq!(recognised(&disk), Ok(Some(&FIRMWARE_RAID)), "{mark:?}");
            disk[at..at + mark.len()].fill(0);
        }
        for at in [130, 140] {
            disk[at << 10..(at << 10) + 8].copy_from_slice(&ZFS_UBERBLOCK.to_be_bytes());
        }
        assert_eq!(recognised(&disk), Ok(Some(&ZFS)));
    }
}
