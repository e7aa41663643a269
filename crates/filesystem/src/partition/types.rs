//! Types of partitions that are not for a file system of which the free map is read here: arrays, encryption, boot
//! code, file systems of other systems. Such a type and a file system that is read contradict each other.

/// Content of a partition, as its type declares it.
#[derive(Debug, PartialEq, Eq)]
pub struct Declared {
    /// Name of the content.
    pub name: &'static str,
    /// The kind that is found in such a partition and read here, if there is one.
    pub holds: Option<&'static str>,
}

const fn only(name: &'static str) -> Declared {
    Declared { name, holds: None }
}

const LVM: Declared = Declared { name: "LVM", holds: Some("LVM2") };
const RAID: Declared = only("Linux RAID");
const LUKS: Declared = only("LUKS");
const DM_CRYPT: Declared = only("dm-crypt");
const RESERVED: Declared = only("reserved by Linux");
const BIOS_BOOT: Declared = only("BIOS boot");
const PREP: Declared = only("PReP boot");
const MSR: Declared = only("Microsoft reserved");
const STORAGE_REPLICA: Declared = only("Windows Storage Replica");
const MBR_SCHEME: Declared = only("a partition table");
const CEPH: Declared = only("Ceph");
const GPFS: Declared = only("GPFS");
const HIBERNATION: Declared = only("hibernation");
const CHROMEOS_KERNEL: Declared = only("ChromeOS kernel");
const VMWARE: Declared = only("VMware");
const APPLE: Declared = only("Apple (HFS+, APFS)");
const FREEBSD: Declared = only("FreeBSD (UFS, ZFS)");
const NETBSD: Declared = only("NetBSD");
const OPENBSD: Declared = only("OpenBSD");
const DRAGONFLY: Declared = only("DragonFly BSD");
const SOLARIS: Declared = only("Solaris (UFS, ZFS)");
const HAIKU: Declared = only("Haiku (BFS)");
const QNX: Declared = only("QNX");
const PLAN9: Declared = only("Plan 9");

/// Types of the GPT, as sfdisk and gdisk list them: the first three fields of the GUID, and the last two.
const GUIDS: [(u32, u16, u16, u64, &Declared); 22] = [
    (0xE6D6_D379, 0xF507, 0x44C2, 0xA23C_238F_2A3D_F928, &LVM),
    (0xA19D_880F, 0x05FC, 0x4D3B, 0xA006_743F_0F84_911E, &RAID),
    (0xCA7D_7CCB, 0x63ED, 0x4C53, 0x861C_1742_5360_59CC, &LUKS),
    (0x7FFE_C5C9, 0x2D00, 0x49B7, 0x8941_3EA1_0A55_86B7, &DM_CRYPT),
    (0x8DA6_3339, 0x0007, 0x60C0, 0xC436_083A_C823_0908, &RESERVED),
    (0x2168_6148, 0x6449, 0x6E6F, 0x744E_6565_6445_4649, &BIOS_BOOT),
    (0x9E1A_2D38, 0xC612, 0x4316, 0xAA26_8B49_521E_5A8B, &PREP),
    (0xE3C9_E316, 0x0B5C, 0x4DB8, 0x817D_F92D_F002_15AE, &MSR),
    (0x558D_43C5, 0xA1AC, 0x43C0, 0xAAC8_D147_2B29_23D1, &STORAGE_REPLICA),
    (0x024D_EE41, 0x33E7, 0x11D3, 0x9D69_0008_C781_F39F, &MBR_SCHEME),
    (0x45B0_969E, 0x9B03, 0x4F30, 0xB4C6_B4B8_0CEF_F106, &CEPH),
    (0x4FBD_7E29, 0x9D25, 0x41B8, 0xAFD0_062C_0CEF_F05D, &CEPH),
    (0x4FBD_7E29, 0x9D25, 0x41B8, 0xAFD0_5EC0_0CEF_F05D, &CEPH),
    (0xCAFE_CAFE, 0x9B03, 0x4F30, 0xB4C6_B4B8_0CEF_F106, &CEPH),
    (0x30CD_0809, 0xC2B2, 0x499C, 0x8879_2D6B_7852_9876, &CEPH),
    (0x5CE1_7FCE, 0x4087, 0x4169, 0xB7FF_056C_C584_73F9, &CEPH),
    (0x37AF_FC90, 0xEF7D, 0x4E96, 0x91C3_2D7A_E055_B174, &GPFS),
    (0xFE3A_2A5D, 0x4F32, 0x41A7, 0xB725_ACCC_3285_A309, &CHROMEOS_KERNEL),
    (0x824C_C7A0, 0x36A8, 0x11E3, 0x890A_9525_19AD_3F61, &OPENBSD),
    (0x4246_5331, 0x3BA3, 0x10F1, 0x802A_4861_696B_7521, &HAIKU),
    (0xCEF5_A9AD, 0x73BC, 0x4601, 0x89F3_CDEE_EEE3_21A1, &QNX),
    (0xC918_18F9, 0x8025, 0x47AF, 0x89D2_F030_D700_0C2C, &PLAN9),
];

/// Systems all of whose types end in the same six bytes, the node of their GUIDs.
const NODES: [([u8; 6], &Declared); 6] = [
    ([0x00, 0x30, 0x65, 0x43, 0xEC, 0xAC], &APPLE),
    ([0x00, 0x02, 0x2D, 0x09, 0x71, 0x2B], &FREEBSD),
    ([0x00, 0x19, 0xD1, 0x87, 0x96, 0x48], &NETBSD),
    ([0x01, 0x30, 0x1B, 0xB8, 0xA9, 0xF5], &DRAGONFLY),
    ([0x08, 0x00, 0x20, 0x73, 0x66, 0x31], &SOLARIS),
    ([0x00, 0x0C, 0x29, 0x11, 0xD1, 0xB8], &VMWARE),
];

/// Types of the MBR, as sfdisk lists them. 82h is for swap and for Solaris, and says nothing.
const BYTES: [(u8, &Declared); 22] = [
    (0x39, &PLAN9),
    (0x41, &PREP),
    (0x4D, &QNX),
    (0x4E, &QNX),
    (0x4F, &QNX),
    (0x6C, &DRAGONFLY),
    (0x84, &HIBERNATION),
    (0x8E, &LVM),
    (0xA0, &HIBERNATION),
    (0xA1, &HIBERNATION),
    (0xA5, &FREEBSD),
    (0xA6, &OPENBSD),
    (0xA8, &APPLE),
    (0xA9, &NETBSD),
    (0xAB, &APPLE),
    (0xAF, &APPLE),
    (0xBF, &SOLARIS),
    (0xE8, &LUKS),
    (0xEB, &HAIKU),
    (0xFB, &VMWARE),
    (0xFC, &VMWARE),
    (0xFD, &RAID),
];

/// A GUID as it lies on a disk: the first three fields little-endian.
pub(super) const fn guid(a: u32, b: u16, c: u16, d: u64) -> [u8; 16] {
    let (a, b, c, d) = (a.to_le_bytes(), b.to_le_bytes(), c.to_le_bytes(), d.to_be_bytes());
    [a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]]
}

/// Returns the content declared by a type of the GPT, if that is not a file system that is read here.
pub(super) fn of_guid(kind: &[u8; 16]) -> Option<&'static Declared> {
    let exact = GUIDS.iter().find(|(a, b, c, d, _)| guid(*a, *b, *c, *d) == *kind).map(|found| found.4);
    exact.or_else(|| NODES.iter().find(|(node, _)| kind.ends_with(node)).map(|found| found.1))
}

/// The same of the MBR.
pub(super) fn of_byte(kind: u8) -> Option<&'static Declared> {
    BYTES.iter().find(|(byte, _)| *byte == kind).map(|found| found.1)
}
