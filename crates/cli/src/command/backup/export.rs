//! An NBD export as the source of a backup, whose server tells by a bitmap of QEMU what was written.
//!
//! NBD shows of a bitmap what it holds, and neither when it began nor whether it is the one of before. So its beginning
//! is taken from the destination: a run notes the name of the bitmap that began with its state (`--next-bitmap`), each
//! name once, and the next run believes that name alone, or what its user says (`--since`). In any doubt everything is
//! read and compared.

use std::sync::Arc;

use clap::Args;
use lunway_backup::{Changed, CoarseMap, PointId, Since};
use lunway_block::spec::NbdUri;
use lunway_block::{BlockDevice, BlockError};
use lunway_nbd::NbdClient;

use super::store::Past;
use crate::device::BlockingRuntime;
use crate::failure::Failure;
use crate::terminal;

/// The context of a bitmap, as manifests name it in place of an epoch.
const PREFIX: &str = "qemu:dirty-bitmap:";
/// Longest name that QEMU gives a bitmap, bytes.
const NAME_MAX: usize = 1023;

/// Bitmaps of an NBD export
#[derive(Debug, Args)]
pub(super) struct Bitmaps {
    /// For nbd://: read only what this bitmap of the export says was written [default: the one that the newest point
    /// names]
    #[arg(long, value_name = "NAME", value_parser = name)]
    bitmap: Option<String>,
    /// For nbd://: the bitmap has counted since the state that this point shows: the complete id of the newest point
    #[arg(long, value_name = "POINT", requires = "bitmap")]
    since: Option<PointId>,
    /// For nbd://: name of the bitmap that began with the state that is backed up now, for the next run. It must be new
    #[arg(long, value_name = "NAME", value_parser = name)]
    next_bitmap: Option<String>,
}

/// An export, and what is known of its changes.
pub(super) struct Export {
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) changed: Changed,
}

fn name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > NAME_MAX || text.contains(char::is_control) {
        return Err(format!("a bitmap's name has 1 to {NAME_MAX} bytes, and no control characters"));
    }
    Ok(text.to_owned())
}

fn unknown(why: impl Into<String>) -> Changed {
    Changed::Unknown { why: terminal::clean(&why.into()) }
}

impl Bitmaps {
    /// Returns the first option given, for a source that has no bitmaps.
    pub(super) fn given(&self) -> Option<&'static str> {
        let given = [(self.bitmap.is_some(), "--bitmap"), (self.next_bitmap.is_some(), "--next-bitmap")];
        given.into_iter().find(|(given, _)| *given).map(|(_, option)| option)
    }

    /// What the manifest has in place of an epoch.
    ///
    /// # Errors
    ///
    /// Where the name was used before: the bitmap may have counted since then, or may have lost what it held.
    pub(super) fn epoch(&self, past: &[Past]) -> Result<Option<String>, Failure> {
        let Some(next) = &self.next_bitmap else { return Ok(None) };
        let epoch = format!("{PREFIX}{next}");
        let used = past.iter().any(|point| point.epoch.as_ref() == Some(&epoch));
        if used || self.bitmap.as_ref() == Some(next) {
            return Err(Failure::Usage(format!(
                "--next-bitmap {next}: the name was used before; begin a bitmap of a new name with each backup"
            )));
        }
        Ok(Some(epoch))
    }

    /// The bitmap that is asked for and the moment that it counts from; else the reason why there is none.
    fn wanted(&self, newest: Option<&Past>) -> Result<(String, Since), Changed> {
        let Some(newest) = newest else { return Err(unknown("there is no point yet")) };
        let named = newest.epoch.as_ref().and_then(|epoch| Some((epoch.strip_prefix(PREFIX)?, epoch)));
        match (&self.bitmap, self.since, named) {
            (Some(bitmap), Some(point), _) => Ok((bitmap.clone(), Since::Point(point))),
            (Some(bitmap), None, Some((named, epoch))) if bitmap == named => {
                Ok((bitmap.clone(), Since::Epoch(epoch.clone())))
            }
            (Some(bitmap), None, _) => Err(unknown(format!(
                "point {} does not say that the bitmap {bitmap} began with it (--next-bitmap, --since)",
                newest.point
            ))),
            (None, _, Some((named, epoch))) => Ok((named.to_owned(), Since::Epoch(epoch.clone()))),
            (None, _, None) => Err(unknown("nothing keeps track of changes of this source")),
        }
    }

    /// Opens an export, and asks it what was written since the newest point.
    pub(super) fn open(
        &self,
        uri: &NbdUri,
        past: &[Past],
        runtime: &BlockingRuntime,
    ) -> Result<Export, Failure> {
        let wanted = self.wanted(past.last());
        let bitmap = wanted.as_ref().map(|(bitmap, _)| &**bitmap).ok();
        let client = runtime.wait(NbdClient::connect(uri, bitmap)).map_err(Failure::failed)?;
        let changed = match wanted {
            Err(unknown) => unknown,
            Ok((bitmap, since)) => runtime.wait(changed(&client, &bitmap, since))?,
        };
        Ok(Export { device: Arc::new(client), changed })
    }
}

/// Returns what a bitmap says, or the reason why that is not known.
async fn changed(client: &NbdClient, bitmap: &str, since: Since) -> Result<Changed, Failure> {
    if !client.has_bitmap() {
        return Ok(unknown(format!("the export has no bitmap {bitmap}")));
    }
    let geometry = client.geometry();
    if !geometry.read_only {
        return Ok(unknown("the export can be written to, so its bitmap may change while it is read"));
    }
    let (mut map, mut at) = (CoarseMap::default(), 0);
    while at < geometry.size {
        match client.dirty(at).await {
            Ok(part) => {
                part.ranges.into_iter().for_each(|range| map.add(range));
                at = part.end;
            }
            Err(error @ BlockError::Gone { .. }) => return Err(Failure::failed(error)),
            Err(error) => {
                return Ok(unknown(format!("the server does not show the bitmap {bitmap}: {error}")));
            }
        }
    }
    Ok(Changed::Known { since, ranges: Box::new(map) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_such_as_qemu_has_them() {
        assert_eq!(name("b-1 ü"), Ok("b-1 ü".to_owned()));
        for wrong in ["", "a\nb", "\u{1b}[2J", &"x".repeat(1024)] {
            assert!(name(wrong).is_err(), "{wrong:?}");
        }
    }
}
