//! Report of a measurement, as one HTML page.
//!
//! ```text
//!   bench, compare, net, lab ──▶ Document ──▶ html()     one self-contained page, its data inside
//!                                    │   └──▶ to_json()  the same data for programs
//!                                    └──▶ …or read again from either, and compared with another
//! ```
//!
//! The measuring code builds a [`Document`]: verdicts in a sentence, tiles, tables, charts, the facts about the place,
//! and its raw data. Here is decided how that looks. [`chart`] makes SVG from plain data, [`Strips`] characters for a
//! terminal; [`environment`] says where this process runs.
//!
//! **Invariant:** this crate knows no device, no socket and no measurement. It gets figures and gives text.
//!
//! A page fetches nothing and runs nothing (`Content-Security-Policy: default-src 'none'`), is light or dark as the
//! reader's system is, legible on a phone and printable. Text from outside stays text.

pub mod chart;

mod difference;
mod document;
mod environment;
mod figure;
mod foreign;
mod page;
mod redraw;
mod saved;
mod shapes;
mod strips;

pub use difference::{Change, ChangeVerdict, Difference, Why, runs_needed};
pub use document::{
    Better, Block, Card, Cell, Column, Conclusion, Document, Fact, Grid, Mark, Measure, Row, Section, Tile,
    VerdictTone,
};
pub use environment::environment;
pub use figure::{figure, readable, response_time, utc};
pub use page::{data, html};
pub use saved::{FILE_MAX, Saved, SavedError};
pub use strips::Strips;
