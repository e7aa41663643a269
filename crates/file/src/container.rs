//! Containers: files whose bytes are not those of the disk that they hold.

use std::fmt;
use std::os::fd::BorrowedFd;

use lunway_block::Buf;
use rustix::io::{Errno, pread};

/// Bytes that are read at the beginning and at the end: whole pieces for `O_DIRECT`, whatever the disk's sector. All
/// signatures stand in the first 512 bytes or the last 512.
const PIECE: u64 = 4096;
/// The footer of a VHD. Images of Virtual PC before 2004 have one byte less (Virtual Hard Disk Image Format
/// Specification, "Hard Disk Footer Format").
const VHD_FOOTER: usize = 512;
const VHD_COOKIE: &[u8] = b"conectix";
/// Offset and value of the signature of a VDI (VirtualBox, `VDICore.h`: `VDIPREHEADER` is a text of 64 bytes, then the
/// signature).
const VDI_SIGNATURE: (usize, [u8; 4]) = (64, 0xbeda_107f_u32.to_le_bytes());
/// Magic numbers that follow `BZh` and a digit: π for the first block, √π at the end of an empty stream.
const BZIP2_BLOCKS: [[u8; 6]; 2] =
    [[0x31, 0x41, 0x59, 0x26, 0x53, 0x59], [0x17, 0x72, 0x45, 0x38, 0x50, 0x90]];

/// Signatures at offset 0.
const SIGNATURES: [(&[u8], Container); 13] = [
    // Both versions of the format (QEMU, docs/interop/qcow2).
    (b"QFI\xfb", Container::Qcow2),
    (b"QED\0", Container::Qed),
    (b"KDMV", Container::Vmdk),
    (b"COWD", Container::Vmdk),
    // The 64-bit number 0xcafebabe of a space-efficient sparse extent.
    (b"\xbe\xba\xfe\xca\0\0\0\0", Container::Vmdk),
    (b"# Disk DescriptorFile", Container::Vmdk),
    (b"vhdxfile", Container::Vhdx),
    // RFC 1952 §2.3.1, with deflate, the only method there is.
    (b"\x1f\x8b\x08", Container::Gzip),
    (b"\xfd7zXZ\0", Container::Xz),
    // RFC 8878 §3.1.1.
    (b"\x28\xb5\x2f\xfd", Container::Zstd),
    (b"\x04\x22\x4d\x18", Container::Lz4),
    // The frames of `lz4 -l`, in which kernels are compressed.
    (b"\x02\x21\x4c\x18", Container::Lz4),
    (VHD_COOKIE, Container::Vhd),
];

/// The format of a file that is not raw data.
///
/// It is looked for once, in a file that is opened for the first time and whose format was not said. It never decides
/// how a file is opened: the content of a raw disk belongs to its guest, who may write any of these signatures there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Container {
    /// QEMU's copy-on-write format, both versions.
    Qcow2,
    /// QEMU's enhanced disk.
    Qed,
    /// VMware's, sparse or a descriptor.
    Vmdk,
    /// The format of Virtual PC and Azure, fixed, dynamic or differencing.
    Vhd,
    /// The format of Hyper-V.
    Vhdx,
    /// VirtualBox's.
    Vdi,
    /// A gzip stream.
    Gzip,
    /// An xz stream.
    Xz,
    /// A Zstandard stream.
    Zstd,
    /// A bzip2 stream.
    Bzip2,
    /// An LZ4 stream.
    Lz4,
}

impl Container {
    /// The container whose signature stands at the beginning or at the end of a file.
    pub fn recognize(head: &[u8], tail: &[u8]) -> Option<Self> {
        let found = SIGNATURES.iter().find(|(signature, _)| head.starts_with(signature));
        found.map(|(_, container)| *container).or_else(|| {
            let (at, signature) = VDI_SIGNATURE;
            if head.get(at..).is_some_and(|rest| rest.starts_with(&signature)) {
                return Some(Self::Vdi);
            }
            if let Some([b'1'..=b'9', rest @ ..]) = head.strip_prefix(b"BZh")
                && BZIP2_BLOCKS.iter().any(|block| rest.starts_with(block))
            {
                return Some(Self::Bzip2);
            }
            let footer = |len: usize| tail.len().checked_sub(len).map(|at| &tail[at..]);
            let is_footer = |len| footer(len).is_some_and(|footer| footer.starts_with(VHD_COOKIE));
            (is_footer(VHD_FOOTER) || is_footer(VHD_FOOTER - 1)).then_some(Self::Vhd)
        })
    }

    /// Looks at the beginning and the end of an open file of `size` bytes.
    pub(crate) fn of(file: BorrowedFd<'_>, size: u64) -> Result<Option<Self>, Errno> {
        let mut buf = Buf::zeroed(2 * PIECE as usize);
        let mut read = |at: u64| pread(file, &mut buf[..], at).map(|count| buf[..count].to_vec());
        let head = read(0)?;
        let tail = read(size.saturating_sub(VHD_FOOTER as u64) / PIECE * PIECE)?;
        Ok(Self::recognize(&head, &tail))
    }

    /// Remedy, as the end of a sentence.
    pub(crate) fn remedy(self, path: &str) -> String {
        let raw = format!("raw:{path} opens its bytes as they are");
        match self {
            Self::Vhdx => format!("vhdx:{path} opens it as VHDX, {raw}"),
            Self::Vhd => format!("vhd:{path} reads it as VHD, {raw}"),
            Self::Qcow2 => format!("qcow2:{path} reads it as qcow2, {raw}"),
            Self::Qed | Self::Vmdk | Self::Vdi => {
                format!("`qemu-img convert -O raw` makes a raw image of it, {raw}")
            }
            Self::Gzip | Self::Xz | Self::Zstd | Self::Bzip2 | Self::Lz4 => {
                format!("decompress it first, or {raw}")
            }
        }
    }
}

impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Qcow2 => "a qcow2 image",
            Self::Qed => "a QED image",
            Self::Vmdk => "a VMDK image",
            Self::Vhd => "a VHD image",
            Self::Vhdx => "a VHDX image",
            Self::Vdi => "a VDI image",
            Self::Gzip => "a gzip stream",
            Self::Xz => "an xz stream",
            Self::Zstd => "a zstd stream",
            Self::Bzip2 => "a bzip2 stream",
            Self::Lz4 => "an LZ4 stream",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_counts_only_where_its_format_has_it() {
        let at = |offset: usize, signature: &[u8]| {
            let mut bytes = vec![0; 4096];
            bytes[offset..offset + signature.len()].copy_from_slice(signature);
            bytes
        };
        let zeroes = vec![0; 4096];
        for (signature, container) in SIGNATURES {
            assert_eq!(Container::recognize(&at(0, signature), &zeroes), Some(container));
            assert_eq!(Container::recognize(&at(512, signature), &zeroes), None, "{container}");
        }
        let tail = |len: usize| Container::recognize(&zeroes, &at(4096 - len, b"conectix"));
        assert_eq!((tail(512), tail(511), tail(510)), (Some(Container::Vhd), Some(Container::Vhd), None));
        assert_eq!(Container::recognize(&at(64, &VDI_SIGNATURE.1), &zeroes), Some(Container::Vdi));
        assert_eq!(Container::recognize(&at(0, b"BZh91AY&SY"), &zeroes), Some(Container::Bzip2));
        assert_eq!(Container::recognize(&at(0, b"BZh9 is a text"), &zeroes), None);
        assert_eq!(Container::recognize(b"", b"cone"), None);
    }

    #[test]
    fn what_raw_disks_begin_with_is_raw() {
        // An MBR, LUKS, XFS, LVM, a FAT's jump, an ISO 9660 of zeroes and an ELF boot loader.
        for head in
            [&b"\xeb\x63\x90"[..], b"LUKS\xba\xbe", b"XFSB", b"LABELONE", b"\xeb\x3c\x90mkfs", &[0; 512]]
        {
            assert_eq!(Container::recognize(head, b"EFI PART"), None, "{head:?}");
        }
    }
}
