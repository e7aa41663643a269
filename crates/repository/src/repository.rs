//! A repository, open.

use std::io;
use std::sync::{Arc, OnceLock};

use lunway_backup::{
    BackupError, Folder, Holder, INCOMPLETE, Lease, PointId, Presence, Result, both, is_of_the_file,
};

use crate::codec::{Codec, MasterKey};
use crate::content::PointContent;
use crate::ended::Ended;
use crate::head::Head;
use crate::index::Index;
use crate::keys::{Identity, Recipient, WrappedKey};
use crate::marker::{Descent, MARKER, MARKER_COPY, Marker};
use crate::pin::Pins;
use crate::places::Places;
use crate::point::RepositoryPoint;
use crate::points::Points;
use crate::reader::Reader;
use crate::seen::SeenSeries;
use crate::unlock::{Judged, apart, judge, unauthentic, unchanged, unlock};

/// Prefix of the files of processes that write: what they may refer to is not removed.
pub(crate) const WRITER: &str = "writer-";
/// Prefix of the file of a prune that removes packs: for as long as that takes no run begins.
pub(crate) const SWEEPER: &str = "sweeper-";

/// Points of a series, by its name.
pub type NamedPoints = (String, Points);

/// What this machine keeps for a user of a repository.
#[derive(Clone, Default)]
pub struct Kept {
    /// A local folder for copies of indexes.
    pub cache: Option<Arc<dyn Folder>>,
    /// What was seen at the repository's address.
    pub pins: Option<Pins>,
}

/// A repository: its places, and what reads and makes its entries.
#[derive(Clone)]
pub struct Repository {
    pub(crate) places: Arc<dyn Places>,
    pub(crate) folder: Arc<dyn Folder>,
    pub(crate) kept: Kept,
    pub(crate) codec: Arc<Codec>,
    marker: Marker,
    pub(crate) master: Option<MasterKey>,
    /// The marker is what this user has kept of it: what lies in the folder was changed without the key.
    is_kept_marker: bool,
    /// The marker is not a later state of what this user has kept: a sentence. Nothing is written.
    apart: Option<String>,
    /// Names and heads of series that had other names before: read once.
    renamed: Arc<OnceLock<Vec<(String, Head)>>>,
    /// Series that were removed: read once.
    ended: Arc<OnceLock<Option<Ended>>>,
    /// What its user is to be told.
    pub(crate) warnings: Vec<String>,
}

/// Tells whether a folder is a repository.
///
/// # Errors
///
/// Where that cannot be seen.
pub fn is_repository(folder: &dyn Folder) -> io::Result<bool> {
    let is_there = |name| match folder.open(name, false) {
        Ok(_) => Ok(true),
        Err(error) if is_of_the_file(error.kind()) => Ok(false),
        Err(error) => Err(error),
    };
    // At once: on a share each look is some round trips.
    let (copy, marker) = both(|| Ok(is_there(MARKER_COPY)), || Ok(is_there(MARKER)));
    match marker.map_err(io::Error::other)? {
        Ok(false) => copy.map_err(io::Error::other)?,
        marker => marker,
    }
}

impl Repository {
    /// Opens one with the keys that the user has.
    ///
    /// # Errors
    ///
    /// Where it is none, is encrypted for others, or is another one than the user has seen there.
    pub fn open(places: Arc<dyn Places>, kept: Kept, identities: &[Identity]) -> Result<Self> {
        let folder = places.packs();
        let mut warnings = Vec::new();
        let found = Marker::load(&*folder, &|marker| {
            let master = unlock(&*folder, marker, identities, kept.pins.as_ref())?;
            kept.pins.as_ref().map_or(Ok(()), |pins| pins.check(marker, master.as_ref()))?;
            Ok(master)
        });
        let judged = match (&found, &kept.pins) {
            (_, None) => Judged::Unknown,
            (Ok((marker, master)), Some(pins)) => judge(&*folder, pins, marker, master.as_ref())?,
            (Err(_), Some(pins)) => unchanged(&*folder, pins, identities)?,
        };
        let (mut is_kept_marker, mut apart) = (false, None);
        let (marker, master) = match (judged, found) {
            (Judged::Restored(restored), _) => {
                let (shown, file) = (folder.show(MARKER), restored.file.display());
                let what = match restored.is_older {
                    true => "is older than this user has seen it",
                    false => {
                        "and its copy are damaged, or were changed by somebody without the repository's key"
                    }
                };
                warnings.push(format!(
                    "{shown} {what}: what this user has kept of it is used, {file}, and the next run, prune or change of \
                     keys writes it again"
                ));
                is_kept_marker = true;
                (restored.marker, restored.master)
            }
            (Judged::Apart(what, kept), found) => {
                warnings.push(what.clone());
                apart = Some(what);
                found.unwrap_or((kept.marker, kept.master))
            }
            (_, Ok(found)) => found,
            (_, Err(error)) => return Err(error),
        };
        // What was kept stays until the user says which of the two is right.
        if apart.is_none()
            && let Some(pins) = &kept.pins
            && let Err(error) = pins.remember(&marker, master.as_ref())
        {
            warnings.push(format!(
                "another repository in the place of {} would not be noticed, nor an older state of its keys: {error}",
                folder.show("")
            ));
        }
        let codec = master.as_ref().map_or_else(Codec::open, Codec::encrypted);
        let codec = Arc::new(codec);
        Ok(Self {
            places,
            folder,
            kept,
            codec,
            marker,
            master,
            is_kept_marker,
            apart,
            warnings,
            renamed: Arc::default(),
            ended: Arc::default(),
        })
    }

    /// Refuses to write where the marker was put back to an older one and changed since, until the user has said which
    /// state is right.
    pub(crate) fn refuse_apart(&self) -> Result<()> {
        self.apart.as_ref().map_or(Ok(()), |what| Err(BackupError::Refused(what.clone())))
    }

    /// The same without copies of indexes.
    pub(crate) fn uncached(&self) -> Self {
        Self { kept: Kept { cache: None, ..self.kept.clone() }, ..self.clone() }
    }

    /// The marker.
    pub fn marker(&self) -> &Marker {
        &self.marker
    }

    /// Its places.
    pub fn places(&self) -> &dyn Places {
        &*self.places
    }

    /// Display name.
    pub fn show(&self) -> String {
        self.folder.show("")
    }

    /// What its user is to be told, a sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Gives another person the key. Nothing else is written.
    ///
    /// # Errors
    ///
    /// Where the repository is not encrypted, another process changes it, or what the folder says.
    pub fn add_recipient(&mut self, recipient: &Recipient, us: &Holder) -> Result<()> {
        let Some(master) = self.master.clone() else {
            return Err(BackupError::Refused(format!(
                "{} is not encrypted: whom it is encrypted for is said when it is made",
                self.show()
            )));
        };
        self.change_marker(us, |marker| {
            if marker.keys.iter().any(|key| key.recipient == recipient.to_string()) {
                return Ok(());
            }
            let wrapping = BackupError::folder("wrapping the key for", &recipient.to_string());
            marker.keys.push(WrappedKey::wrap(&master, recipient).map_err(wrapping)?);
            Ok(())
        })
    }

    /// Takes a person's wrapped key out. A person who has kept the repository's key can still read what that encrypts.
    ///
    /// # Errors
    ///
    /// Where the person is none of its recipients, or the last one; where another process changes the repository; what
    /// the folder says.
    pub fn remove_recipient(&mut self, recipient: &Recipient, us: &Holder) -> Result<()> {
        let (name, shown) = (recipient.to_string(), self.show());
        self.change_marker(us, |marker| {
            let before = marker.keys.len();
            marker.keys.retain(|key| key.recipient != name);
            if marker.keys.len() == before {
                return Err(BackupError::Refused(format!("{shown} is not encrypted for {name}")));
            }
            if marker.keys.is_empty() {
                let why = "without its last recipient the repository cannot be read";
                return Err(BackupError::Refused(why.into()));
            }
            Ok(())
        })
    }

    /// Changes the marker as it is now, which no other process does at the same time.
    fn change_marker(&mut self, us: &Holder, change: impl FnOnce(&mut Marker) -> Result<()>) -> Result<()> {
        self.refuse_apart()?;
        let folder = Arc::clone(&self.folder);
        let lease = Lease::take(&*folder, us.clone(), &|| false)?;
        let before = self.stored_marker()?;
        let mut marker = before.clone();
        change(&mut marker)?;
        let marker = marker.following(&before).sealed(&self.codec);
        lease.check()?;
        marker.store(&*folder)?;
        self.marker = marker;
        if let Some(pins) = &self.kept.pins {
            // A place that cannot be written was told when it was opened.
            let _ = pins.remember(&self.marker, self.master.as_ref());
        }
        Ok(())
    }

    /// The marker of this repository as it is stored now, unless that was changed without the key, or put back.
    fn stored_marker(&self) -> Result<Marker> {
        let is_ours = |marker: &Marker| {
            let is_same =
                (&marker.repository, marker.encrypted) == (&self.marker.repository, self.marker.encrypted);
            let is_sealed = marker.is_sealed() || !self.marker.is_sealed();
            match is_same && is_sealed && marker.is_authentic(&self.codec) {
                true => Ok(()),
                false => Err(unauthentic(&*self.folder, None)),
            }
        };
        match Marker::load(&*self.folder, &is_ours) {
            Ok((stored, ())) => match stored.descent(&self.marker) {
                Descent::Same | Descent::Later => Ok(stored),
                Descent::Earlier => Ok(self.marker.clone()),
                // Since it was opened.
                Descent::Apart => {
                    let pins = self.kept.pins.as_ref();
                    let file = pins.and_then(|pins| pins.kept_file(&self.marker.repository));
                    let file = file.map_or_else(|| "its state".to_owned(), |file| file.display().to_string());
                    Err(BackupError::Refused(apart(&*self.folder, &file, &stored, &self.marker)))
                }
            },
            Err(_) if self.is_kept_marker => Ok(self.marker.clone()),
            Err(error) => Err(error),
        }
    }

    /// Writes copies of the marker again that are not whole, or not of this repository: their names. Where another
    /// process changes the repository they are left to the next run.
    pub(crate) fn heal_marker(&self, us: &Holder) -> Result<Vec<String>> {
        if self.stored_marker()?.problems(&*self.folder).is_empty() {
            return Ok(Vec::new());
        }
        let lease = match Lease::take(&*self.folder, us.clone(), &|| false) {
            Err(BackupError::InUse { .. }) => return Ok(Vec::new()),
            lease => lease?,
        };
        let marker = self.stored_marker()?;
        let problems = marker.problems(&*self.folder);
        lease.check()?;
        marker.store(&*self.folder)?;
        Ok(problems.into_iter().map(|(name, _)| name).collect())
    }

    /// Remembers the newest point of a series, of which a run has just written the head; `before`: the series as it
    /// was.
    pub(crate) fn remember_series(&self, series: &str, now: SeenSeries, before: &Points) -> Result<()> {
        let of = (&self.marker, self.master.as_ref());
        let has_had = |point: PointId| before.has_had(point);
        let Some(pins) = &self.kept.pins else { return Ok(()) };
        pins.remember_series(of, series, now, (before.foreign(), &has_had))
    }

    /// Forgets a series that was removed.
    pub(crate) fn forget_series(&self, series: &str) -> Result<()> {
        let of = (&self.marker, self.master.as_ref());
        self.kept.pins.as_ref().map_or(Ok(()), |pins| pins.forget_series(of, series))
    }

    /// What this user has seen of a series, unless that was removed since.
    fn seen(&self, series: &str) -> Result<Option<SeenSeries>> {
        let of = (&self.marker, self.master.as_ref());
        let seen = self.kept.pins.as_ref().map_or(Ok(None), |pins| pins.series(of, series))?;
        Ok(seen.filter(|seen| !self.has_ended(series, seen)))
    }

    /// Returns `true` if the series that was seen was removed with all of its points. A list that cannot be read is
    /// left to those who need it.
    pub(crate) fn has_ended(&self, series: &str, seen: &SeenSeries) -> bool {
        let read = || Some(Ended::examine(&*self.folder, &self.codec).ok()?.0);
        self.ended.get_or_init(read).as_ref().is_some_and(|ended| ended.covers(series, seen))
    }

    /// The points of a series.
    ///
    /// # Errors
    ///
    /// Where the folder of the series cannot be read.
    pub fn points(&self, name: &str, series: &dyn Folder) -> Result<Points> {
        let mut points = Points::load(series, name, &self.codec, self.seen(name)?.as_ref())?;
        let renamed = self.renamed().iter().map(|(other, head)| (other.as_str(), head));
        points.set_aside_copy(&self.folder.show(name), renamed);
        Ok(points)
    }

    /// The points of all series, by their names.
    ///
    /// # Errors
    ///
    /// Where one cannot be read.
    pub fn all_points(&self) -> Result<Vec<NamedPoints>> {
        let reading = |name: &str| BackupError::folder("reading", &self.folder.show(name));
        let names = self.places.series().map_err(reading(""))?;
        let points = names.into_iter().map(|name| {
            let folder = self.places.of_series(&name).map_err(reading(&name))?;
            let points = Points::load(&*folder, &name, &self.codec, self.seen(&name)?.as_ref())?;
            Ok((name, points))
        });
        let mut points: Vec<NamedPoints> = points.collect::<Result<_>>()?;
        let renamed: Vec<(String, Head)> = points.iter().filter_map(|(_, points)| points.renamed()).collect();
        for (name, points) in &mut points {
            let shown = self.folder.show(name);
            points.set_aside_copy(&shown, renamed.iter().map(|(name, head)| (name.as_str(), head)));
        }
        Ok(points)
    }

    /// Names and heads of the series that had other names before. What cannot be read is left to those who need it.
    fn renamed(&self) -> &[(String, Head)] {
        self.renamed.get_or_init(|| {
            let of = |name: String| {
                let folder = self.places.of_series(&name).ok()?;
                let head = Head::load(&*folder, &self.codec).ok()?.ok()??;
                (!head.was.is_empty() && head.series == name).then_some((name, head))
            };
            self.places.series().unwrap_or_default().into_iter().filter_map(of).collect()
        })
    }

    /// Returns `true` if a series that had this name before has had this point.
    pub(crate) fn was_renamed_with(&self, name: &str, point: PointId) -> bool {
        let mut renamed = self.renamed().iter();
        renamed.any(|(other, head)| {
            let had_name = other != name && head.was.iter().any(|was| was == name);
            had_name && head.trail().any(|(_, had)| had == point)
        })
    }

    /// The content of a point.
    ///
    /// # Errors
    ///
    /// Where its root is damaged, or the index cannot be read.
    pub fn content(&self, point: &RepositoryPoint) -> Result<PointContent> {
        let reader = self.reader(Arc::new(self.index()?));
        PointContent::open(Arc::new(reader), point)
    }

    /// A number that stands for a point of this repository, and for no point of another: by it a disk that is made on
    /// the point names it.
    pub fn number_of(&self, point: PointId) -> u128 {
        let mut hasher = blake3::Hasher::new_derive_key("lunway 2026 repository point number");
        hasher.update(self.marker.repository.as_bytes()).update(&point.0.to_le_bytes());
        let digest = hasher.finalize();
        digest.as_bytes()[..16].iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
    }

    /// The index as it is at the moment.
    pub(crate) fn index(&self) -> Result<Index> {
        Index::load(&self.folder, self.kept.cache.as_deref())
    }

    pub(crate) fn reader(&self, index: Arc<Index>) -> Reader {
        Reader::new(Arc::clone(&self.folder), Arc::clone(&self.codec), index)
    }

    /// Files of packs and indexes.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        self.folder.names().map_err(BackupError::folder("reading", &self.folder.show("")))
    }

    /// Says that this process writes, and removes what killed ones have left incomplete if it is alone.
    pub(crate) fn begin_writing(&self, us: &Holder) -> Result<Presence> {
        self.refuse_apart()?;
        // Of other machines nothing is known without half a minute of waiting: their files stay until then.
        let _ = lunway_backup::refuse(&*self.folder, WRITER, us, "writes to it", &|| true);
        let presence = Presence::begin(Arc::clone(&self.folder), WRITER, us)?;
        self.folder.sync().map_err(BackupError::folder("writing", &self.folder.show(presence.name())))?;
        let names = self.names()?;
        let is_other = |name: &String| name.starts_with(WRITER) && !name.ends_with(INCOMPLETE);
        if !names.iter().any(|name| is_other(name) && name != presence.name()) {
            self.sweep_incomplete(&names)?;
        }
        Ok(presence)
    }

    /// Removes packs and indexes that were not written to their end.
    pub(crate) fn sweep_incomplete(&self, names: &[String]) -> Result<()> {
        let ours = |name: &&String| {
            name.ends_with(INCOMPLETE)
                && ["pack-", "index-", WRITER, SWEEPER].iter().any(|prefix| name.starts_with(prefix))
        };
        for name in names.iter().filter(ours) {
            self.folder.remove(name).map_err(BackupError::folder("removing", &self.folder.show(name)))?;
        }
        Ok(())
    }
}
