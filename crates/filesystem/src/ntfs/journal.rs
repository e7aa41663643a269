//! $LogFile: whether the volume was left in a state that needs nothing replayed.
//!
//! The log itself is not documented and not replayed here. Its restart pages tell enough: a clean unmount leaves no
//! client in them, and a Windows that keeps the volume as it is over a shutdown (Fast Startup) leaves version 2.0.

use crate::fields::{le16, le32, le64};
use crate::source::{ByteSource, View};
use crate::volume::Doubt;

use super::record::{DATA, Mft, fix_up};

/// The record of $LogFile.
const LOG_FILE: u64 = 2;
/// Length of an emptied log that is examined, bytes. A writer of a log writes its two restart pages at its beginning
/// first.
const HEAD: u64 = 64 << 10;
/// Offset of the second restart page, unless the first says otherwise.
const PAGE: usize = 4096;
/// client_in_use_list without a client.
const NO_CLIENT: u16 = 0xFFFF;
/// Flag of a restart area: the volume was unmounted.
const VOLUME_IS_CLEAN: u16 = 2;

/// Remedy for a log that is not clean.
const REMEDY: &str = "shut Windows down fully (shutdown /s /f /t 0, with Fast Startup off), or run chkdsk /f";

/// A restart page.
struct Restart {
    /// Log sequence number, which tells which of two pages is newer.
    lsn: u64,
    is_clean: bool,
    /// Major and minor.
    version: (u16, u16),
}

/// An error where the log is not clean.
pub(super) fn check(source: &dyn ByteSource, mft: &Mft) -> Result<(), Doubt> {
    let unclear = |what: &str| Doubt::new(format!("$LogFile {what}")).helped_by(REMEDY);
    let open = |what: &str| Doubt { mounted: true, ..unclear(what) };
    let stream = mft.stream(source, LOG_FILE, DATA, "")?.ok_or_else(|| unclear("has no data"))?;
    let view = View::new(source, stream.segments(mft.cluster)?)?;
    let head = (&view as &dyn ByteSource).bytes(0, view.len().min(HEAD) as usize)?;
    if !head.is_empty() && head.iter().all(|byte| *byte == 0xFF) {
        return Ok(());
    }
    let second = match Restart::page_len(&head) {
        Some(len) => len,
        None => PAGE,
    };
    let pages = [Restart::read(&head), head.get(second..).and_then(Restart::read)];
    let newest = pages.into_iter().flatten().max_by_key(|page| page.lsn);
    let newest = newest.ok_or_else(|| unclear("has no restart page that is whole"))?;
    match newest.version {
        (1, _) => {}
        (2, 0) => {
            return Err(open(
                "is of version 2.0: Windows has the volume mounted, or was shut down with Fast Startup",
            ));
        }
        (major, minor) => return Err(unclear(&format!("is of version {major}.{minor}, which is unknown"))),
    }
    if !newest.is_clean {
        return Err(open("was not closed: the volume was not unmounted"));
    }
    Ok(())
}

impl Restart {
    /// The size of a page that begins here, if one does.
    fn page_len(bytes: &[u8]) -> Option<usize> {
        if !bytes.starts_with(b"RSTR") && !bytes.starts_with(b"CHKD") || bytes.len() < 32 {
            return None;
        }
        let len = le32(bytes, 16) as usize;
        (len.is_power_of_two() && (512..=HEAD as usize).contains(&len)).then_some(len)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut page = bytes.get(..Self::page_len(bytes)?)?.to_vec();
        fix_up(&mut page)?;
        let version = (le16(&page, 28), le16(&page, 26));
        if page.starts_with(b"CHKD") {
            // What chkdsk leaves, which has replayed or emptied the log.
            return Some(Self { lsn: le64(&page, 8), is_clean: true, version });
        }
        let area = page.get(usize::from(le16(&page, 24))..).filter(|area| area.len() >= 16)?;
        let is_clean = le16(area, 12) == NO_CLIENT || le16(area, 14) & VOLUME_IS_CLEAN != 0;
        Some(Self { lsn: le64(area, 0), is_clean, version })
    }
}
