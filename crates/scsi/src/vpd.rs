//! Vital product data pages (SPC-4 §7.8 and SBC-4): built by the device server, read by the initiator.

mod block_limits;
mod designation;
mod third_party_copy;

pub use block_limits::{BlockDeviceCharacteristics, BlockLimits, LogicalBlockProvisioning};
pub use designation::{Association, Designator, DesignatorType, DeviceIdentification};

use crate::field::{ascii, put, u8_at, u16_at};
use crate::inquiry::PeripheralType;
use crate::nexus::ItlNexus;

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

/// The pages of a disk, in ascending order as page 00h wants them.
const PAGES: [u8; 8] = [
    page::SUPPORTED,
    page::UNIT_SERIAL_NUMBER,
    page::DEVICE_IDENTIFICATION,
    page::EXTENDED_INQUIRY,
    page::THIRD_PARTY_COPY,
    page::BLOCK_LIMITS,
    page::BLOCK_DEVICE_CHARACTERISTICS,
    page::LOGICAL_BLOCK_PROVISIONING,
];

/// A page with its header.
fn framed(peripheral: PeripheralType, code: u8, body: &[u8]) -> Vec<u8> {
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

/// A page as this nexus sees it; `None`: there is no such page.
pub(crate) fn build(code: u8, itl: &ItlNexus) -> Option<Vec<u8>> {
    let unit = itl.unit();
    let body = match code {
        page::SUPPORTED => PAGES.to_vec(),
        page::UNIT_SERIAL_NUMBER => unit.identity().serial().as_bytes().to_vec(),
        page::DEVICE_IDENTIFICATION => DeviceIdentification::of(itl).build_body(),
        page::EXTENDED_INQUIRY => extended_inquiry(unit.geometry().volatile_cache),
        page::THIRD_PARTY_COPY => third_party_copy::build_body(),
        page::BLOCK_LIMITS => BlockLimits::of(unit).build_body().to_vec(),
        page::BLOCK_DEVICE_CHARACTERISTICS => {
            BlockDeviceCharacteristics::of(&unit.geometry()).build_body().to_vec()
        }
        page::LOGICAL_BLOCK_PROVISIONING => {
            LogicalBlockProvisioning::of(&unit.geometry(), unit.mapping_resources().is_some())
                .build_body()
                .to_vec()
        }
        _ => return None,
    };
    Some(framed(PeripheralType::of(itl), code, &body))
}

/// Extended INQUIRY data (SPC-4 §7.8.7): simple, ordered and head-of-queue tasks; whether a cache is volatile; I_T
/// nexus loss clears RESERVE and the like for that nexus alone.
fn extended_inquiry(volatile_cache: bool) -> Vec<u8> {
    const HEADSUP_ORDSUP_SIMPSUP: u8 = 0x07;
    const V_SUP: u8 = 0x01;
    const LUICLR: u8 = 0x01;
    let mut body = vec![0; 60];
    body[1] = HEADSUP_ORDSUP_SIMPSUP;
    body[2] = if volatile_cache { V_SUP } else { 0 };
    body[3] = LUICLR;
    body
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
    fn pages_are_told_in_ascending_order() {
        assert!(PAGES.is_sorted());
    }

    #[test]
    fn a_serial_number_comes_back_without_its_padding() {
        let bytes = framed(PeripheralType::DISK, page::UNIT_SERIAL_NUMBER, b"  SN 42 ");
        assert_eq!(UnitSerialNumber::parse(&bytes), Some(UnitSerialNumber("SN 42".to_owned())));
        assert_eq!(UnitSerialNumber::parse(&bytes[..7]), Some(UnitSerialNumber("S".to_owned())));
        assert_eq!(SupportedPages::parse(&bytes), None);
    }
}
