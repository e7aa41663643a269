//! Mode parameters: headers, block descriptors and pages (SPC-4 7.5, SBC-4).

use std::sync::atomic::{AtomicU8, Ordering};

use crate::field::{put, u8_at, u16_at, u32_at, u64_at};

/// PAGE CONTROL of MODE SENSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageControl {
    /// Values in force.
    Current,
    /// Ones where MODE SELECT may change a bit.
    Changeable,
    /// Values after a reset.
    Default,
    /// Values kept over power cycles.
    Saved,
}

impl PageControl {
    /// From its two bits.
    pub fn from_bits(bits: u8) -> Self {
        match bits & 0b11 {
            0b00 => Self::Current,
            0b01 => Self::Changeable,
            0b10 => Self::Default,
            _ => Self::Saved,
        }
    }
}

/// Page codes.
pub mod page {
    /// Read-write error recovery.
    pub const ERROR_RECOVERY: u8 = 0x01;
    /// Caching.
    pub const CACHING: u8 = 0x08;
    /// Control.
    pub const CONTROL: u8 = 0x0A;
    /// Informational exceptions control.
    pub const INFORMATIONAL_EXCEPTIONS: u8 = 0x1C;
    /// All pages.
    pub const ALL: u8 = 0x3F;
    /// All subpages.
    pub const ALL_SUBPAGES: u8 = 0xFF;
}

/// Bits of [`ModeParameters`].
const WRITE_CACHE: u8 = 1;
const DESCRIPTOR_SENSE: u8 = 2;
const SOFTWARE_WRITE_PROTECT: u8 = 4;

/// The mode parameters of a logical unit that can be changed: one byte of atomic flags, read on the fast path.
#[derive(Debug)]
pub(crate) struct ModeParameters {
    current: AtomicU8,
    default: u8,
}

/// One mode page: where it is, how it looks.
struct Page {
    code: u8,
    subpage: u8,
    build: fn(flags: u8) -> Vec<u8>,
    changeable: &'static [(usize, u8, u8)],
}

/// Byte of the page, bit of it, flag that it stands for.
const CHANGEABLE_CACHING: &[(usize, u8, u8)] = &[(2, WCE, WRITE_CACHE)];
const CHANGEABLE_CONTROL: &[(usize, u8, u8)] =
    &[(2, D_SENSE, DESCRIPTOR_SENSE), (4, SWP, SOFTWARE_WRITE_PROTECT)];
const WCE: u8 = 0x04;
const D_SENSE: u8 = 0x04;
const SWP: u8 = 0x08;

/// In the order in which MODE SENSE for all pages tells them.
const PAGES: &[Page] = &[
    Page { code: page::ERROR_RECOVERY, subpage: 0, build: error_recovery, changeable: &[] },
    Page { code: page::CACHING, subpage: 0, build: caching, changeable: CHANGEABLE_CACHING },
    Page { code: page::CONTROL, subpage: 0, build: control, changeable: CHANGEABLE_CONTROL },
    Page { code: page::CONTROL, subpage: 1, build: control_extension, changeable: &[] },
    Page {
        code: page::INFORMATIONAL_EXCEPTIONS,
        subpage: 0,
        build: informational_exceptions,
        changeable: &[],
    },
];

/// Read-write error recovery: nothing is recovered by hand.
fn error_recovery(_: u8) -> Vec<u8> {
    const AWRE_ARRE: u8 = 0xC0;
    let mut bytes = vec![0; 12];
    bytes[2] = AWRE_ARRE;
    bytes
}

fn caching(flags: u8) -> Vec<u8> {
    let mut bytes = vec![0; 20];
    bytes[2] = if flags & WRITE_CACHE != 0 { WCE } else { 0 };
    bytes
}

fn control(flags: u8) -> Vec<u8> {
    const GLTSD: u8 = 0x02;
    const UNRESTRICTED_REORDERING: u8 = 0x10;
    let mut bytes = vec![0; 12];
    bytes[2] = GLTSD | if flags & DESCRIPTOR_SENSE != 0 { D_SENSE } else { 0 };
    bytes[3] = UNRESTRICTED_REORDERING;
    bytes[4] = if flags & SOFTWARE_WRITE_PROTECT != 0 { SWP } else { 0 };
    put(&mut bytes, 8, u16::MAX.to_be_bytes()); // busy timeout: unlimited
    bytes
}

fn control_extension(_: u8) -> Vec<u8> {
    vec![0; 32]
}

fn informational_exceptions(_: u8) -> Vec<u8> {
    vec![0; 12]
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

    fn values(&self, flags: u8) -> Vec<u8> {
        self.with_header((self.build)(flags))
    }

    fn mask(&self) -> Vec<u8> {
        let mut bytes = vec![0; (self.build)(0).len()];
        for &(at, bit, _) in self.changeable {
            bytes[at] |= bit;
        }
        self.with_header(bytes)
    }
}

/// What is wrong with the pages of a MODE SELECT, by offset into the list of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SelectError {
    /// The list ends inside a page.
    Length,
    /// No such page, or a bit that cannot be changed.
    Field(usize),
}

impl ModeParameters {
    /// Defaults: the write cache is on where the device has a volatile one.
    pub(crate) fn new(volatile_cache: bool) -> Self {
        let default = if volatile_cache { WRITE_CACHE } else { 0 };
        Self { current: AtomicU8::new(default), default }
    }

    fn flags(&self) -> u8 {
        self.current.load(Ordering::Acquire)
    }

    /// Writes may be acknowledged from a volatile cache. Without such a cache every write is as stable as it gets, and
    /// asking for more would only cost.
    pub(crate) fn write_cache(&self) -> bool {
        self.default & WRITE_CACHE == 0 || self.flags() & WRITE_CACHE != 0
    }

    /// D_SENSE: sense data in descriptor format.
    pub(crate) fn descriptor_sense(&self) -> bool {
        self.flags() & DESCRIPTOR_SENSE != 0
    }

    /// SWP: writes are refused.
    pub(crate) fn software_write_protect(&self) -> bool {
        self.flags() & SOFTWARE_WRITE_PROTECT != 0
    }

    pub(crate) fn reset(&self) {
        self.current.store(self.default, Ordering::Release);
    }

    /// The pages that a MODE SENSE asks for; `None` where there is no such page.
    pub(crate) fn sense(&self, control: PageControl, code: u8, subpage: u8) -> Option<Vec<u8>> {
        let wanted = |page: &&Page| {
            (code == page::ALL || code == page.code)
                && (subpage == page::ALL_SUBPAGES || subpage == page.subpage)
        };
        let mut pages = PAGES.iter().filter(wanted).peekable();
        pages.peek()?;
        Some(pages.fold(Vec::new(), |mut bytes, page| {
            bytes.extend(match control {
                PageControl::Changeable => page.mask(),
                PageControl::Default => page.values(self.default),
                PageControl::Current | PageControl::Saved => page.values(self.flags()),
            });
            bytes
        }))
    }

    /// Takes the pages of a MODE SELECT: all of them, or none where one is refused. Says whether anything changed.
    pub(crate) fn select(&self, pages: &[u8]) -> Result<bool, SelectError> {
        let mut flags = self.flags();
        let mut at = 0;
        while at < pages.len() {
            let (page, len) = find_page(&pages[at..]).map_err(|error| match error {
                SelectError::Field(inner) => SelectError::Field(at + inner),
                error => error,
            })?;
            let given = &pages[at..at + len];
            let (current, mask) = (page.values(self.flags()), page.mask());
            // The header was matched; PS in its first byte is reserved here and ignored.
            let fixed = (2..len).find(|&index| (given[index] ^ current[index]) & !mask[index] != 0);
            if let Some(index) = fixed {
                return Err(SelectError::Field(at + index));
            }
            for &(index, bit, flag) in page.changeable {
                flags = if given[index] & bit != 0 { flags | flag } else { flags & !flag };
            }
            at += len;
        }
        Ok(self.current.swap(flags, Ordering::AcqRel) != flags)
    }
}

/// The page that `bytes` begin with, and its length.
fn find_page(bytes: &[u8]) -> Result<(&'static Page, usize), SelectError> {
    let first = u8_at(bytes, 0).ok_or(SelectError::Length)?;
    let subpage_format = first & 0x40 != 0;
    let second = u8_at(bytes, 1).ok_or(SelectError::Length)?;
    let (subpage, len) = if subpage_format {
        (second, 4 + usize::from(u16_at(bytes, 2).ok_or(SelectError::Length)?))
    } else {
        (0, 2 + usize::from(second))
    };
    let page = PAGES
        .iter()
        .find(|page| page.code == first & 0x3F && page.subpage == subpage && subpage_format == (subpage != 0))
        .ok_or(SelectError::Field(0))?;
    if page.mask().len() != len {
        return Err(SelectError::Field(1));
    }
    if bytes.len() < len {
        return Err(SelectError::Length);
    }
    Ok((page, len))
}

/// What the initiator learns from MODE SENSE.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModeSense {
    /// WP: the medium is write-protected.
    pub write_protected: bool,
    /// DPOFUA: DPO and FUA are understood.
    pub dpo_fua: bool,
    /// Number of blocks and bytes per block, from the block descriptor, where there is one.
    pub blocks: Option<(u64, u32)>,
    /// Pages as they came: code, subpage, and the bytes from the header on.
    pub pages: Vec<(u8, u8, Vec<u8>)>,
}

impl ModeSense {
    /// WP in DEVICE-SPECIFIC PARAMETER.
    pub(crate) const WP: u8 = 0x80;
    /// DPOFUA in DEVICE-SPECIFIC PARAMETER.
    pub(crate) const DPOFUA: u8 = 0x10;

    /// Reads the answer to MODE SENSE (6).
    pub fn parse_6(bytes: &[u8]) -> Option<Self> {
        let len = usize::from(u8_at(bytes, 0)?) + 1;
        Self::parse(bytes, len, 4, u8_at(bytes, 2)?, usize::from(u8_at(bytes, 3)?), false)
    }

    /// Reads the answer to MODE SENSE (10).
    pub fn parse_10(bytes: &[u8]) -> Option<Self> {
        let len = usize::from(u16_at(bytes, 0)?) + 2;
        let long = u8_at(bytes, 4)? & 1 != 0;
        Self::parse(bytes, len, 8, u8_at(bytes, 3)?, usize::from(u16_at(bytes, 6)?), long)
    }

    fn parse(
        bytes: &[u8],
        len: usize,
        header: usize,
        device_specific: u8,
        descriptors: usize,
        long: bool,
    ) -> Option<Self> {
        let bytes = &bytes[..bytes.len().min(len)];
        let descriptor = bytes.get(header..bytes.len().min(header + descriptors)).unwrap_or(&[]);
        let blocks = if long {
            u64_at(descriptor, 0).zip(u32_at(descriptor, 12))
        } else {
            u32_at(descriptor, 0).map(u64::from).zip(u32_at(descriptor, 4).map(|len| len & 0xFF_FFFF))
        };
        let mut rest = bytes.get(header + descriptors..).unwrap_or(&[]);
        let mut pages = Vec::new();
        while let [first, second, ..] = *rest {
            let (subpage, len) = match first & 0x40 {
                0 => (0, 2 + usize::from(second)),
                _ => (second, 4 + usize::from(u16_at(rest, 2).unwrap_or(0))),
            };
            let (page, next) = rest.split_at(len.min(rest.len()));
            pages.push((first & 0x3F, subpage, page.to_vec()));
            rest = next;
        }
        Some(Self {
            write_protected: device_specific & Self::WP != 0,
            dpo_fua: device_specific & Self::DPOFUA != 0,
            blocks,
            pages,
        })
    }

    /// WCE of the caching page, where that came.
    pub fn write_cache(&self) -> Option<bool> {
        let (_, _, caching) =
            self.pages.iter().find(|(code, subpage, _)| (*code, *subpage) == (page::CACHING, 0))?;
        Some(u8_at(caching, 2)? & WCE != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sense_tells_select_takes() {
        let mode = ModeParameters::new(true);
        let pages = mode.sense(PageControl::Current, page::ALL, page::ALL_SUBPAGES).unwrap();
        assert_eq!(mode.select(&pages), Ok(false));
    }

    #[test]
    fn changeable_bits_change_and_reset_brings_them_back() {
        let mode = ModeParameters::new(true);
        let mut control = mode.sense(PageControl::Current, page::CONTROL, 0).unwrap();
        control[2] |= D_SENSE;
        control[4] |= SWP;
        assert_eq!(mode.select(&control), Ok(true));
        assert!(mode.descriptor_sense() && mode.software_write_protect());
        assert_eq!(mode.sense(PageControl::Current, page::CONTROL, 0).unwrap(), control);
        assert_ne!(mode.sense(PageControl::Default, page::CONTROL, 0).unwrap(), control);
        mode.reset();
        assert!(!mode.descriptor_sense() && !mode.software_write_protect() && mode.write_cache());
    }

    #[test]
    fn one_bad_page_leaves_everything_as_it_was() {
        let mode = ModeParameters::new(true);
        let mut pages = mode.sense(PageControl::Current, page::CONTROL, 0).unwrap();
        pages[2] |= D_SENSE;
        let first = pages.len();
        pages.extend(mode.sense(PageControl::Current, page::CACHING, 0).unwrap());
        pages[first + 12] = 1;
        assert_eq!(mode.select(&pages), Err(SelectError::Field(first + 12)));
        assert!(!mode.descriptor_sense());
    }

    #[test]
    fn cut_and_unknown_pages_are_refused() {
        let mode = ModeParameters::new(false);
        let control = mode.sense(PageControl::Current, page::CONTROL, 0).unwrap();
        assert_eq!(mode.select(&control[..11]), Err(SelectError::Length));
        assert_eq!(mode.select(&[page::CONTROL]), Err(SelectError::Length));
        assert_eq!(mode.select(&[0x33, 2, 0, 0]), Err(SelectError::Field(0)));
        assert_eq!(mode.sense(PageControl::Current, 0x33, 0), None);
    }

    #[test]
    fn the_write_cache_can_be_switched_only_where_there_is_one() {
        let mode = ModeParameters::new(false);
        assert!(mode.write_cache());
        let mode = ModeParameters::new(true);
        let mut caching = mode.sense(PageControl::Current, page::CACHING, 0).unwrap();
        caching[2] &= !WCE;
        assert_eq!(mode.select(&caching), Ok(true));
        assert!(!mode.write_cache());
    }
}
