//! The names of a disk.

use std::fmt;

use lunway_scsi::vpd::{Association, Designator, DesignatorType, DeviceIdentification};

/// The names of a disk, by which it is recognised over any path (VPD pages 83h and 80h).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VpdIdentity {
    /// Names of the logical unit that are meant to be unique: NAA, EUI-64, SCSI name string, T10 vendor.
    pub designators: Vec<Designator>,
    /// The unit's serial number, unique among those of its vendor's product.
    pub serial: Option<String>,
}

impl VpdIdentity {
    /// Takes the unit's names from its identification.
    pub(crate) fn take(&mut self, identification: &DeviceIdentification) {
        let names = [
            DesignatorType::NAA,
            DesignatorType::EUI_64,
            DesignatorType::SCSI_NAME,
            DesignatorType::T10_VENDOR,
        ];
        self.designators = identification.designators.clone();
        self.designators.retain(|designator| {
            designator.association == Association::LogicalUnit && names.contains(&designator.kind)
        });
        // Counted targets and units, as a rule: the next disk under the number has it as well.
        if !self.designators.iter().all(is_locally_assigned) {
            self.designators.retain(|designator| !is_locally_assigned(designator));
        }
    }

    /// The name that is unique for most disks, the same over every path: NAA before EUI-64 before the others, then the
    /// serial number.
    pub(crate) fn best_name(&self) -> Option<String> {
        let rank = |designator: &&Designator| match designator.kind {
            DesignatorType::NAA => 0,
            DesignatorType::EUI_64 => 1,
            _ => 2,
        };
        let best = self.designators.iter().min_by_key(|designator| (rank(designator), &designator.bytes));
        best.map(Designator::text).or_else(|| self.serial.clone()).map(|name| format!("logical unit {name}"))
    }

    /// Returns `true` if both are certainly the same disk: they have a name in common. A disk without names is never
    /// certain.
    pub fn same_disk(&self, other: &Self) -> bool {
        let is_named = !self.designators.is_empty() && !other.designators.is_empty();
        (is_named || self.serial.is_some() && other.serial.is_some()) && self.is_still(other)
    }

    /// Returns `true` if `now` may be the names of the disk that has these: a designator in common where both have
    /// some, else the same serial number. A disk that had a name has not lost it; one that never had any cannot be told
    /// from others.
    pub(crate) fn is_still(&self, now: &Self) -> bool {
        if !self.designators.is_empty() && !now.designators.is_empty() {
            return self.designators.iter().any(|designator| now.designators.contains(designator));
        }
        match (&self.serial, &now.serial) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => self.designators.is_empty() && self.serial.is_none(),
        }
    }
}

/// NAA 3h is unique only where its administrator says so (SPC-4 §7.8.6.6.4).
fn is_locally_assigned(designator: &Designator) -> bool {
    designator.kind == DesignatorType::NAA && designator.bytes.first().is_some_and(|byte| byte >> 4 == 3)
}

/// The first name.
impl fmt::Display for VpdIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.designators.first(), &self.serial) {
            (Some(designator), _) => f.pad(&designator.text()),
            (None, Some(serial)) => f.pad(serial),
            (None, None) => f.pad("without a name"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locally_assigned_name_is_none_beside_others() {
        let name = |kind, bytes: &[u8]| Designator {
            association: Association::LogicalUnit,
            kind,
            code_set: 1,
            bytes: bytes.to_vec(),
        };
        // What tgt says of target 1 and unit 1, whichever disk that is.
        let counted = || name(DesignatorType::NAA, &[0x30, 0, 0, 1, 0, 0, 0, 1]);
        let identity = |designators| {
            let mut identity = VpdIdentity::default();
            identity.take(&DeviceIdentification { designators });
            identity
        };
        let tgt = |id: &[u8]| identity(vec![name(DesignatorType::T10_VENDOR, id), counted()]);
        assert!(tgt(b"IET     00010").is_still(&tgt(b"IET     00010")));
        assert!(!tgt(b"IET     00010").is_still(&tgt(b"IET     00011")));
        // Nothing better is known of this one.
        assert!(identity(vec![counted()]).is_still(&identity(vec![counted()])));
    }

    #[test]
    fn a_disk_is_known_by_any_name_in_common_then_by_its_serial() {
        let name = |byte| Designator {
            association: Association::LogicalUnit,
            kind: DesignatorType::NAA,
            code_set: 1,
            bytes: vec![byte; 8],
        };
        let identity = |names: &[u8], serial: Option<&str>| VpdIdentity {
            designators: names.iter().map(|&byte| name(byte)).collect(),
            serial: serial.map(str::to_owned),
        };
        assert!(identity(&[1, 2], None).is_still(&identity(&[3, 2], Some("x"))));
        assert!(!identity(&[1], Some("x")).is_still(&identity(&[2], Some("x"))));
        assert!(!identity(&[], Some("x")).is_still(&identity(&[2], Some("y"))));
        let (nameless, named) = (identity(&[], None), identity(&[2], Some("y")));
        assert!(nameless.is_still(&named) && !nameless.same_disk(&named));
        assert!(!named.is_still(&nameless), "a name is not lost");
        assert!(!identity(&[1], None).is_still(&identity(&[], Some("x"))));
        assert!(named.same_disk(&identity(&[2, 3], None)) && !nameless.same_disk(&nameless));
    }
}
