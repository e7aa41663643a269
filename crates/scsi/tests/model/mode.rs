//! Mode parameters: pages as the unit showed them at first, and what MODE SELECT makes of them.

use crate::answer::{INVALID_CDB, INVALID_PARAMETER, LIST_LENGTH, Refusal, refuse};

#[derive(Clone, Debug)]
struct Page {
    code: u8,
    subpage: u8,
    current: Vec<u8>,
    changeable: Vec<u8>,
    default: Vec<u8>,
}

/// The pages of a unit. Which there are, what they say and which bits can be changed is the unit's to choose; from
/// there on SPC-4 6.11 to 6.14 says what must come of it.
#[derive(Clone, Debug)]
pub(crate) struct Mode {
    pages: Vec<Page>,
    /// DPOFUA of the header.
    pub(crate) device_specific: u8,
}

/// The pages of a list, whatever their format.
fn split(mut bytes: &[u8]) -> Vec<(u8, u8, Vec<u8>)> {
    let mut pages = Vec::new();
    while let [first, second, ..] = *bytes {
        let (subpage, len) = match first & 0x40 {
            0 => (0, 2 + usize::from(second)),
            _ => (second, 4 + usize::from(u16::from_be_bytes([bytes[2], bytes[3]]))),
        };
        pages.push((first & 0x3F, subpage, bytes[..len].to_vec()));
        bytes = &bytes[len..];
    }
    pages
}

impl Mode {
    /// From three answers to MODE SENSE (10) without block descriptors: current, changeable and default values.
    pub(crate) fn learn(current: &[u8], changeable: &[u8], default: &[u8]) -> Self {
        let device_specific = current[3] & !0x80;
        let pages = split(&current[8..]).into_iter().zip(split(&changeable[8..])).zip(split(&default[8..]));
        let pages = pages
            .map(|(((code, subpage, current), (_, _, changeable)), (_, _, default))| Page {
                code,
                subpage,
                current,
                changeable,
                default,
            })
            .collect();
        Self { pages, device_specific }
    }

    fn bit(&self, code: u8, byte: usize, bit: u8) -> bool {
        let page = self.pages.iter().find(|page| (page.code, page.subpage) == (code, 0));
        page.is_some_and(|page| page.current[byte] & bit != 0)
    }

    pub(crate) fn descriptor_sense(&self) -> bool {
        self.bit(0x0A, 2, 0x04)
    }

    pub(crate) fn write_protected(&self) -> bool {
        self.bit(0x0A, 4, 0x08)
    }

    pub(crate) fn reset(&mut self) {
        self.pages.iter_mut().for_each(|page| page.current = page.default.clone());
    }

    /// The pages that MODE SENSE asks for; `None` if there is none.
    pub(crate) fn pages(&self, control: u8, code: u8, subpage: u8) -> Option<Vec<u8>> {
        let chosen: Vec<_> = self
            .pages
            .iter()
            .filter(|page| {
                (code == 0x3F || page.code == code) && (subpage == 0xFF || page.subpage == subpage)
            })
            .flat_map(|page| match control {
                0 => &page.current,
                1 => &page.changeable,
                _ => &page.default,
            })
            .copied()
            .collect();
        (!chosen.is_empty()).then_some(chosen)
    }

    /// Takes a list of pages; says whether anything changed.
    pub(crate) fn select(&mut self, list: &[u8], page_format: bool) -> Result<bool, Refusal> {
        if !list.is_empty() && !page_format {
            return refuse(&[INVALID_CDB, INVALID_PARAMETER]);
        }
        let mut after = self.pages.clone();
        let mut rest = list;
        while !rest.is_empty() {
            let found = after.iter_mut().find(|page| {
                let len = if page.subpage == 0 { 2 } else { 4 };
                let header = &page.current[..len];
                rest.len() >= len && rest[0] & 0x7F == header[0] & 0x7F && rest[1..len] == header[1..len]
            });
            // No such page, one of another length, or the list ends in its header: which of them is told is open.
            let Some(page) = found else { return refuse(&[INVALID_PARAMETER, LIST_LENGTH]) };
            let len = page.current.len();
            if rest.len() < len {
                return refuse(&[LIST_LENGTH]);
            }
            let (given, next) = rest.split_at(len);
            let header = if page.subpage == 0 { 2 } else { 4 };
            let mut fields = given.iter().zip(&page.current).zip(&page.changeable).skip(header);
            if fields.any(|((new, old), changeable)| (new ^ old) & !changeable != 0) {
                // A list that is also cut further on may be refused for that.
                return refuse(&[INVALID_PARAMETER, LIST_LENGTH]);
            }
            page.current[header..].copy_from_slice(&given[header..]);
            rest = next;
        }
        let changed = after.iter().zip(&self.pages).any(|(new, old)| new.current != old.current);
        self.pages = after;
        Ok(changed)
    }

    /// How many pages there are, and one of them with its mask, for those who want to change one.
    pub(crate) fn page(&self, index: usize) -> (Vec<u8>, &[u8]) {
        let page = &self.pages[index % self.pages.len()];
        let mut bytes = page.current.clone();
        bytes[0] &= 0x7F;
        (bytes, &page.changeable)
    }
}
