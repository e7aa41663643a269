//! The metadata table and the known items (2.6).

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Guid;

/// Header of the metadata table.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MetadataTableHeader {
    /// "metadata".
    pub signature: [u8; 8],
    /// 0.
    pub reserved: U16,
    /// At most [`Self::ENTRIES_MAX`].
    pub entry_count: U16,
    /// 0.
    pub reserved2: [u8; 20],
}

impl MetadataTableHeader {
    /// "metadata".
    pub const SIGNATURE: [u8; 8] = *b"metadata";
    /// 2.6.1.1.
    pub const ENTRIES_MAX: u16 = 2047;
    /// Maximum number of user items in a table (2.6.1.2).
    pub const USER_ENTRIES_MAX: usize = 1024;
}

/// One metadata item.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MetadataEntry {
    /// Identifier of the item: [`item`] has the known ones.
    pub item: Guid,
    /// From the beginning of the region; at least 64 KiB, or 0 of an empty item.
    pub offset: U32,
    /// At most [`Self::LENGTH_MAX`].
    pub length: U32,
    /// [`Self::USER`], [`Self::VIRTUAL_DISK`], [`Self::REQUIRED`].
    pub flags: U32,
    /// 0.
    pub reserved: U32,
}

impl MetadataEntry {
    /// Set by users, not by the system.
    pub const USER: u32 = 1;
    /// Of the virtual disk, not of the file: a child gets a copy.
    pub const VIRTUAL_DISK: u32 = 2;
    /// Flag of an item that a program must know to open the file.
    pub const REQUIRED: u32 = 4;
    /// 2.6.1.2, bytes.
    pub const LENGTH_MAX: u32 = 1 << 20;
}

/// File parameters (2.6.2.1).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FileParameters {
    /// Bytes of a payload block.
    pub block_size: U32,
    /// [`Self::LEAVE_BLOCKS_ALLOCATED`], [`Self::HAS_PARENT`].
    pub flags: U32,
}

impl FileParameters {
    /// A fixed disk.
    pub const LEAVE_BLOCKS_ALLOCATED: u32 = 1;
    /// A differencing disk.
    pub const HAS_PARENT: u32 = 2;
}

/// Header of a parent locator (2.6.2.6.1).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LocatorHeader {
    /// [`item::VHDX_LOCATOR`].
    pub locator_type: Guid,
    /// 0.
    pub reserved: U16,
    /// Number of entries that follow.
    pub key_value_count: U16,
}

/// One key and its value (2.6.2.6.2), offsets within the item.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LocatorEntry {
    /// Offset of the key.
    pub key_offset: U32,
    /// Offset of the value.
    pub value_offset: U32,
    /// Bytes of the key.
    pub key_length: U16,
    /// Bytes of the value.
    pub value_length: U16,
}

/// The known items (2.6.2), and three that Microsoft's own readers know beside them.
pub mod item {
    use super::Guid;

    /// Block size and kind of file.
    pub const FILE_PARAMETERS: Guid = Guid::from_digits(0xCAA16737_FA36_4D43_B3B6_33F0AA44E76B);
    /// Bytes of the disk.
    pub const VIRTUAL_DISK_SIZE: Guid = Guid::from_digits(0x2FA54224_CD1B_4876_B211_5DBED83BF4B8);
    /// The disk's identity, the same in a whole chain.
    pub const VIRTUAL_DISK_ID: Guid = Guid::from_digits(0xBECA12AB_B2E6_4523_93EF_C309E000C746);
    /// 512 or 4096.
    pub const LOGICAL_SECTOR_SIZE: Guid = Guid::from_digits(0x8141BF1D_A96F_4709_BA47_F233A8FAAB5F);
    /// 512 or 4096.
    pub const PHYSICAL_SECTOR_SIZE: Guid = Guid::from_digits(0xCDA348C7_445D_4471_9CC9_E9885251C556);
    /// Parent locator: where the parent is.
    pub const PARENT_LOCATOR: Guid = Guid::from_digits(0xA8D35F2D_B30B_454D_ABF7_D3D84834AB0C);
    /// The one kind of parent locator that is defined (2.6.2.6.3).
    pub const VHDX_LOCATOR: Guid = Guid::from_digits(0xB04AEFB7_D19E_4A81_B789_25B8E9445913);

    /// A file that is still being filled: must not be opened.
    pub const INCOMPLETE: Guid = Guid::from_digits(0x71CC85F0_1B69_4E28_9558_C3BF83AE75D3);
    /// Cylinders, heads and sectors of a disk that was a VHD once.
    pub const CHS: Guid = Guid::from_digits(0xDA02D7BC_3D3A_423C_AC88_2A36AB21479B);
    /// Labels of persistent memory.
    pub const PMEM_LABELS: Guid = Guid::from_digits(0x10E1AE8A_4B7E_4169_A40F_CD70DE928393);
}

const _: () = assert!(size_of::<MetadataTableHeader>() == 32 && size_of::<MetadataEntry>() == 32);
const _: () = assert!(size_of::<LocatorHeader>() == 20 && size_of::<LocatorEntry>() == 12);
