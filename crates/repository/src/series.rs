//! A series of a repository: the points of one disk.

use std::io;
use std::sync::Arc;

use lunway_backup::{BackupError, EPOCHS, Folder, Holder, Lease, NOTES, Result};

use crate::ended::{Ended, EndedSeries};
use crate::head::HEAD;
use crate::points::Points;
use crate::repository::Repository;

/// Files of a series that are of no use without points.
const LEFT: [&str; 3] = [HEAD, NOTES, EPOCHS];

/// What is to be said of a series whose folder is gone.
fn missing(repository: &Repository, name: &str) -> Option<String> {
    let missing = repository.missing_series(&repository.all_points().ok()?).ok()?;
    let (_, points) = missing.into_iter().find(|(missing, _)| missing == name)?;
    points.losses.into_iter().next().map(|loss| loss.what)
}

/// A series of a repository, open.
#[derive(Clone)]
pub struct Series {
    /// The repository.
    pub repository: Repository,
    /// Its name.
    pub name: String,
    /// The folder of its points: leases, notes and epochs are there.
    pub folder: Arc<dyn Folder>,
}

impl Series {
    /// Opens a series; `is_begun`: one that is not there is made.
    ///
    /// # Errors
    ///
    /// Where it is not there, or its folder cannot be opened.
    pub fn of(repository: Repository, name: &str, is_begun: bool) -> Result<Self> {
        if is_begun {
            repository.refuse_apart()?;
        }
        let places = repository.places();
        let folder = if is_begun { places.begin_series(name) } else { places.of_series(name) };
        let folder = folder.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                if let Some(what) = missing(&repository, name) {
                    return BackupError::Refused(what);
                }
                let there = places.series().unwrap_or_default();
                let there = if there.is_empty() {
                    "none yet".to_owned()
                } else {
                    format!("only {}", there.join(", "))
                };
                let shown = repository.show();
                BackupError::Refused(format!("the repository {shown} has no series {name}, {there}"))
            }
            _ => BackupError::folder("opening", &repository.folder.show(name))(error),
        })?;
        Ok(Self { name: name.to_owned(), folder, repository })
    }

    /// Its points.
    ///
    /// # Errors
    ///
    /// Where its folder cannot be read.
    pub fn points(&self) -> Result<Points> {
        self.repository.points(&self.name, &*self.folder)
    }

    /// Removes what is left of a series that has no points any more, and its folder, and leaves a note for those who
    /// have made points in it. Its lease was given back.
    ///
    /// # Errors
    ///
    /// Where a point is there, or what the folder says.
    pub fn end(self, us: &Holder) -> Result<()> {
        let points = self.points()?;
        if points.has_any() {
            return Err(BackupError::Refused(format!("{} has points: the series stays", self.show())));
        }
        match points.ended().map_or(Ok(()), |ended| self.note(ended, us)) {
            // Others are told that it is gone, as they were before there were such notes.
            Ok(()) | Err(BackupError::InUse { .. } | BackupError::Full { .. }) => {}
            Err(error) => return Err(error),
        }
        // First: killed behind it, a folder without points is left, which does not stand for any that are missed.
        self.repository.forget_series(&self.name)?;
        for name in LEFT {
            self.folder.remove(name).map_err(BackupError::folder("removing", &self.folder.show(name)))?;
        }
        let ended = self.repository.places().end_series(&self.name);
        ended.map_err(BackupError::folder("removing", &self.show()))
    }

    fn note(&self, ended: EndedSeries, us: &Holder) -> Result<()> {
        let (folder, codec) = (&*self.repository.folder, &self.repository.codec);
        let lease = Lease::take(folder, us.clone(), &|| false)?;
        let (list, _) = Ended::examine(folder, codec)?;
        lease.check()?;
        list.add(ended, folder, codec)
    }

    /// Display name.
    pub fn show(&self) -> String {
        self.folder.show("")
    }
}
