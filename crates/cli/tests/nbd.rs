//! What `attach --nbd` serves, used by libnbd's programs, QEMU and fio.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use support::{image, lunway, succeed, wait};

const SIZE: u64 = 256 << 20;

/// A device attached on a socket of its own.
struct Attached {
    child: Child,
    uri: String,
    folder: tempfile::TempDir,
}

impl Attached {
    fn start(device: &str, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let nbd = format!("unix:{}", folder.path().join("nbd").display());
        let mut command = lunway(&["attach", device, "--nbd", &nbd]);
        let mut child = command.args(more).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("nbd+unix:///"), "{line}");
        Self { child, uri: line.trim().to_owned(), folder }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// SIGTERM, and the exit code that must come of it.
    fn detach(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = wait(&mut self.child, support::PATIENCE).expect("it ends in time");
        assert!(status.success(), "{status}");
        assert!(!self.file("nbd").exists());
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(program: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(arguments);
    succeed(command)
}

#[test]
fn an_export_to_every_host_is_announced_and_a_socket_has_its_whole_path() {
    let folder = tempfile::tempdir().unwrap();
    let begin = |nbd: &str| {
        let mut command = lunway(&["attach", "ram:1M", "--nbd", nbd]);
        command.current_dir(folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let output = child.wait_with_output().unwrap();
        (line, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (_, said) = begin("tcp:0.0.0.0:0");
    assert!(said.contains("NBD has no authentication"), "{said}");
    assert!(!begin("tcp:127.0.0.1:0").1.contains("NBD has no authentication"));
    let (line, _) = begin("unix:disk.sock");
    assert!(line.contains(&folder.path().join("disk.sock").display().to_string()), "{line}");
}

/// The error of a request to resize (`NBD_CMD_RESIZE`), over a connection of its own; 0: none.
fn resize(socket: &Path, size: u64) -> u32 {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    // Fixed newstyle without the zeroes; NBD_OPT_EXPORT_NAME of the empty name.
    stream.write_all(&[0, 0, 0, 3]).unwrap();
    stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    let request = [&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, 8][..], &[0; 8], &size.to_be_bytes(), &[0; 4]].concat();
    stream.write_all(&request).unwrap();
    let mut reply = [0; 16];
    stream.read_exact(&mut reply).unwrap();
    u32::from_be_bytes(reply[4..8].try_into().unwrap())
}

/// One request cut off what lies behind, with nobody asked.
#[test]
fn a_client_shrinks_the_disk_only_where_that_was_allowed() {
    const EPERM: u32 = 1;
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    fs::File::create(&disk).unwrap().set_len(64 << 20).unwrap();
    let size = || disk.metadata().unwrap().len();
    let attached = Attached::start(disk.to_str().unwrap(), &[]);
    assert_eq!((resize(&attached.file("nbd"), 32 << 20), size()), (EPERM, 64 << 20));
    assert_eq!((resize(&attached.file("nbd"), 96 << 20), size()), (0, 96 << 20));
    attached.detach();
    let attached = Attached::start(disk.to_str().unwrap(), &["--shrink"]);
    assert_eq!((resize(&attached.file("nbd"), 32 << 20), size()), (0, 32 << 20));
    attached.detach();
}

#[test]
fn nbdinfo_is_told_what_the_export_can_do() {
    let Some(nbdinfo) = lunway_foreign::program("nbdinfo") else { return };
    let attached = Attached::start("ram:256M", &["--name", "disk", "--sector", "4096"]);
    let info = run(&nbdinfo, &[&attached.uri]);
    for fact in [
        "newstyle-fixed without TLS, using structured packets",
        "export=\"disk\"",
        "description: ram:256M, by lunway",
        "export-size: 268435456",
        "base:allocation",
        "can_df: true",
        "can_flush: true",
        "can_fua: true",
        "can_multi_conn: true",
        "can_trim: true",
        "can_zero: true",
        "is_read_only: false",
        "block_size_minimum: 4096",
        "block_size_maximum: 33554432",
    ] {
        assert!(info.contains(fact), "{fact}\n{info}");
    }
    assert!(run(&nbdinfo, &["--list", &attached.uri]).contains("export=\"disk\""));
    attached.detach();

    let attached = Attached::start("ram:256M", &["--read-only"]);
    let info = run(&nbdinfo, &[&attached.uri]);
    assert!(info.contains("is_read_only: true") && info.contains("can_zero: false"), "{info}");
}

#[test]
fn nbdcopy_over_four_connections_brings_an_image_there_and_back_sparse() {
    let (Some(nbdcopy), Some(nbdinfo)) =
        (lunway_foreign::program("nbdcopy"), lunway_foreign::program("nbdinfo"))
    else {
        return;
    };
    let attached = Attached::start("ram:256M", &[]);
    let (source, back) = (attached.file("source"), attached.file("back"));
    image(&source, SIZE, 32 << 20);
    run(&nbdcopy, &["--connections=4", source.to_str().unwrap(), &attached.uri]);
    let map = run(&nbdinfo, &["--map", "--totals", &attached.uri]);
    assert!(map.contains("hole,zero"), "what the image does not hold takes no space:\n{map}");
    run(&nbdcopy, &["--connections=4", &attached.uri, back.to_str().unwrap()]);
    support::assert_same_bytes(&source, &back);
    attached.detach();
}

#[test]
fn qemu_converts_compares_and_maps_a_file_behind_it() {
    let Some(qemu_img) = lunway_foreign::program("qemu-img") else { return };
    let folder = tempfile::tempdir().unwrap();
    let (source, disk) = (folder.path().join("source"), folder.path().join("disk"));
    image(&source, SIZE, 32 << 20);
    fs::File::create(&disk).unwrap().set_len(SIZE).unwrap();
    let attached = Attached::start(disk.to_str().unwrap(), &[]);
    run(&qemu_img, &["convert", "-n", "-f", "raw", "-O", "raw", source.to_str().unwrap(), &attached.uri]);
    run(&qemu_img, &["compare", "-f", "raw", "-F", "raw", source.to_str().unwrap(), &attached.uri]);
    let map = run(&qemu_img, &["map", "-f", "raw", "--output=json", &attached.uri]);
    assert!(map.contains("\"data\": false"), "{map}");
    attached.detach();
    support::assert_same_bytes(&source, &disk);
}

#[test]
fn fio_verifies_what_it_writes_at_depth_32() {
    let Some(fio) = lunway_foreign::program("fio") else { return };
    let attached = Attached::start("ram:256M", &[]);
    let uri = format!("--uri={}", attached.uri);
    let job = [
        "--name=verified",
        "--ioengine=nbd",
        "--rw=randwrite",
        "--bssplit=4k/60:64k/30:1m/10",
        "--iodepth=32",
    ];
    let verify = [
        "--size=128M",
        "--verify=crc32c",
        "--do_verify=1",
        "--verify_fatal=1",
        "--verify_state_save=0",
        &uri,
    ];
    run(&fio, &[&job[..], &verify[..]].concat());
    attached.detach();
}

#[test]
fn libnbd_sees_fua_trim_zeroes_and_a_flush_of_another_connection() {
    let Some(nbdsh) = lunway_foreign::program("nbdsh") else { return };
    let attached = Attached::start("ram:256M", &[]);
    let script = r#"
one, two = nbd.NBD(), nbd.NBD()
for handle in (one, two):
    handle.add_meta_context("base:allocation")
    handle.connect_uri("URI")
data = b"x" * 65536
one.pwrite(data, 1 << 20, nbd.CMD_FLAG_FUA)
one.flush()
assert two.pread(65536, 1 << 20) == data, "one disk behind both connections"
assert two.pread_structured(65536, 1 << 20, lambda *chunk: 0, nbd.CMD_FLAG_DF) == data
def status(handle, offset, length):
    seen = []
    handle.block_status(length, offset, lambda name, at, entries, error: seen.extend(entries))
    return list(zip(seen[::2], seen[1::2]))
assert status(two, 1 << 20, 65536)[0] == (65536, 0), status(two, 1 << 20, 65536)
one.trim(65536, 1 << 20)
assert status(two, 1 << 20, 65536)[0] == (65536, 3), status(two, 1 << 20, 65536)
assert two.pread(65536, 1 << 20) == bytes(65536)
one.pwrite(data, 0)
one.zero(65536, 0, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
assert two.pread(65536, 0) == bytes(65536)
for n in range(500):
    one.aio_pwrite(nbd.Buffer.from_bytearray(bytearray([n % 256]) * 4096), n * 4096)
while one.aio_in_flight():
    one.poll(-1)
assert all(two.pread(4096, n * 4096) == bytes([n % 256]) * 4096 for n in range(500))
one.set_strict_mode(0)
for wrong in (lambda: one.pread(100, 3), lambda: one.pwrite(data, 1 << 40)):
    try:
        wrong()
    except nbd.Error as error:
        continue
    raise SystemExit("a request that cannot be met was answered with success")
for handle in (one, two):
    handle.shutdown()
"#;
    // It asks for any python3, but only the distribution's own has the module.
    let mut command = Command::new(nbdsh);
    command.args(["-c", &script.replace("URI", &attached.uri)]).env("PATH", "/usr/bin:/bin");
    succeed(command);
    attached.detach();
}

/// Before, nothing was said, and the end was a success.
#[test]
fn a_file_that_loses_its_name_while_it_is_attached_is_told_and_is_no_success() {
    let Some(qemu_io) = lunway_foreign::program("qemu-io") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    succeed(lunway(&["disk", "create", path("d.vhdx").to_str().unwrap(), "--size", "64M"]));
    fs::File::create(path("d.img")).unwrap().set_len(SIZE).unwrap();
    for (name, more, code) in [("d.vhdx", &[][..], 1), ("d.img", &[], 1), ("d.img", &["--read-only"], 0)] {
        let device = path(name);
        let nbd = format!("unix:{}", path("nbd").display());
        let mut command = lunway(&["attach", device.to_str().unwrap(), "--nbd", &nbd]);
        let command = command.args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        if more.is_empty() {
            run(&qemu_io, &["-f", "raw", "-c", "write -P 0x5a 1M 64k", "-c", "flush", line.trim()]);
        }
        fs::rename(&device, path("moved")).unwrap();
        let mut warning = String::new();
        while !warning.contains("is gone, which the file that is served had") {
            warning.clear();
            assert!(said.read_line(&mut warning).unwrap() > 0, "{name}: it is told while it runs");
        }
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = wait(&mut child, support::PATIENCE).expect("it ends in time");
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        assert_eq!(status.code(), Some(code), "{name} {more:?}: {rest}");
        assert_eq!(rest.contains("was renamed or deleted while it was attached"), code == 1, "{rest}");
        fs::rename(path("moved"), &device).unwrap();
    }
}

#[test]
fn what_was_flushed_before_a_kill_is_in_the_file() {
    let Some(qemu_io) = lunway_foreign::program("qemu-io") else { return };
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    fs::File::create(&disk).unwrap().set_len(SIZE).unwrap();
    let mut attached = Attached::start(disk.to_str().unwrap(), &[]);
    let write = ["-f", "raw", "-c", "write -P 0x5a 1M 64k", "-c", "flush", &attached.uri];
    run(&qemu_io, &write);
    attached.child.kill().unwrap();
    attached.child.wait().unwrap();
    run(&qemu_io, &["-f", "raw", "-c", "read -P 0x5a 1M 64k", disk.to_str().unwrap()]);
    // The socket that the killed one left behind is no obstacle.
    let nbd = format!("unix:{}", attached.file("nbd").display());
    let mut command = lunway(&["attach", disk.to_str().unwrap(), "--nbd", &nbd, "--json"]);
    let mut again = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(again.stdout.take().unwrap()).read_line(&mut line).unwrap();
    again.kill().unwrap();
    again.wait().unwrap();
    assert!(line.contains("\"nbd\":\"nbd+unix:///?socket="), "{line}");
}
