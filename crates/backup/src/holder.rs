//! The holder of a lease: a process, and whether it has certainly ended.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, process};

use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

/// Holder of a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// This machine since its last start: the kernel's boot id. Locks are believed among processes of one machine.
    pub machine: String,
    /// The machine through all of its starts; empty where it is not known. Copies of a virtual machine may share it, so
    /// that it counts together with the name.
    #[serde(default)]
    pub lasting: String,
    /// Host name.
    pub host: String,
    /// The process.
    pub process: u32,
    /// Moment when the process started, in the kernel's ticks since its own start: numbers of processes are used again.
    /// 0: not known.
    #[serde(default)]
    pub started: u64,
    /// The kernel's names of the PID and time namespaces in which `process` and `started` are right; empty where they
    /// are not known.
    #[serde(default)]
    pub namespaces: String,
    /// Number of the mount through which it writes, where [locks are its own](crate::Folder::mount_of_locks).
    #[serde(default)]
    pub mount: Option<u64>,
    /// Random, another one for each taking.
    pub nonce: u64,
}

impl Holder {
    /// This process, with a random number.
    pub fn this_process(nonce: u64) -> Self {
        let read =
            |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
        Self {
            machine: read("/proc/sys/kernel/random/boot_id"),
            lasting: read("/etc/machine-id"),
            host: read("/proc/sys/kernel/hostname"),
            process: process::id(),
            started: started(process::id()).unwrap_or(0),
            namespaces: namespaces().unwrap_or_default(),
            mount: None,
            nonce,
        }
    }

    /// Returns `true` if the machine of `us` took this lease and has restarted since.
    pub(crate) fn has_ended_with_its_machine(&self, us: &Self) -> bool {
        let same = (&self.lasting, &self.host) == (&us.lasting, &us.host) && !us.lasting.is_empty();
        same && self.machine != us.machine
    }

    /// Returns `true` if this is a process of the machine and the namespaces of `us`, and is there no more, or holds it
    /// no longer. `false` where that is not certain.
    pub(crate) fn has_ended_here(&self, us: &Self) -> bool {
        let is_here = !self.namespaces.is_empty()
            && (&self.machine, &self.namespaces) == (&us.machine, &us.namespaces)
            && self.started != 0;
        if !is_here {
            return false;
        }
        if (self.process, self.started) == (us.process, us.started) {
            return !alive().contains_key(&self.nonce);
        }
        let pid = i32::try_from(self.process).ok().and_then(Pid::from_raw);
        // One that may not be asked is there; /proc may hide it.
        let is_gone = pid.is_some_and(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH));
        is_gone || started(self.process).is_some_and(|started| started != self.started)
    }
}

/// Start of a process: field 22 of proc_pid_stat(5). Field 2, a name in brackets, may have any characters.
fn started(process: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{process}/stat")).ok()?;
    let behind = &stat[stat.iter().rposition(|byte| *byte == b')')? + 1..];
    // The next field is the third.
    std::str::from_utf8(behind).ok()?.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// `None` also where /proc shows another namespace's processes.
fn namespaces() -> Option<String> {
    let read = |path: &str| Some(fs::read_link(path).ok()?.to_str()?.to_owned());
    if read("/proc/self")? != process::id().to_string() {
        return None;
    }
    // Kernels before 5.6 have one time for all.
    Some([read("/proc/self/ns/pid")?, read("/proc/self/ns/time").unwrap_or_default()].concat())
}

/// How often this process holds something, by nonce.
fn alive() -> MutexGuard<'static, BTreeMap<u64, usize>> {
    static ALIVE: Mutex<BTreeMap<u64, usize>> = Mutex::new(BTreeMap::new());
    ALIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says that this process holds something as this holder, until it is dropped.
pub(crate) struct Alive(u64);

impl Alive {
    pub(crate) fn new(holder: &Holder) -> Self {
        *alive().entry(holder.nonce).or_default() += 1;
        Self(holder.nonce)
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        let mut alive = alive();
        if let Some(times) = alive.get_mut(&self.0) {
            *times -= 1;
            if *times == 0 {
                alive.remove(&self.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_version_without_the_newer_fields_has_written_is_read() {
        let holder: Holder =
            serde_json::from_str(r#"{"machine":"m","host":"h","process":1,"nonce":2}"#).unwrap();
        assert_eq!((&*holder.lasting, &*holder.namespaces, holder.started), ("", "", 0));
        assert!(!holder.has_ended_here(&Holder::this_process(3)));
    }

    #[test]
    fn a_process_has_ended_when_it_is_gone_or_its_number_is_anothers() {
        let us = Holder::this_process(1);
        assert!(us.started > 0 && !us.namespaces.is_empty());
        let init = Holder { process: 1, started: started(1).unwrap(), ..Holder::this_process(2) };
        assert!(!init.has_ended_here(&us));
        assert!(Holder { started: init.started + 1, ..init.clone() }.has_ended_here(&us));
        for elsewhere in [
            Holder { machine: "another".into(), started: init.started + 1, ..init.clone() },
            Holder { namespaces: "pid:[1]".into(), started: init.started + 1, ..init.clone() },
            Holder { started: 0, ..init },
        ] {
            assert!(!elsewhere.has_ended_here(&us), "{elsewhere:?}");
        }
        let mut child = process::Command::new("sleep").arg("60").spawn().unwrap();
        let running = Holder { process: child.id(), started: started(child.id()).unwrap(), ..us.clone() };
        assert!(!running.has_ended_here(&us));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(running.has_ended_here(&us));
    }

    #[test]
    fn what_this_process_holds_ends_with_it() {
        // No other test's.
        let us = Holder::this_process(0xa11e_0001);
        let held = Holder::this_process(0xa11e_0002);
        let [first, second] = [Alive::new(&held), Alive::new(&held)];
        drop(first);
        assert!(!held.has_ended_here(&us));
        drop(second);
        assert!(held.has_ended_here(&us));
    }
}
