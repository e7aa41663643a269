//! Every device against the contract of the waist (`lunway_block::conformance`), and the table of it in
//! `docs/devices.md`.
//!
//! One test for each device, which checks its row of the table too: what a device lacks is said there, and a layer that
//! forgets a method has another row than the device inside. `LUNWAY_WRITE_DOCS=1` writes the rows of the tests that run
//! anew.

#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

mod backs;
mod doors;
mod layers;
mod page;
mod rbd;

use lunway_block::conformance::Subject;

/// Runs all checks on a device and compares its row.
async fn conforms(subject: Subject) {
    let row = subject.run().await.unwrap_or_else(|failures| panic!("{failures}"));
    page::says(subject.name, &row);
}
