//! A repository, open.

use std::io;
use std::sync::Arc;

use lunway_backup::{BackupError, Folder, INCOMPLETE, LEAF, PointId, Presence, Result};

use crate::codec::{Codec, MasterKey};
use crate::content::PointContent;
use crate::index::Index;
use crate::keys::{Identity, Recipient, WrappedKey};
use crate::marker::{FORMAT, MARKER, MARKER_COPY, Marker};
use crate::places::Places;
use crate::point::{Points, RepositoryPoint};
use crate::random::{new_number, random};
use crate::reader::Reader;

/// Prefix of the files of processes that write: what they may refer to is not removed.
pub(crate) const WRITER: &str = "writer-";
/// Prefix of the file of a prune that removes packs: for as long as that takes no run begins.
pub(crate) const SWEEPER: &str = "sweeper-";

/// A repository: its places, and what reads and makes its entries.
#[derive(Clone)]
pub struct Repository {
    places: Arc<dyn Places>,
    pub(crate) folder: Arc<dyn Folder>,
    /// A local folder with copies of indexes.
    pub(crate) cache: Option<Arc<dyn Folder>>,
    pub(crate) codec: Arc<Codec>,
    marker: Marker,
    master: Option<MasterKey>,
}

/// Tells whether a folder is a repository.
///
/// # Errors
///
/// Where that cannot be seen.
pub fn is_repository(folder: &dyn Folder) -> io::Result<bool> {
    for name in [MARKER, MARKER_COPY] {
        match folder.open(name, false) {
            Ok(_) => return Ok(true),
            Err(error) if lunway_backup::is_of_the_file(error.kind()) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

impl Repository {
    /// Makes one in an empty folder: for these people, or where there is none for everyone who can read the folder.
    ///
    /// # Errors
    ///
    /// Where something is there already, or what the folder says.
    pub fn create(places: &dyn Places, recipients: &[Recipient]) -> Result<()> {
        let folder = places.packs();
        let there = folder.names().map_err(BackupError::folder("reading", &folder.show("")))?;
        // What an interrupted attempt has left is no repository.
        if let Some(other) =
            there.iter().find(|name| !name.starts_with(MARKER_COPY) && !name.starts_with(MARKER))
        {
            return Err(BackupError::Refused(format!(
                "{} is there: a repository is made in an empty folder",
                folder.show(other)
            )));
        }
        if is_repository(&*folder).map_err(BackupError::folder("reading", &folder.show(MARKER)))? {
            return Err(BackupError::Refused(format!("{} is a repository already", folder.show(""))));
        }
        let asking = || BackupError::folder("asking for random numbers of", "the kernel");
        let keys = match recipients {
            [] => Vec::new(),
            recipients => {
                let master = MasterKey::new(random().map_err(asking())?);
                let wrapped = recipients.iter().map(|recipient| WrappedKey::wrap(&master, recipient));
                wrapped.collect::<io::Result<_>>().map_err(asking())?
            }
        };
        let repository = format!("{:016x}", new_number()?);
        let encrypted = !keys.is_empty();
        Marker { format: FORMAT, repository, leaf_bytes: LEAF, encrypted, keys }.store(&*folder)
    }

    /// Opens one with the keys that the user has. Indexes are copied to `cache`, a local folder of this user.
    ///
    /// # Errors
    ///
    /// Where it is none, or is encrypted for others.
    pub fn open(
        places: Arc<dyn Places>,
        cache: Option<Arc<dyn Folder>>,
        identities: &[Identity],
    ) -> Result<Self> {
        let folder = places.packs();
        let marker = Marker::load(&*folder)?;
        let unwrapped = || {
            let pairs = marker.keys.iter().flat_map(|key| identities.iter().map(move |own| (key, own)));
            pairs.filter_map(|(key, own)| key.unwrap(own)).next()
        };
        let master = if marker.encrypted { unwrapped() } else { None };
        let codec = match (&master, marker.encrypted) {
            (_, false) => Codec::open(),
            (Some(master), true) => Codec::encrypted(master),
            (None, true) => {
                let (shown, count) = (folder.show(""), marker.keys.len());
                let recipients = if count == 1 { "recipient" } else { "recipients" };
                return Err(BackupError::Refused(match identities {
                    [] => format!(
                        "{shown} is encrypted for {count} {recipients}: name the file with the secret key of one"
                    ),
                    _ => format!(
                        "{shown} is encrypted for {count} {recipients}, and the key given is none of theirs: name \
                         the file with another"
                    ),
                }));
            }
        };
        Ok(Self { places, folder, cache, codec: Arc::new(codec), marker, master })
    }

    /// The same without copies of indexes.
    pub(crate) fn uncached(&self) -> Self {
        Self { cache: None, ..self.clone() }
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

    /// Gives another person the key. Nothing else is written.
    ///
    /// # Errors
    ///
    /// Where the repository is not encrypted, or what the folder says.
    pub fn add_recipient(&mut self, recipient: &Recipient) -> Result<()> {
        let Some(master) = &self.master else {
            return Err(BackupError::Refused(format!(
                "{} is not encrypted: whom it is encrypted for is said when it is made",
                self.show()
            )));
        };
        if self.marker.keys.iter().any(|key| key.recipient == recipient.to_string()) {
            return Ok(());
        }
        let wrapping = BackupError::folder("wrapping the key for", &recipient.to_string());
        let wrapped = WrappedKey::wrap(master, recipient).map_err(wrapping)?;
        self.marker.keys.push(wrapped);
        self.marker.store(&*self.folder)
    }

    /// Takes a person's wrapped key out. A person who has kept the repository's key can still read what that encrypts.
    ///
    /// # Errors
    ///
    /// Where the person is none of its recipients, or the last one; what the folder says.
    pub fn remove_recipient(&mut self, recipient: &Recipient) -> Result<()> {
        let name = recipient.to_string();
        let mut marker = self.marker.clone();
        marker.keys.retain(|key| key.recipient != name);
        if marker.keys.len() == self.marker.keys.len() {
            return Err(BackupError::Refused(format!("{} is not encrypted for {name}", self.show())));
        }
        if marker.keys.is_empty() {
            return Err(BackupError::Refused(
                "without its last recipient the repository cannot be read".into(),
            ));
        }
        marker.store(&*self.folder)?;
        self.marker = marker;
        Ok(())
    }

    /// The points of a series.
    ///
    /// # Errors
    ///
    /// Where the folder of the series cannot be read.
    pub fn points(&self, series: &dyn Folder) -> Result<Points> {
        Points::load(series, &self.codec)
    }

    /// The points of all series, by their names.
    ///
    /// # Errors
    ///
    /// Where one cannot be read.
    pub fn all_points(&self) -> Result<Vec<(String, Points)>> {
        let reading = |name: &str| BackupError::folder("reading", &self.folder.show(name));
        let names = self.places.series().map_err(reading(""))?;
        let points = names.into_iter().map(|name| {
            let folder = self.places.of_series(&name).map_err(reading(&name))?;
            let points = self.points(&*folder)?;
            Ok((name, points))
        });
        points.collect()
    }

    /// Refuses to remove anything while there are folders that are no series: their points would lose what they need.
    pub(crate) fn refuse_strangers(&self) -> Result<()> {
        let strangers =
            self.places.strangers().map_err(BackupError::folder("reading", &self.folder.show("")))?;
        match strangers.first() {
            None => Ok(()),
            Some(name) => Err(BackupError::Refused(format!(
                "{} is no series, and may be one that was renamed: move it away, or give it its name again; until then \
                 nothing is removed",
                self.folder.show(name)
            ))),
        }
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
        Index::load(&self.folder, self.cache.as_deref())
    }

    pub(crate) fn reader(&self, index: Arc<Index>) -> Reader {
        Reader::new(Arc::clone(&self.folder), Arc::clone(&self.codec), index)
    }

    /// Files of packs and indexes.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        self.folder.names().map_err(BackupError::folder("reading", &self.folder.show("")))
    }

    /// Says that this process writes, and removes what killed ones have left incomplete if it is alone.
    pub(crate) fn begin_writing(&self, us: &lunway_backup::Holder) -> Result<Presence> {
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
