//! What is read of a folder before a run begins, beside what its caller does with the source: of a share each file is
//! some round trips.

use std::sync::Arc;
use std::time::Duration;

use lunway_vhdx::Disk;

use crate::catalogue::Catalogue;
use crate::error::{BackupError, Result};
use crate::folder::{Folder, Open};
use crate::heal::Ailing;
use crate::history::History;
use crate::manifest::Manifest;
use crate::point_files::{lacks, open_disk};
use crate::threads::{Beside, both, each};

/// Time by which work begins later that is not soon waited for: clients of FUSE make one file of a folder at a time,
/// and look nothing up in it meanwhile, so what is waited for comes first.
const LATER: Duration = Duration::from_millis(50);

/// The points of a folder, as they were read under a lease, and what is being read of their files.
pub struct Ahead {
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) reading: Reading,
}

impl Ahead {
    /// Begins to read what a run asks about. What fails is said by the run.
    pub fn begin(folder: &Arc<dyn Folder>, catalogue: Catalogue) -> Self {
        // A merge that was stopped is finished first, which replaces files that would be open here.
        let later = if catalogue.has_merges { Duration::MAX } else { LATER };
        Self::begin_after(later, folder, catalogue)
    }

    /// The same `later`, or when it is waited for.
    pub(crate) fn begin_after(later: Duration, folder: &Arc<dyn Folder>, catalogue: Catalogue) -> Self {
        let catalogue = Arc::new(catalogue);
        let chain = catalogue.newest().and_then(|newest| catalogue.chain(newest.point).ok());
        let chain: Vec<Manifest> = chain.unwrap_or_default().into_iter().cloned().collect();
        let (ailing, there) = (Arc::clone(&catalogue), Arc::clone(folder));
        let reading = Reading {
            ailing: Beside::begin(later, move || Ailing::look(&*there, &ailing)),
            // What the next point is compared with, if it is an increment.
            chain: (!chain.is_empty()).then(|| {
                let there = Arc::clone(folder);
                Beside::begin(later, move || open(&*there, &chain))
            }),
        };
        Self { catalogue, reading }
    }
}

/// What is being read of the files of points.
pub(crate) struct Reading {
    /// What is to be healed.
    pub(crate) ailing: Beside<Ailing>,
    /// The files of the newest point's chain; `None`: there is no point.
    pub(crate) chain: Option<Beside<OpenedChain>>,
}

/// The files of a chain, looked at.
pub(crate) struct OpenedChain {
    pub(crate) history: Result<History>,
    /// The newest point's.
    pub(crate) disk: Result<Disk<Open>>,
    /// What each point lacks.
    pub(crate) lacking: Vec<Result<Option<String>>>,
}

/// Opens the files of a chain, the newest point first.
fn open(folder: &dyn Folder, chain: &[Manifest]) -> Result<OpenedChain> {
    let chain: Vec<&Manifest> = chain.iter().collect();
    let newest = *chain.first().ok_or(BackupError::Lost)?;
    let files = || Ok(both(|| History::open(folder, &chain), || open_disk(folder, newest)));
    let (files, lacking) = both(files, || Ok(each(&chain, |manifest| lacks(folder, manifest))));
    let ((history, disk), lacking) = (files?, lacking?);
    Ok(OpenedChain { history, disk, lacking })
}
