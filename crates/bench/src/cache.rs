//! Caches that may have answered I/Os.

use std::fs;
use std::time::Duration;

use lunway_block::size::HumanSize;
use lunway_block::{BlockDevice, Caching, ExtentKind, Finding, Severity};

use crate::load::job::Region;

/// Extents are asked for in pieces of this, bytes.
const EXTENT_WINDOW: u64 = 1 << 30;
/// And at most so many pieces, spread evenly: a device of many TiB is looked at in samples.
const EXTENT_WINDOWS_MAX: u64 = 256;
/// A device that does not answer by then has nothing to say.
const PATIENCE: Duration = Duration::from_secs(2);
/// Share of a region that was never written, below which it rounds to 0 % and is not worth a word.
const EMPTY_SHARE_MIN: f64 = 0.005;

/// Reports what stood between a measurement in `region` and the medium: which cache, how large the region is compared
/// with this host's memory, and how much of it was never written. Call it after the measurement, since preparing it
/// writes.
///
/// This is what the device and this host say of themselves. What a disk or a far end keeps in its own memory is told
/// only as far as it tells.
pub async fn cache_truth(device: &dyn BlockDevice, region: Region) -> Vec<Finding> {
    let caching = device.caching();
    let empty = match tokio::time::timeout(PATIENCE, empty_share(device, region)).await {
        // Nothing is ever allocated where nothing is stored.
        Ok(share) if caching != Caching::Nowhere => share,
        _ => 0.0,
    };
    findings(caching, region.len, memory_available(), empty)
}

fn findings(caching: Caching, region: u64, available: Option<u64>, empty: f64) -> Vec<Finding> {
    let size = HumanSize(region);
    let place = format!("the measured region, {size}");
    let note = |id, what: &str, why: String, remedy: &str| Finding {
        id,
        severity: Severity::Note,
        what: what.to_owned(),
        place: place.clone(),
        why,
        remedy: remedy.to_owned(),
    };
    let mut found = vec![match (caching, available) {
        (Caching::PageCache, Some(free)) if region <= free => note(
            caching.name(),
            "the I/O went to this host's page cache",
            format!("the region has {size} and {} of memory are free", HumanSize(free)),
            "open the file past it (--direct) to measure the disk",
        ),
        (Caching::PageCache, Some(free)) => note(
            caching.name(),
            "this host's page cache took part",
            format!(
                "the region has {size}, {} of memory are free to keep it, the rest came from the disk",
                HumanSize(free)
            ),
            "open the file past it (--direct) to measure the disk alone",
        ),
        (Caching::WriteBack | Caching::WriteThrough | Caching::Unknown, _) => note(
            caching.name(),
            caching.clause(),
            String::new(),
            &format!(
                "to measure the medium's reads, use a region larger than the target's memory ({size} here)"
            ),
        ),
        _ => note(caching.name(), caching.clause(), String::new(), ""),
    }];
    if empty >= EMPTY_SHARE_MIN {
        let what = format!("{:.0} % of the region is unallocated", empty * 100.0);
        found.push(note("thin", &what, "reads there did not reach a medium".to_owned(), ""));
    }
    found
}

/// The share of the region that has nothing behind it, 0 to 1; in samples where it is large.
async fn empty_share(device: &dyn BlockDevice, region: Region) -> f64 {
    let windows = region.len.div_ceil(EXTENT_WINDOW).clamp(1, EXTENT_WINDOWS_MAX);
    let sector = u64::from(device.geometry().logical_sector);
    let stride = region.len / windows / sector * sector;
    let (mut seen, mut empty) = (0u64, 0u64);
    for window in 0..windows {
        let len = if windows == 1 { region.len } else { stride.min(EXTENT_WINDOW) };
        let Ok(extents) = device.extents(region.offset + window * stride, len, usize::MAX).await else {
            return 0.0;
        };
        seen += len;
        let unallocated = extents.iter().filter(|extent| extent.kind == ExtentKind::Unallocated);
        empty += unallocated.map(|extent| extent.len).sum::<u64>();
    }
    if seen == 0 { 0.0 } else { empty as f64 / seen as f64 }
}

/// Memory that this host could give to its page cache, bytes.
fn memory_available() -> Option<u64> {
    available_in(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunway_block::{Buf, Durability};
    use lunway_memory::{NullDisk, RamDisk};

    const GIB: u64 = 1 << 30;

    fn sentences(found: &[Finding]) -> Vec<String> {
        found.iter().map(Finding::sentence).collect()
    }

    fn said(caching: Caching, region: u64, available: Option<u64>, empty: f64) -> Vec<String> {
        sentences(&findings(caching, region, available, empty))
    }

    #[test]
    fn the_page_cache_is_named_with_both_sizes() {
        let small = said(Caching::PageCache, GIB, Some(23 * GIB), 0.0);
        assert!(small[0].starts_with("The I/O went to this host's page cache"), "{small:?}");
        assert!(
            small[0].contains("1 GiB") && small[0].contains("23 GiB") && small[0].contains("--direct"),
            "{small:?}"
        );
        let large = said(Caching::PageCache, 64 * GIB, Some(23 * GIB), 0.0);
        assert!(large[0].contains("took part") && large[0].contains("64 GiB"), "{large:?}");
    }

    #[test]
    fn every_kind_of_cache_has_one_sentence_and_emptiness_one_more() {
        for caching in Caching::ALL {
            assert_eq!(said(caching, GIB, None, 0.004).len(), 1);
            let said = said(caching, GIB, None, 0.25);
            assert!(said[1].starts_with("25 % of the region is unallocated"), "{said:?}");
        }
    }

    #[test]
    fn memory_is_read_as_the_kernel_writes_it() {
        let text = "MemTotal:       24737920 kB\nMemAvailable:   20141312 kB\n";
        assert_eq!(available_in(text), Some(20_141_312 * 1024));
        assert_eq!(available_in("MemAvailable: much\n"), None);
    }

    #[tokio::test]
    async fn a_thin_device_is_seen_through_until_it_is_written() {
        let device = RamDisk::new(64 << 20, 512).unwrap();
        let region = Region { offset: 0, len: 64 << 20 };
        let said = sentences(&cache_truth(&device, region).await);
        assert!(said[1].starts_with("100 %"), "{said:?}");
        for piece in 0..64 {
            let data = Buf::copy_of(&vec![7; 1 << 20]).freeze();
            device.write(piece << 20, data, Durability::Volatile).await.unwrap();
        }
        let said = sentences(&cache_truth(&device, region).await);
        assert_eq!(said, ["The device is memory of this host, with no disk behind it."]);
    }

    #[tokio::test]
    async fn a_device_of_many_tebibytes_is_looked_at_in_samples() {
        let device = RamDisk::new(1 << 44, 4096).unwrap();
        let said = sentences(&cache_truth(&device, Region { offset: 0, len: 1 << 44 }).await);
        assert!(said[1].starts_with("100 %"), "{said:?}");
        let sink = NullDisk::new(1 << 60, 4096).unwrap();
        let found = cache_truth(&sink, Region { offset: 0, len: 1 << 60 }).await;
        assert_eq!((found.len(), found[0].id), (1, "nowhere"));
    }
}
