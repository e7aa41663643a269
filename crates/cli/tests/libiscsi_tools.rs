//! Our target used by those of libiscsi's tools that do more than look: `iscsi-ls --url`, `iscsi-swp`, `iscsi-perf`.
//!
//! `iscsi-inq`, `iscsi-readcapacity16` and the conformance suite are in `libiscsi.rs`.

mod support;

use std::process::Command;
use std::time::Duration;

use support::{Served, finish, succeed};

fn tool(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(lunway_foreign::program(program)?);
    command.args(arguments);
    Some(succeed(command))
}

#[test]
fn the_list_of_addresses_leads_to_the_logical_unit() {
    let served = Served::start(&["--lun", "0=ram:32M"]);
    let Some(list) = tool("iscsi-ls", &["--url", &format!("iscsi://{}", served.address)]) else { return };
    assert_eq!(list.trim(), served.url(0));
    let size = tool("iscsi-readcapacity16", &["--size", list.trim()]);
    assert_eq!(size.as_deref().map(str::trim), Some("33554432"));
}

#[test]
fn software_write_protection_is_switched_on_and_off() {
    let Some(program) = lunway_foreign::program("iscsi-swp") else { return };
    let served = Served::start(&["--lun", "0=ram:32M"]);
    let protect = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).arg(served.url(0));
        succeed(command)
    };
    let writes = || {
        let url = served.url(0);
        finish(support::lunway(&["copy", "ram:64K", &url]), support::PATIENCE).status.success()
    };
    assert!(protect(&[]).contains("SWP:0"));
    assert!(writes(), "before it is protected");
    protect(&["--swp=on"]);
    assert!(protect(&[]).contains("SWP:1"));
    assert!(!writes(), "while it is protected");
    protect(&["--swp=off"]);
    assert!(protect(&[]).contains("SWP:0"));
    assert!(writes(), "when it is not protected any more");
}

#[test]
fn the_load_tool_reads_everywhere_without_an_error() {
    let Some(program) = lunway_foreign::program("iscsi-perf") else { return };
    for sector in ["512", "4096"] {
        let served = Served::start(&["--lun", &format!("0=ram:64M,sector={sector}")]);
        for order in [&["--random"][..], &[]] {
            let mut command = Command::new(&program);
            command.args(["-m", "32", "-b", "8", "-t", "1"]).args(order).arg(served.url(0));
            let output = finish(command, Duration::from_secs(30));
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{}\n{text}", output.status);
            assert!(text.contains("iops average"), "{text}");
        }
    }
}
