//! Mode parameters: headers, block descriptors and pages (SPC-4 §7.5, SBC-4).

mod pages;

use std::sync::atomic::{AtomicU8, Ordering};

use pages::{ALL_FLAGS, DESCRIPTOR_SENSE, PAGES, Page, SOFTWARE_WRITE_PROTECT, WCE, WRITE_CACHE};
pub(crate) use pages::{Facts, THRESHOLD_EXPONENT};

use crate::data::field::{u8_at, u16_at, u32_at, u64_at};

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
    /// Verify error recovery.
    pub const VERIFY_ERROR_RECOVERY: u8 = 0x07;
    /// Caching.
    pub const CACHING: u8 = 0x08;
    /// Control.
    pub const CONTROL: u8 = 0x0A;
    /// Protocol specific logical unit.
    pub const PROTOCOL_SPECIFIC_LOGICAL_UNIT: u8 = 0x18;
    /// Protocol specific port.
    pub const PROTOCOL_SPECIFIC_PORT: u8 = 0x19;
    /// Power condition.
    pub const POWER_CONDITION: u8 = 0x1A;
    /// Logical block provisioning, a subpage of informational exceptions control.
    pub const LOGICAL_BLOCK_PROVISIONING: u8 = 0x02;
    /// Informational exceptions control.
    pub const INFORMATIONAL_EXCEPTIONS: u8 = 0x1C;
    /// All pages.
    pub const ALL: u8 = 0x3F;
    /// All subpages.
    pub const ALL_SUBPAGES: u8 = 0xFF;
}

/// The mode parameters of a logical unit that can be changed: one byte of atomic flags, read on the fast path.
///
/// Three sets of values: those in force, those saved by MODE SELECT with SP, and the defaults. A reset brings the saved
/// ones back, or the defaults where none were saved (SPC-4 §5.11.2).
#[derive(Debug)]
pub(crate) struct ModeParameters {
    current: AtomicU8,
    saved: AtomicU8,
    default: u8,
}

/// Version of the kept form: this byte, then the flags.
const KEPT_VERSION: u8 = 1;

/// Change by a MODE SELECT: the flags of the pages that it brings. Those of other pages stay, whichever nexus changes
/// them meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModeChange {
    /// The flags that it says something of.
    mask: u8,
    /// Those of them that it sets.
    set: u8,
}

impl ModeChange {
    fn set(&mut self, flag: u8, on: bool) {
        self.mask |= flag;
        self.set = if on { self.set | flag } else { self.set & !flag };
    }

    fn of(self, flags: u8) -> u8 {
        flags & !self.mask | self.set
    }
}

/// Error in the pages of a MODE SELECT, by offset into the list of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SelectError {
    /// The list ends inside a page.
    Length,
    /// No such page, or a bit that cannot be changed.
    Field(usize),
}

impl ModeParameters {
    /// Defaults: the write cache is on where the device has a volatile one. `kept` is what [`kept`](Self::kept) once
    /// gave; `Err`: it is not.
    pub(crate) fn new(volatile_cache: bool, kept: Option<&[u8]>) -> Result<Self, &'static str> {
        let default = if volatile_cache { WRITE_CACHE } else { 0 };
        let saved = match kept {
            None => default,
            Some(&[KEPT_VERSION, flags]) if flags & !ALL_FLAGS == 0 => flags,
            Some(_) => return Err("they are not of a version that is known"),
        };
        Ok(Self { current: AtomicU8::new(saved), saved: AtomicU8::new(saved), default })
    }

    /// Returns the bytes to store so that these flags are the saved ones.
    pub(crate) fn kept(flags: u8) -> Vec<u8> {
        vec![KEPT_VERSION, flags]
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
        self.current.store(self.saved.load(Ordering::Acquire), Ordering::Release);
    }

    /// Flags that have been kept are the saved ones from now on.
    pub(crate) fn set_saved(&self, flags: u8) {
        self.saved.store(flags, Ordering::Release);
    }

    /// The flags in force with a change made to them.
    pub(crate) fn with(&self, change: ModeChange) -> u8 {
        change.of(self.flags())
    }

    /// Makes a change to what is in force now, which leaves what pages other than its own say; says whether that
    /// changed anything.
    pub(crate) fn put_in_force(&self, change: ModeChange) -> bool {
        let changed = |flags| Some(change.of(flags)).filter(|after| *after != flags);
        self.current.fetch_update(Ordering::AcqRel, Ordering::Acquire, changed).is_ok()
    }

    /// The pages that a MODE SENSE asks for; `None` where there is no such page. `savable` sets PS: what can be changed
    /// can be saved. `threshold` is that of [`Facts`].
    pub(crate) fn sense(
        &self,
        control: PageControl,
        code: u8,
        subpage: u8,
        savable: bool,
        threshold: Option<u32>,
    ) -> Option<Vec<u8>> {
        const PS: u8 = 0x80;
        let wanted = |page: &&Page| {
            (code == page::ALL || code == page.code)
                && (subpage == page::ALL_SUBPAGES || subpage == page.subpage)
        };
        let flags = match control {
            PageControl::Default => self.default,
            PageControl::Saved => self.saved.load(Ordering::Acquire),
            PageControl::Current | PageControl::Changeable => self.flags(),
        };
        let facts = Facts { flags, threshold };
        let mut pages = PAGES.iter().filter(wanted).peekable();
        pages.peek()?;
        Some(pages.fold(Vec::new(), |mut bytes, page| {
            let at = bytes.len();
            bytes.extend(if control == PageControl::Changeable {
                page.mask(facts)
            } else {
                page.values(facts)
            });
            if savable && !page.changeable.is_empty() {
                bytes[at] |= PS;
            }
            bytes
        }))
    }

    /// Reads the pages of a MODE SELECT: the change that they ask for, or which of them is wrong. Nothing changes yet.
    pub(crate) fn select(&self, pages: &[u8], threshold: Option<u32>) -> Result<ModeChange, SelectError> {
        let facts = Facts { flags: self.flags(), threshold };
        let mut change = ModeChange::default();
        let mut at = 0;
        while at < pages.len() {
            let (page, len) = find_page(&pages[at..], facts).map_err(|error| match error {
                SelectError::Field(inner) => SelectError::Field(at + inner),
                error => error,
            })?;
            let given = &pages[at..at + len];
            let (current, mask) = (page.values(facts), page.mask(facts));
            // The header was matched; PS in its first byte is reserved here and ignored.
            let fixed = (2..len).find(|&index| (given[index] ^ current[index]) & !mask[index] != 0);
            if let Some(index) = fixed {
                return Err(SelectError::Field(at + index));
            }
            for &(index, bit, flag) in page.changeable {
                change.set(flag, given[index] & bit != 0);
            }
            at += len;
        }
        Ok(change)
    }
}

/// The page that `bytes` begin with, and its length.
fn find_page(bytes: &[u8], facts: Facts) -> Result<(&'static Page, usize), SelectError> {
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
    if page.mask(facts).len() != len {
        return Err(SelectError::Field(1));
    }
    if bytes.len() < len {
        return Err(SelectError::Length);
    }
    Ok((page, len))
}

/// Data that the initiator learns from MODE SENSE.
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

    /// TST of the control page: the logical unit has a task set for each I_T nexus (SPC-4 §7.5.8). `None` where that
    /// page did not come.
    pub fn separate_task_sets(&self) -> Option<bool> {
        let (_, _, control) =
            self.pages.iter().find(|(code, subpage, _)| (*code, *subpage) == (page::CONTROL, 0))?;
        Some(u8_at(control, 2)? >> 5 != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::pages::{D_SENSE, SWP};
    use super::*;

    fn with_cache(volatile: bool) -> ModeParameters {
        ModeParameters::new(volatile, None).unwrap()
    }

    fn current(mode: &ModeParameters, code: u8, subpage: u8) -> Vec<u8> {
        mode.sense(PageControl::Current, code, subpage, false, Some(7)).unwrap()
    }

    fn select(mode: &ModeParameters, pages: &[u8]) -> Result<bool, SelectError> {
        mode.select(pages, Some(7)).map(|change| mode.put_in_force(change))
    }

    #[test]
    fn what_sense_tells_select_takes() {
        let mode = with_cache(true);
        let pages = mode.sense(PageControl::Current, page::ALL, page::ALL_SUBPAGES, true, Some(7)).unwrap();
        assert_eq!(select(&mode, &pages), Ok(false));
    }

    #[test]
    fn changeable_bits_change_and_reset_brings_them_back() {
        let mode = with_cache(true);
        let mut control = current(&mode, page::CONTROL, 0);
        control[2] |= D_SENSE;
        control[4] |= SWP;
        assert_eq!(select(&mode, &control), Ok(true));
        assert!(mode.descriptor_sense() && mode.software_write_protect());
        assert_eq!(current(&mode, page::CONTROL, 0), control);
        assert_ne!(mode.sense(PageControl::Default, page::CONTROL, 0, false, None).unwrap(), control);
        mode.reset();
        assert!(!mode.descriptor_sense() && !mode.software_write_protect() && mode.write_cache());
    }

    #[test]
    fn saved_values_outlive_a_reset_and_come_back_from_what_was_kept() {
        let mode = with_cache(true);
        let mut control = current(&mode, page::CONTROL, 0);
        control[2] |= D_SENSE;
        let flags = mode.with(mode.select(&control, Some(7)).unwrap());
        mode.set_saved(flags);
        mode.reset();
        assert!(mode.descriptor_sense());
        let again = ModeParameters::new(true, Some(&ModeParameters::kept(flags))).unwrap();
        assert!(again.descriptor_sense() && again.write_cache());
        for damaged in [&[][..], &[1], &[2, 0], &[1, 0x80], &[1, 0, 0]] {
            assert!(ModeParameters::new(true, Some(damaged)).is_err(), "{damaged:?}");
        }
    }

    #[test]
    fn only_pages_with_something_to_save_say_that_they_can_be_saved() {
        let mode = with_cache(true);
        let sense = |code| mode.sense(PageControl::Current, code, 0, true, None).unwrap();
        assert_eq!(sense(page::CACHING)[0], 0x80 | page::CACHING);
        assert_eq!(sense(page::POWER_CONDITION)[0], page::POWER_CONDITION);
    }

    #[test]
    fn one_bad_page_leaves_everything_as_it_was() {
        let mode = with_cache(true);
        let mut pages = current(&mode, page::CONTROL, 0);
        pages[2] |= D_SENSE;
        let first = pages.len();
        pages.extend(current(&mode, page::CACHING, 0));
        pages[first + 12] = 1;
        assert_eq!(select(&mode, &pages), Err(SelectError::Field(first + 12)));
        assert!(!mode.descriptor_sense());
    }

    #[test]
    fn cut_and_unknown_pages_are_refused() {
        let mode = with_cache(false);
        let control = current(&mode, page::CONTROL, 0);
        assert_eq!(select(&mode, &control[..11]), Err(SelectError::Length));
        assert_eq!(select(&mode, &[page::CONTROL]), Err(SelectError::Length));
        assert_eq!(select(&mode, &[0x33, 2, 0, 0]), Err(SelectError::Field(0)));
        assert_eq!(mode.sense(PageControl::Current, 0x33, 0, false, None), None);
    }

    #[test]
    fn the_write_cache_can_be_switched_only_where_there_is_one() {
        assert!(with_cache(false).write_cache());
        let mode = with_cache(true);
        let mut caching = current(&mode, page::CACHING, 0);
        caching[2] &= !WCE;
        assert_eq!(select(&mode, &caching), Ok(true));
        assert!(!mode.write_cache());
    }

    #[test]
    fn the_threshold_is_a_descriptor_of_its_page() {
        let mode = with_cache(false);
        let page = current(&mode, page::INFORMATIONAL_EXCEPTIONS, page::LOGICAL_BLOCK_PROVISIONING);
        assert_eq!((page.len(), page[3], &page[16..]), (24, 20, &[0x89, 1, 0, 0, 0, 0, 0, 7][..]));
    }
}
