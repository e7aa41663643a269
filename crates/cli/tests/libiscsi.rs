//! Our target read by libiscsi's tools, and put through its conformance suite.

mod support;

use std::process::Command;

use support::{Served, finish, secret_file, succeed};

/// `None` where libiscsi's tools are not installed.
fn tool(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(lunway_foreign::program(program)?);
    command.args(arguments);
    Some(succeed(command))
}

fn assert_shows(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in:\n{text}");
    }
}

/// Lists, inquires and asks for the capacity as `login`, with these arguments behind each address.
fn read_everything(served: &Served, login: &str, arguments: &str) -> Option<()> {
    let url = |lun| served.url_as(login, lun) + arguments;
    let at = if login.is_empty() { "" } else { "@" };
    let portal = format!("iscsi://{login}{at}{}", served.address);
    let list = tool("iscsi-ls", &["-s", &portal])?;
    assert_shows(
        &list,
        &[
            &format!("Target:{} Portal:{},1", support::IQN, served.address),
            "Lun:0    Type:DIRECT_ACCESS",
            "Lun:7    Type:DIRECT_ACCESS",
        ],
    );
    let inquiry = tool("iscsi-inq", &[&url(0)])?;
    assert_shows(
        &inquiry,
        &["Peripheral Device Type:DIRECT_ACCESS", "Vendor:LUNWAY", "CmdQue:1", "Removable:0"],
    );
    for (page, parts) in [
        ("0", &["0x80 UNIT_SERIAL_NUMBER", "0x83 DEVICE_IDENTIFICATION", "0xb0", "0xb1", "0xb2"][..]),
        ("128", &["Unit Serial Number:["]),
        (
            "131",
            &[
                "Association:(0) LOGICAL_UNIT",
                "Designator Type:(3) NAA",
                "Association:(1) TARGET_PORT",
                "iqn.2026-11",
            ],
        ),
        ("176", &["maximum unmap lba count:", "maximum write same length:65535"]),
        ("177", &["Medium Rotation Rate:1"]),
        ("178", &["lbpu:1", "lbpws:1", "lbprz:1"]),
    ] {
        assert_shows(&tool("iscsi-inq", &["-e", "1", "-c", page, &url(0)])?, parts);
    }
    let capacity = tool("iscsi-readcapacity16", &[&url(0)])?;
    assert_shows(
        &capacity,
        &[
            "LOGICAL BLOCK ADDRESS:204799",
            "LOGICAL BLOCK LENGTH IN BYTES:512",
            "Total size:104857600",
            "LBPME:1 LBPRZ:1",
        ],
    );
    let capacity = tool("iscsi-readcapacity16", &[&url(7)])?;
    assert_shows(
        &capacity,
        &["LOGICAL BLOCK ADDRESS:25599", "LOGICAL BLOCK LENGTH IN BYTES:4096", "Total size:104857600"],
    );
    Some(())
}

#[test]
fn the_tools_list_and_read_the_target() {
    let served = Served::start(&["--lun", "0=ram:100M", "--lun", "7=ram:100M,sector=4096"]);
    read_everything(&served, "", "");
    read_everything(&served, "", "?header_digest=crc32c");
}

#[test]
fn the_tools_list_and_read_the_target_with_chap() {
    let folder = tempfile::tempdir().unwrap();
    let ours = secret_file(folder.path(), "initiator", "correct horse 1");
    let theirs = secret_file(folder.path(), "target", "battery staple");
    let (chap, mutual) = (format!("someone:{ours}"), format!("lunway:{theirs}"));
    let luns = ["--lun", "0=ram:100M", "--lun", "7=ram:100M,sector=4096"];
    let served = Served::start(&[&["--chap", &chap, "--mutual-chap", &mutual], &luns[..]].concat());
    read_everything(&served, "someone%correct horse 1", "");
    read_everything(&served, "someone%correct horse 1", "?target_user=lunway&target_password=battery staple");

    let Some(program) = lunway_foreign::program("iscsi-inq") else { return };
    for login in ["", "someone%wrong horse 12", "nobody%correct horse 1"] {
        let mut command = Command::new(&program);
        command.arg(served.url_as(login, 0));
        let output = finish(command, support::PATIENCE);
        assert!(!output.status.success(), "{login:?} was let in: {output:?}");
    }
}
