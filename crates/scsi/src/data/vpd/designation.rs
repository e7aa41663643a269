//! Device identification, page 83h (SPC-4 §7.8.6): the names by which initiators know one disk over many paths.

use super::{body, page};
use crate::data::field::{ascii, u8_at};

/// Object that a designator names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Association {
    /// The logical unit.
    LogicalUnit,
    /// The target port the page came through.
    TargetPort,
    /// The target device.
    TargetDevice,
    /// Reserved value 3.
    Reserved,
}

/// DESIGNATOR TYPE. Open: unknown types survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DesignatorType(pub u8);

impl DesignatorType {
    /// T10 vendor identification and a text of the vendor's.
    pub const T10_VENDOR: Self = Self(1);
    /// EUI-64.
    pub const EUI_64: Self = Self(2);
    /// NAA.
    pub const NAA: Self = Self(3);
    /// Relative target port identifier.
    pub const RELATIVE_TARGET_PORT: Self = Self(4);
    /// Target port group.
    pub const TARGET_PORT_GROUP: Self = Self(5);
    /// SCSI name string.
    pub const SCSI_NAME: Self = Self(8);
}

/// CODE SET values.
pub(crate) mod code_set {
    pub(crate) const BINARY: u8 = 1;
    pub(crate) const ASCII: u8 = 2;
    pub(crate) const UTF_8: u8 = 3;
}

/// Designation descriptor: one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Designator {
    /// Object that it names.
    pub association: Association,
    /// Type of the name.
    pub kind: DesignatorType,
    /// CODE SET: 1 binary, 2 ASCII, 3 UTF-8.
    pub code_set: u8,
    /// The name as it is encoded.
    pub bytes: Vec<u8>,
}

impl Designator {
    /// As people read it: texts as texts, binary names in hexadecimal.
    pub fn text(&self) -> String {
        match self.code_set {
            code_set::ASCII | code_set::UTF_8 => {
                let end = self.bytes.iter().position(|&byte| byte == 0).unwrap_or(self.bytes.len());
                ascii(&self.bytes[..end])
            }
            _ => self.bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }
}

/// All names that a logical unit, its target port and its target device have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceIdentification {
    /// In the order of the page.
    pub designators: Vec<Designator>,
}

/// Longest designator: its length field is one byte.
const DESIGNATOR_MAX: usize = 255;

/// A SCSI name string is null-terminated and padded to a multiple of four (SPC-4 §7.8.6.11).
pub(crate) fn scsi_name(name: &str) -> Vec<u8> {
    let mut bytes: Vec<u8> = name.bytes().take(DESIGNATOR_MAX - 4).collect();
    bytes.resize((bytes.len() / 4 + 1) * 4, 0);
    bytes
}

impl DeviceIdentification {
    pub(crate) fn build_body(&self) -> Vec<u8> {
        /// PROTOCOL IDENTIFIER of iSCSI with PIV, on designators of ports and targets.
        const PROTOCOL_ISCSI: u8 = 5;
        const PIV: u8 = 0x80;
        let mut body = Vec::new();
        for designator in &self.designators {
            let (protocol, association) = match designator.association {
                Association::LogicalUnit => (0, 0),
                Association::TargetPort => (PROTOCOL_ISCSI, PIV | 1 << 4),
                Association::TargetDevice => (PROTOCOL_ISCSI, PIV | 2 << 4),
                Association::Reserved => (0, 3 << 4),
            };
            let name = &designator.bytes[..designator.bytes.len().min(DESIGNATOR_MAX)];
            body.push(protocol << 4 | (designator.code_set & 0xF));
            body.push(association | (designator.kind.0 & 0xF));
            body.extend([0, name.len() as u8]);
            body.extend(name);
        }
        body
    }

    /// Reads the page, as many whole designators as are there.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut rest = body(bytes, page::DEVICE_IDENTIFICATION)?;
        let mut designators = Vec::new();
        while let Some(&[first, second, _, len]) = rest.first_chunk() {
            let Some(name) = rest.get(4..4 + usize::from(len)) else { break };
            designators.push(Designator {
                association: match second >> 4 & 3 {
                    0 => Association::LogicalUnit,
                    1 => Association::TargetPort,
                    2 => Association::TargetDevice,
                    _ => Association::Reserved,
                },
                kind: DesignatorType(second & 0xF),
                code_set: first & 0xF,
                bytes: name.to_vec(),
            });
            rest = &rest[4 + usize::from(len)..];
        }
        Some(Self { designators })
    }

    /// The best name of the logical unit: NAA, then EUI-64, then T10, as Linux chooses too. Two paths with the same
    /// name lead to the same disk.
    pub fn unit_name(&self) -> Option<&Designator> {
        let of_unit = |kind| {
            self.designators.iter().find(move |designator| {
                designator.association == Association::LogicalUnit && designator.kind == kind
            })
        };
        of_unit(DesignatorType::NAA)
            .or_else(|| of_unit(DesignatorType::EUI_64))
            .or_else(|| of_unit(DesignatorType::SCSI_NAME))
            .or_else(|| of_unit(DesignatorType::T10_VENDOR))
    }

    /// RELATIVE TARGET PORT IDENTIFIER of the port the page came through.
    pub fn relative_target_port(&self) -> Option<u16> {
        self.number_of_port(DesignatorType::RELATIVE_TARGET_PORT)
    }

    /// TARGET PORT GROUP of the port the page came through.
    pub fn target_port_group(&self) -> Option<u16> {
        self.number_of_port(DesignatorType::TARGET_PORT_GROUP)
    }

    fn number_of_port(&self, kind: DesignatorType) -> Option<u16> {
        let designator = self.designators.iter().find(|designator| {
            designator.association == Association::TargetPort && designator.kind == kind
        })?;
        Some(u16::from_be_bytes([u8_at(&designator.bytes, 2)?, u8_at(&designator.bytes, 3)?]))
    }
}

#[cfg(test)]
mod tests {
    use super::super::framed;
    use super::*;
    use crate::data::inquiry::PeripheralType;

    fn sample() -> DeviceIdentification {
        DeviceIdentification {
            designators: vec![
                Designator {
                    association: Association::TargetPort,
                    kind: DesignatorType::RELATIVE_TARGET_PORT,
                    code_set: code_set::BINARY,
                    bytes: vec![0, 0, 1, 2],
                },
                Designator {
                    association: Association::LogicalUnit,
                    kind: DesignatorType::SCSI_NAME,
                    code_set: code_set::UTF_8,
                    bytes: scsi_name("naa.6000"),
                },
            ],
        }
    }

    #[test]
    fn designators_come_back() {
        let page = sample();
        let bytes = framed(PeripheralType::DISK, page::DEVICE_IDENTIFICATION, &page.build_body());
        assert_eq!(DeviceIdentification::parse(&bytes), Some(page));
    }

    #[test]
    fn a_page_cut_inside_a_designator_keeps_the_whole_ones() {
        let bytes = framed(PeripheralType::DISK, page::DEVICE_IDENTIFICATION, &sample().build_body());
        let cut = DeviceIdentification::parse(&bytes[..bytes.len() - 1]).unwrap();
        assert_eq!(cut.designators, sample().designators[..1]);
        assert_eq!(cut.relative_target_port(), Some(0x102));
        assert_eq!(cut.unit_name(), None);
    }

    #[test]
    fn names_are_padded_and_read_without_padding() {
        assert_eq!(scsi_name("naa.6000"), b"naa.6000\0\0\0\0");
        assert_eq!(sample().unit_name().unwrap().text(), "naa.6000");
    }
}
