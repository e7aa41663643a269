//! CPU usage of the machine during a measurement.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::process;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// `USER_HZ`, the unit of `/proc/*/stat`: 100 on every architecture Linux gives to programs (proc(5)).
const TICKS_PER_SECOND: f64 = 100.0;
/// Sampling interval of threads. A thread that lives shorter is missed; its usage is in the cores' figures.
const STEP: Duration = Duration::from_millis(250);
/// From this share of all cores on, more load would have been waiting for a core.
const MEAN_LIMIT: f64 = 0.88;
/// From this share on, a core or a thread did nothing else. Below 1 for what the kernel's ticks do not see.
const BUSY_LIMIT: f64 = 0.97;
/// From this share of all cores on, what the hypervisor took shows in what is measured.
const TAKEN_LIMIT: f64 = 0.02;
/// A figure taken over less than this is made of too few of the kernel's ticks.
const SHORTEST: Duration = Duration::from_millis(200);

/// Watches cores, and the threads of this process, or of everything in the sandbox, from [`start`](Self::start) to
/// [`stop`](Self::stop).
///
/// The cores' figures are the whole machine's: what somebody else does on it is missing to the experiment all the same.
/// Time that the hypervisor took counts as busy.
#[derive(Debug)]
pub struct CpuWatch {
    started: Instant,
    cores: Cores,
    stop: Sender<()>,
    threads: JoinHandle<Threads>,
}

/// CPU usage, as shares of one: see [`limited`](Self::limited).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CpuUse {
    /// The busiest core.
    pub busiest: f64,
    /// All cores together.
    pub mean: f64,
    /// Steal time: the hypervisor's share of all cores; included in both other figures.
    pub steal: f64,
    /// The thread that used most of a core, and how much.
    pub thread: Option<(String, f64)>,
    /// `true` if the processor may have limited the result: all cores together were busy for 88 % of the time, or one
    /// core or thread for 97 %. The measurement then says something about the processor, not about the network.
    pub limited: bool,
}

impl CpuWatch {
    /// From now on.
    pub fn start() -> Self {
        let (stop, stopped) = channel();
        let threads = thread::spawn(move || {
            let mut threads = Threads::default();
            threads.look();
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(STEP) {
                threads.look();
            }
            threads.look();
            threads
        });
        Self { started: Instant::now(), cores: Cores::now(), stop, threads }
    }

    /// Until now.
    pub fn stop(self) -> CpuUse {
        let elapsed = self.started.elapsed();
        let mut used = Cores::now().since(&self.cores);
        drop(self.stop);
        if let Ok(threads) = self.threads.join() {
            used.thread = threads.busiest(elapsed);
        }
        let thread = used.thread.as_ref().map_or(0.0, |(_, share)| *share);
        used.limited = elapsed >= SHORTEST
            && (used.mean >= MEAN_LIMIT || used.busiest >= BUSY_LIMIT || thread >= BUSY_LIMIT);
        used
    }
}

impl CpuUse {
    /// Returns `true` if steal time is high enough to affect the result: 2 % or more. A core that is away for
    /// milliseconds does not count as busy; the machine looks idle, and the wire slow.
    pub fn is_disturbed(&self) -> bool {
        self.steal >= TAKEN_LIMIT
    }

    /// Returns `true` if all cores were saturated, so that even work that needs one core at a time had to wait for it.
    pub fn is_crowded(&self) -> bool {
        self.mean >= BUSY_LIMIT
    }
}

impl fmt::Display for CpuUse {
    /// A sentence for a table's foot: `processor 41 % busy, busiest core 63 %, busiest thread bench 38 %`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| (share * 100.0).round();
        write!(f, "processor {} % busy, busiest core {} %", percent(self.mean), percent(self.busiest))?;
        if let Some((name, share)) = &self.thread {
            write!(f, ", busiest thread {name} {} %", percent(*share))?;
        }
        if percent(self.steal) >= 1.0 {
            write!(f, ", {} % taken by the hypervisor", percent(self.steal))?;
        }
        if self.limited {
            f.write_str(": limited by the processor")?;
        }
        Ok(())
    }
}

/// Ticks of every core so far: all, idle, stolen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Cores(Vec<[u64; 3]>);

impl Cores {
    fn now() -> Self {
        fs::read_to_string("/proc/stat").map(|text| Self::parse(&text)).unwrap_or_default()
    }

    /// proc(5): user nice system idle iowait irq softirq steal guest guest_nice, of which the last two are counted in
    /// the first two already. Waiting for a disk is idle.
    fn parse(text: &str) -> Self {
        let cores = text.lines().filter(|line| {
            line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        });
        let ticks = cores.map(|line| {
            let fields: Vec<u64> =
                line.split_ascii_whitespace().skip(1).map(|field| field.parse().unwrap_or(0)).collect();
            let at = |field: usize| fields.get(field).copied().unwrap_or(0);
            [fields.iter().take(8).sum(), at(3) + at(4), at(7)]
        });
        Self(ticks.collect())
    }

    fn since(&self, earlier: &Self) -> CpuUse {
        let mut used = CpuUse::default();
        let mut sum = [0.0; 3];
        for (now, then) in self.0.iter().zip(&earlier.0) {
            let spent = [0, 1, 2].map(|field| now[field].saturating_sub(then[field]) as f64);
            if spent[0] > 0.0 {
                used.busiest = used.busiest.max(1.0 - spent[1] / spent[0]);
            }
            sum = [0, 1, 2].map(|field| sum[field] + spent[field]);
        }
        if sum[0] > 0.0 {
            used.mean = 1.0 - sum[1] / sum[0];
            used.steal = sum[2] / sum[0];
        }
        used
    }
}

/// CPU time of threads while they were watched.
#[derive(Default)]
struct Threads {
    /// By process, thread and start: name, ticks when first seen, ticks when last seen.
    seen: BTreeMap<(u32, u32, u64), (String, u64, u64)>,
    looked: bool,
}

impl Threads {
    fn look(&mut self) {
        for process in processes() {
            let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else { continue };
            let number = process.parse().unwrap_or_else(|_| process::id());
            for task in tasks.flatten() {
                let Ok(stat) = fs::read_to_string(task.path().join("stat")) else { continue };
                let Some((thread, name, ticks, start)) = parse_thread(&stat) else { continue };
                // What a thread used before the first look was not used in this time; one that came later began with
                // nothing.
                let before = if self.looked { 0 } else { ticks };
                let entry =
                    self.seen.entry((number, thread, start)).or_insert((String::new(), before, ticks));
                // Each time: a thread begins with the name of the one that made it.
                (entry.0, entry.2) = (name, ticks);
            }
        }
        self.looked = true;
    }

    fn busiest(self, elapsed: Duration) -> Option<(String, f64)> {
        let share = |ticks: u64| ticks as f64 / TICKS_PER_SECOND / elapsed.as_secs_f64().max(1e-9);
        let used = self.seen.into_values().map(|(name, first, last)| (name, last.saturating_sub(first)));
        // Ticks are whole: a thread can have one more than time has passed.
        used.max_by_key(|(_, ticks)| *ticks).map(|(name, ticks)| (name, share(ticks).min(1.0)))
    }
}

/// Every process that is seen from inside of a sandbox with a `/proc` of its own; else this one.
fn processes() -> Vec<String> {
    let inside = process::id() == 1 && fs::read_link("/proc/self").is_ok_and(|link| link.as_os_str() == "1");
    if !inside {
        return vec!["self".to_owned()];
    }
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .collect()
}

/// Number, name, ticks and start of a thread, from proc(5)'s `stat`; the name may itself hold blanks and brackets.
fn parse_thread(stat: &str) -> Option<(u32, String, u64, u64)> {
    let (open, close) = (stat.find('(')?, stat.rfind(')')?);
    let mut fields = stat.get(close + 1..)?.split_ascii_whitespace().skip(11);
    let mut number = |skip: usize| fields.nth(skip)?.parse::<u64>().ok();
    let ticks = number(0)? + number(0)?;
    let start = number(6)?;
    Some((stat[..open].trim().parse().ok()?, stat.get(open + 1..close)?.to_owned(), ticks, start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_compared_without_the_sum_and_with_what_was_stolen() {
        let then =
            Cores::parse("cpu  9 9 9 9\ncpu0 100 0 0 900 0 0 0 0 50 0\ncpu1 0 0 0 1000 0 0 0 0\nintr 5\n");
        let now = Cores::parse(
            "cpu  9 9 9 9\ncpu0 140 0 20 910 10 0 10 10 90 0\ncpu1 0 0 0 1100 0 0 0 0\nintr 5\n",
        );
        let used = now.since(&then);
        assert_eq!((used.busiest, used.mean, used.steal), (0.8, 0.4, 0.05));
        assert_eq!(Cores::default().since(&then), CpuUse::default());
    }

    #[test]
    fn one_busy_core_of_two_is_no_crowd() {
        assert!(!CpuUse { busiest: 1.0, mean: 0.75, limited: true, ..CpuUse::default() }.is_crowded());
        assert!(CpuUse { busiest: 1.0, mean: 0.99, limited: true, ..CpuUse::default() }.is_crowded());
    }

    #[test]
    fn a_name_with_blanks_and_brackets_shifts_no_field() {
        let stat = "7 (a) b) c) S 1 2 3 4 5 6 1001 8 12 10 250 31 0 0 20 0 1 0 4711 99";
        assert_eq!(parse_thread(stat), Some((7, "a) b) c".to_owned(), 281, 4711)));
        assert_eq!(parse_thread("nonsense"), None);
    }

    #[test]
    fn a_thread_that_does_nothing_else_limits_and_is_named() {
        let busy = thread::Builder::new().name("spins".into());
        let watch = CpuWatch::start();
        let began = Instant::now();
        let spin = move || {
            while began.elapsed() < Duration::from_secs(1) {
                std::hint::black_box(0);
            }
        };
        busy.spawn(spin).unwrap().join().unwrap();
        let used = watch.stop();
        let (name, share) = used.thread.clone().unwrap();
        assert_eq!(name, "spins");
        // Others may have had the cores; then the cores were busy.
        assert!(share > 0.6 || used.mean > 0.5, "{used}");
        assert!(used.busiest > 0.3, "{used}");
    }
}
