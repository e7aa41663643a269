//! What people bring from fio, and what they take to programs that read it.
//!
//! | part | is |
//! |---|---|
//! | [`to_json`] | results in fio's JSON layout |
//! | [`import`](fn@import), [`parse`] | results in fio's JSON layout, ours or fio's own, read back |

mod import;
mod json;

pub use import::{Did, ImportError, Imported, import, parse};
pub use json::{PERCENTILES, to_json};
