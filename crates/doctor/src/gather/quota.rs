//! Quota of the control groups of this process (Linux admin guide, cgroup-v2, `cpu.max`; scheduler, sched-bwc for v1).

use super::source::Machine;
use crate::facts::Quota;

/// Levels of groups that are looked at: Kubernetes has five.
const LEVELS_MAX: usize = 32;

/// The tightest quota of the group of this process and of those above it, as far as they are mounted here.
pub(super) fn quota(machine: &Machine) -> Result<Quota, String> {
    let text = machine.text("/proc/self/cgroup")?;
    let mut found = Quota::default();
    // `0::/path` is of version 2, `4:cpu,cpuacct:/path` of version 1: a machine may have both.
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let version_1 = controllers.split(',').any(|name| name == "cpu");
        if !version_1 && !controllers.is_empty() {
            continue;
        }
        let mount = if version_1 { "/sys/fs/cgroup/cpu" } else { "/sys/fs/cgroup" };
        let mut path = path.trim_end_matches('/');
        for _ in 0..LEVELS_MAX {
            let group = format!("{mount}{path}");
            let processors =
                if version_1 { of_version_1(machine, &group) } else { of_version_2(machine, &group) };
            if let Some(processors) =
                processors.filter(|all| found.processors == 0.0 || *all < found.processors)
            {
                found = Quota { processors, throttled_percent: throttled(machine, &group) };
            }
            let Some((above, _)) = path.rsplit_once('/') else { break };
            path = above;
        }
    }
    Ok(found)
}

/// `max 100000`, or `50000 100000`: microseconds of processor time in a period of the other number.
fn of_version_2(machine: &Machine, group: &str) -> Option<f64> {
    let line = machine.line(&format!("{group}/cpu.max")).ok()?;
    let (quota, period) = line.split_once(' ')?;
    processors(quota.parse().ok()?, period.parse().ok()?)
}

/// A quota of -1 is none.
fn of_version_1(machine: &Machine, group: &str) -> Option<f64> {
    let number = |name: &str| machine.number::<i64>(&format!("{group}/cpu.cfs_{name}_us")).ok();
    processors(number("quota")? as f64, number("period")? as f64)
}

fn processors(quota: f64, period: f64) -> Option<f64> {
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

/// `nr_periods 100`, `nr_throttled 3`, in both versions.
fn throttled(machine: &Machine, group: &str) -> f64 {
    let text = machine.text(&format!("{group}/cpu.stat")).unwrap_or_default();
    let count = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|number| number.trim().parse::<f64>().ok()).unwrap_or(0.0)
    };
    let periods = count("nr_periods");
    if periods > 0.0 { 100.0 * count("nr_throttled") / periods } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::super::put;
    use super::*;

    fn quota_of(files: &[(&str, &str)]) -> Option<(f64, f64)> {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        for (path, text) in files {
            put(folder.path(), path, text);
        }
        let quota = quota(&Machine::copy(folder.path())).ok()?;
        Some((quota.processors, quota.throttled_percent))
    }

    #[test]
    fn the_tightest_quota_of_a_group_and_those_above_counts() {
        let two = [
            ("proc/self/cgroup", "0::/kubepods/pod7\n"),
            ("sys/fs/cgroup/kubepods/cpu.max", "50000 100000\n"),
            ("sys/fs/cgroup/kubepods/cpu.stat", "usage_usec 5\nnr_periods 200\nnr_throttled 10\n"),
            ("sys/fs/cgroup/kubepods/pod7/cpu.max", "400000 100000\n"),
        ];
        assert_eq!(quota_of(&two), Some((0.5, 5.0)));
        let one = [
            ("proc/self/cgroup", "9:name=systemd:/\n2:cpuacct,cpu:/pod\n0::/\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us", "150000\n"),
            ("sys/fs/cgroup/cpu/pod/cpu.cfs_period_us", "100000\n"),
        ];
        assert_eq!(quota_of(&one), Some((1.5, 0.0)));
        let none = [("proc/self/cgroup", "0::/a\nodd\n0:cpu\n"), ("sys/fs/cgroup/a/cpu.max", "max 100000\n")];
        assert_eq!(quota_of(&none), Some((0.0, 0.0)));
        assert_eq!(quota_of(&[]), None, "it is not known");
    }
}
