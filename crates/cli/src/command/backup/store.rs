//! What a destination is: a folder with a chain, or a series of a repository. The verbs say the same words for both.

use std::collections::HashSet;
use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::anyhow;
use lunway_backup::{
    Ahead, BackupError, Catalogue, Epochs, Folder, Guids, HostFolder, Lease, Manifest, Notes, PointFacts,
    PointId, Progress, Request, UnreadablePoint, both,
};
use lunway_repository::{
    Located, Points, Repository, RepositoryPoint, Series, locate, open_repository, series_path,
};

use super::{Destination, KEY_FILE, failed};
use crate::failure::Failure;
use crate::terminal;

/// A destination, open.
pub(super) enum Store {
    /// A folder of VHDX files.
    Chain(Arc<dyn Folder>),
    /// A series of a repository.
    Series(Box<Series>),
}

/// A point as people see it.
pub(super) struct Listed {
    pub(super) facts: PointFacts,
    /// The VHDX file of a point in a chain.
    pub(super) file: Option<String>,
    pub(super) state: &'static str,
    pub(super) is_verified: bool,
}

/// All points of a destination, the oldest first, and what else is known of it.
pub(super) struct Listing {
    pub(super) folder: String,
    pub(super) points: Vec<Listed>,
    pub(super) unreadable: Vec<UnreadablePoint>,
    /// What is to be told of a series as a whole.
    pub(super) warnings: Vec<String>,
    /// Incomplete points of a chain.
    pub(super) incomplete: usize,
    /// Files that the newest point of a chain consists of.
    pub(super) chain_files: Option<usize>,
    /// Known damage.
    pub(super) damage: usize,
}

/// What a run has made.
pub(super) struct Made {
    pub(super) facts: PointFacts,
    pub(super) notes: Vec<String>,
}

/// A point as the next run asks about it.
pub(super) struct Past {
    pub(super) point: PointId,
    pub(super) epoch: Option<String>,
    pub(super) source_id: Option<String>,
    /// What is told of it, if it was made for a due time, and that.
    pub(super) due: Option<(String, PointFacts)>,
}

/// What a run reads of a destination under its lease.
pub(super) struct Read {
    /// Its points, the oldest first.
    pub(super) past: Vec<Past>,
    /// The catalogue of a chain.
    pub(super) catalogue: Option<Catalogue>,
    /// What was closed for it, which not all sources ask for.
    pub(super) epochs: Result<Epochs, BackupError>,
}

impl Store {
    /// The folder of its points: leases, notes and epochs are there.
    pub(super) fn folder(&self) -> &Arc<dyn Folder> {
        match self {
            Self::Chain(folder) => folder,
            Self::Series(series) => &series.folder,
        }
    }

    /// Reads all that a run asks about, at once: on a share each file is three round trips.
    pub(super) fn read(&self) -> Result<Read, Failure> {
        let (epochs, points) = both(|| Epochs::load(&**self.folder()), || Ok(self.past()));
        let (past, catalogue) = points.map_err(failed)??;
        Ok(Read { past, catalogue, epochs })
    }

    /// The points that it has, the oldest first, and the catalogue of a chain.
    pub(super) fn past(&self) -> Result<(Vec<Past>, Option<Catalogue>), Failure> {
        Ok(match self {
            Self::Chain(folder) => {
                let catalogue = Catalogue::load(&**folder).map_err(failed)?;
                let past = catalogue.points().iter().map(|point| &point.manifest).map(|manifest| Past {
                    point: manifest.point,
                    epoch: manifest.epoch.clone(),
                    source_id: manifest.source_id.clone(),
                    due: manifest.due.clone().map(|due| (due, manifest.facts())),
                });
                (past.collect(), Some(catalogue))
            }
            Self::Series(series) => {
                let points = series.points().map_err(failed)?;
                let past = points.points().iter().map(|point| Past {
                    point: point.point,
                    epoch: point.epoch.clone(),
                    source_id: point.source_id.clone(),
                    due: point.due.clone().map(|due| (due, point.facts())),
                });
                (past.collect(), None)
            }
        })
    }

    /// Begins to open what a run will compare with, where it is a chain; `catalogue` was read under its lease.
    pub(super) fn open_ahead(&self, catalogue: Option<Catalogue>) -> Option<Ahead> {
        catalogue.map(|catalogue| Ahead::begin(self.folder(), catalogue))
    }

    /// Makes a point. `ahead` is [what was begun](Self::open_ahead) under the same lease.
    pub(super) async fn back_up(
        &self,
        lease: &Lease<'_>,
        guids: &Guids,
        ahead: Option<Ahead>,
        request: Request<'_>,
        told: &mut dyn FnMut(Progress),
    ) -> Result<Made, BackupError> {
        Ok(match self {
            Self::Chain(folder) => {
                let outcome = lunway_backup::run(folder, lease, guids, ahead, request, told).await?;
                Made { facts: outcome.manifest.facts(), notes: outcome.notes }
            }
            Self::Series(series) => {
                let made = lunway_repository::run(series, lease, guids, request, told).await;
                let outcome = made.map_err(|error| lease.explain(error))?;
                Made { facts: outcome.point.facts(), notes: outcome.notes }
            }
        })
    }
}

/// The points of a series, read before, and the state of each.
pub(super) fn series_listing(series: &Series, points: Points) -> Result<Listing, Failure> {
    if points.listed().is_empty() && points.unreadable.is_empty() {
        let why: Vec<String> =
            [format!("{} holds no points", series.show())].into_iter().chain(points.warnings()).collect();
        return Err(Failure::failed(anyhow!("{}", why.join("; "))));
    }
    let notes = Notes::load(&*series.folder).map_err(failed)?;
    Ok(Listing {
        folder: series.show(),
        points: points.listed().iter().map(|point| listed(point, &notes)).collect(),
        incomplete: 0,
        chain_files: None,
        damage: notes.damage.len() + points.unreadable.len(),
        warnings: points.warnings(),
        unreadable: points.unreadable,
    })
}

impl Listing {
    /// Of a series that has no points of its own, and about which something is to be told: its folder or its points are
    /// gone, or it is an old copy of another one's.
    pub(super) fn without_points(folder: &Path, points: &Points) -> Self {
        Self {
            folder: folder.display().to_string(),
            points: Vec::new(),
            unreadable: Vec::new(),
            warnings: points.warnings(),
            incomplete: 0,
            chain_files: None,
            damage: 0,
        }
    }
}

fn listed(point: &RepositoryPoint, notes: &Notes) -> Listed {
    Listed::new(point.facts(), notes, None, false)
}

impl Listed {
    /// A point, with what the notes say of it; `is_incomplete`: a file that it needs is missing or cannot be read.
    fn new(facts: PointFacts, notes: &Notes, file: Option<String>, is_incomplete: bool) -> Self {
        let is_damaged = is_incomplete || notes.damage.iter().any(|damage| damage.point() == facts.point);
        let is_verified = !is_damaged && notes.verified.contains(&facts.point);
        let state = match (is_damaged, is_verified) {
            (true, _) => "damaged",
            (false, true) => "verified",
            (false, false) => "sealed",
        };
        Self { facts, file, state, is_verified }
    }
}

/// The points of a chain and the state of each.
pub(super) fn chain_listing(folder: &HostFolder) -> Result<Listing, Failure> {
    let catalogue = super::catalogue(folder)?;
    let notes = Notes::load(folder).map_err(failed)?;
    let names: HashSet<String> = folder.names().map_err(Failure::failed)?.into_iter().collect();
    // The first run may still be under way, or have been stopped.
    if catalogue.incomplete() == 0 {
        super::points(folder)?;
    }
    let incomplete = incomplete(&catalogue, &names);
    let points = catalogue.points().iter().map(|point| &point.manifest);
    let listed = points.map(|manifest| {
        let is_incomplete = incomplete.contains(&manifest.point);
        Listed::new(manifest.facts(), &notes, Some(manifest.disk_name()), is_incomplete)
    });
    let chain = catalogue.newest().and_then(|newest| catalogue.chain(newest.point).ok());
    Ok(Listing {
        folder: folder.show(""),
        points: listed.collect(),
        unreadable: catalogue.unreadable().to_vec(),
        warnings: catalogue.misnamed().to_vec(),
        incomplete: catalogue.incomplete(),
        chain_files: Some(chain.map_or(0, |chain| chain.len())),
        damage: notes.damage.len() + catalogue.unreadable().len(),
    })
}

/// Points that cannot be restored, as the names in the folder and the manifests tell: a file of the point itself is
/// missing, or one of a point on which it lies, or the manifest of that cannot be read.
fn incomplete(catalogue: &Catalogue, names: &HashSet<String>) -> HashSet<PointId> {
    let points = || catalogue.points().iter().map(|point| &point.manifest);
    let lacks = |manifest: &&Manifest| {
        [manifest.disk_name(), manifest.leaves_name()].iter().any(|name| !names.contains(name))
    };
    let lacking: HashSet<PointId> = points().filter(lacks).map(|manifest| manifest.point).collect();
    let is_incomplete = |manifest: &&Manifest| match catalogue.chain(manifest.point) {
        Ok(chain) => chain.iter().any(|below| lacking.contains(&below.point)),
        Err(_) => true,
    };
    points().filter(is_incomplete).map(|manifest| manifest.point).collect()
}

impl Destination {
    /// Says what its path means.
    pub(super) fn located(&self) -> Result<Located, Failure> {
        locate(&self.folder).map_err(failed)
    }

    /// Opens the repository at a path with the user's key.
    pub(super) fn repository(&self, path: &Path) -> Result<Repository, Failure> {
        let repository = open_repository(path, self.key_file.as_deref()).map_err(failed)?;
        for warning in repository.warnings() {
            eprintln!("lunway: {}", terminal::clean(warning));
        }
        Ok(repository)
    }

    /// The series that it means; `None`: it is a chain. One that is not there is made if `is_begun`.
    pub(super) fn series(&self, is_begun: bool) -> Result<Option<Series>, Failure> {
        match self.located()? {
            Located::Elsewhere if self.key_file_is_given() => Err(Failure::Usage(format!(
                "--key-file is for an encrypted repository, and {} is in none",
                self.folder.display()
            ))),
            // Its repository may have been taken away.
            Located::Elsewhere if is_begun && self.key_file.is_some() => {
                Err(failed(BackupError::Refused(format!(
                    "{KEY_FILE} names a key, and {} is in no repository: unset it to write there in the clear",
                    self.folder.display()
                ))))
            }
            Located::Elsewhere => Ok(None),
            Located::Series { repository, name } => {
                Series::of(self.repository(&repository)?, &name, is_begun).map(Some).map_err(failed)
            }
            Located::Repository(path) => {
                let (path, series) = (path.display(), series_path(&path, "NAME"));
                let series = series.display();
                Err(Failure::Usage(format!("{path} is a repository: name one of its series, {series}")))
            }
        }
    }

    /// Returns `true` if the key file stands on the command line. The environment may name one for all commands.
    fn key_file_is_given(&self) -> bool {
        let by_environment = env::var_os(KEY_FILE).map(PathBuf::from);
        self.key_file.is_some() && self.key_file != by_environment
    }
}
