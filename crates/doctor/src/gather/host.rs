//! The machine itself.

use super::quota::quota;
use super::source::Machine;
use crate::facts::Host;
use crate::seen::Seen;

/// Seconds for which NTP daemons keep their state files fresh: `systemd-timesyncd` touches its file at each answer, at
/// most every 2048 s.
const SYNCHRONISED: [&str; 1] = ["/run/systemd/timesync/synchronized"];

pub(super) fn host(machine: &Machine) -> Host {
    // A copy that was made without /proc/sys has the name that the machine was given.
    let name = machine.line("/proc/sys/kernel/hostname").or_else(|_| machine.line("/etc/hostname"));
    let name = name.unwrap_or_default();
    let kernel = machine.line("/proc/sys/kernel/osrelease").unwrap_or_default();
    Host {
        name,
        kernel,
        root: machine.is_live() && rustix::process::geteuid().is_root(),
        clock_synchronised: clock(machine).into(),
        io_uring_disabled: io_uring(machine),
        open_files_max: limit(machine, "Max open files", 1).into(),
        locked_memory_max: limit(machine, "Max locked memory", 0).into(),
        stolen_percent: stolen(machine).into(),
        quota: quota(machine).into(),
        governor: governor(machine),
        trim_timer: trim_timer(machine),
    }
}

/// chronyd and ntpd keep the kernel's clock status, which `timedatectl` reads.
fn clock(machine: &Machine) -> Result<bool, String> {
    if SYNCHRONISED.iter().any(|path| machine.exists(path)) {
        return Ok(true);
    }
    let printed = machine.printed("timedatectl", &["show", "--property=NTPSynchronized", "--value"])?;
    match printed.trim() {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("timedatectl does not tell".to_owned()),
    }
}

/// Kernels before 6.6 have no such setting, and allow it.
fn io_uring(machine: &Machine) -> Seen<u32> {
    let path = "/proc/sys/kernel/io_uring_disabled";
    match machine.exists("/proc/sys/kernel") && !machine.exists(path) {
        true => Seen::Value(0),
        false => machine.number(path).into(),
    }
}

/// A limit of this process: the soft value is column 0, the hard one 1.
fn limit(machine: &Machine, name: &str, column: usize) -> Result<u64, String> {
    let text = machine.text("/proc/self/limits")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let value = line.and_then(|line| line.split_whitespace().nth(column));
    match value {
        Some("unlimited") => Ok(u64::MAX),
        Some(value) => value.parse().map_err(|_| format!("/proc/self/limits says {value:?}, no number")),
        None => Err(format!("/proc/self/limits does not tell {name:?}")),
    }
}

fn stolen(machine: &Machine) -> Result<f64, String> {
    let text = machine.line("/proc/stat")?;
    let times: Vec<u64> = text.split_whitespace().skip(1).map_while(|time| time.parse().ok()).collect();
    // Guest time, from the ninth on, is within the others.
    let all = times.iter().take(8).fold(0u64, |sum, time| sum.saturating_add(*time));
    match times.get(7) {
        Some(stolen) if all > 0 => Ok(*stolen as f64 / all as f64 * 100.0),
        _ => Err("/proc/stat does not tell stolen time".to_owned()),
    }
}

fn governor(machine: &Machine) -> Seen<String> {
    let folder = "/sys/devices/system/cpu/cpu0/cpufreq";
    if !machine.exists(folder) {
        return Seen::Value(String::new());
    }
    let driver = machine.line(&format!("{folder}/scaling_driver")).unwrap_or_default();
    // The powersave of these chooses clocks by load.
    if driver.starts_with("intel_pstate")
        || driver.starts_with("amd-pstate")
        || driver.starts_with("amd_pstate")
    {
        return Seen::Value(String::new());
    }
    machine.line(&format!("{folder}/scaling_governor")).into()
}

fn trim_timer(machine: &Machine) -> Seen<bool> {
    let wants = "etc/systemd/system/timers.target.wants";
    if machine.has_entry(&format!("{wants}/fstrim.timer")) {
        return Seen::Value(true);
    }
    match machine.exists("/run/systemd/system") || machine.exists("/etc/systemd/system") {
        true => Seen::Value(false),
        false => Seen::unseen("this machine has no systemd, and other schedulers are not read"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn limits_stolen_time_and_governor_are_read_from_files() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let put = |path: &str, text: &str| {
            let path = folder.path().join(path);
            path.parent().map(fs::create_dir_all).transpose().unwrap_or_else(|error| panic!("{error}"));
            fs::write(path, text).unwrap_or_else(|error| panic!("{error}"));
        };
        put(
            "proc/self/limits",
            "Limit                     Soft Limit           Hard Limit           Units\nMax open files            1024                 524288               files\nMax locked memory         unlimited            unlimited            bytes\n",
        );
        put("proc/stat", "cpu  80 0 10 0 0 0 0 10 5 5\n");
        put("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "acpi-cpufreq\n");
        put("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
        let host = host(&Machine::copy(folder.path()));
        assert_eq!(host.open_files_max, Seen::Value(524_288));
        assert_eq!(host.locked_memory_max, Seen::Value(u64::MAX));
        assert_eq!(host.stolen_percent, Seen::Value(10.0));
        assert_eq!(host.governor, Seen::Value("powersave".to_owned()));
        assert!(host.clock_synchronised.why().contains("timedatectl"), "{host:?}");
    }
}
