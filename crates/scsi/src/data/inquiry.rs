//! Standard INQUIRY data (SPC-4 §6.6.2).

use crate::data::field::{ascii, put, put_ascii, u8_at, u16_at};

/// PERIPHERAL QUALIFIER and PERIPHERAL DEVICE TYPE, as the byte that holds both. Open: unknown types survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeripheralType(pub u8);

impl PeripheralType {
    /// A direct access block device that is there.
    pub const DISK: Self = Self(0x00);
    /// No device, and none could be (qualifier 3).
    pub const ABSENT: Self = Self(0x7F);
    /// A disk that cannot be reached through this port (qualifier 1).
    pub const UNREACHABLE: Self = Self(0x20);
    /// A well-known logical unit.
    pub const WELL_KNOWN: Self = Self(0x1E);

    /// PERIPHERAL QUALIFIER: 0 is there, 1 could be, 3 cannot be.
    pub fn qualifier(self) -> u8 {
        self.0 >> 5
    }

    /// PERIPHERAL DEVICE TYPE: 0 is a disk.
    pub fn device_type(self) -> u8 {
        self.0 & 0x1F
    }
}

/// Standard INQUIRY data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inquiry {
    /// Kind of device, and whether it is there.
    pub peripheral: PeripheralType,
    /// RMB: the medium can be taken out.
    pub removable: bool,
    /// VERSION: 5 is SPC-3, 6 is SPC-4, 7 is SPC-5.
    pub version: u8,
    /// TPGS: 0 no, 1 implicit, 2 explicit, 3 both kinds of asymmetric access.
    pub asymmetric_access: u8,
    /// 3PC: third-party copy is there.
    pub third_party_copy: bool,
    /// PROTECT: protection information is there.
    pub protect: bool,
    /// CMDQUE: commands can be queued.
    pub command_queuing: bool,
    /// T10 vendor identification.
    pub vendor: String,
    /// Product identification.
    pub product: String,
    /// Product revision level.
    pub revision: String,
    /// Standards that it claims (SPC-4 table 144).
    pub version_descriptors: Vec<u16>,
}

/// Version descriptors, none of an approved edition: SAM-5, SPC-4, SBC-3.
const CLAIMED: [u16; 3] = [0x00A0, 0x0460, 0x04C0];
const VERSION_SPC_4: u8 = 6;
const LEN: usize = 96;

impl Inquiry {
    /// Returns the data for a LUN without a logical unit.
    pub fn without_unit(peripheral: PeripheralType) -> Self {
        Self {
            peripheral,
            removable: false,
            version: VERSION_SPC_4,
            asymmetric_access: 0,
            third_party_copy: false,
            protect: false,
            command_queuing: true,
            vendor: "LUNWAY".to_owned(),
            product: String::new(),
            revision: String::new(),
            version_descriptors: CLAIMED.to_vec(),
        }
    }

    /// Encodes it.
    pub fn build(&self) -> [u8; LEN] {
        const HISUP: u8 = 0x10;
        const FORMAT: u8 = 2;
        const MULTIP: u8 = 0x10;
        let mut bytes = [0; LEN];
        bytes[0] = self.peripheral.0;
        bytes[1] = u8::from(self.removable) << 7;
        bytes[2] = self.version;
        bytes[3] = HISUP | FORMAT;
        bytes[4] = LEN as u8 - 5;
        bytes[5] =
            (self.asymmetric_access & 3) << 4 | u8::from(self.third_party_copy) << 3 | u8::from(self.protect);
        bytes[6] = MULTIP;
        bytes[7] = u8::from(self.command_queuing) << 1;
        put_ascii(&mut bytes, 8, 8, &self.vendor);
        put_ascii(&mut bytes, 16, 16, &self.product);
        put_ascii(&mut bytes, 32, 4, &self.revision);
        for (index, descriptor) in self.version_descriptors.iter().take(8).enumerate() {
            put(&mut bytes, 58 + 2 * index, descriptor.to_be_bytes());
        }
        bytes
    }

    /// Reads it; 36 bytes are the least that SPC-4 allows, and five are enough to learn what it is.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let end = bytes.len().min(5 + usize::from(u8_at(bytes, 4)?));
        let bytes = &bytes[..end];
        let byte = |at| u8_at(bytes, at).unwrap_or(0);
        let text = |from: usize, to: usize| ascii(bytes.get(from..to.min(bytes.len())).unwrap_or(&[]));
        let descriptors = (58..74).step_by(2).map_while(|at| u16_at(bytes, at));
        Some(Self {
            peripheral: PeripheralType(byte(0)),
            removable: byte(1) & 0x80 != 0,
            version: byte(2),
            asymmetric_access: byte(5) >> 4 & 3,
            third_party_copy: byte(5) & 0x08 != 0,
            protect: byte(5) & 0x01 != 0,
            command_queuing: byte(7) & 0x02 != 0,
            vendor: text(8, 16),
            product: text(16, 32),
            revision: text(32, 36),
            version_descriptors: descriptors.filter(|&descriptor| descriptor != 0).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_back_and_short_answers_say_what_they_can() {
        let inquiry = Inquiry {
            product: "DISK".to_owned(),
            revision: "1.0".to_owned(),
            removable: true,
            ..Inquiry::without_unit(PeripheralType::DISK)
        };
        let bytes = inquiry.build();
        assert_eq!(Inquiry::parse(&bytes), Some(inquiry));
        let short = Inquiry::parse(&bytes[..20]).unwrap();
        assert_eq!((short.vendor.as_str(), short.product.as_str()), ("LUNWAY", "DISK"));
        assert_eq!(Inquiry::parse(&bytes[..4]), None);
    }

    #[test]
    fn an_absent_unit_is_qualifier_3() {
        assert_eq!(PeripheralType::ABSENT.qualifier(), 3);
        assert_eq!(PeripheralType::WELL_KNOWN.device_type(), 0x1E);
    }
}
