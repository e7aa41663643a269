//! Names of a logical unit that survive every restart.

use crate::model::unit_options::LogicalUnitOptions;

/// Organisation part of our names: locally administered (the second lowest bit of the first byte, IEEE 802), because
/// the project owns no OUI; then "LW".
const OUI: [u8; 3] = [0x02, b'L', b'W'];

/// Serial number and world-wide names of a logical unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitIdentity {
    serial: String,
    naa: [u8; 16],
    eui64: [u8; 8],
}

impl UnitIdentity {
    /// The designators are made of the serial number alone, wherever that is from: a configuration that gives another
    /// unit the number that this one has gives it all its names, and it is the same disk.
    pub(crate) fn derive(options: &LogicalUnitOptions) -> Self {
        let serial = match printable(&options.serial, LogicalUnitOptions::SERIAL_MAX) {
            given if !given.is_empty() => given,
            _ => format!("{:016x}", hash(&format!("{}\n{}", options.identity, options.distinction), 0)),
        };
        let (first, second) = (hash(&serial, 0), hash(&serial, 1));
        let [a, b, c] = OUI;
        // IEEE Registered Extended (SPC-4 §7.8.6.6.5): NAA 6, OUI, 36 and 64 bits of our own.
        let head = 6 << 60 | u64::from(a) << 52 | u64::from(b) << 44 | u64::from(c) << 36 | first >> 28;
        let mut naa = [0; 16];
        naa[..8].copy_from_slice(&head.to_be_bytes());
        naa[8..].copy_from_slice(&second.to_be_bytes());
        let mut eui64 = second.rotate_left(32).to_be_bytes();
        eui64[..3].copy_from_slice(&OUI);
        Self { serial, naa, eui64 }
    }

    /// Unit serial number.
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// NAA IEEE Registered Extended designator.
    pub fn naa(&self) -> [u8; 16] {
        self.naa
    }

    /// EUI-64 designator.
    pub fn eui64(&self) -> [u8; 8] {
        self.eui64
    }

    /// SCSI name string designator: `naa.` and the NAA designator in hexadecimal (SPC-4 §7.8.6.11).
    pub fn name(&self) -> String {
        let digits: String = self.naa.iter().map(|byte| format!("{byte:02X}")).collect();
        format!("naa.{digits}")
    }
}

fn printable(text: &str, len_max: usize) -> String {
    text.chars().filter(char::is_ascii_graphic).take(len_max).collect()
}

/// FNV-1a with the finaliser of splitmix64, which spreads short texts over all bits. Written out because the names it
/// makes must never change: a hash from a library may.
fn hash(text: &str, seed: u64) -> u64 {
    let start = 0xCBF2_9CE4_8422_2325 ^ seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = text.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3));
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(identity: &str) -> UnitIdentity {
        UnitIdentity::derive(&LogicalUnitOptions { identity: identity.to_owned(), ..Default::default() })
    }

    /// Name derived from the text below; disks in use are known by it.
    const EXPECTED_NAME: &str = "naa.6024C57DAC29C413A61CCA720A7EBCDA";

    #[test]
    fn names_never_change_between_versions() {
        let identity = of("iqn.2026-01.example:disk/0");
        assert_eq!(
            identity.naa()[..5],
            [0x60, 0x24, 0xC5, 0x70 | identity.naa()[3] & 0x0F, identity.naa()[4]]
        );
        assert_eq!(identity.name(), EXPECTED_NAME);
    }

    #[test]
    fn different_texts_give_different_names() {
        let (one, other) = (of("target/0"), of("target/1"));
        assert_ne!(one.naa(), other.naa());
        assert_ne!(one.eui64(), other.eui64());
        assert_ne!(one.serial(), other.serial());
    }

    #[test]
    fn one_text_in_two_places_gives_two_disks() {
        let at = |distinction: &str| {
            let (identity, distinction) = ("target/0".to_owned(), distinction.to_owned());
            UnitIdentity::derive(&LogicalUnitOptions { identity, distinction, ..Default::default() })
        };
        assert_eq!(at("here"), at("here"));
        assert_ne!(at("here").naa(), at("there").naa());
        assert_ne!(at("here").serial(), at("there").serial());
    }

    #[test]
    fn whoever_has_the_serial_number_of_a_disk_is_that_disk() {
        let one = of("target/0");
        let (identity, serial) = ("elsewhere/7".to_owned(), one.serial().to_owned());
        let distinction = "another machine".to_owned();
        let other =
            UnitIdentity::derive(&LogicalUnitOptions { identity, distinction, serial, ..Default::default() });
        assert_eq!(one, other);
    }

    #[test]
    fn a_given_serial_is_kept_and_bounded() {
        let serial = format!("SN 1{}", "x".repeat(200));
        let identity = UnitIdentity::derive(&LogicalUnitOptions { serial, ..Default::default() });
        assert!(identity.serial().starts_with("SN1xx"));
        assert_eq!(identity.serial().len(), LogicalUnitOptions::SERIAL_MAX);
    }
}
