//! A differencing disk's parent, as its locator names it.

use super::{Changes, Edit};
use crate::error::{EditError, Structure, VhdxOpenError};
use crate::format::{Guid, GuidSource, MIB, item, region_id};
use crate::locator::Locator;
use crate::measured::Measured;
use crate::metadata::{build, item_place, read_items};
use crate::region::Span;
use crate::storage::Storage;

/// Gives a differencing disk another locator. What the disk shows changes with the parent; the file's own data do not,
/// so DataWriteGuid stays and children of this disk still know it.
pub fn set_parent(
    storage: &impl Storage,
    locator: &Locator,
    guids: &mut dyn GuidSource,
) -> Result<(), EditError> {
    locator.check().map_err(EditError::Refused)?;
    let storage = &Measured::opened(storage)?;
    let mut edit = Edit::open(storage, guids)?;
    if edit.opened.parameters.locator.is_none() {
        return Err(EditError::Refused("the disk has no parent: it is not a differencing disk".into()));
    }
    let region = edit.opened.regions.metadata;
    let bytes = locator.build();
    let place = item_place(storage, region, item::PARENT_LOCATOR)?;
    let missing = || VhdxOpenError::corrupt(Structure::Metadata, region.offset, "no parent locator");
    let (at, len) = place.ok_or_else(missing)?;
    if bytes.len() == len {
        edit.put(at, &bytes)?;
        return edit.commit(Changes::File);
    }
    let mut items = read_items(storage, region)?;
    for item in items.iter_mut().filter(|item| item.id == item::PARENT_LOCATOR && !item.is_users()) {
        item.data.clone_from(&bytes);
    }
    let table = build(&items);
    match (table.len() as u64).next_multiple_of(MIB) {
        len if len <= region.len => edit.put(region.offset, &table)?,
        len => {
            let span: Span = edit.allocate(len)?;
            let written = storage.write_at(span.offset, &table);
            written.map_err(crate::DiskError::storage("writing the metadata region"))?;
            edit.move_region(region_id::METADATA, span)?;
        }
    }
    edit.commit(Changes::File)
}

/// Announces the next DataWriteGuid of the parent: from now on the child knows its parent by either, so that the parent
/// may be changed and the chain is whole at every moment.
pub fn set_linkage2(storage: &impl Storage, next: Guid, guids: &mut dyn GuidSource) -> Result<(), EditError> {
    let locator = crate::open::read(storage)?.parameters.locator;
    let Some(mut locator) = locator else {
        return Err(EditError::Refused("the disk has no parent: it is not a differencing disk".into()));
    };
    locator.set(Locator::LINKAGE2, &format!("{{{next}}}"));
    set_parent(storage, &locator, guids)
}
