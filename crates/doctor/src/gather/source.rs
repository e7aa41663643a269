//! Sources of facts: files within size limits, and programs within a time limit.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags};

/// No file that is read here needs more: the largest is `/proc/net/tcp` of a machine with ten thousand connections.
const FILE_MAX: u64 = 2 << 20;
/// The same for what a program prints: `multipath -t` prints some hundred devices of 30 lines.
const PRINTED_MAX: u64 = 4 << 20;
/// Entries of a folder that are looked at. A machine with more disks or ports is one that makes them by the thousand.
const ENTRIES_MAX: usize = 4096;
/// Files that one program is asked about: with the longest names that a path may have (`PATH_MAX`) they take half of
/// what the kernel gives a program's arguments, 2 MiB.
const ASKED_AT_ONCE: usize = 256;
/// Time for a program, and for a question to the kernel that may wait for a disk.
const PROGRAM_TIME: Duration = Duration::from_secs(2);
/// Time for all of them together: a run may take 5 s, and files and rules take some tenths of one.
const RUN_TIME: Duration = Duration::from_secs(4);
/// Sentences about limits that are kept. There is one for each kind of list.
const NOTES_MAX: usize = 64;
/// Interval at which a program is polled.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A machine to read facts of: this one, or a copy of another one's `/etc`, `/proc` and `/sys`.
///
/// In a copy, what a program would print stands in a file below `commands`, named by its command line with `_` for
/// spaces: `commands/ip_-json_-details_link`. Programs are not run on a copy. Symbolic links of a copy, absolute ones
/// and those with `..` included, are followed as on the machine that it was made of: none leads out of the folder.
///
/// **Invariant**: nothing that is asked here is waited for longer than its time, whatever state the kernel has it in. A
/// program that waits for a dead disk cannot be killed, and is left behind with a thread that ends with it.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
    live: bool,
    /// Time by which the last program of the run must have ended.
    until: Option<Instant>,
    /// Facts that were not gathered because there are more than the limits allow.
    notes: Arc<Mutex<Vec<String>>>,
}

impl Machine {
    /// This machine.
    pub fn this() -> Self {
        Self { root: PathBuf::from("/"), live: true, until: None, notes: Arc::default() }
    }

    /// A copy of a machine's files below `root`.
    pub fn copy(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), live: false, until: None, notes: Arc::default() }
    }

    /// The same machine for one run: with a deadline for all its programs together, and notes of its own.
    pub(crate) fn for_a_run(&self) -> Self {
        Self { until: Some(Instant::now() + RUN_TIME), notes: Arc::default(), ..self.clone() }
    }

    /// Remembers that a limit has left something out.
    pub(crate) fn note(&self, left_out: String) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() < NOTES_MAX && !notes.contains(&left_out) {
            notes.push(left_out);
        }
    }

    /// Facts that the limits have left out so far.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Time that a program or a question has now; `None`: the run's time is over.
    fn time_left(&self) -> Option<Duration> {
        let left = self.until.map_or(PROGRAM_TIME, |until| until.saturating_duration_since(Instant::now()));
        (!left.is_zero()).then(|| left.min(PROGRAM_TIME))
    }

    /// The answer to a question about a file or a folder, whose file system may not answer: not asked unless a process
    /// of its own has got an answer from there. A thread that waits in the kernel would keep this process from ending.
    pub(crate) fn answered_at<T: Send + 'static>(
        &self,
        path: &Path,
        ask: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        let what = path.display().to_string();
        let time = self.time_left().ok_or_else(|| not_reached(&what))?;
        if !answer(&[path], time) {
            return Err(unanswered(&what, time));
        }
        self.answered(&what, ask)
    }

    /// Those of these files whose file systems answer. One process asks for all of a folder: one for each of ten
    /// thousand files would take the time of the run. If one file of a folder does not answer, none does.
    pub(crate) fn that_answer<'a>(&self, files: &[&'a Path]) -> HashSet<&'a Path> {
        let mut folders = BTreeMap::<_, Vec<_>>::new();
        for file in files {
            folders.entry(file.parent()).or_default().push(*file);
        }
        let asked = folders.values().flat_map(|files| files.chunks(ASKED_AT_ONCE));
        let answering = asked.filter(|files| self.time_left().is_some_and(|time| answer(files, time)));
        answering.flatten().copied().collect()
    }

    /// The answer to a question that may wait for a disk, asked on a thread of its own.
    pub(crate) fn answered<T: Send + 'static>(
        &self,
        what: &str,
        ask: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        let time = self.time_left().ok_or_else(|| not_reached(what))?;
        let (sender, receiver) = mpsc::channel();
        let asking = thread::Builder::new().spawn(move || {
            let _ = sender.send(ask());
        });
        asking.map_err(|error| format!("{what} cannot be asked: {error}"))?;
        receiver.recv_timeout(time).map_err(|_| unanswered(what, time))
    }

    /// MTU of a port of this machine, bytes, in the network namespace of the thread; `None`: there is no such port.
    pub fn mtu(port: &str) -> Option<u32> {
        lunway_machine::Link::all().ok()?.into_iter().find(|link| link.name == port)?.mtu
    }

    /// Returns `true` if it is this machine, so that the kernel can be asked.
    pub(crate) fn is_live(&self) -> bool {
        self.live
    }

    /// Opens what is at a path, which may be written with its leading slash.
    fn open(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        // openat2(2) takes nothing with O_PATH that has no meaning there.
        let waits = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NONBLOCK };
        let flags = flags | waits | OFlags::CLOEXEC;
        if self.live {
            return Ok(rustix::fs::open(self.root.join(path.trim_start_matches('/')), flags, Mode::empty())?);
        }
        let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, &self.root, folder, Mode::empty())?;
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        Ok(rustix::fs::openat2(&root, path, flags, Mode::empty(), inside)?)
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.open(path, OFlags::PATH).is_ok()
    }

    /// Returns `true` if the name exists, even as a symbolic link that leads nowhere.
    pub(crate) fn has_entry(&self, path: &str) -> bool {
        self.open(path, OFlags::PATH | OFlags::NOFOLLOW).is_ok()
    }

    /// The permissions of a file.
    pub(crate) fn mode(&self, path: &str) -> Option<u32> {
        let stat = rustix::fs::fstat(self.open(path, OFlags::PATH).ok()?).ok()?;
        Some(stat.st_mode & 0o7777)
    }

    /// A file's text.
    pub(crate) fn text(&self, path: &str) -> Result<String, String> {
        let why = |error: io::Error| self.why(path, &error);
        let is_file = |opened: &OwnedFd| -> io::Result<bool> {
            Ok(FileType::from_raw_mode(rustix::fs::fstat(opened)?.st_mode).is_file())
        };
        // Looked at before it is opened: a pipe would keep the reader waiting, and a device may act when it is opened.
        let named = self.open(path, OFlags::PATH).map_err(why)?;
        if !is_file(&named).map_err(why)? {
            return Err(format!("{path} is no file"));
        }
        let opened = self.open(path, OFlags::RDONLY).map_err(why)?;
        if !is_file(&opened).map_err(why)? {
            return Err(format!("{path} is no file"));
        }
        let mut bytes = Vec::new();
        File::from(opened).take(FILE_MAX).read_to_end(&mut bytes).map_err(why)?;
        if bytes.len() as u64 == FILE_MAX {
            self.note(format!("of {path} only the first {} MiB were read", FILE_MAX >> 20));
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the reason why a file is not known.
    pub(crate) fn why(&self, path: &str, error: &io::Error) -> String {
        match error.kind() {
            io::ErrorKind::PermissionDenied => format!("reading {path} takes root"),
            io::ErrorKind::NotFound => format!("there is no {path}"),
            _ => format!("{path} cannot be read: {error}"),
        }
    }

    /// The first line of a file.
    pub(crate) fn line(&self, path: &str) -> Result<String, String> {
        let text = self.text(path)?;
        Ok(text.lines().next().unwrap_or_default().trim().to_owned())
    }

    /// A file that holds one number.
    pub(crate) fn number<T: std::str::FromStr>(&self, path: &str) -> Result<T, String> {
        let line = self.line(path)?;
        let shown: String = line.chars().take(40).collect();
        line.parse().map_err(|_| format!("{path} says {shown:?}, no number"))
    }

    /// Names in a folder, in order; none where it cannot be read.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        self.listed(path).unwrap_or_default()
    }

    /// Names in a folder, in order.
    pub(crate) fn listed(&self, path: &str) -> Result<Vec<String>, String> {
        let why = |error: io::Error| self.why(path, &error);
        let folder = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(why)?;
        let entries = Dir::new(folder).map_err(|error| why(error.into()))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().to_str().ok().map(str::to_owned));
        let names = names.filter(|name| name != "." && name != "..").take(ENTRIES_MAX + 1);
        let mut names: Vec<String> = names.collect();
        if names.len() > ENTRIES_MAX {
            names.pop();
            self.note(format!("of {path} only {ENTRIES_MAX} entries were looked at"));
        }
        names.sort();
        Ok(names)
    }

    /// Target of a symbolic link, as it is written.
    pub(crate) fn link(&self, path: &str) -> Option<PathBuf> {
        let link = self.open(path, OFlags::PATH | OFlags::NOFOLLOW).ok()?;
        let to = rustix::fs::readlinkat(link, "", Vec::new()).ok()?;
        Some(PathBuf::from(to.into_string().ok()?))
    }

    /// Returns the output of a program, or why it is not known: it is not installed, it takes root, it failed, it took
    /// too long.
    pub(crate) fn printed(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        if !self.live {
            let line: Vec<&str> = std::iter::once(program).chain(arguments.iter().copied()).collect();
            let path = format!("commands/{}", line.join("_").replace('/', "-"));
            return self.text(&path).map_err(|_| format!("the copy has no output of `{}`", line.join(" ")));
        }
        self.run(program, arguments)?.if_it_succeeded(program)
    }

    /// The same of a program whose exit code tells of what it found, not of a failure.
    pub(crate) fn printed_with_any_code(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        if !self.live {
            return self.printed(program, arguments);
        }
        let ended = self.run(program, arguments)?;
        if ended.printed.trim().is_empty() { ended.if_it_succeeded(program) } else { Ok(ended.printed) }
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<Ended, String> {
        let time = self.time_left().ok_or_else(|| not_reached(program))?;
        let ended = run(program, arguments, time)?;
        if ended.printed.len() as u64 >= PRINTED_MAX {
            self.note(format!("of what {program} prints only the first {} MiB were read", PRINTED_MAX >> 20));
        }
        Ok(ended)
    }
}

/// Returns `true` if a process gets an answer from the file systems of all these files within a time.
fn answer(files: &[&Path], time: Duration) -> bool {
    // statfs(2) is asked of the server, also by FUSE and NFS.
    let mut stat = Command::new(program_path("stat"));
    stat.args(["-f", "--"]).args(files);
    let stat = stat.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    // Without that program it is not known, and the question itself is asked.
    stat.map_or(true, |stat| wait(stat, Instant::now() + time).is_some())
}

/// Returns the reason why something was not asked at all.
fn not_reached(what: &str) -> String {
    format!("{what} was not asked: what was asked before it took all of the {} s", RUN_TIME.as_secs())
}

/// Returns the reason why a question has no answer.
fn unanswered(what: &str, time: Duration) -> String {
    format!("{what} did not answer within {:.1} s", time.as_secs_f64())
}

/// Result of a program that has ended.
struct Ended {
    success: bool,
    printed: String,
    errors: String,
}

impl Ended {
    fn if_it_succeeded(self, program: &str) -> Result<String, String> {
        if self.success {
            return Ok(self.printed);
        }
        let said = self.errors.lines().chain(self.printed.lines()).next().unwrap_or("it failed");
        let said: String = said.chars().filter(|c| !c.is_control()).take(120).collect();
        Err(if denied(&said) { format!("{program} takes root") } else { format!("{program}: {said}") })
    }
}

/// Returns `true` if a program reports that this user lacks the permission for what it was asked.
pub(crate) fn denied(said: &str) -> bool {
    ["ermission denied", "not permitted", "must be root"].into_iter().any(|word| said.contains(word))
}

/// Folders where programs for the administrator are, which an ordinary user's PATH often lacks.
const ADMIN_FOLDERS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

fn program_path(program: &str) -> PathBuf {
    let own = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&own).chain(ADMIN_FOLDERS.map(PathBuf::from));
    let mut found = folders.filter(|folder| folder.is_absolute()).map(|folder| folder.join(program));
    found.find(|path| path.is_file()).unwrap_or_else(|| Path::new(program).to_owned())
}

fn run(program: &str, arguments: &[&str], time: Duration) -> Result<Ended, String> {
    let mut command = Command::new(program_path(program));
    command
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("{program} is not installed"),
        _ => format!("{program} cannot be started: {error}"),
    })?;
    let (printed, errors) = (drain(child.stdout.take()), drain(child.stderr.take()));
    let deadline = Instant::now() + time;
    let Some(status) = wait(child, deadline) else {
        return Err(format!("{program} took longer than {:.1} s", time.as_secs_f64()));
    };
    // Something that the program has started may hold its output open.
    let last = deadline.max(Instant::now() + LOOK_EVERY);
    let take = |end: mpsc::Receiver<String>| {
        end.recv_timeout(last.saturating_duration_since(Instant::now())).unwrap_or_default()
    };
    let (printed, errors) = (take(printed), take(errors));
    Ok(Ended { success: status.success(), printed, errors })
}

/// Reads to the end on a thread of its own, within the limit.
fn drain(from: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    if let Some(mut from) = from {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = from.by_ref().take(PRINTED_MAX).read_to_end(&mut bytes);
            let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
            // A program that prints more is let finish.
            let _ = io::copy(&mut from, &mut io::sink());
        });
    }
    receiver
}

/// Waits for a program until the deadline; one that takes longer is killed. It is not waited for after that: in an
/// uninterruptible sleep, as for a disk that does not answer, it stays until the disk does. A thread takes it off the
/// list of processes then.
fn wait(mut child: Child, deadline: Instant) -> Option<std::process::ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => thread::sleep(LOOK_EVERY),
            _ => {
                let _ = child.kill();
                // Without a thread it stays on the list until this process ends.
                let _ = thread::Builder::new().spawn(move || child.wait());
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_program_that_is_missing_fails_or_hangs_costs_a_sentence_and_its_time() {
        let said = |program: &str, arguments: &[&str], time| {
            run(program, arguments, time).and_then(|ended| ended.if_it_succeeded(program))
        };
        let missing = said("no-such-program", &[], PROGRAM_TIME);
        assert_eq!(missing, Err("no-such-program is not installed".to_owned()));
        let began = Instant::now();
        let hung = said("sleep", &["60"], Duration::from_millis(50)).unwrap_or_else(|why| why);
        assert!(hung.contains("took longer") && began.elapsed() < Duration::from_secs(10), "{hung}");
        let failed = said("sh", &["-c", "echo Permission denied >&2; exit 1"], PROGRAM_TIME);
        assert_eq!(failed, Err("sh takes root".to_owned()));
        assert_eq!(said("sh", &["-c", "echo a"], PROGRAM_TIME).as_deref(), Ok("a\n"));
        // smartctl of a disk that fails ends with 8, and says so on its standard output.
        let any = Machine::this().printed_with_any_code("sh", &["-c", "echo '{}'; exit 8"]);
        assert_eq!(any.as_deref(), Ok("{}\n"));
    }

    #[test]
    fn a_program_that_cannot_be_killed_is_left_behind() {
        // A process whose tracer does not take notice of its end is not over for its parent either, as one that waits
        // for a dead disk is not: killed, and still there.
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let marker = folder.path().join("traced");
        let tracer = "import ctypes, os, sys, time\n\
            seized = ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), 0, 0) == 0\n\
            open(sys.argv[2] + '.new', 'w').write(f'{os.getpid()} {seized}')\n\
            os.rename(sys.argv[2] + '.new', sys.argv[2])\n\
            time.sleep(60)\n";
        let script = format!(
            "python3 -c \"$1\" $$ '{0}' & while ! [ -e '{0}' ]; do sleep 0.05; done; while :; do sleep 1; done",
            marker.display()
        );
        let began = Instant::now();
        let left = run("sh", &["-c", &script, "sh", tracer], Duration::from_secs(5));
        let took = began.elapsed();
        let said = fs::read_to_string(&marker).unwrap_or_default();
        let (tracer, seized) = said.split_once(' ').unwrap_or_default();
        if let Some(tracer) = tracer.parse().ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(tracer, rustix::process::Signal::KILL);
        }
        if seized != "True" {
            return lunway_foreign::not_run("python3, or a kernel that allows it to trace a process");
        }
        assert!(left.is_err_and(|why| why.contains("took longer than 5.0 s")));
        assert!(took < Duration::from_secs(40), "{took:?}");
    }

    #[test]
    fn all_programs_of_a_run_have_one_deadline_and_what_it_cuts_off_says_so() {
        let mut machine = Machine::this().for_a_run();
        machine.until = Some(Instant::now() + Duration::from_millis(300));
        let first = machine.printed("sleep", &["60"]).unwrap_err();
        assert!(first.contains("sleep took longer than 0."), "{first}");
        let second = machine.printed("true", &[]).unwrap_err();
        assert!(
            second.contains("true was not asked: what was asked before it took all of the 4 s"),
            "{second}"
        );
        let asked = machine.answered("/mnt", || 7);
        assert!(asked.as_ref().is_err_and(|why| why.contains("/mnt was not asked")), "{asked:?}");
        machine.until = Some(Instant::now() + Duration::from_millis(300));
        let slow = machine.answered("/mnt", || thread::sleep(Duration::from_secs(60))).unwrap_err();
        assert!(slow.contains("/mnt did not answer within 0."), "{slow}");
        let [here, there] = [Path::new("/proc/self/stat"), Path::new("/gone")];
        assert!(machine.that_answer(&[here, there]).is_empty(), "the time is over");
        assert_eq!(Machine::this().that_answer(&[here, there]).len(), 2);
        assert_eq!(Machine::this().answered("/mnt", || 7), Ok(7));
    }

    #[test]
    fn what_a_limit_leaves_out_is_noted_once() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        for name in 0..=ENTRIES_MAX {
            assert!(fs::write(folder.path().join(name.to_string()), "").is_ok());
        }
        let machine = Machine::copy(folder.path()).for_a_run();
        assert_eq!(machine.names("/").len(), ENTRIES_MAX);
        machine.names("/");
        assert_eq!(machine.notes(), ["of / only 4096 entries were looked at"]);
        assert!(machine.for_a_run().notes().is_empty());
    }

    #[test]
    fn links_of_a_copy_are_followed_within_it_and_never_out_of_it() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let (copy, beside) = (folder.path().join("copy"), folder.path().join("beside"));
        let made =
            fs::create_dir_all(copy.join("etc")).and_then(|()| fs::create_dir_all(copy.join("sys/own")));
        assert!(made.is_ok() && fs::create_dir(&beside).is_ok());
        for (path, text) in [(beside.join("secret"), "outside"), (copy.join("sys/own/here"), "inside")] {
            assert!(fs::write(path, text).is_ok());
        }
        for (link, to) in [
            ("etc/out", beside.join("secret")),
            ("etc/up", PathBuf::from("../../beside/secret")),
            ("etc/folder", beside.clone()),
            ("etc/in", PathBuf::from("/sys/own/here")),
            ("etc/near", PathBuf::from("../sys/own")),
            ("etc/round", PathBuf::from("round")),
        ] {
            assert!(symlink(to, copy.join(link)).is_ok(), "{link}");
        }
        let machine = Machine::copy(&copy);
        for out in ["etc/out", "/etc/up", "etc/folder/secret", "../beside/secret", "etc/round"] {
            assert!(
                machine.text(out).is_err() && !machine.exists(out) && machine.mode(out).is_none(),
                "{out}"
            );
        }
        assert!(machine.listed("etc/folder").is_err() && machine.has_entry("etc/folder"));
        assert_eq!(machine.text("/etc/in").as_deref(), Ok("inside"), "as on the machine itself");
        assert_eq!(machine.names("etc/near"), ["here"]);
        assert_eq!(machine.link("etc/near"), Some(PathBuf::from("../sys/own")));
        assert_eq!(machine.link("sys/own/here"), None);
    }

    #[test]
    fn files_that_are_pipes_endless_or_no_numbers_are_told_not_read() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let machine = Machine::copy(folder.path());
        let put = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes);
        put("odd", &[0xff; 3 << 20]).unwrap_or_default();
        assert!(machine.number::<u32>("odd").is_err_and(|why| why.len() < 200));
        let _ = Command::new("mkfifo").arg(folder.path().join("pipe")).status();
        assert!(machine.text("pipe").is_err());
        assert_eq!(machine.text("none"), Err("there is no none".to_owned()));
        assert!(machine.text(".").is_err_and(|why| why.contains("no file")));
    }
}
