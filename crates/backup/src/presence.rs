//! Presence: processes that use a folder beside others, as those see them.
//!
//! Each leaves a file, a prefix and 16 hexadecimal digits, that it locks and beats in as in a [lease](crate::Lease). It
//! is alive until that lock is free on its own machine, or its beat has not changed for the lease's patience.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use crate::error::{BackupError, Result};
use crate::folder::{Folder, INCOMPLETE, Lock};
use crate::holder::{Alive, Holder};
use crate::lease;

/// A process that is there until this is dropped.
pub struct Presence {
    folder: Arc<dyn Folder>,
    name: String,
    _lock: Option<Lock>,
    _alive: Alive,
    end: Option<mpsc::Sender<()>>,
    beats: Option<JoinHandle<()>>,
}

/// Tells whether a file has such a name: this prefix and an id.
pub(crate) fn is_one(name: &str, prefix: &str) -> bool {
    let id = name.strip_prefix(prefix);
    id.is_some_and(|id| id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

impl Presence {
    /// Is there from now on, durably.
    ///
    /// # Errors
    ///
    /// Where the file cannot be made.
    pub fn begin(folder: Arc<dyn Folder>, prefix: &str, holder: &Holder) -> Result<Self> {
        let holder = &Holder { mount: folder.mount_of_locks(), ..holder.clone() };
        let alive = Alive::new(holder);
        let name = format!("{prefix}{:016x}", holder.nonce);
        let writing = || BackupError::folder("writing", &folder.show(&name));
        // Others must not see it without a holder, for whom they would have to wait.
        let unfinished = format!("{name}{INCOMPLETE}");
        let attempt = || {
            let file = folder.create(&unfinished)?;
            let lock = folder.lock(&unfinished).unwrap_or_default();
            lease::write(&file, holder)?;
            file.flush()?;
            folder.rename(&unfinished, &name)?;
            Ok((file, lock))
        };
        // Another process that removes what killed ones have left may have taken it for such.
        let made = attempt().or_else(|error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => attempt(),
            _ => Err(error),
        });
        if made.is_err() {
            // On a full share it was made and has nothing in it.
            let _ = folder.remove(&unfinished);
        }
        let (file, lock) = made.map_err(writing())?;
        let (end, ended) = mpsc::channel();
        let beats = thread::Builder::new().name("backup-presence".into());
        let beats = beats.spawn(move || lease::beat(&file, &ended)).ok();
        Ok(Self { folder, name, _lock: lock, _alive: alive, end: Some(end), beats })
    }

    /// Name of its file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Checks that others have not taken this process for ended, as they do with one that was suspended.
    ///
    /// # Errors
    ///
    /// [`BackupError::LeaseLost`], or what the folder says.
    pub fn check(&self) -> Result<()> {
        match self.folder.open(&self.name, false) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(BackupError::LeaseLost),
            Err(error) => Err(BackupError::folder("reading", &self.folder.show(&self.name))(error)),
        }
    }

    #[cfg(test)]
    pub(crate) fn forget_lock(&mut self) {
        self._lock = None;
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(beats) = self.beats.take() {
            let _ = beats.join();
        }
        let _ = self.folder.remove(&self.name);
    }
}

/// Refuses to go on while a process of this prefix is alive, and says what it does. The files of those that have ended
/// are removed. Blocks as [`Lease::take`](crate::Lease::take) does.
///
/// # Errors
///
/// [`BackupError::InUse`].
pub fn refuse(
    folder: &dyn Folder,
    prefix: &str,
    us: &Holder,
    does: &str,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<()> {
    let names = folder.names_with(prefix).map_err(BackupError::folder("reading", &folder.show("")))?;
    for name in names.iter().filter(|name| is_one(name, prefix)) {
        match lease::wait_until_stale(folder, name, us, is_cancelled) {
            Ok(_) => {}
            Err(BackupError::InUse { holder }) => {
                return Err(BackupError::InUse { holder: format!("{holder}, which {does}") });
            }
            Err(error) => return Err(error),
        }
        folder.remove(name).map_err(BackupError::folder("removing", &folder.show(name)))?;
    }
    Ok(())
}
