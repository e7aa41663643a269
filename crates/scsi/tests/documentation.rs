//! The page of SCSI operations is the table that drives dispatch.

const HEAD: &str = "# SCSI operations

```sh
sg_opcodes /dev/sdb        # of sg3-utils: the same list, as the logical unit reports it
```

The commands and task management functions that a logical unit carries out, and who may send each:

- *read access*: an initiator whose [access rule](access.md) shows it the LUN, also read-only.
- *write access*: one whose rule shows it the LUN and does not say `read_only`.
- *write access to all LUNs*: one that may write all LUNs of the target, because the operation affects all of them.

From any other initiator, a command that writes blocks ends with DATA PROTECT, WRITE PROTECTED (27h/00h), and one that
changes state with ILLEGAL REQUEST, ACCESS DENIED - NO ACCESS RIGHTS (20h/02h). A command whose opcode is not in the
table ends with ILLEGAL REQUEST, INVALID COMMAND OPERATION CODE (20h/00h). [Isolation](isolation.md) shows what each
operation changes for other hosts.

This page is generated from the table that the target dispatches by
(`LUNWAY_WRITE_DOCS=1 cargo test -p lunway-scsi --test documentation`).

";

#[test]
fn the_page_of_operations_says_what_the_table_says() {
    let expected = format!("{HEAD}{}", lunway_scsi::operations::markdown());
    lunway_foreign::written::says("docs/src/operations.md", &expected, "-p lunway-scsi --test documentation");
}
