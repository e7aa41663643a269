//! Vital product data of a logical unit, page by page, as a nexus sees it (SPC-4 §7.8).

use super::third_party_copy;
use crate::inquiry::PeripheralType;
use crate::nexus::ItlNexus;
use crate::vpd::{
    BlockDeviceCharacteristics, BlockLimits, DeviceIdentification, LogicalBlockProvisioning, framed, page,
};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_told_in_ascending_order() {
        assert!(PAGES.is_sorted());
    }
}
