//! Reason why an image could not be opened.

use std::io;

use lunway_block::spec::RbdName;

/// Reason why an image could not be opened, a sentence that names it and says what would help.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RbdOpenError {
    /// A build that can load nothing.
    #[error("this build of lunway is static and cannot load librbd: use the one for glibc")]
    Static,
    /// The library is not installed.
    #[error("cannot load {library}, which `rbd:` needs (Debian's packages librados2 and librbd1): {source}")]
    NoLibrary {
        /// Name of the library.
        library: String,
        /// What the loader said.
        source: libloading::Error,
    },
    /// A library that lacks a function.
    #[error(
        "the installed librbd is too old, it has no {missing}: install that of a later Ceph (all is there from Ceph 16 on)"
    )]
    TooOld {
        /// The function.
        missing: &'static str,
    },
    /// No configuration.
    #[error(
        "cannot read the configuration of Ceph{}{}: {source}; name it with ?conf=FILE",
        if conf.is_empty() { "" } else { " " },
        conf
    )]
    Configuration {
        /// The file; empty where the library looks in the usual places.
        conf: String,
        /// Underlying error.
        source: io::Error,
    },
    /// No key of the user.
    #[error(
        "cannot open {name}: there is no key for {user} on this machine (name its file with ?keyring=FILE, or another user with ?id=USER, without `client.`), or the configuration names no monitor"
    )]
    NoKey {
        /// The device.
        name: String,
        /// The user, as Ceph writes it.
        user: String,
    },
    /// The cluster does not know the user, or not with this key.
    #[error(
        "cannot open {name}: the cluster refuses {user}: it does not know the user, or not with this key (`ceph auth get {user}`)"
    )]
    Refused {
        /// The device.
        name: String,
        /// The user, as Ceph writes it.
        user: String,
    },
    /// A name that no cluster can have.
    #[error("a name of Ceph cannot have a zero byte in it")]
    ZeroInName,
    /// No such pool.
    #[error("cannot open {name}: the cluster has no pool {pool}")]
    NoPool {
        /// The device.
        name: String,
        /// The pool.
        pool: String,
    },
    /// No such image or snapshot.
    #[error("cannot open {name}: there is no such image or snapshot")]
    NoImage {
        /// The device.
        name: String,
    },
    /// An image without the feature.
    #[error(
        "cannot open {name} for writing: the image cannot be locked; `rbd feature enable {image} exclusive-lock` changes that, and readonly: opens it without"
    )]
    NoLock {
        /// The device.
        name: String,
        /// The image, as `rbd` names it.
        image: String,
    },
    /// Another client writes.
    #[error(
        "cannot open {name} for writing: {holder} holds the image's lock. End that client; one that has died loses the lock about 30 s later; ?break_lock={holder} fences it at once, so that it can never write again"
    )]
    Held {
        /// The device.
        name: String,
        /// Address of the client.
        holder: String,
    },
    /// The image is primary elsewhere.
    #[error(
        "cannot change {name}: the image is mirrored, and not primary in this cluster. readonly: opens it for reading; `rbd mirror image promote {image}` makes it primary, once the one in the other cluster is demoted"
    )]
    NotPrimary {
        /// The device.
        name: String,
        /// The image, as `rbd` names it.
        image: String,
    },
    /// A size or sector that a device cannot have.
    #[error("cannot open {name}: {why}")]
    Shape {
        /// The device.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// Anything else that the library said.
    #[error("cannot open {name}: {doing} failed: {source}")]
    Failed {
        /// The device.
        name: String,
        /// What was done.
        doing: String,
        /// What the library said.
        source: io::Error,
    },
}

impl RbdOpenError {
    pub(crate) fn failed(errno: i32, name: &RbdName, doing: &str) -> Self {
        let source = io::Error::from_raw_os_error(-errno);
        Self::Failed { name: name.to_string(), doing: doing.to_owned(), source }
    }

    /// Returns `true` if that may pass by itself within a minute: another client holds the image's lock, which may have
    /// died, or the cluster does not answer.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Held { .. }) || self.errno() == Some(-libc::ETIMEDOUT)
    }

    /// What the library has answered, which is negative; `None`: it is not known.
    pub(crate) fn errno(&self) -> Option<i32> {
        match self {
            Self::Failed { source, .. } => source.raw_os_error().map(|errno| -errno),
            _ => None,
        }
    }

    /// Error of an answer of the library, which is negative then.
    pub(crate) fn of(answer: i32, name: &RbdName, doing: &str) -> Result<(), Self> {
        if answer < 0 { Err(Self::failed(answer, name, doing)) } else { Ok(()) }
    }
}
