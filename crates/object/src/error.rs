//! Errors of a store, as meanings and sentences.

use std::io;

/// Reason why an operation on a store failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no such object.
    #[error("{0} is not there")]
    Absent(String),
    /// The object is there already, or is another one than the condition names.
    #[error("{0} is there already, or was changed by another process")]
    Condition(String),
    /// A read behind the end of an object.
    #[error("{0} is shorter than was read of it")]
    Short(String),
    /// The store does not let us.
    #[error("{place} refuses access: {why}")]
    Denied {
        /// The store.
        place: String,
        /// Its reason.
        why: String,
    },
    /// There is no such bucket.
    #[error("{place} has no bucket {bucket}: make it first, or correct its name")]
    NoBucket {
        /// The store.
        place: String,
        /// The bucket.
        bucket: String,
    },
    /// All attempts failed.
    #[error("{place} failed {attempts} times within {seconds} s, the last time so: {why}")]
    Failed {
        /// The store.
        place: String,
        /// How often.
        attempts: u32,
        /// Time of all of them.
        seconds: u64,
        /// What happened the last time.
        why: String,
    },
    /// An answer that no store gives.
    #[error("{place} is not answering as an object store does: {why}")]
    Answer {
        /// The store.
        place: String,
        /// What is wrong with the answer.
        why: String,
    },
    /// The store ignores conditions.
    #[error(
        "{place} ignores the condition {condition} of an upload, by which several machines take turns: a repository there \
         could be damaged; use a store with conditional writes (AWS S3, MinIO, Ceph RADOS Gateway)"
    )]
    Unconditional {
        /// The store.
        place: String,
        /// The header.
        condition: &'static str,
    },
    /// More than an upload may have.
    #[error("{object} has {bytes} bytes, and object stores take at most 5 GiB at a time")]
    TooLong {
        /// The object.
        object: String,
        /// Bytes.
        bytes: u64,
    },
    /// An endpoint of the environment or of a profile.
    #[error("AWS_ENDPOINT_URL, or endpoint_url of the profile, is not https://HOST[:PORT]")]
    Endpoint,
    /// A region of the environment or of a profile.
    #[error("`{0}` is no name of a region")]
    Region(String),
    /// No TLS, to another machine.
    #[error(
        "{0} has no TLS, so that others on the way could read and change everything: use https, or add plain-http=yes to \
         the address"
    )]
    PlainHttp(String),
    /// Nothing to sign with.
    #[error("{0}")]
    Credentials(String),
    /// Certificates that cannot be used.
    #[error("{0}")]
    Certificates(String),
    /// The kernel has no random numbers.
    #[error("asking for random numbers: {0}")]
    Random(#[source] io::Error),
    /// A body that cannot be read.
    #[error("reading what is to be sent: {0}")]
    Source(#[source] io::Error),
}

impl StoreError {
    fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Absent(_) => io::ErrorKind::NotFound,
            Self::Condition(_) => io::ErrorKind::AlreadyExists,
            Self::Short(_) => io::ErrorKind::UnexpectedEof,
            Self::Denied { .. } => io::ErrorKind::PermissionDenied,
            Self::Failed { .. } => io::ErrorKind::TimedOut,
            // No other kind: one that speaks of a file would be taken for damage of it.
            _ => io::ErrorKind::Other,
        }
    }
}

impl From<StoreError> for io::Error {
    fn from(error: StoreError) -> Self {
        Self::new(error.kind(), error)
    }
}
