//! The mode pages of a disk: where each is, how it looks, what of it can be changed (SPC-4 §7.5, SBC-4 §6.5).

use super::page;
use crate::data::field::put;

/// Values that pages are built from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The changeable bits: flags below.
    pub(crate) flags: u8,
    /// Thin provisioning soft threshold: blocks left when it is reached, in units of 2 to the power of
    /// [`THRESHOLD_EXPONENT`].
    pub(crate) threshold: Option<u32>,
}

/// THRESHOLD EXPONENT: resources are counted in units of 2,048 blocks, so that 32 bits reach for any disk.
pub(crate) const THRESHOLD_EXPONENT: u8 = 11;

/// Flags of the changeable bits.
pub(super) const WRITE_CACHE: u8 = 1;
pub(super) const DESCRIPTOR_SENSE: u8 = 2;
pub(super) const SOFTWARE_WRITE_PROTECT: u8 = 4;
/// All of them.
pub(super) const ALL_FLAGS: u8 = WRITE_CACHE | DESCRIPTOR_SENSE | SOFTWARE_WRITE_PROTECT;

/// WCE of the caching page.
pub(super) const WCE: u8 = 0x04;
/// D_SENSE and SWP of the control page.
pub(super) const D_SENSE: u8 = 0x04;
pub(super) const SWP: u8 = 0x08;

/// One mode page.
pub(super) struct Page {
    pub(super) code: u8,
    pub(super) subpage: u8,
    build: fn(Facts) -> Vec<u8>,
    /// Byte of the page, bit of it, flag that it stands for.
    pub(super) changeable: &'static [(usize, u8, u8)],
}

const fn fixed(code: u8, subpage: u8, build: fn(Facts) -> Vec<u8>) -> Page {
    Page { code, subpage, build, changeable: &[] }
}

/// In the order in which MODE SENSE for all pages tells them.
pub(super) const PAGES: &[Page] = &[
    fixed(page::ERROR_RECOVERY, 0, error_recovery),
    fixed(page::VERIFY_ERROR_RECOVERY, 0, |_| vec![0; 12]),
    Page { code: page::CACHING, subpage: 0, build: caching, changeable: &[(2, WCE, WRITE_CACHE)] },
    Page {
        code: page::CONTROL,
        subpage: 0,
        build: control,
        changeable: &[(2, D_SENSE, DESCRIPTOR_SENSE), (4, SWP, SOFTWARE_WRITE_PROTECT)],
    },
    fixed(page::CONTROL, 1, |_| vec![0; 32]),
    fixed(page::PROTOCOL_SPECIFIC_LOGICAL_UNIT, 0, protocol_specific),
    fixed(page::PROTOCOL_SPECIFIC_PORT, 0, protocol_specific),
    // Power condition: no timers, as there is no power to save.
    fixed(page::POWER_CONDITION, 0, |_| vec![0; 40]),
    fixed(page::INFORMATIONAL_EXCEPTIONS, 0, |_| vec![0; 12]),
    fixed(page::INFORMATIONAL_EXCEPTIONS, page::LOGICAL_BLOCK_PROVISIONING, logical_block_provisioning),
];

/// Read-write error recovery: nothing is recovered by hand.
fn error_recovery(_: Facts) -> Vec<u8> {
    const AWRE_ARRE: u8 = 0xC0;
    let mut bytes = vec![0; 12];
    bytes[2] = AWRE_ARRE;
    bytes
}

fn caching(facts: Facts) -> Vec<u8> {
    let mut bytes = vec![0; 20];
    bytes[2] = if facts.flags & WRITE_CACHE != 0 { WCE } else { 0 };
    bytes
}

fn control(facts: Facts) -> Vec<u8> {
    const GLTSD: u8 = 0x02;
    const UNRESTRICTED_REORDERING: u8 = 0x10;
    let mut bytes = vec![0; 12];
    bytes[2] = GLTSD | if facts.flags & DESCRIPTOR_SENSE != 0 { D_SENSE } else { 0 };
    bytes[3] = UNRESTRICTED_REORDERING;
    bytes[4] = if facts.flags & SOFTWARE_WRITE_PROTECT != 0 { SWP } else { 0 };
    put(&mut bytes, 8, u16::MAX.to_be_bytes()); // busy timeout: unlimited
    bytes
}

/// Protocol specific logical unit and port: iSCSI says nothing in them but that it is iSCSI (RFC 7143 §11.4 has no
/// parameters of that kind).
fn protocol_specific(_: Facts) -> Vec<u8> {
    const ISCSI: u8 = 5;
    vec![0, 0, ISCSI, 0, 0, 0, 0, 0]
}

/// The soft threshold, as one that is reached by what is left (SBC-4 §6.5.9).
fn logical_block_provisioning(facts: Facts) -> Vec<u8> {
    const ENABLED: u8 = 0x80;
    const SOFT: u8 = 0x01 << 3;
    const ARMED_BY_DECREASE: u8 = 0x01;
    const AVAILABLE: u8 = 0x01;
    let mut bytes = vec![0; 16];
    if let Some(threshold) = facts.threshold {
        bytes.extend([ENABLED | SOFT | ARMED_BY_DECREASE, AVAILABLE, 0, 0]);
        bytes.extend(threshold.to_be_bytes());
    }
    bytes
}

impl Page {
    fn with_header(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        const SPF: u8 = 0x40;
        if self.subpage == 0 {
            bytes[0] = self.code;
            bytes[1] = bytes.len() as u8 - 2;
        } else {
            bytes[0] = self.code | SPF;
            bytes[1] = self.subpage;
            let len = bytes.len() as u16 - 4;
            put(&mut bytes, 2, len.to_be_bytes());
        }
        bytes
    }

    pub(super) fn values(&self, facts: Facts) -> Vec<u8> {
        self.with_header((self.build)(facts))
    }

    /// Ones where MODE SELECT may change a bit.
    pub(super) fn mask(&self, facts: Facts) -> Vec<u8> {
        let mut bytes = vec![0; (self.build)(facts).len()];
        for &(at, bit, _) in self.changeable {
            bytes[at] |= bit;
        }
        self.with_header(bytes)
    }
}
