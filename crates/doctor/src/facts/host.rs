//! The machine itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::seen::Seen;

/// A Linux machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// The kernel's release.
    pub kernel: String,
    /// Root has collected the facts.
    pub root: bool,
    /// Its clock follows another one.
    pub clock_synchronised: Seen<bool>,
    /// `kernel.io_uring_disabled`: 0 allows io_uring to every process.
    pub io_uring_disabled: Seen<u32>,
    /// Files that a process may have open (RLIMIT_NOFILE, hard limit).
    pub open_files_max: Seen<u64>,
    /// Bytes that a process may lock in memory (RLIMIT_MEMLOCK, soft limit).
    pub locked_memory_max: Seen<u64>,
    /// Processor time since boot that other virtual machines took, percent.
    pub stolen_percent: Seen<f64>,
    /// Quota of the control groups of this process.
    pub quota: Seen<Quota>,
    /// cpufreq's governor; empty: the processor has none.
    pub governor: Seen<String>,
    /// A timer of `fstrim` is enabled.
    pub trim_timer: Seen<bool>,
}

/// Processor time that control groups leave to a process: the tightest of its group and those above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quota {
    /// Processors that all processes of the group may use together; 0: as many as there are.
    pub processors: f64,
    /// Percent of the periods in which the group wanted more.
    pub throttled_percent: f64,
}

/// A node of Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kubernetes {
    /// The folder of its kubelet.
    pub kubelet: String,
    /// The module `iscsi_tcp` is loaded, or built in.
    pub tcp_module: Seen<bool>,
    /// Mounts below the kubelet's folder reach other mount namespaces.
    pub shared: Seen<bool>,
    /// multipathd runs in the node's network namespace.
    pub multipathd: Seen<bool>,
}

/// Answers to what no program can see, by the rule's id.
pub type Answers = BTreeMap<String, bool>;
