//! Errors of the grammar.

use super::{DEPTH_MAX, FaultSpecError, KINDS};
use crate::duration::DurationError;
use crate::rate::RateError;
use crate::size::SizeError;

/// Reason why a text does not name a device. The sentence never holds the whole text, which may contain a secret.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SpecError {
    /// Nothing there.
    #[error("a device is missing{}: expected a path or one of {KINDS}", behind(.after))]
    Missing {
        /// The decorator before it; empty at the start.
        after: String,
    },
    /// A word before a colon that is not a kind of device.
    #[error(
        "`{kind}:` is not a kind of device: expected a path or one of {KINDS}; a file of that name is written ./{kind}:…"
    )]
    UnknownKind {
        /// The word.
        kind: String,
    },
    /// `ram:` and the like without a usable size.
    #[error("in `{kind}:SIZE`: {source}")]
    Size {
        /// The kind of device.
        kind: &'static str,
        /// Error in the size.
        source: SizeError,
    },
    /// `ram` alone.
    #[error("`{kind}` is written {kind}:SIZE, such as {kind}:1G; a file of that name is written ./{kind}")]
    NoSize {
        /// The kind of device.
        kind: &'static str,
    },
    /// `rate:` without a usable rate.
    #[error("in `rate:RATE:DEVICE`: {0}")]
    Rate(#[from] RateError),
    /// A size of 0.
    #[error("in `{kind}:SIZE`: the size must not be 0")]
    Zero {
        /// The kind of device.
        kind: &'static str,
    },
    /// `delay:` without a usable time.
    #[error("in `delay:TIME:DEVICE`: {0}")]
    Time(#[from] DurationError),
    /// `fault:` without a usable spec.
    #[error("in `fault:SPEC:DEVICE`: {0}")]
    Fault(#[from] FaultSpecError),
    /// `raw:`, `vhdx:`, `paths:` and the like without a path.
    #[error("`{kind}:` needs a path behind it")]
    EmptyPath {
        /// The kind of device.
        kind: &'static str,
    },
    /// `?cache=` with another word behind it.
    #[error(
        "`?cache={value}`: none or writeback is expected; a file of that name is written with ?cache=writeback behind it"
    )]
    Cache {
        /// The word.
        value: String,
    },
    /// `?cache=` behind what is no raw file.
    #[error("`?cache=` is for raw files and block devices, which {path} is not")]
    CacheOfOther {
        /// The path before it.
        path: String,
    },
    /// `iscsi:` that does not go on with `//host`.
    #[error("an iSCSI address is written iscsi://[user[%secret]@]host[:port]/iqn/lun")]
    IscsiForm,
    /// `rbd:` without the name of an image behind it.
    #[error("an image of Ceph is written rbd:[CLUSTER:]POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]")]
    RbdForm,
    /// An option of `rbd:` that is none.
    #[error("in `rbd:…?{option}`: a value for one of {keys} is expected")]
    RbdOption {
        /// The option.
        option: String,
        /// The keys there are.
        keys: &'static str,
    },
    /// `nbd:` or `nbd+unix:` without a usable URI behind it.
    #[error(
        "an NBD export is written nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH, without a user or TLS"
    )]
    NbdForm,
    /// A time limit that is none.
    #[error("in `rbd:…?timeout=TIME`: {0}")]
    RbdTime(DurationError),
    /// A time limit that librados does not know.
    #[error("in `rbd:…?timeout={0}`: a limit of whole seconds is expected, at least 1s")]
    RbdTimeUnit(String),
    /// `point:` without a folder, or with nothing behind the `@`.
    #[error(
        "a point of a backup is written point:FOLDER[@POINT], with ?writes=discard or ?[timeout=TIME&]into=FILE.vhdx behind \
         it if it is to be written, and ?key-file=FILE for an encrypted repository: the point is the beginning of an id, \
         a time, or latest"
    )]
    PointForm,
    /// `point:…?writes=` with another word behind it.
    #[error("`point:…?writes={value}`: a point does not change, so discard is expected, or into=FILE.vhdx")]
    PointWrites {
        /// The word.
        value: String,
    },
    /// A time limit that is none.
    #[error("in `point:…?timeout=TIME`: {0}")]
    PointTime(DurationError),
    /// A path that cannot be written down.
    #[error(
        "{path}: its name is not UTF-8, so it cannot be written down: give the file, or its folder, another name"
    )]
    NotUtf8 {
        /// The path, as far as it can be shown.
        path: String,
    },
    /// Decorators nested beyond reason.
    #[error("more than {DEPTH_MAX} decorators are nested")]
    TooDeep,
}

fn behind(after: &str) -> String {
    if after.is_empty() { String::new() } else { format!(" behind `{after}:`") }
}
