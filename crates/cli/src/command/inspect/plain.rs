//! Properties that any device reports about itself.

use anyhow::Context;
use lunway_block::size::HumanSize;
use lunway_block::spec::DeviceSpec;
use lunway_block::{BlockDevice, ExtentKind, Geometry, Unmap};
use serde_json::{Value, json};

use super::{Section, yes};
use crate::failure::Failure;

/// Extents are asked for in windows of this, bytes, so that the answer stays small.
const WINDOW: u64 = 4 << 30;

/// Geometry, and what lies where.
pub(super) struct Plain {
    geometry: Geometry,
    data: u64,
    zero: u64,
    unallocated: u64,
    extents: u64,
}

pub(super) async fn look(device: &dyn BlockDevice) -> Result<Plain, Failure> {
    let geometry = device.geometry();
    let mut seen = Plain { geometry, data: 0, zero: 0, unallocated: 0, extents: 0 };
    let mut last = None;
    let mut at = 0;
    while at < geometry.size {
        let len = (geometry.size - at).min(WINDOW);
        for extent in device
            .extents(at, len, usize::MAX)
            .await
            .context("cannot query the allocated ranges of the device")?
        {
            *match extent.kind {
                ExtentKind::Data => &mut seen.data,
                ExtentKind::Zero => &mut seen.zero,
                ExtentKind::Unallocated => &mut seen.unallocated,
            } += extent.len;
            // One that goes on in the next window is one.
            seen.extents += u64::from(last != Some(extent.kind));
            last = Some(extent.kind);
        }
        at += len;
    }
    Ok(seen)
}

impl Plain {
    /// Space is allocated when written. A device that is only read frees nothing, but what it has holes of is thin.
    fn is_thin(&self) -> bool {
        let unmap = self.geometry.unmap;
        unmap.is_thin() || unmap == Unmap::Holes
    }

    pub(super) fn sections(&self, spec: &DeviceSpec) -> Vec<Section> {
        let geometry = &self.geometry;
        let size = |bytes: u64| format!("{} ({bytes} bytes)", HumanSize(bytes));
        let or = |bytes: u32, otherwise: &str| match bytes {
            0 => otherwise.to_owned(),
            bytes => HumanSize(bytes.into()).to_string(),
        };
        let unmap = if geometry.read_only { "not seen: opened for reading" } else { "does nothing" };
        let shape = vec![
            ("size", size(geometry.size)),
            (
                "sectors",
                format!(
                    "{} bytes logical, {} bytes physical",
                    geometry.logical_sector, geometry.physical_sector
                ),
            ),
            ("optimal transfer", or(geometry.optimal_transfer, "no preference")),
            ("maximum transfer", or(geometry.max_transfer, "no limit")),
            ("thin", yes(self.is_thin())),
            ("unmap", or(geometry.unmap.granularity(), unmap)),
            ("unmapped reads as zeroes", yes(geometry.unmap.zeroes())),
            ("volatile cache", yes(geometry.volatile_cache)),
            ("rotational", yes(geometry.rotational)),
        ];
        let content = vec![
            ("data", size(self.data)),
            ("zeroes", size(self.zero)),
            ("unallocated", size(self.unallocated)),
            ("extents", self.extents.to_string()),
        ];
        vec![Section::new(spec.to_string(), shape), Section::new("Content", content)]
    }

    pub(super) fn document(&self, spec: &DeviceSpec) -> Value {
        let geometry = &self.geometry;
        json!({
            "device": spec.to_string(),
            "size": geometry.size,
            "logical_sector": geometry.logical_sector,
            "physical_sector": geometry.physical_sector,
            "optimal_transfer": geometry.optimal_transfer,
            "max_transfer": geometry.max_transfer,
            "thin": self.is_thin(),
            "unmap_granularity": (!geometry.read_only).then(|| geometry.unmap.granularity()),
            "unmap_zeroes": geometry.unmap.zeroes(),
            "volatile_cache": geometry.volatile_cache,
            "rotational": geometry.rotational,
            "content": {
                "data": self.data,
                "zero": self.zero,
                "unallocated": self.unallocated,
                "extents": self.extents,
            },
        })
    }
}
