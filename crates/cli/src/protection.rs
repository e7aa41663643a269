//! Protection of a process that the kernel of the same machine writes through.
//!
//! A file system on a disk that this process carries turns the kernel's memory reclaim into a client of this process:
//! dirty pages become free when this process has written them. Three things make a circle of that, and iscsid and
//! multipathd protect themselves from the same three:
//!
//! | what happens | what prevents it |
//! |---|---|
//! | an allocation here starts reclaim, which waits for a write through this process | `PR_SET_IO_FLUSHER` (prctl(2)): allocations start no I/O, writes are not throttled as a client's |
//! | a page of this process was dropped or swapped out, and comes back through this process, or only with memory that reclaim has to find | locked memory (mlockall(2)) |
//! | the kernel, out of memory, kills the process whose end frees the least of it | `oom_score_adj` of −1000 (proc(5)) |
//!
//! Each step needs a capability and none is necessary to serve: what cannot be had is one line of the log, with what
//! gives it.

use std::fs;
use std::io;

use lunway_block::spec::DeviceSpec;
use lunway_target::{Config, PortalScope};
use rustix::mm::MlockAllFlags;
use rustix::process::{Resource, Rlimit};
use rustix::thread::CapabilitySet;

use crate::supervisor;

/// Path of this process's weight in the kernel's choice of whom to kill.
const OOM_SCORE: &str = "/proc/self/oom_score_adj";
/// `OOM_SCORE_ADJ_MIN`: never chosen. iscsid and multipathd set the same.
const OOM_NEVER: &str = "-1000";

/// Protection of a process, depending on what it does.
///
/// [`apply`](Self::apply) must be called before the process has threads: the kernel keeps `PR_SET_IO_FLUSHER` for each
/// thread and hands it down to those that a thread starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Protection {
    /// Memory is locked. Never where memory is what is served: a `ram:` disk could not give back what is unmapped,
    /// because the kernel refuses `MADV_DONTNEED` in locked memory, and all that was ever written would be out of the
    /// reach of swap.
    locked: bool,
    /// The process is not chosen when memory runs out. Never where memory is what is served: that would be the process
    /// to choose.
    spared: bool,
    /// A step that fails is a warning. Without it: a line for those who ask with `-v`.
    expected: bool,
}

impl Protection {
    /// Protection of `attach`. Any user may attach, but only root can put a block device of the kernel on it: elsewhere
    /// what cannot be had is no news, unless a service manager started this process for others.
    pub(crate) fn of_attached(spec: &DeviceSpec) -> Self {
        let own_memory = spec.is_memory();
        let expected = rustix::process::geteuid().is_root() || supervisor::is_there();
        Self { locked: !own_memory, spared: !own_memory, expected }
    }

    /// Protection of `serve`, where the initiators can be this machine's kernel and no others: all portals are on
    /// loopback. `None` elsewhere: a daemon that serves a network is to wait for memory as everybody does.
    ///
    /// Memory is not locked: how much there is of it follows what all initiators have under way, and `ram:` LUNs may be
    /// added at any time.
    pub(crate) fn of_target(config: &Config) -> Option<Self> {
        let groups = config.portal_groups.iter().flat_map(|group| &group.listen);
        let mut portals = config.listen.iter().chain(groups);
        let is_local = portals.all(|portal| match portal.scope() {
            PortalScope::Address(address) => address.is_loopback(),
            PortalScope::Network(network) => network.network().is_loopback(),
            PortalScope::Interface(name) => name == "lo",
        });
        let mut luns = config.targets.iter().flat_map(|target| &target.luns);
        let own_memory = luns.any(|lun| lun.device.spec().is_memory());
        is_local.then_some(Self { locked: false, spared: !own_memory, expected: false })
    }

    /// Does what can be done, and logs the rest.
    pub(crate) fn apply(self) {
        if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
            self.lacks(
                "PR_SET_IO_FLUSHER cannot be set: when memory is short this process and the kernel may wait for each other",
                error.into(),
                "give it CAP_SYS_RESOURCE (systemd: AmbientCapabilities=CAP_SYS_RESOURCE)",
            );
        }
        if self.spared
            && let Err(error) = spare()
        {
            self.lacks(
                "oom_score_adj cannot be lowered: when memory is short the kernel may kill this process",
                error,
                "give it CAP_SYS_RESOURCE, or have it started with the score (systemd: OOMScoreAdjust=-1000)",
            );
        }
        if self.locked
            && let Err(error) = lock()
        {
            self.lacks(
                "memory cannot be locked: when memory is short this process may wait for its own pages",
                error,
                "give it CAP_IPC_LOCK, or no limit of locked memory (systemd: LimitMEMLOCK=infinity)",
            );
        }
    }

    fn lacks(self, what: &str, error: io::Error, remedy: &str) {
        if self.expected {
            tracing::warn!("{what} ({error}); {remedy}");
        } else {
            tracing::info!("{what} ({error}); {remedy}");
        }
    }
}

/// Lowers the score, unless somebody has given this process one.
fn spare() -> io::Result<()> {
    match fs::read_to_string(OOM_SCORE)?.trim() {
        "0" => fs::write(OOM_SCORE, OOM_NEVER),
        _ => Ok(()),
    }
}

/// Locks what is mapped now, which is read in (the program and its libraries), and what will be, page by page as it is
/// touched.
///
/// Only without a limit: under one, a mapping made later would fail where it exceeds it, and an allocation that fails
/// ends the process.
fn lock() -> io::Result<()> {
    let may_exceed = rustix::thread::capabilities(None)?.effective.contains(CapabilitySet::IPC_LOCK);
    if !may_exceed {
        let unlimited = Rlimit { current: None, maximum: None };
        if rustix::process::getrlimit(Resource::Memlock).current.is_some() {
            // Where the hard limit is lower this takes CAP_SYS_RESOURCE.
            rustix::process::setrlimit(Resource::Memlock, unlimited)?;
        }
    }
    // Each call replaces what the one before said of the future (mlockall(2)), and other threads map memory between
    // any two: the future is locked from the first on, and for the time of the second read in at once.
    let future = MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    rustix::mm::mlockall(future)?;
    rustix::mm::mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)?;
    rustix::mm::mlockall(future)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_target(toml: &str) -> Option<Protection> {
        Protection::of_target(&Config::from_toml(toml, "test").unwrap())
    }

    #[test]
    fn a_disk_of_this_processs_memory_is_neither_locked_nor_spared() {
        for (device, is_spared) in [
            ("iscsi://h/iqn.a:b/0", true),
            ("disk.img", true),
            ("ram:1T", false),
            ("delay:1ms:stats:ram:1T", false),
        ] {
            let protection = Protection::of_attached(&DeviceSpec::parse(device).unwrap());
            assert_eq!((protection.locked, protection.spared), (is_spared, is_spared), "{device}");
        }
    }

    #[test]
    fn a_target_is_protected_where_only_this_machine_can_log_in() {
        let lun = |device: &str| {
            format!(
                "[[target]]\nname = \"iqn.2026-11.com.example:a\"\n[[target.lun]]\nid = 0\ndevice = \"{device}\"\n"
            )
        };
        let (file, ram) = (lun("disk.img"), lun("readonly:ram:1T"));
        let local = "listen = [\"127.0.0.1:0\", \"[::1]:0\", \"lo\"]\n";
        let protection = of_target(&format!("{local}{file}")).unwrap();
        assert!(!protection.locked && protection.spared);
        assert!(!of_target(&format!("{local}{file}{}", ram.replace(":a\"", ":b\""))).unwrap().spared);
        assert_eq!(of_target(&file), None);
        assert_eq!(of_target(&format!("listen = [\"127.0.0.1:0\", \"192.0.2.1:3260\"]\n{file}")), None);
        let group = format!("{local}{file}[[portal_group]]\ntag = 2\nlisten = [\"192.0.2.1:3260\"]\n");
        assert_eq!(of_target(&group), None);
    }
}
