//! Our target used by QEMU.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use support::{Served, image, secret_file, succeed};

const GIB: u64 = 1 << 30;
const DATA: u64 = 128 << 20;

/// An `--image-opts` description of a logical unit.
fn options(served: &Served, lun: u16, more: &str) -> String {
    let (portal, iqn) = (&served.address, support::IQN);
    format!("driver=iscsi,transport=tcp,portal={portal},target={iqn},lun={lun}{more}")
}

/// Converts an image of 1 GiB to a logical unit and back, and compares it in every way there is.
fn there_and_back(program: &Path, folder: &Path, unit: &str) {
    let (source, back) = (folder.join("source.raw"), folder.join("back.raw"));
    image(&source, GIB, DATA);
    let qemu = |arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments);
        succeed(command)
    };
    let file = |path: &Path| format!("driver=raw,file.driver=file,file.filename={}", path.display());
    let unit = format!("driver=raw,file.{}", unit.replace(',', ",file."));
    let (source_options, back_options) = (file(&source), file(&back));
    qemu(&["convert", "-n", "--image-opts", "--target-image-opts", &source_options, &unit]);
    qemu(&["compare", "--image-opts", &source_options, &unit]);
    fs::File::create(&back).unwrap().set_len(GIB).unwrap();
    qemu(&["convert", "-n", "--image-opts", "--target-image-opts", &unit, &back_options]);
    qemu(&["compare", "-f", "raw", "-F", "raw", source.to_str().unwrap(), back.to_str().unwrap()]);
    support::assert_same_bytes(&source, &back);
}

#[test]
fn an_image_goes_there_and_back_unchanged() {
    let Some(program) = lunway_foreign::program("qemu-img") else { return };
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(&["--lun", "0=ram:1G"]);
    there_and_back(&program, folder.path(), &options(&served, 0, ""));
}

#[test]
fn an_image_goes_there_and_back_unchanged_with_4096_byte_sectors() {
    let Some(program) = lunway_foreign::program("qemu-img") else { return };
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(&["--lun", "3=ram:1G,sector=4096"]);
    there_and_back(&program, folder.path(), &options(&served, 3, ""));
}

#[test]
fn an_image_goes_there_and_back_unchanged_with_chap_and_digests() {
    let Some(program) = lunway_foreign::program("qemu-img") else { return };
    let folder = tempfile::tempdir().unwrap();
    let secret = secret_file(folder.path(), "secret", "correct horse 1");
    let chap = format!("someone:{secret}");
    // Header digests only: libiscsi 1.19 has no data digests. Those are tried against tgt.
    let served = Served::start(&["--chap", &chap, "--lun", "0=ram:1G"]);
    let login = ",user=someone,password=correct horse 1,header-digest=crc32c";
    there_and_back(&program, folder.path(), &options(&served, 0, login));
}

#[test]
fn an_address_with_user_and_secret_is_understood() {
    let Some(program) = lunway_foreign::program("qemu-img") else { return };
    let folder = tempfile::tempdir().unwrap();
    let secret = secret_file(folder.path(), "secret", "correct-horse-1");
    let chap = format!("someone:{secret}");
    let served = Served::start(&["--chap", &chap, "--lun", "0=ram:64M"]);
    let source = folder.path().join("source.raw");
    image(&source, 64 << 20, 16 << 20);
    let url = served.url_as("someone%correct-horse-1", 0);
    let mut convert = Command::new(&program);
    convert.args(["convert", "-n", "-f", "raw", "-O", "raw"]).arg(&source).arg(&url);
    succeed(convert);
    let mut compare = Command::new(&program);
    compare.args(["compare", "-f", "raw", "-F", "raw"]).arg(&source).arg(&url);
    assert!(succeed(compare).contains("identical"));
}

/// What qemu-io is told: writes, zeroes and discards, and what must be read after them.
const STEPS: &[&str] = &[
    "write -P 0xa5 0 8M",
    "write -P 0x5a 3M 64k",
    "read -P 0xa5 0 3M",
    "read -P 0x5a 3M 64k",
    "read -P 0xa5 3136k 1M",
    "write -z 1M 1M",
    "read -P 0 1M 1M",
    "write -z -u 4M 2M",
    "read -P 0 4M 2M",
    "discard 7M 1M",
    "read -P 0 7M 1M",
    "read -P 0xa5 6M 1M",
    "writev -P 0x11 60M 4k 8k 16k",
    "readv -P 0x11 60M 16k 8k 4k",
    "write -f -P 0x77 63M 1M",
    "flush",
    "read -P 0x77 63M 1M",
];

fn patterns_read_back(sector: u32, read_len: Option<&str>) {
    let Some(program) = lunway_foreign::program("qemu-io") else { return };
    let served = Served::start(&["--lun", &format!("0=ram:64M,sector={sector}")]);
    let mut command = Command::new(&program);
    command.args(["-f", "raw", "-d", "unmap", "-t", "none"]);
    for step in STEPS {
        let step = match (read_len, step.rsplit_once(' ')) {
            (Some(len), Some((start, _))) if step.starts_with("read ") => format!("{start} {len}"),
            _ => (*step).to_owned(),
        };
        command.args(["-c", &step]);
    }
    command.arg(served.url(0));
    let output = succeed(command);
    assert!(!output.contains("failed") && !output.contains("error"), "{output}");
    // Each of them but the flush tells what it did.
    assert_eq!(output.matches("ops; ").count(), STEPS.len() - 1, "{output}");
}

#[test]
fn patterns_zeroes_and_discards_read_back() {
    patterns_read_back(512, None);
}

#[test]
fn patterns_zeroes_and_discards_read_back_with_4096_byte_sectors() {
    // QEMU 7.2 asks for the allocation of what it reads from 32 KiB on, and ends itself (an assertion in its driver)
    // where a sector is not 512 bytes.
    patterns_read_back(4096, Some("28k"));
}
