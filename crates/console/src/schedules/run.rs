//! One run: its processes, its result, and the command that follows.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use lunway_block::size::HumanSize;
use lunway_schedule::Cause;
use lunway_target::BackupConfig;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde::Deserialize;

use super::{BackupCommands, RunPoint, RunResult};

/// Bytes of output that are looked at: a result has less than one KiB, and an error is a line.
const OUTPUT_MAX: usize = 64 << 10;
/// Longest sentence that is kept of an error, bytes: as much as a path of the kernel has.
const ERROR_MAX: usize = 4096;
/// Sentences that are kept of a run: more than any tells.
const NOTES_MAX: usize = 16;
/// Time that a command after a run has. One that hangs would keep the next run from beginning.
const HOOK_TIME: Duration = Duration::from_secs(300);
/// Interval at which it is looked whether it has ended.
const HOOK_POLL: Duration = Duration::from_millis(50);
/// Time that such a command and what it has begun have to end by themselves when the daemon ends: less than half of
/// [`STOP_TIME`](super::STOP_TIME), so that the daemon waits for their end.
const HOOK_END_TIME: Duration = Duration::from_secs(2);
/// Bytes that such a command may write to the daemon's stderr, which is a log as a rule: a thousand lines. More is
/// counted.
const HOOK_SAID_MAX: usize = 64 << 10;
/// Time in which what such a command wrote before its end is read. What it has left behind may write for ever.
const HOOK_SAID_TIME: Duration = Duration::from_secs(1);
/// What commands print before what has failed.
const ERROR_MARK: &str = "lunway: ";

/// Processes of runs under way, by the names of their schedules. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Processes(Arc<Mutex<Under>>);

#[derive(Default)]
struct Under {
    running: BTreeMap<String, Process>,
    is_ending: bool,
}

/// A process of a run, which leads a group.
#[derive(Clone, Copy)]
struct Process {
    pid: Pid,
    kind: Kind,
}

/// What a process of a run is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A command of this program, which ends what it has begun.
    Own,
    /// A shell, which ends alone.
    Hook,
}

impl Processes {
    fn under(&self) -> MutexGuard<'_, Under> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks all of them to end, and lets no other begin.
    pub(super) fn end(&self) {
        let mut under = self.under();
        under.is_ending = true;
        for process in under.running.values() {
            // It may have ended, and is not waited for before this is unlocked.
            let _ = match process.kind {
                Kind::Own => kill_process(process.pid, Signal::TERM),
                Kind::Hook => kill_process_group(process.pid, Signal::TERM),
            };
        }
    }

    /// They were asked to end.
    pub(super) fn are_ending(&self) -> bool {
        self.under().is_ending
    }

    fn spawn(&self, name: &str, kind: Kind, command: &mut Command) -> io::Result<Child> {
        let mut under = self.under();
        if under.is_ending {
            return Err(io::Error::other("the daemon ends"));
        }
        // Ctrl-C in the daemon's terminal is for the daemon.
        let child = command.stdin(Stdio::null()).process_group(0).spawn()?;
        if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            under.running.insert(name.to_owned(), Process { pid, kind });
        }
        Ok(child)
    }

    /// Reaps a process. Its number is taken off the list first, so that no other process is ever signalled.
    fn reap(&self, name: &str, child: &mut Child) -> io::Result<std::process::ExitStatus> {
        // Waits without reaping.
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let options = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
            let _ = rustix::io::retry_on_intr(|| {
                rustix::process::waitid(rustix::process::WaitId::Pid(pid), options)
            });
        }
        self.under().running.remove(name);
        child.wait()
    }
}

/// Makes a point, unless an earlier attempt has `made` that of this due time, and removes those that are not kept.
/// `tell` hears of a new point at once.
pub(super) fn run(
    config: &BackupConfig,
    commands: BackupCommands,
    made: Option<RunPoint>,
    processes: &Processes,
    tell: impl FnOnce(&RunPoint),
) -> RunResult {
    let mut result = RunResult { point: made, ..RunResult::default() };
    let begun = Instant::now();
    if result.point.is_none() {
        match output(&config.name, commands.run, processes) {
            Ok(Output { printed, mut told }) => match serde_json::from_str::<Printed>(&printed) {
                Ok(Printed { point, notes }) => {
                    tell(&point);
                    told.extend(notes);
                    (result.point, result.notes) = (Some(point), told);
                }
                Err(error) => result.error = Some(format!("the result of the run cannot be read: {error}")),
            },
            Err(error) => result.error = Some(error),
        }
    }
    if let (Some(prune), None) = (commands.prune, &result.error) {
        match output(&config.name, prune, processes) {
            Ok(Output { told, .. }) => result.notes.extend(told),
            Err(error) => {
                result.error = Some(format!("the point was made, and old ones were not removed: {error}"));
            }
        }
    }
    let mut heard = HashSet::new();
    result.notes.retain(|note| heard.insert(note.clone()));
    result.notes.truncate(NOTES_MAX);
    for note in &mut result.notes {
        cut(note);
        tracing::warn!(backup = config.name, "{note}");
    }
    result.took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    result
}

/// What a command that has succeeded printed, and its sentences beside that.
struct Output {
    printed: String,
    told: Vec<String>,
}

/// Result of a run, as its command prints it.
#[derive(Deserialize)]
struct Printed {
    #[serde(flatten)]
    point: RunPoint,
    #[serde(default)]
    notes: Vec<String>,
}

/// Runs a command to its end.
///
/// # Errors
///
/// What it says has failed, in a line.
fn output(name: &str, mut command: Command, processes: &Processes) -> Result<Output, String> {
    let cannot = |error: io::Error| format!("the command cannot be run: {error}");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = processes.spawn(name, Kind::Own, &mut command).map_err(cannot)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let errors = thread::Builder::new().spawn(move || stderr.map(last_bytes).unwrap_or_default());
    let printed = stdout.map(last_bytes).unwrap_or_default();
    let status = processes.reap(name, &mut child).map_err(cannot)?;
    let said = errors.map(|errors| errors.join().unwrap_or_default()).unwrap_or_default();
    match status.success() {
        true => Ok(Output { printed, told: sentences(&said).map(str::to_owned).collect() }),
        false => Err(failure(&said).unwrap_or_else(|| format!("the command ended with {status}"))),
    }
}

/// The end of what a stream has, which is read to its end.
fn last_bytes(mut stream: impl Read) -> String {
    let (mut kept, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => kept.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
        if kept.len() > 2 * OUTPUT_MAX {
            kept.drain(..kept.len() - OUTPUT_MAX);
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// The sentence of an error among what a command said: its own, else its last line.
fn failure(said: &str) -> Option<String> {
    let mut lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut sentence = sentences(said).next_back().or_else(|| lines.next_back())?.to_owned();
    cut(&mut sentence);
    Some(sentence)
}

/// The sentences of this program among what a command said.
fn sentences(said: &str) -> impl DoubleEndedIterator<Item = &str> {
    said.lines().filter_map(|line| line.trim().strip_prefix(ERROR_MARK))
}

fn cut(sentence: &mut String) {
    if sentence.len() > ERROR_MAX {
        let end = (0..=ERROR_MAX).rev().find(|end| sentence.is_char_boundary(*end)).unwrap_or(0);
        sentence.truncate(end);
    }
}

/// Runs the command that is configured for this result: after each attempt, of which so many follow if it has failed.
pub(super) fn tell(config: &BackupConfig, result: &RunResult, retries_left: u32, processes: &Processes) {
    let (which, hook) = match result.error {
        None => ("on_success", &config.on_success),
        Some(_) => ("on_failure", &config.on_failure),
    };
    let Some(hook) = hook else { return };
    let mut command = Command::new("sh");
    command.args(["-c", hook]).stdout(Stdio::null()).envs(facts(config, result, retries_left));
    let said = Said::of(HOOK_SAID_MAX);
    if let Err(why) = in_time(&config.name, &mut command, &said, processes) {
        tracing::warn!(backup = config.name, "its {which} command {why}");
    }
    let left_out = said.left_out.load(Ordering::Relaxed);
    if left_out > 0 {
        let passed_on = HumanSize(HOOK_SAID_MAX as u64);
        let left_out = HumanSize(left_out);
        tracing::warn!(
            backup = config.name,
            "its {which} command wrote much to stderr: after {passed_on}, {left_out} were left out"
        );
    }
}

/// What a command after a run has written to stderr. Clones are the same.
#[derive(Clone)]
struct Said {
    /// Bytes that are passed on.
    limit: usize,
    /// Bytes that were not passed on.
    left_out: Arc<AtomicU64>,
}

impl Said {
    fn of(limit: usize) -> Self {
        Self { limit, left_out: Arc::default() }
    }

    /// Passes the first bytes on, and counts the others, until nothing can be written any more.
    fn pass_on(&self, mut from: impl Read, mut to: impl Write) {
        let (mut left, mut piece) = (self.limit, [0; 4096]);
        loop {
            let count = match from.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            let passed_on = count.min(left);
            // The daemon goes on without a place to write to.
            let _ = to.write_all(&piece[..passed_on]);
            left -= passed_on;
            self.left_out.fetch_add((count - passed_on) as u64, Ordering::Relaxed);
        }
    }
}

/// Environment of a command after a run.
fn facts(config: &BackupConfig, result: &RunResult, retries_left: u32) -> Vec<(&'static str, String)> {
    let point = result.point.clone().unwrap_or_default();
    let retries_left = if result.error.is_some() { retries_left } else { 0 };
    vec![
        ("LUNWAY_BACKUP_NAME", config.name.clone()),
        ("LUNWAY_BACKUP_SOURCE", config.source.to_string()),
        ("LUNWAY_BACKUP_DESTINATION", config.destination.display().to_string()),
        ("LUNWAY_BACKUP_RESULT", if result.error.is_none() { "succeeded" } else { "failed" }.to_owned()),
        ("LUNWAY_BACKUP_ERROR", result.error.clone().unwrap_or_default()),
        ("LUNWAY_BACKUP_CAUSE", result.cause.map_or("", Cause::name).to_owned()),
        ("LUNWAY_BACKUP_NOTES", result.notes.join("\n")),
        ("LUNWAY_BACKUP_ATTEMPT", result.attempt.to_string()),
        ("LUNWAY_BACKUP_RETRIES_LEFT", retries_left.to_string()),
        ("LUNWAY_BACKUP_SECONDS", (result.took_ms / 1000).to_string()),
        ("LUNWAY_BACKUP_POINT", point.point),
        ("LUNWAY_BACKUP_KIND", point.kind),
        ("LUNWAY_BACKUP_CHANGED_BYTES", point.changed_bytes.to_string()),
        ("LUNWAY_BACKUP_SENT_BYTES", point.sent_bytes.to_string()),
        ("LUNWAY_BACKUP_STORED_BYTES", point.stored_bytes.to_string()),
    ]
}

/// Runs a command to its end, or ends it and what it has begun: when its time has passed, or with the daemon.
fn in_time(name: &str, command: &mut Command, said: &Said, processes: &Processes) -> Result<(), String> {
    let cannot = |error: io::Error| format!("cannot be run: {error}");
    let mut child = processes.spawn(name, Kind::Hook, command.stderr(Stdio::piped())).map_err(cannot)?;
    let (at_end, all_said) = mpsc::channel();
    if let Some(stderr) = child.stderr.take() {
        let said = said.clone();
        // Without a thread the command is told with its next line that nothing reads it.
        let _ = thread::Builder::new().name("lunway-hook".to_owned()).spawn(move || {
            said.pass_on(stderr, io::stderr());
            // The other end may not have waited for it.
            let _ = at_end.send(());
        });
    }
    let begun = Instant::now();
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let has_ended = |pid| {
        let options = rustix::process::WaitIdOptions::EXITED
            | rustix::process::WaitIdOptions::NOWAIT
            | rustix::process::WaitIdOptions::NOHANG;
        !matches!(rustix::process::waitid(rustix::process::WaitId::Pid(pid), options), Ok(None))
    };
    let is_running = || pid.is_some_and(|pid| !has_ended(pid));
    while is_running() && begun.elapsed() < HOOK_TIME && !processes.are_ending() {
        thread::sleep(HOOK_POLL);
    }
    // What it has begun has the signal as well, and may need longer.
    let is_ending = processes.are_ending();
    if is_ending {
        thread::sleep(HOOK_END_TIME);
    }
    let is_late = !is_ending && is_running();
    if let Some(pid) = pid.filter(|_| is_late || is_ending) {
        let _ = kill_process_group(pid, Signal::KILL);
    }
    let status = processes.reap(name, &mut child).map_err(|error| error.to_string())?;
    let _ = all_said.recv_timeout(HOOK_SAID_TIME);
    match status.success() {
        _ if is_late => Err(format!("was killed after {} s", HOOK_TIME.as_secs())),
        true => Ok(()),
        false if is_ending => Err("was ended with the daemon".to_owned()),
        false => Err(format!("ended with {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(hooks: &str) -> BackupConfig {
        let text = format!(
            "name = \"db\"\nsource = \"iqn.2026-11.com.example:a/3\"\ndestination = \"/x\"\nevery = \"1h\"\n{hooks}"
        );
        toml::from_str(&text).unwrap()
    }

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    const POINT: &str = r#"{"point":"p1","kind":"full","why":"w","changed_bytes":1,"read_bytes":2,"sent_bytes":3,
        "stored_bytes":4,"notes":[]}"#;

    #[test]
    fn a_run_is_what_its_command_printed_or_what_it_said_has_failed() {
        let processes = Processes::default();
        let made = |run: &str, prune: Option<&str>| run_commands(&processes, sh(run), prune.map(sh));
        let good = format!("echo warning >&2; echo '{POINT}'");
        let done = made(&good, Some("true"));
        assert_eq!((done.error.as_deref(), done.point.as_ref().unwrap().sent_bytes), (None, 3));
        assert!(done.notes.is_empty(), "not this program's: {:?}", done.notes);
        let told =
            format!("echo 'lunway: not kept' >&2; echo '{}'", POINT.replace("[]", r#"["two are gone"]"#));
        let done = made(&told, Some("echo 'lunway: not kept' >&2; echo 'lunway: a pack' >&2"));
        assert_eq!(done.notes, ["not kept", "two are gone", "a pack"]);
        let many = "for each in $(seq 100); do echo lunway: $each >&2; done; echo '{}'".replace("{}", POINT);
        assert_eq!(made(&many, None).notes.len(), NOTES_MAX);
        let done = made(&good, Some("echo 'lunway: no room' >&2; exit 1"));
        let error = done.error.unwrap();
        assert!(error.contains("old ones were not removed: no room"), "{error}");
        assert!(done.point.is_some());
        let done =
            made("echo 'lunway: it is gone' >&2; echo 'help: x' >&2; exit 1", Some("touch /never/made"));
        assert_eq!((done.error.as_deref(), done.point), (Some("it is gone"), None));
        assert_eq!(made("echo only this >&2; exit 3", None).error.as_deref(), Some("only this"));
        assert!(made("exit 3", None).error.unwrap().contains("exit status: 3"));
        assert!(made("echo '{}'", None).error.unwrap().contains("cannot be read"));
        let error = made("head -c 300000 /dev/zero | tr '\\0' x >&2; exit 1", None).error.unwrap();
        assert_eq!(error.len(), ERROR_MAX);
    }

    fn run_commands(processes: &Processes, run: Command, prune: Option<Command>) -> RunResult {
        super::run(&config(""), BackupCommands { run, prune }, None, processes, |_| {})
    }

    #[test]
    fn a_run_whose_point_was_made_only_prunes() {
        let told = std::cell::Cell::new(0);
        let run = |made: Option<RunPoint>, prune: &str| {
            let commands = BackupCommands { run: sh(&format!("echo '{POINT}'")), prune: Some(sh(prune)) };
            let tell = |_: &RunPoint| told.set(told.get() + 1);
            super::run(&config(""), commands, made, &Processes::default(), tell)
        };
        let first = run(None, "echo 'lunway: no room' >&2; exit 1");
        assert!(first.error.is_some());
        let point = RunPoint { why: "of the first".to_owned(), ..first.point.unwrap() };
        let again = run(Some(point.clone()), "true");
        assert_eq!((again.error, again.point, told.get()), (None, Some(point), 1));
    }

    #[test]
    fn the_command_after_a_run_has_its_facts_in_the_environment() {
        let folder = tempfile::tempdir().unwrap();
        let said = folder.path().join("said");
        let hook = |name: &str| {
            let facts = "$LUNWAY_BACKUP_NAME $LUNWAY_BACKUP_SOURCE $LUNWAY_BACKUP_RESULT $LUNWAY_BACKUP_POINT \
                         $LUNWAY_BACKUP_SENT_BYTES $LUNWAY_BACKUP_ATTEMPT $LUNWAY_BACKUP_RETRIES_LEFT \
                         $LUNWAY_BACKUP_ERROR";
            format!("{name} = 'echo \"{facts}\" >> {}'\n", said.display())
        };
        let config = config(&[hook("on_success"), hook("on_failure")].concat());
        let point = serde_json::from_str(POINT).unwrap();
        let good = RunResult { point: Some(point), attempt: 2, ..RunResult::default() };
        tell(&config, &good, 2, &Processes::default());
        let bad = RunResult { error: Some("no; $(room)".to_owned()), attempt: 3, ..RunResult::default() };
        tell(&config, &bad, 1, &Processes::default());
        let lun = "iqn.2026-11.com.example:a/3";
        assert_eq!(
            std::fs::read_to_string(said).unwrap(),
            format!("db {lun} succeeded p1 3 2 0 \ndb {lun} failed  0 3 1 no; $(room)\n")
        );
    }

    #[test]
    fn the_end_of_the_daemon_ends_runs_under_way_and_begins_none() {
        let processes = Processes::default();
        let running = processes.clone();
        let run = thread::spawn(move || run_commands(&running, sh("exec sleep 60"), None));
        while processes.under().running.is_empty() {
            thread::sleep(HOOK_POLL);
        }
        let begun = Instant::now();
        processes.end();
        assert!(run.join().unwrap().error.unwrap().contains("signal: 15"));
        assert!(begun.elapsed() < Duration::from_secs(30));
        assert!(run_commands(&processes, sh("true"), None).error.unwrap().contains("the daemon ends"));
    }

    #[test]
    fn the_end_of_the_daemon_ends_a_command_after_a_run_with_all_that_it_has_begun() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        // One of them ends by itself. The other does not hear the signal, and holds the pipe for as long as it lives.
        let hears = format!("trap 'touch {}; exit' TERM; touch {}", path("heard"), path("hears"));
        let deaf = format!("exec > {}; trap '' TERM; touch {}", path("pipe"), path("deaf"));
        let hook = format!("({hears}; while :; do sleep 0.05; done) & ({deaf}; sleep 600); true");
        assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        let alive = thread::spawn({
            let pipe = path("pipe");
            move || last_bytes(std::fs::File::open(pipe).unwrap())
        });
        let config = config(&format!("on_success = \"\"\"{hook}\"\"\""));
        let processes = Processes::default();
        let running = processes.clone();
        let told = thread::spawn(move || tell(&config, &RunResult::default(), 0, &running));
        let is_there = |name: &str| std::fs::exists(path(name)).unwrap();
        while !(is_there("deaf") && is_there("hears")) {
            thread::sleep(HOOK_POLL);
        }
        assert!(!alive.is_finished());
        processes.end();
        told.join().unwrap();
        assert!(is_there("heard"), "it had time to end");
        alive.join().unwrap();
    }

    #[test]
    fn a_command_after_a_run_writes_so_much_to_the_log_and_no_more() {
        let said = Said::of(HOOK_SAID_MAX);
        let mut log = Vec::new();
        said.pass_on(io::repeat(b'x').take(3 << 20), &mut log);
        assert_eq!(log.len(), HOOK_SAID_MAX);
        assert_eq!(said.left_out.load(Ordering::Relaxed), (3 << 20) - HOOK_SAID_MAX as u64);
        // All of it is read when the command has ended, and what it leaves behind does not hold it up.
        let said = Said::of(0);
        let mut command = sh("sleep 600 & echo $!; head -c 200000 /dev/zero >&2");
        let (mut left, stdout) = io::pipe().unwrap();
        in_time("db", command.stdout(stdout), &said, &Processes::default()).unwrap();
        assert_eq!(said.left_out.load(Ordering::Relaxed), 200_000);
        let mut line = [0; 16];
        let count = left.read(&mut line).unwrap();
        let pid = std::str::from_utf8(&line[..count]).unwrap().trim().parse().unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    }
}
