//! The exclusive lock: taken before the first write, held until the end.

use lunway_block::spec::RbdName;

use crate::RbdOpenError;
use crate::image::Image;

/// Attempts to take a lock that changes hands meanwhile.
const ATTEMPTS: usize = 3;

/// Takes the image's lock for good.
///
/// librbd's own way is to hand the lock over to whom asks for it, so that two writers take turns and nothing is
/// protected. Here it is held: who asks is refused. A client that holds it and is alive is not asked either, because a
/// virtual machine's driver would give it up and then lose its disk; opening fails, and names it. One that has died is
/// fenced by librbd once its watch has lapsed, and one that `name` says is fenced at once, dead or alive.
///
/// Fencing comes before the lock is broken, and the map that says so is waited for on this client's connection:
/// otherwise a write of the old owner that is still on its way could land behind the first one from here.
///
/// `old` is the address of this device's client before: it is fenced first, also where another holds the lock by now,
/// so that nothing of it can land behind a write from here.
///
/// A client that several images share may itself hold the lock, for another device of this process: then it is not
/// broken, whatever `name` says, because the client would fence itself. Where that device has not given it back and is
/// not there any more, no client but another can have the image, so that this one is given up.
///
/// Returns the holder that it was taken from, dead or fenced.
pub(crate) fn take(image: &Image, name: &RbdName, old: Option<&str>) -> Result<Option<String>, RbdOpenError> {
    let failed = |doing: &'static str| move |errno| RbdOpenError::failed(errno, name, doing);
    let connection = &image.cluster.connection;
    if !image.can_lock().map_err(failed("asking for its features"))? {
        return Err(RbdOpenError::NoLock { name: name.to_string(), image: name.image_path() });
    }
    if let Some(old) = old {
        connection.blocklist(old).map_err(failed("fencing the client before this one"))?;
    }
    let (mut attempts, mut before) = (0, None);
    loop {
        let owner = image.lock_owner().map_err(failed("asking who holds its lock"))?;
        before = owner.clone().or(before);
        if let Some(owner) = &owner {
            let is_old = old == Some(owner);
            let is_own = connection.is_at(owner);
            if is_old || (name.break_lock.as_ref() == Some(owner) && !is_own) {
                if !is_old {
                    tracing::warn!(device = %name, holder = owner, "the holder of the image's lock is fenced");
                    connection.blocklist(owner).map_err(failed("fencing the holder of its lock"))?;
                }
                // It may have ended meanwhile, and another may have come: then the lock is not there, or busy.
                match image.break_lock(owner) {
                    Ok(()) => {}
                    Err(errno) if errno == -libc::ENOENT || errno == -libc::EBUSY => {}
                    Err(errno) => return Err(failed("breaking its lock")(errno)),
                }
            } else {
                let watchers = image.watchers().map_err(failed("asking who has it open"))?;
                // This device is one of its own client's.
                if watchers.iter().filter(|watcher| *watcher == owner).count() > usize::from(is_own) {
                    return Err(RbdOpenError::Held { name: name.to_string(), holder: owner.clone() });
                }
                if is_own {
                    connection.spend("a lock that it has left behind could not be taken");
                    return Err(failed("taking a lock that its own client has left behind")(-libc::EBUSY));
                }
            }
        }
        match image.lock() {
            Ok(()) => break,
            // Refused by a holder that came in between: the next round names it.
            Err(errno) if (errno == -libc::EROFS || errno == -libc::EBUSY) && attempts < ATTEMPTS => {
                attempts += 1;
            }
            Err(errno) => return Err(failed("taking its lock")(errno)),
        }
    }
    connection.wait_for_map().map_err(failed("waiting for the map of the OSDs"))?;
    Ok(before)
}
