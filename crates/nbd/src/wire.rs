//! The protocol's numbers and headers, under the names that its specification gives them (`doc/proto.md` of the NBD
//! project).

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of a server: "NBDMAGIC".
pub(crate) const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Before each option: "IHAVEOPT".
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Before each reply to an option.
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub(crate) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Handshake flags of the server, and the same bits back from the client.
pub(crate) mod handshake {
    pub(crate) const FIXED_NEWSTYLE: u16 = 1 << 0;
    pub(crate) const NO_ZEROES: u16 = 1 << 1;
}

/// Transmission flags: the capabilities of an export.
pub(crate) mod transmission {
    pub(crate) const HAS_FLAGS: u16 = 1 << 0;
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    pub(crate) const SEND_FLUSH: u16 = 1 << 2;
    pub(crate) const SEND_FUA: u16 = 1 << 3;
    pub(crate) const ROTATIONAL: u16 = 1 << 4;
    pub(crate) const SEND_TRIM: u16 = 1 << 5;
    pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const SEND_DF: u16 = 1 << 7;
    pub(crate) const CAN_MULTI_CONN: u16 = 1 << 8;
    /// Of the experimental extension `RESIZE`.
    pub(crate) const SEND_RESIZE: u16 = 1 << 9;
}

/// Options that a client sends during the handshake.
pub(crate) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const STARTTLS: u32 = 5;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const LIST_META_CONTEXT: u32 = 9;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
}

/// Replies to an option.
pub(crate) mod reply {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    /// Bit of every error.
    pub(crate) const IS_ERROR: u32 = 1 << 31;
    pub(crate) const ERR_UNSUP: u32 = (1 << 31) | 1;
    pub(crate) const ERR_POLICY: u32 = (1 << 31) | 2;
    pub(crate) const ERR_INVALID: u32 = (1 << 31) | 3;
    pub(crate) const ERR_TLS_REQD: u32 = (1 << 31) | 5;
    pub(crate) const ERR_UNKNOWN: u32 = (1 << 31) | 6;
    pub(crate) const ERR_TOO_BIG: u32 = (1 << 31) | 9;
}

/// Types of information about an export in `INFO` and `GO`.
pub(crate) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DESCRIPTION: u16 = 2;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// Requests.
pub(crate) mod command {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const DISC: u16 = 2;
    pub(crate) const FLUSH: u16 = 3;
    pub(crate) const TRIM: u16 = 4;
    pub(crate) const WRITE_ZEROES: u16 = 6;
    pub(crate) const BLOCK_STATUS: u16 = 7;
    /// Of the experimental extension `RESIZE`.
    pub(crate) const RESIZE: u16 = 8;
}

/// Flags of a request.
pub(crate) mod flag {
    pub(crate) const FUA: u16 = 1 << 0;
    pub(crate) const NO_HOLE: u16 = 1 << 1;
    pub(crate) const DF: u16 = 1 << 2;
    pub(crate) const REQ_ONE: u16 = 1 << 3;
}

/// Chunks of a structured reply.
pub(crate) mod chunk {
    pub(crate) const DONE: u16 = 1 << 0;
    pub(crate) const NONE: u16 = 0;
    pub(crate) const OFFSET_DATA: u16 = 1;
    pub(crate) const OFFSET_HOLE: u16 = 2;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    /// Bit of every error.
    pub(crate) const IS_ERROR: u16 = 1 << 15;
    pub(crate) const ERROR: u16 = (1 << 15) | 1;
    pub(crate) const ERROR_OFFSET: u16 = (1 << 15) | 2;
}

/// Flags of the metadata context `base:allocation`.
pub(crate) mod allocation {
    pub(crate) const NAME: &str = "base:allocation";
    /// The number by which replies refer to it.
    pub(crate) const ID: u32 = 1;
    pub(crate) const HOLE: u32 = 1 << 0;
    pub(crate) const ZERO: u32 = 1 << 1;
}

/// The metadata contexts `qemu:dirty-bitmap:NAME`: what was written since the bitmap began.
pub(crate) mod dirty_bitmap {
    pub(crate) const NAMESPACE: &str = "qemu:";
    pub(crate) const PREFIX: &str = "qemu:dirty-bitmap:";
    /// The number of the first one; those behind it follow.
    pub(crate) const FIRST_ID: u32 = 2;
    pub(crate) const DIRTY: u32 = 1 << 0;
}

/// Errors of requests; the numbers are Linux's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Errno {
    Perm = 1,
    Io = 5,
    Inval = 22,
    NoSpc = 28,
    NotSup = 95,
}

/// `NBDMAGIC`, `IHAVEOPT`, handshake flags.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Greeting {
    pub(crate) magic: U64,
    pub(crate) option_magic: U64,
    pub(crate) flags: U16,
}

/// Before the data of an option.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct OptionHeader {
    pub(crate) magic: U64,
    pub(crate) option: U32,
    pub(crate) length: U32,
}

/// Before the data of a reply to an option.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct OptionReplyHeader {
    pub(crate) magic: U64,
    pub(crate) option: U32,
    pub(crate) reply: U32,
    pub(crate) length: U32,
}

/// A request; the data of a write follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Request {
    pub(crate) magic: U32,
    pub(crate) flags: U16,
    pub(crate) command: U16,
    pub(crate) cookie: U64,
    pub(crate) offset: U64,
    pub(crate) length: U32,
}

/// A reply where structured ones were not asked for; the data of a read follows.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SimpleReply {
    pub(crate) magic: U32,
    pub(crate) error: U32,
    pub(crate) cookie: U64,
}

/// A chunk of a structured reply; `length` bytes follow.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Chunk {
    pub(crate) magic: U32,
    pub(crate) flags: U16,
    pub(crate) kind: U16,
    pub(crate) cookie: U64,
    pub(crate) length: U32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_as_long_as_the_specification_says() {
        assert_eq!(size_of::<Greeting>(), 18);
        assert_eq!(size_of::<OptionHeader>(), 16);
        assert_eq!(size_of::<OptionReplyHeader>(), 20);
        assert_eq!(size_of::<Request>(), 28);
        assert_eq!(size_of::<SimpleReply>(), 16);
        assert_eq!(size_of::<Chunk>(), 20);
        assert_eq!(NBD_MAGIC.to_be_bytes(), *b"NBDMAGIC");
        assert_eq!(OPTION_MAGIC.to_be_bytes(), *b"IHAVEOPT");
    }
}
