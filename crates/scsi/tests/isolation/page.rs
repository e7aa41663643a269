//! The page of the documentation that shows the table.

use std::fmt::Write as _;

use crate::expectations::{FUNCTIONS, OPERATIONS, Row};

const HEAD: &str = "# Isolation

```sh
lunway acl add iqn.2026-11.com.example:disks backup --initiator iqn.2026-11.com.example:backup --luns 0 --read-only
```

The host `backup` may log in to the target. It sees LUN 0 and may read it, and does not see the other LUNs. The tables
show, for each command, what a host can change for the other hosts of the target under such a [rule](access.md):

- *may write*: its rule lets it write all LUNs.
- *may only read*: its rule shows it the LUN with `read_only`. The only thing that such a host can change is its own
  registration, which it may remove (REGISTER with the new key 0).
- *does not see it*: its rule does not show it the LUN.

A host that may not log in cannot send commands. `–` means that nothing changes; otherwise a cell names what the owner of
the LUN can notice:

| word | what changes |
|---|---|
| attention | unit attention conditions that the owner receives |
| commands | the owner's commands in progress |
| data | blocks, and the space that they occupy |
| inventory | identity, capacity, the list of LUNs |
| kept | state that survives a restart |
| pages | mode pages and log pages |
| ports | asymmetric access states |
| removal | whether the owner can eject and load the medium |
| reservations | registrations and reservations |
| use | whether the owner's reads and writes are carried out |

This page is generated from the table that a test checks: `cargo test -p lunway-scsi --test isolation` sends every command
in seven situations and compares everything that the owner can observe before and after. A command that is not in the
table fails the test. `LUNWAY_WRITE_DOCS=1` generates the page anew.

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
