//! CPU time and page faults of the process.

use std::fs;
use std::time::Duration;

/// `USER_HZ`, the unit of `/proc/*/stat`: 100 on every architecture Linux gives to programs (proc(5)).
const TICKS_PER_SECOND: u64 = 100;

/// CPU time of the whole process, to 10 ms: with a device served inside the process, both sides' together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// In the program.
    pub user: Duration,
    /// In the kernel on its behalf.
    pub system: Duration,
    /// Page faults served from memory.
    pub faults_minor: u64,
    /// Page faults that read from disk.
    pub faults_major: u64,
}

impl CpuTime {
    /// Since the process started; zero where the kernel does not tell.
    pub fn now() -> Self {
        fs::read_to_string("/proc/self/stat").ok().and_then(|stat| parse(&stat)).unwrap_or_default()
    }

    /// Returns the increase since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
            faults_minor: self.faults_minor.saturating_sub(earlier.faults_minor),
            faults_major: self.faults_major.saturating_sub(earlier.faults_major),
        }
    }

    /// The larger of each: what several threads saw of the same process.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            user: self.user.max(other.user),
            system: self.system.max(other.system),
            faults_minor: self.faults_minor.max(other.faults_minor),
            faults_major: self.faults_major.max(other.faults_major),
        }
    }

    /// Of `elapsed`, in per cent: above 100 where more than one core was busy.
    pub fn percent(part: Duration, elapsed: Duration) -> f64 {
        if elapsed.is_zero() { 0.0 } else { 100.0 * part.as_secs_f64() / elapsed.as_secs_f64() }
    }
}

/// CPU time of the calling thread since it started, to the nanosecond.
pub(crate) fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Fields 10, 12, 14 and 15 of proc(5)'s `stat`, counted after the name, which may itself hold blanks and brackets.
fn parse(stat: &str) -> Option<CpuTime> {
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace().skip(7);
    let mut number = |skip: usize| fields.nth(skip)?.parse::<u64>().ok();
    let (faults_minor, faults_major) = (number(0)?, number(1)?);
    let (user, system) = (number(1)?, number(0)?);
    let time = |ticks: u64| Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND);
    Some(CpuTime { user: time(user), system: time(system), faults_minor, faults_major })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_blanks_and_brackets_shifts_no_field() {
        let stat = "7 (a) b) c) S 1 2 3 4 5 6 1001 8 12 10 250 31 12 13";
        let time = parse(stat).unwrap();
        assert_eq!((time.faults_minor, time.faults_major), (1001, 12));
        assert_eq!(time.user, Duration::from_millis(2500));
        assert_eq!(time.system, Duration::from_millis(310));
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn this_process_has_spent_page_faults() {
        assert!(CpuTime::now().faults_minor > 0);
    }
}
