//! The page of SCSI operations is the table that drives dispatch.

const HEAD: &str = "# SCSI operations

What a logical unit understands. This page is written from the table that drives dispatch and REPORT SUPPORTED OPERATION CODES; after a change of
the table, `LUNWAY_WRITE_DOCS=1 cargo test -p lunway-scsi --test documentation` writes it anew.

";

#[test]
fn the_page_of_operations_says_what_the_table_says() {
    let expected = format!("{HEAD}{}", lunway_scsi::operations::markdown());
    lunway_foreign::written::says("docs/src/operations.md", &expected, "-p lunway-scsi --test documentation");
}
