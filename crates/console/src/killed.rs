//! Processes that were killed and have not ended, because a thread of theirs waits for a disk that does not answer.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Threads of a process that are looked at: more than a daemon has for its cores and devices.
const THREADS_MAX: usize = 4096;
/// `PF_EXITING` of the flags in `/proc/PID/stat` (proc_pid_stat(5), include/linux/sched.h).
const EXITING: u64 = 0x4;
/// SIGKILL in the masks of `/proc/PID/status`: bit 0 is signal 1 (proc_pid_status(5)).
const SIGKILL: u64 = 1 << 8;

/// Time that a process takes to end after a kill where no disk keeps it: the kernel frees gigabytes in less.
pub(crate) const ENDING_TIME: Duration = Duration::from_millis(500);

/// A process that was killed and cannot end: the kernel keeps a thread that waits for a disk (state D) until the disk
/// has answered, and with it the process's sockets, locks and open files. Nothing answers on them any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KilledProcess {
    /// Its process.
    pub pid: u32,
    /// The file or device that a thread of it waits for; `None`: it cannot be told.
    pub waits_for: Option<PathBuf>,
}

impl KilledProcess {
    /// The process, if it was killed and has not ended.
    pub fn find(pid: u32) -> Option<Self> {
        Self::find_in(Path::new("/proc"), pid)
    }

    fn find_in(proc: &Path, pid: u32) -> Option<Self> {
        let threads = fs::read_dir(proc.join(pid.to_string()).join("task")).ok()?;
        let threads: Vec<_> = threads.flatten().take(THREADS_MAX).map(|thread| thread.path()).collect();
        if !threads.iter().any(|thread| is_killed(thread)) {
            return None;
        }
        Some(Self { pid, waits_for: threads.iter().find_map(|thread| file_waited_for(thread)) })
    }
}

impl fmt::Display for KilledProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} was killed and waits for ", self.pid)?;
        match &self.waits_for {
            Some(file) => file.display().fmt(f),
            None => f.write_str("a disk that does not answer"),
        }
    }
}

/// State, then parent, group, session, terminal, its group, and flags: what follows the name, which may hold anything.
fn stat(thread: &Path) -> Option<(String, u64)> {
    let stat = fs::read_to_string(thread.join("stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Some(((*fields.first()?).to_owned(), fields.get(6)?.parse().ok()?))
}

/// Returns `true` if a thread is at its end, or has the signal for it.
fn is_killed(thread: &Path) -> bool {
    if stat(thread).is_some_and(|(_, flags)| flags & EXITING != 0) {
        return true;
    }
    let status = fs::read_to_string(thread.join("status")).unwrap_or_default();
    let masks = status
        .lines()
        .filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")));
    masks.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok()).any(|mask| mask & SIGKILL != 0)
}

/// The file of the system call that a thread in state D is in. Calls that read, write, flush and allocate have the
/// descriptor as their first argument.
fn file_waited_for(thread: &Path) -> Option<PathBuf> {
    if stat(thread)?.0 != "D" {
        return None;
    }
    let call = fs::read_to_string(thread.join("syscall")).ok()?;
    let descriptor = call.split_whitespace().nth(1)?.strip_prefix("0x")?;
    let descriptor = u64::from_str_radix(descriptor, 16).ok()?;
    let file = fs::read_link(thread.join("fd").join(descriptor.to_string())).ok()?;
    file.is_absolute().then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A `/proc` with one process of two threads.
    fn proc(first: (&str, u64, &str), second: (&str, u64, &str)) -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        for (number, (state, flags, pending)) in [(7, first), (8, second)] {
            let thread = proc.path().join(format!("7/task/{number}"));
            fs::create_dir_all(thread.join("fd")).unwrap();
            fs::write(thread.join("stat"), format!("{number} (a) b) {state} 1 7 7 0 -1 {flags} 0 0\n"))
                .unwrap();
            let status = format!("Name:\ta\nSigPnd:\t{pending}\nShdPnd:\t0000000000000000\n");
            fs::write(thread.join("status"), status).unwrap();
            fs::write(thread.join("syscall"), "17 0x9 0x7f00 0x1000 0x0 0x0 0x0 0x7ffd 0x7f01\n").unwrap();
            std::os::unix::fs::symlink("/mnt/disk.img", thread.join("fd/9")).unwrap();
        }
        proc
    }

    #[test]
    fn a_killed_process_is_told_from_one_that_runs_or_waits() {
        const NONE: &str = "0000000000000000";
        let found = |first, second| KilledProcess::find_in(proc(first, second).path(), 7);
        let running = ("S", 0x40_0040, NONE);
        assert_eq!(found(running, running), None);
        assert_eq!(found(running, ("D", 0x40_0040, NONE)), None, "it waits, and goes on after that");
        let waits = |file: Option<&str>| Some(KilledProcess { pid: 7, waits_for: file.map(PathBuf::from) });
        let disk = Some("/mnt/disk.img");
        assert_eq!(found(("Z", 0x40_0044, NONE), ("D", 0x40_0040, "0000000000000100")), waits(disk));
        assert_eq!(found(("D", 0x40_0040, "0000000000000100"), running), waits(disk));
        assert_eq!(found(("Z", 0x40_0044, NONE), running), waits(None));
        assert_eq!(KilledProcess::find_in(Path::new("/nonexistent"), 7), None);
        assert_eq!(KilledProcess::find(std::process::id()), None);
        let said = waits(disk).unwrap().to_string();
        assert_eq!(said, "process 7 was killed and waits for /mnt/disk.img");
    }
}
