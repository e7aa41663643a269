//! The protocol data units of RFC 7143 §11 as 48-byte structures that *are* the bytes of the wire.
//!
//! A basic header segment arrives as a [`Header`]; [`BasicHeader`] reads what all PDUs share, its opcode says which
//! type [`view`] may lend. To send, make one with `new()`, fill the public fields, and take [`to_bytes`]. Nothing is
//! decoded or copied: fields are big-endian in place, one-byte codes are open newtypes, so an unknown value
//! survives to the code that rejects it.
//!
//! Viewing never fails and proves nothing: any 48 bytes are a valid value of any PDU type. The reader judges.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Makes a newtype over one wire code: named values, any other value kept.
macro_rules! codes {
    (
        $(#[$outer:meta])*
        pub struct $name:ident {
            $( $(#[$inner:meta])* $value:ident = $code:literal, $text:literal; )*
        }
    ) => {
        $(#[$outer])*
        #[derive(
            Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout, zerocopy::Unaligned,
        )]
        #[repr(transparent)]
        pub struct $name(pub u8);

        impl $name {
            $( $(#[$inner])* pub const $value: Self = Self($code); )*

            /// The standard's name for this value, if it has one.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $( $code => Some($text), )*
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "unknown ({:#04x})", self.0),
                }
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({:#04x}: {self})", stringify!($name), self.0)
            }
        }
    };
}

/// Gives a PDU structure its opcode, its constructor and the accessors all share.
// RFC 7143 [11-1, 11.2.1.5-1]
macro_rules! pdu {
    ($name:ident, $opcode:expr $(, $field:ident = $value:expr)*) => {
        impl $crate::pdu::Pdu for $name {
            const OPCODE: $crate::pdu::Opcode = $opcode;
        }

        impl $name {
            /// A PDU with its opcode, its constant bits and its reserved tags set, and zero elsewhere.
            pub fn new() -> Self {
                let mut pdu = <Self as zerocopy::FromZeros>::new_zeroed();
                pdu.opcode = $crate::pdu::OpcodeByte::new($opcode);
                $( pdu.$field = $value.into(); )*
                pdu
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new()
            }
        }

        const _: () = assert!(size_of::<$name>() == $crate::pdu::HEADER_LEN);
    };
}

mod ahs;
mod asynchronous;
mod basic;
mod command;
mod data;
mod login;
mod logout;
mod nop;
mod opcode;
mod reject;
mod snack;
mod task;
mod text;

pub use ahs::{Ahs, AhsError, AhsIter, AhsType};
pub use asynchronous::{AsyncEvent, AsyncMessage};
pub use basic::{BasicHeader, RequestHeader, U24};
pub use command::{ScsiCommand, ScsiResponse, ServiceResponse, TaskAttribute};
pub use data::{DataIn, DataOut, R2t};
pub use login::{Isid, LoginRequest, LoginResponse, LoginStatus, Stage};
pub use logout::{LogoutReason, LogoutRequest, LogoutResponse, LogoutResult};
pub use nop::{NopIn, NopOut};
pub use opcode::{Opcode, OpcodeByte};
pub use reject::{Reject, RejectReason};
pub use snack::{Snack, SnackType};
pub use task::{TaskManagementCode, TaskManagementRequest, TaskManagementResponse, TaskManagementResult};
pub use text::{TextRequest, TextResponse};

/// Length of the basic header segment (RFC 7143 §11.2.1).
pub const HEADER_LEN: usize = 48;

/// A basic header segment as it travels.
pub type Header = [u8; HEADER_LEN];

/// The value of a task tag that names no task (RFC 7143 §11.2.1.8, §11.7.4).
pub const RESERVED_TAG: u32 = 0xffff_ffff;

/// The bit of byte 1 that ends a sequence; constant 1 where a PDU has no sequence (RFC 7143 §11.2.1.3).
pub const FINAL: u8 = 0x80;

/// Largest value a DataSegmentLength field can hold (24 bits).
pub const MAX_DATA_SEGMENT_LEN: u32 = (1 << 24) - 1;

/// A structure that is one PDU's basic header segment.
pub trait Pdu: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned {
    /// The opcode a header of this type carries.
    const OPCODE: Opcode;
}

/// Reads a header as the PDU type its opcode named. Any bytes are acceptable; the opcode is not checked here.
pub fn view<T: Pdu>(header: &Header) -> &T {
    T::ref_from_bytes(header).expect("every Pdu type is HEADER_LEN bytes, asserted at compile time")
}

/// The bytes of a PDU's header, ready to send.
pub fn to_bytes<T: Pdu>(pdu: &T) -> Header {
    let mut header = [0; HEADER_LEN];
    header.copy_from_slice(pdu.as_bytes());
    header
}

/// Bytes of padding that follow `len` bytes of a segment (RFC 7143 §11.1): segments are multiples of four bytes.
pub const fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn padding_completes_a_word() {
        assert_eq!([0, 1, 2, 3, 4, 5].map(padding), [0, 3, 2, 1, 0, 3]);
    }

    #[test]
    fn a_new_pdu_carries_its_opcode_and_constant_bits() {
        fn check<T: Pdu>(pdu: &T, byte0: u8, byte1: u8) {
            let bytes = to_bytes(pdu);
            assert_eq!((bytes[0], bytes[1]), (byte0, byte1), "{}", T::OPCODE);
        }
        check(&NopOut::new(), 0x00, 0x80);
        check(&ScsiCommand::new(), 0x01, 0x00);
        check(&TaskManagementRequest::new(), 0x02, 0x80);
        check(&LoginRequest::new(), 0x43, 0x00);
        check(&TextRequest::new(), 0x04, 0x00);
        check(&DataOut::new(), 0x05, 0x00);
        check(&LogoutRequest::new(), 0x06, 0x80);
        check(&Snack::new(), 0x10, 0x80);
        check(&NopIn::new(), 0x20, 0x80);
        check(&ScsiResponse::new(), 0x21, 0x80);
        check(&TaskManagementResponse::new(), 0x22, 0x80);
        check(&LoginResponse::new(), 0x23, 0x00);
        check(&TextResponse::new(), 0x24, 0x00);
        check(&DataIn::new(), 0x25, 0x00);
        check(&LogoutResponse::new(), 0x26, 0x80);
        check(&R2t::new(), 0x31, 0x80);
        check(&AsyncMessage::new(), 0x32, 0x80);
        check(&Reject::new(), 0x3f, 0x80);
    }

    fn header() -> impl Strategy<Value = Header> {
        proptest::collection::vec(any::<u8>(), HEADER_LEN).prop_map(|v| v.try_into().unwrap())
    }

    proptest! {
        #[test]
        fn every_header_survives_a_view_and_back(bytes in header()) {
            prop_assert_eq!(to_bytes(view::<ScsiCommand>(&bytes)), bytes);
            prop_assert_eq!(to_bytes(view::<ScsiResponse>(&bytes)), bytes);
            prop_assert_eq!(to_bytes(view::<DataIn>(&bytes)), bytes);
            prop_assert_eq!(to_bytes(view::<LoginRequest>(&bytes)), bytes);
            prop_assert_eq!(to_bytes(view::<Reject>(&bytes)), bytes);
        }

        #[test]
        fn the_basic_view_agrees_with_every_typed_view(bytes in header()) {
            let basic = BasicHeader::of(&bytes);
            let command = view::<ScsiCommand>(&bytes);
            prop_assert_eq!(basic.data_segment_length.get(), command.data_segment_length.get());
            prop_assert_eq!(basic.initiator_task_tag, command.initiator_task_tag);
            prop_assert_eq!(basic.lun, command.lun);
            prop_assert_eq!(basic.opcode.opcode(), command.opcode.opcode());
        }
    }
}
