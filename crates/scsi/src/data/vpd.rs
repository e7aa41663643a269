//! Vital product data pages (SPC-4 §7.8 and SBC-4): types for both roles, the device server and the initiator.

mod block_limits;
mod designation;

pub use block_limits::{BlockDeviceCharacteristics, BlockLimits, LogicalBlockProvisioning};
pub use designation::{Association, Designator, DesignatorType, DeviceIdentification};
pub(crate) use designation::{code_set, scsi_name};

use crate::data::field::{ascii, put, u8_at, u16_at};
use crate::data::inquiry::PeripheralType;

/// Page codes.
pub mod page {
    /// Supported VPD pages.
    pub const SUPPORTED: u8 = 0x00;
    /// Unit serial number.
    pub const UNIT_SERIAL_NUMBER: u8 = 0x80;
    /// Device identification.
    pub const DEVICE_IDENTIFICATION: u8 = 0x83;
    /// Extended INQUIRY data.
    pub const EXTENDED_INQUIRY: u8 = 0x86;
    /// Third-party copy.
    pub const THIRD_PARTY_COPY: u8 = 0x8F;
    /// Block limits.
    pub const BLOCK_LIMITS: u8 = 0xB0;
    /// Block device characteristics.
    pub const BLOCK_DEVICE_CHARACTERISTICS: u8 = 0xB1;
    /// Logical block provisioning.
    pub const LOGICAL_BLOCK_PROVISIONING: u8 = 0xB2;
}

/// A page with its header.
pub(crate) fn framed(peripheral: PeripheralType, code: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![peripheral.0, code, 0, 0];
    put(&mut bytes, 2, (body.len() as u16).to_be_bytes());
    bytes.extend(body);
    bytes
}

/// The body of page `code`, as far as it is there; `None` where it is another page.
pub(crate) fn body(bytes: &[u8], code: u8) -> Option<&[u8]> {
    if u8_at(bytes, 1)? != code {
        return None;
    }
    let end = bytes.len().min(4 + usize::from(u16_at(bytes, 2)?));
    bytes.get(4..end)
}

/// Page 00h for a LUN with or without a logical unit.
pub(crate) fn build_supported(peripheral: PeripheralType, pages: &[u8]) -> Vec<u8> {
    framed(peripheral, page::SUPPORTED, pages)
}

/// The page codes of page 00h.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SupportedPages(pub Vec<u8>);

impl SupportedPages {
    /// Reads page 00h.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        body(bytes, page::SUPPORTED).map(|body| Self(body.to_vec()))
    }
}

/// The text of page 80h.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitSerialNumber(pub String);

impl UnitSerialNumber {
    /// Reads page 80h.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        body(bytes, page::UNIT_SERIAL_NUMBER).map(|body| Self(ascii(body)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_serial_number_comes_back_without_its_padding() {
        let bytes = framed(PeripheralType::DISK, page::UNIT_SERIAL_NUMBER, b"  SN 42 ");
        assert_eq!(UnitSerialNumber::parse(&bytes), Some(UnitSerialNumber("SN 42".to_owned())));
        assert_eq!(UnitSerialNumber::parse(&bytes[..7]), Some(UnitSerialNumber("S".to_owned())));
        assert_eq!(SupportedPages::parse(&bytes), None);
    }
}
