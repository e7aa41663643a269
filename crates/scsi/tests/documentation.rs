//! The page of SCSI operations is the table that drives dispatch.

use std::path::Path;
use std::{env, fs};

const HEAD: &str = "# SCSI operations

What a logical unit understands. This page is written from the table that drives dispatch and REPORT SUPPORTED OPERATION CODES; after a change of
the table, `LUNWAY_WRITE_DOCS=1 cargo test -p lunway-scsi --test documentation` writes it anew.

";

#[test]
fn the_page_of_operations_says_what_the_table_says() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/operations.md");
    let expected = format!("{HEAD}{}", lunway_scsi::operations::markdown());
    if env::var_os("LUNWAY_WRITE_DOCS").is_some() {
        fs::write(&page, &expected).expect("the page can be written");
    }
    assert_eq!(fs::read_to_string(&page).expect("the page is there"), expected);
}
