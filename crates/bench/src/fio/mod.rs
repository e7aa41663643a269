//! What people bring from fio, and what they take to programs that read it.

mod json;

pub use json::{PERCENTILES, to_json};
