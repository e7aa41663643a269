//! Properties that a disk has for the systems that use it, beside its data: identity and physical sector.

use super::{Changes, Edit};
use crate::error::{EditError, Structure, VhdxOpenError};
use crate::format::{Guid, GuidSource, item};
use crate::measured::Measured;
use crate::metadata::item_place;
use crate::storage::Storage;

/// New values; `None` stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdentityChange {
    /// The identity of the disk (2.6.2.3), which systems see on page 83h.
    pub disk_id: Option<Guid>,
    /// 512 or 4096, not less than the logical sector (2.6.2.5).
    pub physical_sector: Option<u32>,
}

/// Gives a closed disk another identity or physical sector, in one transaction. It is another disk then: children know
/// it no longer.
pub fn set_identity(
    storage: &impl Storage,
    identity: &IdentityChange,
    guids: &mut dyn GuidSource,
) -> Result<(), EditError> {
    let storage = &Measured::opened(storage)?;
    let mut edit = Edit::open(storage, guids)?;
    let mut parameters = edit.opened.parameters.clone();
    parameters.disk_id = identity.disk_id.unwrap_or(parameters.disk_id);
    parameters.physical_sector = identity.physical_sector.unwrap_or(parameters.physical_sector);
    parameters.check().map_err(EditError::Refused)?;
    if parameters.physical_sector < parameters.logical_sector {
        return Err(EditError::Refused(
            "the physical sector must not be smaller than the logical one".into(),
        ));
    }
    let region = edit.opened.regions.metadata;
    for (id, bytes) in [
        (item::VIRTUAL_DISK_ID, zerocopy::IntoBytes::as_bytes(&parameters.disk_id)),
        (item::PHYSICAL_SECTOR_SIZE, &parameters.physical_sector.to_le_bytes()[..]),
    ] {
        match item_place(storage, region, id)? {
            Some((at, len)) if len == bytes.len() => edit.put(at, bytes)?,
            _ => {
                let problem = format!("item {id} is missing, or has another length");
                return Err(VhdxOpenError::corrupt(Structure::Metadata, region.offset, problem).into());
            }
        }
    }
    edit.commit(Changes::Disk(None))
}
