//! The commands of README and of the book, run as they stand there: on a machine with the addresses of the examples,
//! where everything that a page takes for granted is made first, and nothing else.
//!
//! The pages are read when the test runs: a command that is new on a page is run, or left out for a reason in
//! [`pages`]. `LUNWAY_PAGE=copy.md` reads one page alone.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../support/mod.rs"]
mod support;

mod pages;

use std::env;
use std::fs::{self, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lunway_foreign::namespace::{self, ip};
use rustix::process::{Pid, Signal, kill_process};
use support::{PATIENCE, wait};

use crate::pages::{PAGES, Page};

/// Addresses of the examples, all of this machine here.
const ADDRESSES: [&str; 14] = [
    "192.0.2.1",
    "192.0.2.10",
    "192.0.2.11",
    "192.0.2.20",
    "192.0.2.21",
    "192.0.2.78",
    "198.51.100.1",
    "198.51.100.10",
    "198.51.100.20",
    "10.0.1.1",
    "10.0.1.10",
    "10.0.2.1",
    "10.0.2.10",
    "10.0.0.7",
];

/// The name of the target to which all examples connect. A daemon that a page starts with it, or with its
/// configuration, stays for the commands behind; another one is only seen to serve.
const EXAMPLE: &str = "iqn.2026-11.com.example:disks";

/// Programs whose lines are run, besides lunway's own: they make what the next lines use.
const BESIDE: [&str; 8] = ["(umask", "curl", "for", "head", "mkdir", "openssl", "rm", "truncate"];

/// The pages of the book and README, with their names.
fn documents() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let pages = fs::read_dir(root.join("docs/src")).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|end| end == "md"));
    let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    let all = pages.chain([root.join("README.md")]);
    let mut all: Vec<_> = all.map(|path| (name(&path), fs::read_to_string(&path).unwrap())).collect();
    all.sort();
    all
}

/// The first block of a kind on a page.
fn block(page: &str, kind: &str) -> String {
    let (_, text) = documents().into_iter().find(|(name, _)| name == page).unwrap();
    text.split(&format!("```{kind}\n")).nth(1).unwrap().split("```").next().unwrap().to_owned()
}

/// Lines of a page that somebody would type: those of shell blocks, and those behind a prompt.
fn typed(page: &str) -> Vec<String> {
    let (mut found, mut kind, mut goes_on) = (Vec::<String>::new(), None, false);
    for line in page.lines() {
        if let Some(info) = line.strip_prefix("```") {
            kind = if kind.is_some() { None } else { Some(info.to_owned()) };
            goes_on = false;
            continue;
        }
        let line = match kind.as_deref() {
            _ if goes_on => Some(line.trim()),
            Some("sh") => Some(line).filter(|line| !line.starts_with('#')),
            Some("console") => prompted(line),
            _ => None,
        };
        let Some(line) = line.filter(|line| !line.is_empty()) else { continue };
        let (part, more) = match line.strip_suffix('\\') {
            Some(part) => (part.trim_end(), true),
            None => (line, false),
        };
        match found.last_mut().filter(|_| goes_on) {
            Some(last) => *last += &format!(" {part}"),
            None => found.push(part.to_owned()),
        }
        goes_on = more;
    }
    found
}

/// What stands behind a prompt: `$`, `#`, `host1$`.
fn prompted(line: &str) -> Option<&str> {
    let (prompt, rest) = line.split_once(' ')?;
    let name = prompt.strip_suffix(['$', '#'])?;
    name.chars().all(|c| c.is_ascii_alphanumeric()).then_some(rest)
}

/// Whether a line is run here: one of lunway, or one that makes what such a line uses.
fn is_ours(line: &str) -> bool {
    let mut words = line.split_whitespace().skip_while(|word| word.contains('=') && !word.contains("://"));
    let first = words.next().unwrap_or_default();
    first == "lunway" || BESIDE.contains(&first)
}

/// The line without its comment, and with times that are long enough to be a command, not a measurement.
fn shortened(line: &str) -> String {
    let line = line.split_once(" #").map_or(line, |(line, _)| line).trim_end();
    let line = line.strip_suffix(" &").unwrap_or(line);
    let words: Vec<&str> = line.split(' ').collect();
    let mut short = Vec::new();
    for (at, word) in words.iter().enumerate() {
        match at.checked_sub(1).map(|before| words[before]) {
            Some("--time") => short.push("30ms"),
            _ => short.push(word),
        }
        if *word == "curl" {
            short.push("--fail");
        }
        let has = |option: &str| line.contains(option);
        let command = (at.checked_sub(1).map(|before| words[before]), *word);
        let more: &[(&str, &str)] = match command {
            (Some("lunway"), "bench") if has("--job") => &[],
            // Until it meets the fault that the page tells of.
            (Some("lunway"), "bench") if has("fault:") => &[("--time", "5s")],
            (Some("lunway"), "bench") if has("--rw") => &[("--time", "30ms")],
            (Some("lunway"), "bench") => &[("--time", "30ms"), ("--size", "16M"), ("--runs", "1")],
            (Some("lunway"), "compare") => &[
                ("--time", "20ms"),
                ("--ramp", "0ms"),
                ("--pairs", "6"),
                ("--rounds", "1"),
                ("--size", "4M"),
            ],
            (Some("lunway"), "net") if !has("net serve") => &[("--time", "20ms")],
            _ => &[],
        };
        // `--runs` is of one profile.
        let fits = |option: &str| option != "--runs" || has("crystal");
        for (option, value) in more.iter().filter(|(option, _)| !has(option) && fits(option)) {
            short.extend([*option, *value]);
        }
    }
    short.join(" ")
}

/// A command that goes on until a signal ends it, and which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stays {
    /// Serves disks.
    Serve,
    /// Others use it: there may be one of a kind.
    For(&'static str),
    /// Shows what goes on.
    Watch,
}

fn stays(line: &str) -> Option<Stays> {
    let has = |words: &str| line.contains(words);
    match line.strip_prefix("lunway ")? {
        line if line.starts_with("serve") && !has("--check") => Some(Stays::Serve),
        line if line.starts_with("attach") => Some(Stays::For("attach")),
        line if line.starts_with("backup mount") => Some(Stays::For("backup mount")),
        line if line.starts_with("disk mount") => Some(Stays::For("disk mount")),
        line if line.starts_with("net serve") => Some(Stays::For("net serve")),
        line if line.starts_with("paths") && has("--watch") => Some(Stays::Watch),
        line if line.starts_with("top") && !has("--once") => Some(Stays::Watch),
        _ => None,
    }
}

/// Somebody who types what a page says.
struct Reader {
    folder: PathBuf,
    /// Where the commands of the page run.
    work: PathBuf,
    staying: Vec<(Stays, String, Child)>,
    count: usize,
    wrong: Vec<String>,
}

impl Reader {
    fn new(folder: &Path) -> Self {
        let work = folder.join("none");
        Self { folder: folder.to_owned(), work, staying: Vec::new(), count: 0, wrong: Vec::new() }
    }

    /// A line for the shell; its output goes to files.
    fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        let file = |name: &str| File::create(self.folder.join(name)).unwrap();
        command.args(["-ec", line]).current_dir(&self.work).stdin(Stdio::null());
        command.stdout(file(&format!("out-{}", self.count))).stderr(file(&format!("err-{}", self.count)));
        let binary = Path::new(env!("CARGO_BIN_EXE_lunway")).parent().unwrap();
        let path = format!("{}:/usr/sbin:/sbin:{}", binary.display(), env::var("PATH").unwrap_or_default());
        command
            .env("PATH", path)
            .env("HOME", self.folder.join("home"))
            .env("TMPDIR", self.folder.join("tmp"));
        for variable in [
            "RUST_LOG",
            "LUNWAY_CHAP_SECRET",
            "LUNWAY_SOCKET",
            "LUNWAY_RUNTIME_DIR",
            "XDG_RUNTIME_DIR",
            "XDG_STATE_HOME",
        ] {
            command.env_remove(variable);
        }
        command
    }

    fn said(&self, count: usize) -> String {
        let read =
            |name: &str| fs::read_to_string(self.folder.join(format!("{name}-{count}"))).unwrap_or_default();
        format!("{}{}", read("out"), read("err"))
    }

    /// Runs a line to its end, which must be one of `codes`; gives its standard output.
    fn run(&mut self, line: &str, codes: &[i32]) -> String {
        self.count += 1;
        let mut child = self.shell(line).spawn().unwrap();
        let status = wait(&mut child, PATIENCE);
        if status.is_none() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let code = status.and_then(|status| status.code());
        if !code.is_some_and(|code| codes.contains(&code)) {
            self.wrong.push(format!("{line}\n  ended with {code:?}\n{}", self.said(self.count)));
        }
        fs::read_to_string(self.folder.join(format!("out-{}", self.count))).unwrap_or_default()
    }

    /// Starts a line that stays, and waits until it says that it is ready.
    fn start(&mut self, stays: Stays, line: &str) {
        self.stop(|other| other == stays);
        self.count += 1;
        let mut child = self.shell(&format!("exec {line}")).spawn().unwrap();
        let out = self.folder.join(format!("out-{}", self.count));
        let start = Instant::now();
        while fs::metadata(&out).unwrap().len() == 0
            && child.try_wait().unwrap().is_none()
            && start.elapsed() < PATIENCE
        {
            thread::sleep(Duration::from_millis(10));
        }
        match child.try_wait().unwrap() {
            Some(status) => {
                self.wrong.push(format!("{line}\n  ended with {status}\n{}", self.said(self.count)));
            }
            None if fs::metadata(&out).unwrap().len() == 0 => {
                let _ = child.kill();
                let _ = child.wait();
                self.wrong.push(format!("{line}\n  is not ready\n{}", self.said(self.count)));
            }
            None => self.staying.push((stays, line.to_owned(), child)),
        }
    }

    /// Ctrl-C to what stays.
    fn stop(&mut self, which: impl Fn(Stays) -> bool) {
        let (ending, staying) = self.staying.drain(..).partition(|(stays, ..)| which(*stays));
        self.staying = staying;
        let ending: Vec<(Stays, String, Child)> = ending;
        // The last first: what uses others before those.
        for (_, line, mut child) in ending.into_iter().rev() {
            kill_process(Pid::from_child(&child), Signal::INT).unwrap();
            let status = wait(&mut child, PATIENCE);
            let _ = child.kill();
            let _ = child.wait();
            if !status.is_some_and(|status| status.success()) {
                self.wrong.push(format!("{line}\n  ended with {status:?} after Ctrl-C"));
            }
        }
    }

    /// The daemon that a page takes for granted.
    fn daemon(&mut self, page: &Page) {
        if !page.daemon.is_empty() {
            self.start(Stays::Serve, "lunway serve -c /etc/lunway/lunway.toml");
        }
    }

    fn read(&mut self, page: &Page, text: &str) {
        let before = self.wrong.len();
        self.work = self.folder.join(page.file);
        fs::create_dir(&self.work).unwrap();
        fresh("/mnt");
        fresh("/srv");
        fresh("/run");
        fs::DirBuilder::new().recursive(true).mode(0o700).create("/run/user/1000").unwrap();
        fs::create_dir_all("/etc/lunway").unwrap();
        fs::write("/etc/lunway/lunway.toml", format!("state_dir = \"/run/state\"\n{}", page.daemon)).unwrap();
        for (file, from, kind) in page.files {
            fs::create_dir_all(self.work.join(file).parent().unwrap()).unwrap();
            // What is a measurement of seconds is one of a tenth.
            let text = block(from, kind).replace("runtime=5\n", "runtime=100ms\n");
            fs::write(self.work.join(file), text).unwrap();
        }
        if !page.before.is_empty() {
            self.run(page.before, &[0]);
        }
        self.daemon(page);
        if !page.beside.is_empty() {
            self.start(stays(page.beside).unwrap(), page.beside);
        }
        let (mut left_out, mut ours) = (vec![false; page.left_out.len()], Vec::new());
        for line in typed(text).iter().filter(|line| is_ours(line)) {
            if let Some(at) = page.left_out.iter().position(|(part, _)| line.contains(part)) {
                left_out[at] = true;
                continue;
            }
            println!("{}: {line}", page.file);
            // Also where only the comment has it.
            for (name, command) in page.names.iter().filter(|(name, _)| line.contains(name)) {
                if !ours.iter().any(|(known, _)| known == name) {
                    ours.push((*name, self.run(command, &[0]).trim().to_owned()));
                }
            }
            let line = ours.iter().fold(shortened(line), |line, (name, ours)| line.replace(name, ours));
            let codes =
                page.ends.iter().find(|(part, _)| line.contains(part)).map_or(&[0][..], |(_, codes)| codes);
            match stays(&line).filter(|_| codes == [0]) {
                Some(Stays::Serve) => {
                    self.start(Stays::Serve, &line);
                    if ![EXAMPLE, " -c "].iter().any(|part| line.contains(part)) {
                        self.stop(|stays| stays == Stays::Serve);
                        self.daemon(page);
                    }
                }
                Some(stays) => {
                    self.start(stays, &line);
                    self.stop(|stays| stays == Stays::Watch);
                }
                None => _ = self.run(&line, codes),
            }
        }
        self.stop(|_| true);
        for ((part, why), used) in page.left_out.iter().zip(left_out) {
            if !used {
                self.wrong.push(format!("no line has {part:?}, which would be left out: {why}"));
            }
        }
        for wrong in &mut self.wrong[before..] {
            *wrong = format!("{}: {wrong}", page.file);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        for (_, _, child) in &mut self.staying {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// An empty file system of this test's own, which hides what the machine has there.
fn fresh(place: &str) {
    let _ = Command::new("umount").args(["--lazy", place]).stderr(Stdio::null()).status();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "none", place]).status().unwrap();
    assert!(mounted.success(), "a tmpfs on {place}");
}

/// An /etc with what programs need to run, and a place for ours.
fn etc(folder: &Path) {
    let etc = folder.join("etc");
    fs::create_dir(&etc).unwrap();
    for file in
        ["passwd", "group", "hosts", "nsswitch.conf", "ld.so.cache", "mke2fs.conf", "machine-id", "localtime"]
    {
        let _ = fs::copy(Path::new("/etc").join(file), etc.join(file));
    }
    fs::create_dir(etc.join("ssl")).unwrap();
    let _ = fs::copy("/etc/ssl/openssl.cnf", etc.join("ssl/openssl.cnf"));
    let bound = Command::new("mount").arg("--bind").arg(&etc).arg("/etc").status().unwrap();
    assert!(bound.success(), "an /etc of this test's own");
}

#[test]
fn the_commands_of_every_page_do_what_the_page_says() {
    for name in ["mount", "umount", "curl", "jq", "openssl", "qemu-img", "mkfs.ext4"] {
        if lunway_foreign::program(name).is_none() {
            return;
        }
    }
    if !namespace::inside_with_mounts("the_commands_of_every_page_do_what_the_page_says") {
        return;
    }
    ip("link set lo up");
    for address in ADDRESSES {
        ip(&format!("addr add {address}/32 dev lo"));
    }
    let folder = tempfile::tempdir().unwrap();
    for name in ["home", "tmp"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    etc(folder.path());
    let mut reader = Reader::new(folder.path());
    for (file, text) in documents() {
        if !typed(&text).iter().any(|line| is_ours(line)) {
            continue;
        }
        let page = PAGES.iter().find(|page| page.file == file);
        let page = page.unwrap_or_else(|| panic!("{file} has commands: give it a row in pages.rs"));
        if env::var("LUNWAY_PAGE").is_ok_and(|only| only != file) {
            continue;
        }
        if page.elsewhere.is_empty() {
            reader.read(page, &text);
        }
    }
    // Behind the list of the commands, which is long.
    println!("{}", reader.wrong.join("\n\n"));
    assert!(
        reader.wrong.is_empty(),
        "{} commands of pages did not do what the page says",
        reader.wrong.len()
    );
}

#[test]
fn what_is_typed_is_told_from_what_is_printed() {
    let page = "```sh\n# a comment\nlunway a \\\n    b   # why\n```\n```console\n$ lunway c\nprinted\nhost1$ lunway d | jq\n\
                # lunway e\n1  lunway f\n```\n```text\n$ lunway g\n```\n";
    assert_eq!(typed(page), ["lunway a b   # why", "lunway c", "lunway d | jq", "lunway e"]);
    assert!(is_ours("SIZE=8g lunway bench x") && is_ours("mkdir x") && !is_ours("virsh x"));
    assert_eq!(shortened("lunway net 192.0.2.10   # there"), "lunway net --time 20ms 192.0.2.10");
    assert_eq!(shortened("lunway bench x --rw read --time 10s"), "lunway bench x --rw read --time 30ms");
    assert_eq!(stays("lunway serve -c x --check"), None);
    assert_eq!(stays("lunway net serve"), Some(Stays::For("net serve")));
}
