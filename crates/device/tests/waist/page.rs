//! The table of devices and checks.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::{env, fs};

use lunway_block::conformance::{Check, Outcome};

const FILE: &str = "docs/devices.md";

/// All rows there are, in their order.
const NAMES: [&str; 44] = [
    "memory",
    "memory, sectors of 4 KiB",
    "`null:`",
    "file",
    "file in memory",
    "file past the page cache, threads",
    "file past the page cache, io_uring",
    "file, read-only",
    "VHDX, dynamic",
    "VHDX, dynamic, sectors of 4 KiB",
    "VHDX, fixed",
    "VHDX, differencing",
    "VHDX, read-only",
    "VHDX on a device",
    "VHDX on iSCSI, `vhdx:iscsi://…`",
    "a point in a repository",
    "VHD, dynamic, read",
    "VHD, fixed, read",
    "VHD, differencing, read",
    "qcow2, read",
    "qcow2 with a backing file, read",
    "VHD that is filled, dynamic",
    "VHD that is filled, fixed",
    "`rbd:`, a library that reorders",
    "`rbd:`, sectors of 4 KiB",
    "`rbd:`, read-only",
    "`rbd:`, an image of Ceph",
    "iSCSI: target and initiator",
    "iSCSI over two paths",
    "iSCSI, as a device is opened",
    "NBD: server and client",
    "FUSE: a mounted file",
    "`delay:`",
    "`rate:`",
    "`fault:`",
    "`readonly:`",
    "a deadline of reads",
    "`stats:`",
    "a part of a device",
    "an opener of several",
    "retained writes",
    "tracked changes",
    "snapshots",
    "a snapshot of a disk",
];

/// Checks that the row of a device stands in the table as it was found. With `LUNWAY_WRITE_DOCS=1` it is put there
/// instead.
pub(crate) fn says(name: &str, row: &[(Check, Outcome)]) {
    // Several tests write rows of one file.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(NAMES.contains(&name), "{name} is not in the list of rows");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(FILE);
    let there = fs::read_to_string(&path).unwrap_or_default();
    let line = line(name, row);
    if env::var_os("LUNWAY_WRITE_DOCS").is_some() {
        fs::write(&path, with_row(&there, name, &line)).unwrap();
        return;
    }
    let found = there.lines().find(|line| line.starts_with(&start(name)));
    assert_eq!(
        found,
        Some(&*line),
        "{FILE} is not what the device does (LUNWAY_WRITE_DOCS=1 cargo test -p lunway-device --test waist writes it anew)"
    );
}

fn start(name: &str) -> String {
    format!("| {name} |")
}

fn line(name: &str, row: &[(Check, Outcome)]) -> String {
    let cells: Vec<String> = row.iter().map(|(_, outcome)| format!(" {outcome} |")).collect();
    format!("{}{}", start(name), cells.concat())
}

/// The page with the rows that it had, and this one.
fn with_row(page: &str, name: &str, line: &str) -> String {
    let rows = NAMES.iter().filter_map(|other| match *other == name {
        true => Some(line.to_owned()),
        false => page.lines().find(|line| line.starts_with(&start(other))).map(str::to_owned),
    });
    format!("{}{}\n", head(), rows.collect::<Vec<_>>().join("\n"))
}

fn head() -> String {
    let names: Vec<String> = Check::ALL.iter().map(|check| format!(" {check} |")).collect();
    let lines: Vec<&str> = Check::ALL.iter().map(|_| " --- |").collect();
    format!(
        "# Devices and the contract they keep\n\n\
         Every device is held against one contract, `BlockDevice`, by one suite (`crates/block/src/conformance`, where each check is\n\
         described). Written by `LUNWAY_WRITE_DOCS=1 cargo test -p lunway-device --test waist`, which fails where a device does something\n\
         else than its row says. \"yes\": the check holds; anything else is what the device does not do, as it declares itself.\n\n\
         | device |{}\n| --- |{}\n",
        names.concat(),
        lines.concat()
    )
}

#[test]
fn the_page_has_its_rows_and_no_others() {
    if env::var_os("LUNWAY_WRITE_DOCS").is_some() {
        // Other tests are writing it.
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(FILE);
    let page = fs::read_to_string(path).unwrap();
    assert!(page.starts_with(&head()), "{FILE}: the head");
    let rows: Vec<&str> = page[head().len()..].lines().collect();
    assert_eq!(rows.len(), NAMES.len(), "{FILE}: rows");
    for (row, name) in rows.iter().zip(NAMES) {
        assert!(row.starts_with(&start(name)), "{FILE}: {row} instead of {name}");
    }
}
