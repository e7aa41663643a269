//! Rules about the machine itself.

use lunway_block::Severity;

use super::{Group, Rule};
use crate::facts::{Facts, Host};
use crate::seen::Seen;
use crate::verdict::{Outcome, Verdict};

const ALL: &str = "every Linux machine";

/// Descriptors that a target needs: one for each connection, 1024 before login and as many sessions (lunway's own
/// limits, `limits.connections_before_login`).
const OPEN_FILES_MIN: u64 = 4096;
/// Bytes that io_uring rings of a few cores lock, where the kernel counts them (before Linux 5.12).
const LOCKED_MIN: u64 = 8 << 20;
/// Percentage of stolen time from which latency is no longer the storage's own.
const STOLEN_MAX: f64 = 5.0;

/// Percentage of periods with a standstill from which the slowest hundredth of all I/O is the quota's.
const THROTTLED_MAX: f64 = 1.0;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "host-clock",
        group: Group::Host,
        title: "The clock follows another one",
        severity: Severity::Note,
        applies: ALL,
        why: "logs of initiator and target cannot be laid side by side after a fault, and certificates and backups expire at the \
              wrong time (no published figure)",
        source: "timedatectl(1); RFC 5905",
        thumbs: &[],
        fix: "timedatectl set-ntp true",
        undo: "timedatectl set-ntp false",
        check: |facts| {
            host(facts, |host| {
                known(&host.clock_synchronised, "the clock", |on| {
                    let what = if *on { "follows another one" } else { "runs by itself" };
                    Outcome::judged(*on, Verdict::Warn, "clock", format!("the clock {what}"))
                })
            })
        },
    },
    Rule {
        id: "host-io-uring",
        group: Group::Host,
        title: "io_uring is allowed",
        severity: Severity::Note,
        applies: ALL,
        why: "without it file devices with direct I/O go through threads, two task switches for each operation (no published figure)",
        source: "Linux sysctl kernel.io_uring_disabled; lunway's file device",
        thumbs: &[],
        fix: "sysctl -w kernel.io_uring_disabled=0",
        undo: "sysctl -w kernel.io_uring_disabled={old}",
        check: |facts| {
            host(facts, |host| {
                known(&host.io_uring_disabled, "io_uring", |disabled| {
                    let what = format!("kernel.io_uring_disabled is {disabled}");
                    Outcome::judged(*disabled == 0, Verdict::Warn, "io_uring", what).with("old", disabled)
                })
            })
        },
    },
    Rule {
        id: "host-open-files",
        group: Group::Host,
        title: "A process may have 4096 files open or more",
        severity: Severity::Note,
        applies: ALL,
        why: "a target needs a descriptor for each connection, and containers often start with 1024",
        source: "lunway's limits: 1024 connections before login and as many sessions",
        thumbs: &[],
        fix: "LimitNOFILE=65536 in the unit, or: ulimit -Hn 65536",
        undo: "",
        check: |facts| {
            host(facts, |host| {
                known(&host.open_files_max, "open files", |most| {
                    let what = format!("a process may have {most} files open");
                    Outcome::judged(*most >= OPEN_FILES_MIN, Verdict::Warn, "open files", what)
                })
            })
        },
    },
    Rule {
        id: "host-locked-memory",
        group: Group::Host,
        title: "A process may lock 8 MiB of memory or more",
        severity: Severity::Note,
        applies: ALL,
        why: "a daemon that the kernel writes through must not be paged out, and old kernels count io_uring's rings against this \
              limit (no published figure)",
        source: "Linux's default is 8 MiB since 5.16, 64 KiB before",
        thumbs: &[],
        fix: "LimitMEMLOCK=infinity in the unit, or: ulimit -l unlimited",
        undo: "",
        check: |facts| {
            host(facts, |host| {
                known(&host.locked_memory_max, "locked memory", |most| {
                    let what = match most {
                        &u64::MAX => "a process may lock all memory".to_owned(),
                        most => format!("a process may lock {} KiB", most >> 10),
                    };
                    Outcome::judged(*most >= LOCKED_MIN, Verdict::Warn, "locked memory", what)
                })
            })
        },
    },
    Rule {
        id: "host-stolen",
        group: Group::Host,
        title: "Other virtual machines take under 5 % of the processor",
        severity: Severity::Warning,
        applies: "virtual machines",
        why: "answers wait while other machines use the processor: latency depends on them, noticeably from 5 % on",
        source: "Linux /proc/stat; administrators' rule on limits",
        thumbs: &[],
        fix: "move the machine to a host with free processors, or reserve them",
        undo: "",
        check: |facts| {
            host(facts, |host| {
                known(&host.stolen_percent, "stolen time", |percent| {
                    let what = format!("{percent:.1} % of the processor were taken since boot");
                    Outcome::judged(*percent < STOLEN_MAX, Verdict::Warn, "processor", what)
                })
            })
        },
    },
    Rule {
        id: "host-quota",
        group: Group::Host,
        title: "Control groups do not stop a process that serves or uses storage",
        severity: Severity::Warning,
        applies: "Linux machines with control groups",
        why: "a group that has used up its quota stands still for the rest of the period of 100 ms, and every I/O waits as long",
        source: "Linux scheduler, CFS bandwidth control: period 100 ms; throttled in 1 % of the periods, one I/O in a hundred waits",
        thumbs: &[],
        fix: "systemctl set-property UNIT CPUQuota=    # for a container: a larger limit of its processors, or none. The kernel counts since \
              the group began: with a larger limit restart it, which begins the count anew",
        undo: "",
        check: |facts| {
            host(facts, |host| {
                known(&host.quota, "the quota of its control group", |quota| {
                    let what = match quota.processors == 0.0 {
                        true => "no control group limits the processors".to_owned(),
                        false => format!(
                            "a control group leaves {:.2} processors, and wanted more in {:.1} % of its periods since it began",
                            quota.processors, quota.throttled_percent
                        ),
                    };
                    let sound = quota.processors == 0.0 || quota.throttled_percent < THROTTLED_MAX;
                    Outcome::judged(sound, Verdict::Warn, "processor", what)
                })
            })
        },
    },
    Rule {
        id: "host-governor",
        group: Group::Host,
        title: "The processor does not save power at the cost of latency",
        severity: Severity::Note,
        applies: "processors with cpufreq",
        why: "the governor powersave of acpi-cpufreq keeps the lowest clock whatever the load (no published figure)",
        source: "Linux admin guide, cpufreq governors; intel_pstate's powersave is different, and is accepted",
        thumbs: &[],
        fix: "cpupower frequency-set -g performance",
        undo: "cpupower frequency-set -g {old}",
        check: |facts| {
            host(facts, |host| match host.governor.known() {
                Ok(governor) if governor.is_empty() => None,
                Err(why) => Some(Outcome::unknown("processor", format!("its governor: {why}"))),
                Ok(governor) => {
                    let what = format!("the governor is {governor}");
                    let sound = governor != "powersave" && governor != "conservative";
                    Some(Outcome::judged(sound, Verdict::Warn, "processor", what).with("old", governor))
                }
            })
        },
    },
    Rule {
        id: "facts-whole",
        group: Group::Host,
        title: "Everything of the set-up was looked at",
        severity: Severity::Note,
        applies: "set-ups with more of something than the limits of a run allow",
        why: "what was not looked at is not ok: rules compare places with each other, so that lists have limits (1024 entries of each, \
              256 mounts, 256 ends of connections, 512 node records)",
        source: "lunway's own limits",
        thumbs: &[],
        fix: "remove what is not needed (node records: iscsiadm -m node -o delete), or check the rest by hand",
        undo: "",
        check: |facts| {
            let of_target = facts.target.iter().flat_map(|target| &target.left_out);
            let left_out: Vec<&String> = facts.left_out.iter().chain(of_target).collect();
            // What was looked at as a whole is nothing to tell of where nothing was looked at.
            match (left_out.is_empty(), facts.host.is_some() || facts.target.is_some()) {
                (true, true) => vec![Outcome::ok("limits", "nothing was beyond the limits of a run")],
                (true, false) => Vec::new(),
                _ => left_out.into_iter().map(|what| Outcome::unknown("limits", what)).collect(),
            }
        },
    },
];

fn host(facts: &Facts, judge: impl Fn(&Host) -> Option<Outcome>) -> Vec<Outcome> {
    facts.host.as_ref().and_then(judge).into_iter().collect()
}

fn known<T>(fact: &Seen<T>, name: &str, judge: impl FnOnce(&T) -> Outcome) -> Option<Outcome> {
    Some(match fact.known() {
        Ok(value) => judge(value),
        Err(why) => Outcome::unknown(name, format!("{name}: {why}")),
    })
}
