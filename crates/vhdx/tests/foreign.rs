//! Files that other programs have written, and other programs' view of ours.
//!
//! Windows' files are looked for in the folder that `LUNWAY_VHDX_SAMPLES` names (`*.vhdx.gz`, from the tests of
//! LTRData/DiscUtils). QEMU knows neither parents nor sectors of 4096 bytes: libvhdi does (Debian's `python3-libvhdi`),
//! and `dissect.hypervisor` of PyPI in the Python that `LUNWAY_DISSECT_PYTHON` names.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::*;
use lunway_vhdx::{Chain, DiscardMode, DiskKind, Locator, SegmentSource, VhdxOpenOptions};

fn samples() -> Option<PathBuf> {
    let usual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/samples/vhdx");
    let folder = std::env::var_os("LUNWAY_VHDX_SAMPLES").map_or(usual, PathBuf::from);
    if !folder.is_dir() {
        lunway_foreign::machine_lacks("Windows' VHDX files (LUNWAY_VHDX_SAMPLES)");
        return None;
    }
    Some(folder)
}

fn unpack(sample: &Path, to: &Path) {
    // Sparse, so that a large sample takes no time.
    let mut gzip = Command::new("gzip").arg("-dc").arg(sample).stdout(Stdio::piped()).spawn().expect("gzip");
    let (mut from, to) = (gzip.stdout.take().expect("a pipe"), File::create(to).expect("a file"));
    let (mut buf, mut at) = (vec![0; MIB as usize], 0);
    loop {
        let mut filled = 0;
        while filled < buf.len() {
            match from.read(&mut buf[filled..]).expect("gzip") {
                0 => break,
                count => filled += count,
            }
        }
        if filled == 0 {
            break;
        }
        if buf[..filled].iter().any(|byte| *byte != 0) {
            to.write_all_at(&buf[..filled], at).expect("a write");
        }
        at += filled as u64;
    }
    to.set_len(at).expect("a length");
    assert!(gzip.wait().expect("gzip").success(), "{sample:?}");
}

fn run(program: &Path, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().expect("it starts");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program:?} {args:?}: {text}");
    text
}

fn open_path(path: &Path, writable: bool) -> Chain<File> {
    let options = if writable { VhdxOpenOptions::writable() } else { VhdxOpenOptions::read_only() };
    Chain::open_files(path, path.parent().expect("a folder"), &options, || guids(7))
        .unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

/// Compares what we read with a raw image: data byte for byte, and that the image has zeroes everywhere else.
fn compare(chain: &Chain<File>, raw: &Path, name: &str) {
    let raw = File::open(raw).expect("the image");
    assert_eq!(raw.metadata().expect("a length").len(), chain.size(), "{name}");
    let mut pieces = Vec::new();
    chain.map(0, chain.size(), |segment| pieces.push(segment)).expect("a map");
    let (mut ours, mut theirs) = (vec![0; MIB as usize], vec![0; MIB as usize]);
    for piece in pieces {
        let mut at = piece.offset;
        while at < piece.offset + piece.len {
            if !matches!(piece.source, SegmentSource::File(_)) {
                // Where the image has a hole there is nothing to read.
                match rustix::fs::seek(&raw, rustix::fs::SeekFrom::Data(at)) {
                    Ok(data) if data < piece.offset + piece.len => at = at.max(data / 512 * 512),
                    _ => break,
                }
            }
            let now = (piece.offset + piece.len - at).min(MIB) as usize;
            chain.read_at(at, &mut ours[..now]).expect("a read");
            raw.read_exact_at(&mut theirs[..now], at).expect("the image");
            assert!(ours[..now] == theirs[..now], "{name}: {now} bytes at {at}");
            at += now as u64;
        }
    }
}

#[test]
fn windows_files_read_as_qemu_reads_them_and_are_left_as_they_are() {
    let (Some(folder), Some(qemu)) = (samples(), lunway_foreign::program("qemu-img")) else { return };
    let work = tempfile::tempdir().expect("a folder");
    let mut names = vec!["btrfs", "swap", "vhdx-log-replay"];
    // Gigabytes to copy and convert.
    if amount("LUNWAY_VHDX_LARGE_SAMPLES", 0) > 0 {
        names.extend(["lvm2", "xfs", "xfs5"]);
    }
    for name in names {
        let (file, raw) = (work.path().join(format!("{name}.vhdx")), work.path().join(format!("{name}.raw")));
        unpack(&folder.join(format!("{name}.vhdx.gz")), &file);
        let sum = |path: &Path| run(Path::new("sha256sum"), &[path.to_str().expect("a path")]);
        let before = sum(&file);
        assert_sound(&File::open(&file).expect("a file"), name);
        let chain = open_path(&file, false);
        // QEMU replays only what it may write to: a copy.
        let copy = work.path().join("copy.vhdx");
        std::fs::copy(&file, &copy).expect("a copy");
        let paths = [&copy, &raw].map(|path| path.to_str().expect("a path"));
        run(&qemu, &["check", "-r", "all", "-f", "vhdx", paths[0]]);
        run(&qemu, &["convert", "-f", "vhdx", "-O", "raw", paths[0], paths[1]]);
        compare(&chain, &raw, name);
        drop(chain);
        assert_eq!(sum(&file), before, "{name}: a read-only open changes nothing");
        if name == "lvm2" {
            let chain = open_path(&file, false);
            let counts = chain.disks()[0].counts();
            assert_eq!((counts.present, counts.unmapped > 0, counts.zero > 0), (18, true, true));
        }
        for file in [file, raw, copy] {
            std::fs::remove_file(file).expect("it is there");
        }
    }
}

#[test]
fn a_dirty_log_of_windows_is_replayed_from_its_tail() {
    let Some(folder) = samples() else { return };
    let work = tempfile::tempdir().expect("a folder");
    let file = work.path().join("log.vhdx");
    unpack(&folder.join("vhdx-log-replay.vhdx.gz"), &file);
    let entry = |block: usize| {
        let mut bytes = [0; 8];
        File::open(&file)
            .and_then(|file| file.read_exact_at(&mut bytes, (3 << 20) + 8 * block as u64))
            .expect("a read");
        u64::from_le_bytes(bytes)
    };
    assert_eq!([entry(0), entry(3)], [0, 0]);
    let identity = |chain: &Chain<File>| chain.disks()[0].data_write_guid();
    let (read_only, writable) = {
        let read_only = open_path(&file, false);
        let first = contents_of_block_0(&read_only);
        assert_eq!([entry(0), entry(3)], [0, 0], "in memory");
        let before = identity(&read_only);
        drop(read_only);
        let writable = open_path(&file, true);
        assert_eq!(identity(&writable), before, "a replay changes no data");
        (first, contents_of_block_0(&writable))
    };
    assert_eq!([entry(0), entry(3)], [0x40_0006, 2]);
    assert!(read_only == writable && read_only.iter().any(|byte| *byte != 0));
    let report = lunway_vhdx::check::check(&File::open(&file).expect("a file"));
    assert!(report.findings.is_empty() && !report.log_in_use, "{:?}", report.findings);
}

fn contents_of_block_0(chain: &Chain<File>) -> Vec<u8> {
    let mut data = vec![0; MIB as usize];
    chain.read_at(0, &mut data).expect("a read");
    data
}

#[test]
fn qemu_reads_what_we_write_and_we_read_what_qemu_writes() {
    let Some(qemu) = lunway_foreign::program("qemu-img") else { return };
    let work = tempfile::tempdir().expect("a folder");
    let path = |name: &str| work.path().join(name);
    let text = |path: &Path| path.to_str().expect("a path").to_owned();
    let sizes = [
        (DiskKind::Dynamic, 1, 60),
        (DiskKind::Dynamic, 32, 5),
        (DiskKind::Dynamic, 256, 1),
        (DiskKind::Fixed, 2, 20),
    ];
    for (kind, block, writes) in sizes {
        let (file, raw) = (path("ours.vhdx"), path("ours.raw"));
        let size = 4200 * MIB + 512 * 7;
        let size = if kind == DiskKind::Fixed { 40 * MIB } else { size };
        let new = File::options().read(true).write(true).create_new(true).open(&file).expect("a file");
        make(&new, &options(kind, size, block << 20, 512), 1);
        drop(new);
        let chain = open_path(&file, true);
        let mut rng = Random::new(u64::from(block));
        for round in 0..writes {
            let offset = rng.below(size / 512 - 300) * 512;
            chain.write_at(offset, &[round as u8 + 1; 300 * 512]).expect("a write");
            if round % 7 == 0 {
                chain
                    .discard(offset / MIB * MIB, (2 * MIB).min(size - offset / MIB * MIB), DiscardMode::Unmap)
                    .expect("an unmap");
                chain.flush().expect("a flush");
            }
        }
        // The last sector, behind the first chunk.
        chain.write_at(size - 512, &[0xAB; 512]).expect("a write");
        chain.flush().expect("a flush");
        // QEMU replays our log.
        drop(chain);
        let dirty = path("dirty.vhdx");
        std::fs::copy(&file, &dirty).expect("a copy");
        run(&qemu, &["check", "-r", "all", "-f", "vhdx", &text(&dirty)]);
        let chain = open_path(&file, true);
        chain.write_at(0, &[9; 512]).expect("a write");
        chain.write_at(0, &[0; 512]).expect("a write");
        chain.close().expect("a close");
        for file in [&file, &dirty] {
            run(&qemu, &["check", "-f", "vhdx", &text(file)]);
            run(&qemu, &["convert", "-f", "vhdx", "-O", "raw", &text(file), &text(&raw)]);
            compare(&open_path(file, false), &raw, &format!("{kind:?}, {block} MiB, {file:?}"));
        }
        [file, raw, dirty].iter().for_each(|file| std::fs::remove_file(file).expect("it is there"));
    }
}

#[test]
fn files_that_qemu_was_killed_on_are_replayed_as_qemu_does() {
    let (Some(qemu), Some(io)) = (lunway_foreign::program("qemu-img"), lunway_foreign::program("qemu-io"))
    else {
        return;
    };
    let work = tempfile::tempdir().expect("a folder");
    let text = |name: &str| work.path().join(name).to_str().expect("a path").to_owned();
    let (file, raw) = (text("theirs.vhdx"), text("theirs.raw"));
    for options in ["subformat=dynamic,block_size=1048576", "subformat=dynamic", "subformat=fixed"] {
        run(&qemu, &["create", "-f", "vhdx", "-o", options, &file, "300M"]);
        let mut child = Command::new(&io)
            .args(["-f", "vhdx", &file])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("qemu-io");
        let mut stdin = child.stdin.take().expect("a pipe");
        for n in 0..20 {
            writeln!(stdin, "write -P {} {}M 64k", n + 1, n * 13).expect("qemu-io");
        }
        writeln!(stdin, "flush\nabort").expect("qemu-io");
        drop(stdin);
        let _ = child.wait_with_output().expect("qemu-io");
        let path = work.path().join("theirs.vhdx");
        let report = lunway_vhdx::check::check(&File::open(&path).expect("a file"));
        assert!(!report.is_damaged(), "{options}: {:?}", report.findings);
        let chain = open_path(&path, false);
        let copy = text("copy.vhdx");
        std::fs::copy(&path, &copy).expect("a copy");
        run(&qemu, &["check", "-r", "all", "-f", "vhdx", &copy]);
        run(&qemu, &["convert", "-f", "vhdx", "-O", "raw", &copy, &raw]);
        compare(&chain, Path::new(&raw), options);
        drop(chain);
        let chain = open_path(&path, true);
        compare(&chain, Path::new(&raw), options);
        chain.write_at(0, &[0x55; 4096]).expect("a write");
        chain.close().expect("a close");
        run(&qemu, &["check", "-f", "vhdx", &file]);
        [&file, &raw, &copy].iter().for_each(|file| std::fs::remove_file(file).expect("it is there"));
    }
}

#[test]
fn qemu_replays_our_power_cuts_to_the_same_bytes() {
    let Some(qemu) = lunway_foreign::program("qemu-img") else { return };
    let work = tempfile::tempdir().expect("a folder");
    let recorder =
        lunway_vhdx::crash::Recorder::new(memory(&options(DiskKind::Dynamic, 8 * MIB, 1 << 20, 512), 1));
    let chain = alone(open(recorder.clone(), true, 2));
    for n in 0..6u64 {
        chain.write_at(n * MIB + 4096 * n, &[n as u8 + 1; 8192]).expect("a write");
        chain.flush().expect("a flush");
        if n == 3 {
            chain.discard(MIB, MIB, DiscardMode::Unmap).expect("an unmap");
        }
    }
    let mut rng = Random::new(3);
    let mut tried = 0;
    recorder.each_crash(|crash| {
        if rng.below(6) != 0 {
            return;
        }
        let mut decide = rng.clone();
        let image = crash.image(512, |_| decide.below(2) == 0).to_bytes();
        let (ours, theirs, raw) =
            (work.path().join("ours"), work.path().join("theirs"), work.path().join("raw"));
        [&ours, &theirs].iter().for_each(|path| std::fs::write(path, &image).expect("a write"));
        let [theirs, out] = [&theirs, &raw].map(|path| path.to_str().expect("a path"));
        run(&qemu, &["check", "-r", "all", "-f", "vhdx", theirs]);
        run(&qemu, &["convert", "-f", "vhdx", "-O", "raw", theirs, out]);
        compare(&open_path(&ours, false), &raw, &format!("after {} operations", crash.done));
        tried += 1;
    });
    assert!(tried > 5, "{tried} images");
}

/// Programs that read VHDX files from Python: name and interpreter.
fn readers() -> Vec<(&'static str, PathBuf)> {
    let imports = |python: &Path, module: &str| {
        let import = Command::new(python).args(["-c", &format!("import {module}")]).output();
        import.is_ok_and(|import| import.status.success())
    };
    let mut found = Vec::new();
    // Debian's modules are for Debian's Python.
    let debian = PathBuf::from("/usr/bin/python3");
    match imports(&debian, "pyvhdi") {
        true => found.push(("libvhdi", debian)),
        false => lunway_foreign::not_run("pyvhdi"),
    }
    match std::env::var_os("LUNWAY_DISSECT_PYTHON").map(PathBuf::from) {
        Some(python) if imports(&python, "dissect.hypervisor") => found.push(("dissect", python)),
        Some(python) => panic!("{python:?} has no dissect.hypervisor"),
        None => lunway_foreign::machine_lacks("dissect.hypervisor (LUNWAY_DISSECT_PYTHON)"),
    }
    found
}

/// Compares what we read in a file with what others do; `paths` are its chain, itself first.
fn others_agree(readers: &[(&str, PathBuf)], paths: &[&Path], work: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/readers/read.py");
    let raw = work.join("read.raw");
    for (name, python) in readers {
        let text = |path: &Path| path.to_str().expect("a path").to_owned();
        let mut words = vec![text(&script), (*name).to_owned(), text(&raw)];
        words.extend(paths.iter().map(|path| text(path)));
        run(python, &words.iter().map(String::as_str).collect::<Vec<_>>());
        compare(&open_path(paths[0], false), &raw, &format!("{name}, {:?}", paths[0]));
        std::fs::remove_file(&raw).expect("it is there");
    }
}

#[test]
fn windows_files_read_as_libvhdi_and_dissect_read_them() {
    let (Some(folder), readers) = (samples(), readers()) else { return };
    let work = tempfile::tempdir().expect("a folder");
    let mut names = vec!["btrfs"];
    // 10 GiB each, which Python reads to their ends.
    if amount("LUNWAY_VHDX_LARGE_SAMPLES", 0) > 0 {
        names.extend(["swap", "lvm2", "xfs", "xfs5"]);
    }
    for name in names {
        let file = work.path().join(format!("{name}.vhdx"));
        unpack(&folder.join(format!("{name}.vhdx.gz")), &file);
        others_agree(&readers, &[&file], work.path());
    }
    // Both know no logs: they see it when ours has replayed it.
    let file = work.path().join("log.vhdx");
    unpack(&folder.join("vhdx-log-replay.vhdx.gz"), &file);
    open_path(&file, true).close().expect("a close");
    others_agree(&readers, &[&file], work.path());
}

#[test]
fn others_read_our_chains_of_three_with_sectors_of_both_sizes() {
    let readers = readers();
    let work = tempfile::tempdir().expect("a folder");
    // dissect.hypervisor 3 counts short in a sector bitmap where a run does not begin at a whole byte: it sees chains
    // that were written 8 sectors at a time.
    for (sector, kind, block, unit) in [
        (512, DiskKind::Dynamic, 1, 1),
        (512, DiskKind::Dynamic, 32, 8),
        (512, DiskKind::Fixed, 2, 8),
        (4096, DiskKind::Dynamic, 1, 8),
        (4096, DiskKind::Dynamic, 32, 1),
        (4096, DiskKind::Fixed, 2, 8),
    ] {
        let readers: Vec<_> =
            readers.iter().filter(|(name, _)| unit > 1 || *name != "dissect").cloned().collect();
        let sectors = u64::from(sector);
        let step = unit * sectors;
        let size = 70 * MIB + 3 * step;
        let paths = ["base.vhdx", "one.avhdx", "two.avhdx"].map(|name| work.path().join(name));
        let mut rng = Random::new(sectors * u64::from(block));
        for (level, path) in paths.iter().enumerate() {
            let mut new = options(kind, size, block << 20, sector);
            if level > 0 {
                let parent = open(File::open(&paths[level - 1]).expect("a file"), false, 0);
                new = child_options(&parent, size, 2 << 20);
                let name = paths[level - 1].file_name().and_then(|name| name.to_str()).expect("a name");
                new.parameters.locator = Some(Locator::new(parent.data_write_guid(), name, None));
            }
            let file = File::options().read(true).write(true).create_new(true).open(path).expect("a file");
            make(&file, &new, level as u64);
            drop(file);
            let chain = open_path(path, true);
            for round in 0..40u8 {
                let len = step * (1 + rng.below(2 * MIB / step));
                let offset = rng.below((size - len) / step + 1) * step;
                let value = round + 50 * level as u8 + 1;
                match rng.below(4) {
                    // Blocks and parts that are zero hide what the parents have.
                    0 if level > 0 => chain.discard(offset, len, DiscardMode::Zero).expect("zeroes"),
                    _ => chain.write_at(offset, &vec![value; len as usize]).expect("a write"),
                }
            }
            chain.write_at(size - step, &vec![level as u8 + 1; step as usize]).expect("the end of the disk");
            chain.close().expect("a close");
            assert_sound(&File::open(path).expect("a file"), "a level");
            let chain: Vec<&Path> = paths[..=level].iter().rev().map(PathBuf::as_path).collect();
            others_agree(&readers, &chain, work.path());
        }
        paths.iter().for_each(|path| std::fs::remove_file(path).expect("it is there"));
    }
}

#[test]
fn others_read_a_child_with_all_its_sector_bitmaps_of_which_no_block_is_partially_present() {
    let readers = readers();
    let work = tempfile::tempdir().expect("a folder");
    let paths = ["base.vhdx", "one.avhdx"].map(|name| work.path().join(name));
    let new_file =
        |path: &Path| File::options().read(true).write(true).create_new(true).open(path).expect("a file");
    make(&new_file(&paths[0]), &options(DiskKind::Dynamic, 8 * MIB, MIB as u32, 512), 1);
    let base = open_path(&paths[0], true);
    base.write_at(0, &vec![1; 8 * MIB as usize]).expect("a write");
    base.close().expect("a close");
    let parent = open(File::open(&paths[0]).expect("a file"), false, 0);
    let mut new = child_options(&parent, 8 * MIB, MIB as u32);
    new.parameters.locator = Some(Locator::new(parent.data_write_guid(), "base.vhdx", None));
    new.all_bitmaps = true;
    make(&new_file(&paths[1]), &new, 2);
    let chain: Vec<&Path> = paths.iter().rev().map(PathBuf::as_path).collect();
    assert_sound(&File::open(&paths[1]).expect("a file"), "an empty child");
    others_agree(&readers, &chain, work.path());
    let child = open_path(&paths[1], true);
    child.write_at(3 * MIB, &vec![2; MIB as usize]).expect("a write of a block");
    child.close().expect("a close");
    assert_sound(&File::open(&paths[1]).expect("a file"), "a child with one block");
    others_agree(&readers, &chain, work.path());
    // Its bitmap is the one that a part of a block uses.
    let length = std::fs::metadata(&paths[1]).expect("it is there").len();
    let child = open_path(&paths[1], true);
    child.write_at(5 * MIB + 512, &[3; 4096]).expect("a write of a part");
    child.close().expect("a close");
    assert_eq!(std::fs::metadata(&paths[1]).expect("it is there").len(), length + MIB);
    others_agree(&readers, &chain, work.path());
}
