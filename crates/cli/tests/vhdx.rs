//! VHDX files as devices of the commands, beside `qemu-img`.
#![expect(clippy::unwrap_used, reason = "a failed test shall say where")]

use std::path::Path;
use std::process::Command;

fn run(program: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program:?} {arguments:?}: {text}");
    text
}

#[test]
fn copy_fills_a_vhdx_of_qemu_s_and_reads_it_back() {
    let Some(qemu) = lunway_foreign::program("qemu-img") else { return };
    let lunway = Path::new(env!("CARGO_BIN_EXE_lunway"));
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (raw, vhdx, back) = (path("disk.img"), path("disk.vhdx"), path("back.img"));
    let mut bytes = vec![0u8; 24 << 20];
    for (n, page) in bytes.chunks_mut(4096).enumerate().filter(|(n, _)| n % 7 < 3) {
        page.fill((n % 250) as u8 + 1);
    }
    std::fs::write(&raw, &bytes).unwrap();
    run(&qemu, &["create", "-f", "vhdx", "-o", "block_size=1048576", &vhdx, "24M"]);
    run(lunway, &["copy", &raw, &vhdx]);
    run(&qemu, &["check", "-f", "vhdx", &vhdx]);
    run(&qemu, &["compare", "-f", "raw", "-F", "vhdx", &raw, &vhdx]);
    run(lunway, &["copy", &format!("readonly:vhdx:{vhdx}"), &back]);
    assert!(std::fs::read(&back).unwrap() == bytes);
}
