//! The page of the documentation that shows the table.

use std::fmt::Write as _;

use crate::expectations::{FUNCTIONS, OPERATIONS, Row};

const HEAD: &str = "# Isolation

What a host can change for the other hosts of a target, command by command: for one whose [rule](access.md) lets it write all LUNs, for one that may
only read, and for one that does not see the LUN. \"–\" is nothing. A host that may not log in sends no command at all.

The tests send every command of every kind in six situations, and compare all that the LUN's owner can observe before and after:
`cargo test -p lunway-scsi --test isolation`. This page is written from the table that they compare with
(`LUNWAY_WRITE_DOCS=1` writes it anew); a command that is not in it fails them.

- *attention*: unit attentions that the owner is told.
- *data*: blocks, and the space behind them. *pages*: mode and log pages. *inventory*: identity, capacity, the list of LUNs.
- *reservations*: registrations and reservations. *ports*: asymmetric access states. *use*: whether the owner's reads and writes are carried out.
- *removal*: whether the owner can eject and load the medium. *commands*: the owner's commands in flight. *kept*: what outlives a restart.

A host that may only read can end its own registration, by REGISTER with the new key 0: that is all it changes.

";

fn table(page: &mut String, what: &str, rows: &[Row]) {
    // Writing to a `String` cannot fail.
    let _ = writeln!(page, "| {what} | may write | may only read | does not see it |\n|---|---|---|---|");
    let cell = |changes: &'static str| {
        if changes.is_empty() { "–".to_owned() } else { changes.replace(' ', ", ") }
    };
    for &(name, writer, reader, masked) in rows {
        let _ = writeln!(page, "| {name} | {} | {} | {} |", cell(writer), cell(reader), cell(masked));
    }
}

#[test]
fn the_page_of_isolation_says_what_the_table_says() {
    let mut expected = HEAD.to_owned();
    table(&mut expected, "command", OPERATIONS);
    expected.push('\n');
    table(&mut expected, "task management function", FUNCTIONS);
    lunway_foreign::written::says("docs/src/isolation.md", &expected, "-p lunway-scsi --test isolation");
}
