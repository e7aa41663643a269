//! Data of INQUIRY about a logical unit, as a nexus sees it: standard data (SPC-4 §6.6.2) and vital product data, page
//! by page (SPC-4 §7.8).

use super::third_party_copy;
use crate::command::operation::OperationTable;
use crate::data::field::put_ascii;
use crate::data::inquiry::{Inquiry, PeripheralType};
use crate::data::vpd::{
    Association, BlockDeviceCharacteristics, BlockLimits, Designator, DesignatorType, DeviceIdentification,
    LogicalBlockProvisioning, code_set, framed, page, scsi_name,
};
use crate::limits::{COMPARE_AND_WRITE_MAX, UNMAP_BLOCKS_MAX, UNMAP_DESCRIPTORS_MAX, WRITE_SAME_BLOCKS_MAX};
use crate::model::logical_unit::LogicalUnit;
use crate::model::nexus::ItlNexus;
use crate::model::port_group::AccessState;

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
pub(crate) fn build(code: u8, itl: &ItlNexus, operations: &OperationTable) -> Option<Vec<u8>> {
    let unit = itl.unit();
    let body = match code {
        page::SUPPORTED => PAGES.to_vec(),
        page::UNIT_SERIAL_NUMBER => unit.identity().serial().as_bytes().to_vec(),
        page::DEVICE_IDENTIFICATION => DeviceIdentification::of(itl).build_body(),
        page::EXTENDED_INQUIRY => extended_inquiry(unit.geometry().volatile_cache),
        page::THIRD_PARTY_COPY => third_party_copy::build_body(operations),
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

impl PeripheralType {
    /// Type of a logical unit as a nexus finds it (SPC-4 §5.16.2.4.5).
    pub(crate) fn of(itl: &ItlNexus) -> Self {
        match itl.nexus().group().1 {
            AccessState::Unavailable => Self::UNREACHABLE,
            _ => Self::DISK,
        }
    }
}

impl Inquiry {
    /// Returns the data of a logical unit for a nexus.
    pub(crate) fn of(itl: &ItlNexus) -> Self {
        /// Both kinds: by the administrator, and by SET TARGET PORT GROUPS.
        const IMPLICIT_AND_EXPLICIT: u8 = 3;
        let options = itl.unit().options();
        Self {
            removable: options.removable,
            third_party_copy: true,
            vendor: options.vendor.clone(),
            product: options.product.clone(),
            revision: options.revision.clone(),
            asymmetric_access: IMPLICIT_AND_EXPLICIT,
            ..Self::without_unit(PeripheralType::of(itl))
        }
    }
}

impl DeviceIdentification {
    /// The designators of a logical unit for a nexus.
    pub(crate) fn of(itl: &ItlNexus) -> Self {
        let identity = itl.unit().identity();
        let mut t10 = vec![0; 8];
        put_ascii(&mut t10, 0, 8, &itl.unit().options().vendor);
        t10.extend(identity.serial().bytes());
        let port = itl.nexus().ports().relative_target_port;
        let target = itl.nexus().target().name();
        let entry = |association, kind, code_set, bytes| Designator { association, kind, code_set, bytes };
        use Association::{LogicalUnit, TargetDevice, TargetPort};
        use DesignatorType as Kind;
        use code_set::{ASCII, BINARY, UTF_8};
        let group = itl.nexus().group().0.map(|tag| {
            entry(TargetPort, Kind::TARGET_PORT_GROUP, BINARY, u32::from(tag).to_be_bytes().to_vec())
        });
        Self {
            designators: vec![
                entry(LogicalUnit, Kind::NAA, BINARY, identity.naa().to_vec()),
                entry(LogicalUnit, Kind::T10_VENDOR, ASCII, t10),
                entry(LogicalUnit, Kind::EUI_64, BINARY, identity.eui64().to_vec()),
                entry(LogicalUnit, Kind::SCSI_NAME, UTF_8, scsi_name(&identity.name())),
                entry(TargetPort, Kind::RELATIVE_TARGET_PORT, BINARY, u32::from(port).to_be_bytes().to_vec()),
                entry(TargetPort, Kind::SCSI_NAME, UTF_8, scsi_name(&format!("{target},t,0x{port:04x}"))),
                entry(TargetDevice, Kind::SCSI_NAME, UTF_8, scsi_name(target)),
            ]
            .into_iter()
            .chain(group)
            .collect(),
        }
    }
}

impl BlockLimits {
    /// The limits of a logical unit.
    pub fn of(unit: &LogicalUnit) -> Self {
        let geometry = unit.geometry();
        let sector = geometry.logical_sector.max(1);
        let transfer_max = unit.max_transfer_blocks(sector);
        let optimal = geometry.optimal_transfer / sector;
        let atomic_max = if unit.atomic_writes() { transfer_max.min(u16::MAX.into()) } else { 0 };
        let thin = |value| if geometry.unmap.is_thin() { value } else { 0 };
        Self {
            write_same_needs_count: true,
            compare_and_write_max: transfer_max.try_into().unwrap_or(COMPARE_AND_WRITE_MAX),
            optimal_granularity: (geometry.physical_sector.max(geometry.transfer_granularity) / sector)
                .try_into()
                .unwrap_or(0),
            transfer_max,
            optimal_transfer: optimal.min(transfer_max),
            prefetch_max: 0,
            unmap_blocks_max: thin(UNMAP_BLOCKS_MAX),
            unmap_descriptors_max: thin(UNMAP_DESCRIPTORS_MAX),
            unmap_granularity: geometry.unmap.granularity().div_ceil(sector),
            unmap_alignment: geometry.unmap.frees().then_some(0),
            write_same_max: WRITE_SAME_BLOCKS_MAX,
            atomic_max,
            // Every block boundary will do.
            atomic_alignment: 0,
            atomic_granularity: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_told_in_ascending_order() {
        assert!(PAGES.is_sorted());
    }
}
