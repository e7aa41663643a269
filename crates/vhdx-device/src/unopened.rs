//! A disk that a change of its device gave up, until it is open again.

use std::path::PathBuf;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lunway_block::BlockError;
use lunway_vhdx::{Chain, Disk, VhdxOpenError, VhdxOpenOptions};

use crate::backing::{Backing, Locked};
use crate::chain_state::{Alone, ChainState};
use crate::device::{Inner, folder, identity, no_guids};
use crate::{names, random_guids, snapshot};

/// Interval between attempts to open the file again, while operations come. An attempt reads the table, of a large disk
/// some hundred MiB, so that a host without a disk is not asked for it by each command.
const RETRY_TIME: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1000 });

/// A disk whose file is kept, with its lock, and is not open.
///
/// A change that needs the file closed (another size, a snapshot) makes everything durable first. So whatever fails
/// after that, nothing that was accepted is lost, and the device goes on as soon as the file can be opened. Until then
/// operations fail as of a medium that failed.
pub(crate) struct Unopened {
    file: Locked,
    path: PathBuf,
    /// Its parents, the nearest first: found again by their names, which must still be theirs.
    parents: Vec<Locked>,
    /// Its parent is no file of the chain.
    is_upper: bool,
    /// Reason why it could not be opened; empty: it was not tried yet.
    why: String,
    tried: Option<Instant>,
}

impl Unopened {
    /// The first file of a chain; other handles of the same open files, so that their locks are not given up.
    pub(crate) fn of(chain: &Chain<Backing>) -> Result<Self, BlockError> {
        let (Some(path), Backing::File(file)) = (chain.paths().first(), chain.disks()[0].storage()) else {
            return Err(BlockError::Unsupported);
        };
        let parents = chain.disks()[1..].iter().filter_map(|parent| match parent.storage() {
            Backing::File(file) => Some(file.try_clone()),
            Backing::Device(_) => None,
        });
        let parents = parents.collect::<Result<_, _>>()?;
        let is_upper = chain.disks().last().is_some_and(|last| last.parameters().locator.is_some());
        Ok(Self {
            file: file.try_clone()?,
            path: path.clone(),
            parents,
            is_upper,
            why: String::new(),
            tried: None,
        })
    }

    /// The file, to be changed.
    pub(crate) fn file(&self) -> &Locked {
        &self.file
    }

    /// Returns `true` if another attempt is due.
    pub(crate) fn is_due(&self) -> bool {
        self.tried.is_none_or(|tried| tried.elapsed() >= RETRY_TIME)
    }

    /// Error of an operation at `offset` of the disk.
    pub(crate) fn error(&self, offset: u64) -> BlockError {
        BlockError::Medium { offset }
    }

    /// Returns the reason why the last attempt failed.
    pub(crate) fn why(&self) -> &str {
        &self.why
    }

    /// Opens the disk: the state from now on. Blocks.
    pub(crate) fn open(mut self) -> ChainState {
        match self.chain() {
            Ok(chain) => {
                if self.tried.is_some() {
                    tracing::info!(file = %self.path.display(), "the VHDX file is open again");
                }
                ChainState::Open(chain)
            }
            Err(error) => {
                let why = error.to_string();
                if why != self.why {
                    tracing::error!(
                        file = %self.path.display(), %error,
                        "the VHDX file could not be opened again after a change that failed: all that was written is in it; its \
                         disk fails as a medium until it can be opened, which is tried each second"
                    );
                }
                (self.why, self.tried) = (why, Some(Instant::now()));
                ChainState::Unopened(self)
            }
        }
    }

    fn chain(&self) -> Result<Chain<Backing>, VhdxOpenError> {
        let access = |what, source| VhdxOpenError::Access { what, source };
        // After a snapshot that failed it is shared.
        snapshot::lock(&self.file, true)?;
        let guids = random_guids()
            .map_err(|error| access("asking for random numbers", std::io::Error::other(error.to_string())))?;
        let file = self.file.try_clone().map_err(|source| access("opening the file", source))?;
        let options = VhdxOpenOptions::writable();
        let disk = Disk::open(Backing::File(file), &options, guids)?;
        if self.is_upper && disk.parameters().locator.is_some() {
            return Chain::upper_of_files(vec![disk], vec![self.path.clone()]);
        }
        // Its parents are found again by their locators.
        let paths = std::slice::from_ref(&self.path);
        let chain = Chain::of_disks(vec![disk], paths, folder(&self.path), &options, no_guids)?;
        for (number, (parent, path)) in chain.disks().iter().zip(chain.paths()).skip(1).enumerate() {
            let is_it = match (parent.storage(), self.parents.get(number)) {
                (Backing::File(now), Some(before)) => names::is_same(now, before),
                _ => false,
            };
            if !is_it {
                let why = format!(
                    "leads to {}, which is another file than the parent that was open: give the name back to that one",
                    path.display()
                );
                return Err(VhdxOpenError::Chain(why));
            }
        }
        Ok(chain)
    }
}

impl Inner {
    /// Goes on with what the chain has become: users hear of another size.
    pub(crate) fn go_on(&self, state: Alone<'_>) {
        let ChainState::Open(chain) = &*state else { return };
        let now = chain.size();
        let before = self.size.swap(now, Ordering::AcqRel);
        *self.identity.lock().unwrap_or_else(PoisonError::into_inner) = identity(chain);
        self.names.set(names::named(chain));
        drop(state);
        if now != before {
            for callback in self.on_resize.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                callback(self.geometry());
            }
        }
    }

    /// Opens the disk again that a change has given up, if it is time to try.
    pub(crate) fn open_again(&self) {
        let mut state = self.alone();
        let due = |state: &ChainState| matches!(state, ChainState::Unopened(unopened) if unopened.is_due());
        if !due(&state) {
            return;
        }
        if let ChainState::Unopened(unopened) = std::mem::replace(&mut *state, ChainState::Closed) {
            *state = unopened.open();
            self.go_on(state);
        }
    }
}
