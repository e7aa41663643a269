//! Properties that a target and a logical unit report about themselves.

use lunway_block::size::HumanSize;
use lunway_initiator::{Inspection, UnitInspection};
use lunway_iscsi::login::LoggedIn;
use lunway_scsi::ReadCapacity;
use lunway_scsi::vpd::{Association, DesignatorType};
use serde_json::{Value, json};

use super::{Section, yes};

pub(super) fn sections(seen: &Inspection) -> Vec<Section> {
    let mut sections = vec![Section::new(seen.url.clone(), session_rows(seen))];
    if let Some(unit) = &seen.unit {
        sections.extend(unit_sections(unit));
    }
    sections
}

fn session_rows(seen: &Inspection) -> Vec<(&'static str, String)> {
    let LoggedIn { negotiated, .. } = &seen.session;
    let digest = |on| if on { "CRC32C" } else { "none" };
    let luns: Vec<_> = seen.luns.iter().map(u16::to_string).collect();
    let mut rows = vec![
        ("portal", seen.portal.clone()),
        ("initiator", seen.session.initiator_name.clone()),
        (
            "digests",
            format!("header {}, data {}", digest(negotiated.header_digest), digest(negotiated.data_digest)),
        ),
        (
            "bursts",
            format!(
                "FirstBurstLength {}, MaxBurstLength {}, ImmediateData {}, InitialR2T {}",
                HumanSize(negotiated.first_burst_length.into()),
                HumanSize(negotiated.max_burst_length.into()),
                yes(negotiated.immediate_data),
                yes(negotiated.initial_r2t)
            ),
        ),
        ("logical units", if luns.is_empty() { "none".to_owned() } else { luns.join(", ") }),
    ];
    if let Some(alias) = &seen.session.target_alias {
        rows.insert(1, ("alias", alias.clone()));
    }
    if let Some(group) = seen.session.target_portal_group_tag {
        rows.insert(1, ("portal group", group.to_string()));
    }
    rows
}

/// The name of a designator type (DESIGNATOR TYPE field, SPC-5).
fn designator_type(kind: DesignatorType) -> String {
    match kind.0 {
        0 => "vendor specific".to_owned(),
        1 => "T10 vendor ID".to_owned(),
        2 => "EUI-64".to_owned(),
        3 => "NAA".to_owned(),
        4 => "relative target port".to_owned(),
        5 => "target port group".to_owned(),
        6 => "logical unit group".to_owned(),
        7 => "MD5".to_owned(),
        8 => "SCSI name string".to_owned(),
        10 => "UUID".to_owned(),
        other => format!("designator type {other}"),
    }
}

fn unit_sections(unit: &UnitInspection) -> Vec<Section> {
    let mut sections = Vec::new();
    if let Some(inquiry) = &unit.inquiry {
        let mut rows = vec![
            ("vendor", inquiry.vendor.clone()),
            ("product", inquiry.product.clone()),
            ("revision", inquiry.revision.clone()),
            ("device type", format!("{:#04x}", inquiry.peripheral.device_type())),
            ("SCSI version", version(inquiry.version)),
            ("removable", yes(inquiry.removable)),
            ("command queuing", yes(inquiry.command_queuing)),
        ];
        rows.extend(unit.serial.as_ref().map(|serial| ("serial number", serial.clone())));
        rows.extend(unit.not_ready.as_ref().map(|why| ("not ready", why.clone())));
        rows.extend(unit.attentions.iter().map(|attention| ("unit attention", attention.clone())));
        sections.push(Section::new(format!("Logical unit {}", unit.lun), rows));
    }
    if let Some(capacity) = &unit.capacity {
        sections.push(Section::new("Capacity (READ CAPACITY)", capacity_rows(capacity)));
    }
    if let Some(identification) = &unit.identification {
        let row = |association: &Association| match association {
            Association::LogicalUnit => "logical unit",
            Association::TargetPort => "target port",
            Association::TargetDevice => "target device",
            Association::Reserved => "reserved",
        };
        let rows = identification.designators.iter().map(|each| {
            (row(&each.association), format!("{} ({})", each.text(), designator_type(each.kind)))
        });
        sections.push(Section::new("Identification (VPD 83h)", rows.collect()));
    }
    if let Some(limits) = &unit.block_limits {
        let or =
            |blocks: u64, zero: &str| if blocks == 0 { zero.to_owned() } else { format!("{blocks} blocks") };
        let rows = vec![
            ("maximum transfer length", or(limits.transfer_max.into(), "no limit")),
            ("optimal transfer length", or(limits.optimal_transfer.into(), "no preference")),
            ("optimal granularity", or(limits.optimal_granularity.into(), "none")),
            ("maximum unmap LBA count", or(limits.unmap_blocks_max.into(), "not reported")),
            ("unmap descriptors", limits.unmap_descriptors_max.to_string()),
            ("unmap granularity", or(limits.unmap_granularity.into(), "not reported")),
            ("maximum WRITE SAME length", or(limits.write_same_max, "not reported")),
            ("maximum COMPARE AND WRITE length", or(limits.compare_and_write_max.into(), "not supported")),
        ];
        sections.push(Section::new("Block limits (VPD B0h)", rows));
    }
    if let Some(characteristics) = &unit.characteristics {
        let rate = match characteristics.rotation_rate {
            0 => "not reported".to_owned(),
            1 => "none: not rotating".to_owned(),
            rate => format!("{rate} per minute"),
        };
        sections.push(Section::new("Characteristics (VPD B1h)", vec![("rotation rate", rate)]));
    }
    if let Some(provisioning) = &unit.provisioning {
        let kind = match provisioning.provisioning_type {
            0 => "not reported",
            1 => "resource",
            2 => "thin",
            _ => "unknown",
        };
        let rows = vec![
            ("provisioning", kind.to_owned()),
            ("UNMAP", yes(provisioning.unmap)),
            ("WRITE SAME (16) unmaps", yes(provisioning.write_same_16)),
            ("WRITE SAME (10) unmaps", yes(provisioning.write_same_10)),
        ];
        sections.push(Section::new("Provisioning (VPD B2h)", rows));
    }
    let mut rows = vec![("VPD pages", hexadecimal(&unit.vpd_pages))];
    if let Some(mode) = &unit.mode {
        let codes: Vec<_> = mode.pages.iter().map(|&(code, ..)| code).collect();
        rows.push(("mode pages", hexadecimal(&codes)));
        rows.push(("write protected", yes(mode.write_protected)));
    }
    sections.push(Section::new("Pages", rows));
    sections
}

fn capacity_rows(capacity: &ReadCapacity) -> Vec<(&'static str, String)> {
    let size =
        capacity.size().map_or("unknown".to_owned(), |size| format!("{} ({size} bytes)", HumanSize(size)));
    let physical = u64::from(capacity.block_len) << capacity.physical_exponent.min(15);
    vec![
        ("size", size),
        ("last LBA", capacity.last_lba.to_string()),
        ("block length", format!("{} bytes logical, {physical} bytes physical", capacity.block_len)),
        ("lowest aligned LBA", capacity.lowest_aligned.to_string()),
        ("provisioning management", yes(capacity.provisioning_managed)),
        ("unmapped reads as zeroes", yes(capacity.unmapped_zeroes)),
        ("protection information", yes(capacity.protected)),
    ]
}

fn version(version: u8) -> String {
    match version {
        4 => "SPC-2".to_owned(),
        5 => "SPC-3".to_owned(),
        6 => "SPC-4".to_owned(),
        7 => "SPC-5".to_owned(),
        other => format!("{other:#04x}"),
    }
}

fn hexadecimal(codes: &[u8]) -> String {
    let codes: Vec<_> = codes.iter().map(|code| format!("{code:02X}h")).collect();
    if codes.is_empty() { "none".to_owned() } else { codes.join(", ") }
}

pub(super) fn document(seen: &Inspection) -> Value {
    let session = &seen.session;
    let negotiated = &session.negotiated;
    json!({
        "url": seen.url,
        "portal": seen.portal,
        "session": {
            "target": session.target_name,
            "alias": session.target_alias,
            "portal_group": session.target_portal_group_tag,
            "initiator": session.initiator_name,
            "header_digest": negotiated.header_digest,
            "data_digest": negotiated.data_digest,
            "immediate_data": negotiated.immediate_data,
            "initial_r2t": negotiated.initial_r2t,
            "first_burst_length": negotiated.first_burst_length,
            "max_burst_length": negotiated.max_burst_length,
        },
        "luns": seen.luns,
        "unit": seen.unit.as_ref().map(unit_document),
    })
}

fn unit_document(unit: &UnitInspection) -> Value {
    json!({
        "lun": unit.lun,
        "inquiry": unit.inquiry.as_ref().map(|inquiry| json!({
            "device_type": inquiry.peripheral.device_type(),
            "vendor": inquiry.vendor,
            "product": inquiry.product,
            "revision": inquiry.revision,
            "version": inquiry.version,
            "removable": inquiry.removable,
            "command_queuing": inquiry.command_queuing,
        })),
        "serial": unit.serial,
        "capacity": unit.capacity.as_ref().map(|capacity| json!({
            "size": capacity.size(),
            "last_lba": capacity.last_lba,
            "block_length": capacity.block_len,
            "physical_exponent": capacity.physical_exponent,
            "lowest_aligned": capacity.lowest_aligned,
            "provisioning_managed": capacity.provisioning_managed,
            "unmapped_zeroes": capacity.unmapped_zeroes,
            "protected": capacity.protected,
        })),
        "designators": unit.identification.as_ref().map(|identification| {
            let each = identification.designators.iter().map(|each| json!({
                "association": format!("{:?}", each.association),
                "type": each.kind.0,
                "value": each.text(),
            }));
            each.collect::<Vec<_>>()
        }),
        "block_limits": unit.block_limits.as_ref().map(|limits| json!({
            "transfer_max": limits.transfer_max,
            "optimal_transfer": limits.optimal_transfer,
            "optimal_granularity": limits.optimal_granularity,
            "unmap_blocks_max": limits.unmap_blocks_max,
            "unmap_descriptors_max": limits.unmap_descriptors_max,
            "unmap_granularity": limits.unmap_granularity,
            "write_same_max": limits.write_same_max,
            "compare_and_write_max": limits.compare_and_write_max,
        })),
        "rotation_rate": unit.characteristics.as_ref().map(|page| page.rotation_rate),
        "provisioning": unit.provisioning.as_ref().map(|page| json!({
            "type": page.provisioning_type,
            "unmap": page.unmap,
            "write_same_16": page.write_same_16,
            "write_same_10": page.write_same_10,
        })),
        "vpd_pages": unit.vpd_pages,
        "not_ready": unit.not_ready,
        "unit_attentions": unit.attentions,
    })
}
