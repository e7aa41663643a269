//! Environment of this process: the facts that can be read without privileges.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::document::Fact;

/// No file that is read here needs more.
const FILE_MAX: u64 = 64 << 10;
/// A machine with more network cards than this is one that makes them by the hundred, for containers.
const CARDS_MAX: usize = 32;

/// Settings of TCP and of the queues below it that decide how fast a connection may be.
const SYSCTLS: [&str; 15] = [
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_mtu_probing",
    "net.ipv4.tcp_limit_output_bytes",
    "net.ipv4.tcp_notsent_lowat",
    "net.core.default_qdisc",
    "net.core.netdev_max_backlog",
    "net.core.busy_poll",
];

/// Facts about this machine, in the order in which a report shows them: versions, processor, memory, clock, limits,
/// network cards, settings of TCP.
///
/// Read from `/proc` and `/sys` as any user may; what cannot be read is left out. Nothing secret is among it: no
/// addresses, no serial numbers, no environment variables, no arguments.
pub fn environment() -> Vec<Fact> {
    let uname = rustix::system::uname();
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    let mut facts = vec![
        Fact::new("lunway", env!("CARGO_PKG_VERSION")),
        Fact::new("Host", text(uname.nodename())),
        Fact::new(
            "Kernel",
            format!("{} {} {}", text(uname.sysname()), text(uname.release()), text(uname.machine())),
        ),
    ];
    facts.extend(Machine { root: Path::new("/") }.facts());
    facts
}

/// `/proc` and `/sys` below `root`.
struct Machine<'a> {
    root: &'a Path,
}

impl Machine<'_> {
    fn facts(&self) -> Vec<Fact> {
        let one = |name: &str, value: Option<String>| value.map(|value| Fact::new(name, value));
        let first = [
            one("Processor", self.processor()),
            one("Virtual machine", self.hypervisor()),
            one("CPU limit", self.cpu_limit()),
            one("CPU governor", self.line("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
            one("CPU stolen since boot", self.stolen()),
            one("Memory", self.memory()),
            one("Clock source", self.line("sys/devices/system/clocksource/clocksource0/current_clocksource")),
        ];
        let sysctls = SYSCTLS.iter().filter_map(|&name| {
            let value = self.line(&format!("proc/sys/{}", name.replace('.', "/")))?;
            Some(Fact::new(name, value.split_whitespace().collect::<Vec<_>>().join(" ")))
        });
        first.into_iter().flatten().chain(self.cards()).chain(sysctls).collect()
    }

    fn text(&self, path: &str) -> Option<String> {
        let mut bytes = Vec::new();
        File::open(self.root.join(path)).ok()?.take(FILE_MAX).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A file of one line; `None` for an empty one.
    fn line(&self, path: &str) -> Option<String> {
        let text = self.text(path)?;
        let line = text.lines().next()?.trim();
        (!line.is_empty()).then(|| line.to_owned())
    }

    fn processor(&self) -> Option<String> {
        let info = self.text("proc/cpuinfo")?;
        let value = |name: &str| {
            info.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim().to_owned())
            })
        };
        let model = value("model name").or_else(|| value("Model")).or_else(|| value("uarch"));
        let model = model.unwrap_or_else(|| "of unknown model".into());
        let online = self.line("sys/devices/system/cpu/online").as_deref().and_then(count)?;
        Some(format!("{online} × {model}"))
    }

    fn hypervisor(&self) -> Option<String> {
        let info = self.text("proc/cpuinfo")?;
        let flags = info.lines().find(|line| line.starts_with("flags"));
        let marked = flags.is_some_and(|line| line.split_whitespace().any(|flag| flag == "hypervisor"));
        let maker = self.line("sys/hypervisor/type").or_else(|| {
            marked.then_some(())?;
            self.line("sys/class/dmi/id/product_name")
        });
        match (marked, maker) {
            (_, Some(maker)) => Some(format!("yes, {maker}")),
            (true, None) => Some("yes".into()),
            // Only x86 has that flag: elsewhere its absence says nothing.
            (false, None) => flags.map(|_| "no".into()),
        }
    }

    /// The tightest quota of the control groups that this process is in.
    fn cpu_limit(&self) -> Option<String> {
        let groups = self.text("proc/self/cgroup")?;
        let unified = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
        let mut folder = PathBuf::from("sys/fs/cgroup").join(unified.trim_start_matches('/'));
        let mut tightest: Option<f64> = None;
        while folder.starts_with("sys/fs/cgroup") {
            let quota = folder.join("cpu.max").to_str().and_then(|path| self.line(path));
            if let Some(cores) = quota.as_deref().and_then(cores) {
                tightest = Some(tightest.map_or(cores, |least| least.min(cores)));
            }
            folder.pop();
        }
        Some(tightest.map_or("none".into(), |cores| format!("{cores:.2} cores")))
    }

    fn stolen(&self) -> Option<String> {
        let stat = self.text("proc/stat")?;
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let times: Vec<u64> = line.split_whitespace().map_while(|time| time.parse().ok()).collect();
        // Guest time, from the ninth on, is within the others.
        let all = times.iter().take(8).fold(0u64, |sum, &time| sum.saturating_add(time));
        let stolen = *times.get(7)?;
        (all > 0).then(|| format!("{:.2} %", stolen as f64 / all as f64 * 100.0))
    }

    fn memory(&self) -> Option<String> {
        let info = self.text("proc/meminfo")?;
        let kib = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.trim().strip_suffix("kB")?;
        let kib: u64 = kib.trim().parse().ok()?;
        Some(format!("{:.1} GiB", kib as f64 / f64::from(1 << 20)))
    }

    fn cards(&self) -> Vec<Fact> {
        let Ok(folder) = fs::read_dir(self.root.join("sys/class/net")) else { return Vec::new() };
        let names = folder.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = names.take(CARDS_MAX).collect();
        names.sort();
        names.iter().map(|name| Fact::new(format!("Card {name}"), self.card(name))).collect()
    }

    fn card(&self, name: &str) -> String {
        let of = |what: &str| self.line(&format!("sys/class/net/{name}/{what}"));
        let mut parts = Vec::new();
        if let Some(mtu) = of("mtu") {
            parts.push(format!("MTU {mtu}"));
        }
        // A card that does not know its speed says -1, or nothing.
        if let Some(speed) = of("speed").and_then(|speed| speed.parse::<u64>().ok()) {
            let duplex = of("duplex").filter(|duplex| duplex != "unknown");
            let duplex = duplex.map_or(String::new(), |duplex| format!(" {duplex} duplex"));
            let speed = match speed {
                1000.. => format!("{} Gb/s", speed as f64 / 1000.0),
                _ => format!("{speed} Mb/s"),
            };
            parts.push(speed + &duplex);
        }
        let driver = fs::read_link(self.root.join(format!("sys/class/net/{name}/device/driver")));
        if let Some(driver) = driver.ok().as_deref().and_then(Path::file_name) {
            parts.push(format!("driver {}", driver.to_string_lossy()));
        }
        let queues = fs::read_dir(self.root.join(format!("sys/class/net/{name}/queues")));
        let queues = queues.map_or(0, |folder| {
            let names = folder.filter_map(Result::ok).map(|entry| entry.file_name());
            names.filter(|name| name.to_string_lossy().starts_with("rx-")).count()
        });
        if queues > 1 {
            parts.push(format!("{queues} queues"));
        }
        if let Some(state) = of("operstate").filter(|state| state != "unknown") {
            parts.push(state);
        }
        parts.join(", ")
    }
}

/// Returns the number of items that a list such as `0-3,8` names.
fn count(list: &str) -> Option<u64> {
    let mut sum = 0u64;
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        sum = sum.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(sum)
}

/// Cores' worth of time that a `cpu.max` grants; `None` for `max`.
fn cores(quota: &str) -> Option<f64> {
    let (quota, period) = quota.split_once(' ')?;
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn value<'a>(facts: &'a [Fact], name: &str) -> Option<&'a str> {
        Some(facts.iter().find(|fact| fact.name == name)?.value.as_str())
    }

    #[test]
    fn a_machine_is_described_by_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        put(
            root,
            "proc/cpuinfo",
            "processor\t: 0\nmodel name\t: Fast CPU @ 3 GHz\nflags\t\t: fpu hypervisor sse\n",
        );
        put(root, "sys/devices/system/cpu/online", "0-3,8\n");
        put(root, "sys/class/dmi/id/product_name", "KVM\n");
        put(root, "proc/stat", "cpu  10 0 10 70 0 0 0 10 5 5\ncpu0 1\n");
        put(root, "proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n");
        put(root, "proc/self/cgroup", "0::/a/b\n");
        put(root, "sys/fs/cgroup/a/cpu.max", "150000 100000\n");
        put(root, "sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
        put(root, "sys/class/net/eth0/mtu", "9000\n");
        put(root, "sys/class/net/eth0/speed", "10000\n");
        put(root, "sys/class/net/eth0/duplex", "full\n");
        put(root, "sys/class/net/eth0/operstate", "up\n");
        put(root, "sys/class/net/lo/mtu", "65536\n");
        put(root, "sys/class/net/lo/speed", "-1\n");
        put(root, "proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n");
        let facts = Machine { root }.facts();
        let expected = [
            ("Processor", "5 × Fast CPU @ 3 GHz"),
            ("Virtual machine", "yes, KVM"),
            ("CPU limit", "1.50 cores"),
            ("CPU stolen since boot", "10.00 %"),
            ("Memory", "16.0 GiB"),
            ("Card eth0", "MTU 9000, 10 Gb/s full duplex, up"),
            ("Card lo", "MTU 65536"),
            ("net.ipv4.tcp_rmem", "4096 131072 6291456"),
        ];
        for (name, expected) in expected {
            assert_eq!(value(&facts, name), Some(expected), "{name}");
        }
        assert_eq!(value(&facts, "CPU governor"), None, "what is not there is left out");
    }

    #[test]
    fn files_that_make_no_sense_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        put(root, "proc/cpuinfo", "\u{0}\n:::\n");
        put(root, "sys/devices/system/cpu/online", "3-0\n");
        put(root, "proc/stat", "cpu  x\n");
        put(root, "proc/meminfo", "MemTotal: many kB\n");
        put(root, "proc/self/cgroup", "0::/../../..\n");
        put(root, "proc/sys/net/ipv4/tcp_rmem", "\n");
        let facts = Machine { root }.facts();
        assert_eq!(facts, [Fact::new("CPU limit", "none")]);
        assert_eq!(Machine { root: &root.join("nowhere") }.facts(), []);
    }

    #[test]
    fn this_machine_has_a_kernel_and_a_name() {
        let facts = environment();
        assert!(value(&facts, "Kernel").is_some_and(|kernel| kernel.starts_with("Linux ")));
        assert!(value(&facts, "Host").is_some());
    }
}
