//! Exchange with fio: job files taken from it, and results for programs that read its formats.
//!
//! | part | is |
//! |---|---|
//! | [`JobFile`] | a job file, understood: what it asks for is done or refused |
//! | [`KEYS`] | every key of fio's, and what becomes of it |
//! | [`to_json`], [`to_json_plus`] | results in fio's JSON layout; with all latency buckets |
//! | [`import`](fn@import), [`parse`] | results in fio's JSON layout, ours or fio's own, read back |

mod bins;
mod error;
mod import;
mod ini;
mod job_file;
mod json;
mod keys;
mod section;
mod value;

pub use error::{JobFileError, Problem};
pub use import::{Did, ImportError, Imported, import, parse};
pub use ini::SourceLine;
pub use job_file::JobFile;
pub(crate) use json::job;
pub use json::{PERCENTILES, to_json, to_json_plus};
pub use keys::{KEYS, Key, Reason, Treatment};
