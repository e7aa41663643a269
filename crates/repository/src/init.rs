//! Making a repository, which one process does and no other that begins at the same time.

use std::io;

use lunway_backup::{BackupError, Holder, LEASE, Lease, Result, is_of_the_file};

use crate::codec::{Codec, MasterKey};
use crate::keys::{Recipient, WrappedKey};
use crate::marker::{MARKER, MARKER_COPY, Marker};
use crate::pin::Pins;
use crate::places::Places;
use crate::random::{new_number, random};
use crate::repository::Repository;

impl Repository {
    /// Makes one in an empty folder: for these people, or where there is none for everyone who can read the folder. It
    /// is known to `pins` from then on. What a process has left that was killed before it could say that it has made
    /// one is made anew.
    ///
    /// # Errors
    ///
    /// Where something is there already, [`BackupError::InUse`] while another process makes one, or what the folder
    /// says.
    pub fn create(
        places: &dyn Places,
        pins: Option<&Pins>,
        recipients: &[Recipient],
        us: &Holder,
    ) -> Result<Marker> {
        let folder = places.packs();
        refuse_unless_empty(places)?;
        let lease = Lease::take(&*folder, us.clone(), &|| false)?;
        // Another process may have made one since, and may have begun a series of it.
        refuse_unless_empty(places)?;
        let asking = || BackupError::folder("asking for random numbers of", "the kernel");
        let repository = format!("{:016x}", new_number()?);
        let (marker, master) = match recipients {
            [] => (Marker::new(repository, Vec::new()), None),
            recipients => {
                let master = MasterKey::new(random().map_err(asking())?);
                let wrapped = recipients.iter().map(|recipient| WrappedKey::wrap(&master, recipient));
                let keys = wrapped.collect::<io::Result<_>>().map_err(asking())?;
                (Marker::new(repository, keys).sealed(&Codec::encrypted(&master)), Some(master))
            }
        };
        lease.check()?;
        marker.store(&*folder)?;
        if let Some(pins) = pins {
            // A place that cannot be written is told when the repository is used.
            let _ = pins.remember(&marker, master.as_ref());
        }
        Ok(marker)
    }
}

/// Refuses a folder that holds anything but what an interrupted attempt has left: its lease, and the copy of the
/// marker, which is written first.
fn refuse_unless_empty(places: &dyn Places) -> Result<()> {
    let folder = places.packs();
    let reading = || BackupError::folder("reading", &folder.show(""));
    let mut there = folder.names().map_err(reading())?;
    there.extend(places.series().map_err(reading())?);
    let is_left = |name: &String| [LEASE, MARKER_COPY, MARKER].iter().any(|left| name.starts_with(left));
    if let Some(other) = there.iter().find(|name| !is_left(name)) {
        return Err(BackupError::Refused(format!(
            "{} is there: a repository is made in an empty folder",
            folder.show(other)
        )));
    }
    match folder.open(MARKER, false) {
        Ok(_) => Err(BackupError::Refused(format!("{} is a repository already", folder.show("")))),
        Err(error) if is_of_the_file(error.kind()) => Ok(()),
        Err(error) => Err(BackupError::folder("reading", &folder.show(MARKER))(error)),
    }
}
