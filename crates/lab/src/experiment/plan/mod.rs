//! Definition of an experiment: its file, read and checked, and the names in it.
//!
//! | file | room of |
//! |---|---|
//! | `check` | from what a file says to an experiment that can be run: defaults filled in, names looked up, limits held |
//! | `error.rs` | why a file is no experiment |
//! | `expression.rs` | figures as people write them down: `D.read.mb_s / link.lane1` |
//! | `figures.rs` | headline numbers of an experiment, and what is said of them |
//! | `file.rs` | the form of an experiment's file |
//! | `run.rs` | run: one measurement of an experiment |
//! | `shipped.rs` | experiments that come with the program |
//! | `values.rs` | values that figures are made of: the names of everything that an experiment measures |

pub(crate) mod check;
pub(crate) mod error;
pub(crate) mod expression;
pub(crate) mod figures;
pub(crate) mod file;
pub(crate) mod run;
pub(crate) mod shipped;
pub(crate) mod values;
