//! `lunway doctor` on networks that run, on a running target, and on facts of elsewhere.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../../lab/tests/network/sandboxed.rs"]
mod sandboxed;
#[path = "../support/mod.rs"]
mod support;

mod cards;
mod cost;
mod daemon;
mod ended;
mod ends;
mod fixes;
mod hops;
mod neighbours;
mod odd;
mod owner_quota;
mod owners;
mod seven;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{PATIENCE, Served, finish, lunway, succeed, until};

/// `lunway doctor --json`, whose answers are kept in a folder of the test's own.
fn doctor<S: AsRef<str>>(arguments: &[S], state: &Path) -> Command {
    let mut command = lunway(&["doctor", "--json"]);
    command.args(arguments.iter().map(AsRef::as_ref)).env("XDG_STATE_HOME", state);
    command
}

fn findings(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    let document: Value = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr)));
    document["findings"].as_array().unwrap().clone()
}

/// Verdicts of a rule.
fn verdicts(findings: &[Value], rule: &str) -> Vec<String> {
    let of_rule = findings.iter().filter(|finding| finding["id"] == rule);
    of_rule.map(|finding| finding["verdict"].as_str().unwrap().to_owned()).collect()
}

/// A network namespace with two pairs of virtual ports, `st1` and `st2`, with addresses in one subnet.
struct Namespace(Child);

impl Namespace {
    fn new() -> Option<Self> {
        let mut command = Command::new("unshare");
        // A file system of its own for /sys, which shows the namespace in which it was mounted.
        command.args(["--map-root-user", "--net", "--mount", "sh", "-c"]);
        // And a node of Kubernetes.
        command.arg(
            "mount -t sysfs sysfs /sys && mount -t tmpfs tmpfs /var/lib && mkdir -p /var/lib/kubelet/plugins/iscsi.csi.k8s.io && \
             mount --make-rshared / && echo ready && exec sleep 600",
        );
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
        let mut ready = [0; 5];
        let read = std::io::Read::read_exact(child.stdout.as_mut()?, &mut ready);
        let namespace = Self(child);
        read.ok()?;
        let made = namespace.run(
            "for p in st1 st2; do ip link add $p type veth peer name ${p}x && ip link set $p up && ip link set ${p}x up; done &&
             ip address add 10.9.0.1/24 dev st1 && ip address add 10.9.0.2/24 dev st2 &&
             sysctl -qw net.ipv4.conf.all.rp_filter=0 && for p in st1 st2; do
             sysctl -qw net.ipv4.conf.$p.arp_ignore=1 net.ipv4.conf.$p.arp_announce=2 net.ipv4.conf.$p.rp_filter=2; done",
        );
        made.status.success().then_some(namespace)
    }

    fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        let process = self.0.id().to_string();
        command.args(["--target", &process, "--user", "--net", "--mount", "--preserve-credentials"]);
        command
    }

    fn run(&self, script: &str) -> Output {
        let mut command = self.enter();
        command.args(["sh", "-ec", script]);
        finish(command, PATIENCE)
    }

    /// A command in the namespace.
    fn entered(&self, own: &Command) -> Command {
        let mut command = self.enter();
        command.arg(own.get_program()).args(own.get_args());
        for (name, value) in own.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// What doctor finds at the two ports.
    fn findings(&self, state: &Path) -> Vec<Value> {
        let own = doctor(&["--port", "st1", "--port", "st2"], state);
        findings(&finish(self.entered(&own), PATIENCE))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Rules that are broken by a command, in a namespace.
const PLANTED: [(&str, &str); 9] = [
    ("kubernetes-mounts", "mount --make-rprivate /"),
    ("port-mtu", "ip link set dev st2 mtu 1400"),
    ("port-carrier", "ip link set dev st2 down"),
    ("arp-ignore", "sysctl -qw net.ipv4.conf.st2.arp_ignore=0"),
    ("arp-announce", "sysctl -qw net.ipv4.conf.st2.arp_announce=0"),
    ("reverse-path", "sysctl -qw net.ipv4.conf.st2.rp_filter=1"),
    ("tcp-window", "sysctl -qw net.ipv4.tcp_rmem='4096 65536 65536'"),
    ("tcp-scaling", "sysctl -qw net.ipv4.tcp_window_scaling=0"),
    ("tcp-sack", "sysctl -qw net.ipv4.tcp_sack=0"),
];

#[test]
fn in_a_network_each_fault_is_told_alone_and_its_fix_and_undo_do_what_they_say() {
    let Some(namespace) = Namespace::new() else {
        return lunway_foreign::machine_lacks("network namespaces, or ip and nsenter");
    };
    let state = tempfile::tempdir().unwrap();
    // What else this machine is like does not matter here.
    let of_network: BTreeSet<&str> = PLANTED.iter().map(|(rule, _)| *rule).collect();
    let broken = |findings: &[Value]| -> BTreeSet<String> {
        let ids = findings.iter().filter(|finding| finding["verdict"] != "ok");
        let ids = ids.map(|finding| finding["id"].as_str().unwrap().to_owned());
        ids.filter(|id| of_network.contains(id.as_str())).collect()
    };
    let found = namespace.findings(state.path());
    assert_eq!(broken(&found), BTreeSet::new(), "a healthy network: {found:#?}");
    for rule in &of_network {
        assert!(!verdicts(&found, rule).is_empty(), "{rule} does not apply");
    }
    for (rule, plant) in PLANTED {
        let planted = namespace.run(plant);
        assert!(planted.status.success(), "{rule}: {planted:?}");
        let found = namespace.findings(state.path());
        assert_eq!(broken(&found), BTreeSet::from([rule.to_owned()]), "{plant}");
        let is_broken = |finding: &&Value| finding["id"] == rule && finding["verdict"] != "ok";
        let finding = found.iter().find(is_broken).unwrap();
        let fix = finding["do"].as_str().unwrap();
        let fixed = namespace.run(fix);
        assert!(fixed.status.success(), "{rule}: {fix}: {fixed:?}");
        assert_eq!(broken(&namespace.findings(state.path())), BTreeSet::new(), "{rule}: {fix}");
        let undo = finding["undo"].as_str().unwrap();
        if undo.is_empty() {
            continue;
        }
        let undone = namespace.run(undo);
        assert!(undone.status.success(), "{rule}: {undo}: {undone:?}");
        assert_eq!(
            broken(&namespace.findings(state.path())),
            BTreeSet::from([rule.to_owned()]),
            "{rule}: {undo}"
        );
        namespace.run(fix);
    }
}

/// A storage behind both ports of a namespace, in another one, and a connection to it from each port's address.
const CONNECTED: &str = "mount -t tmpfs tmpfs /run; mkdir -p /run/netns; ip netns add storage
    for p in st1x st2x; do ip link set $p netns storage; done
    ip netns exec storage sh -ec 'ip link add bridge type bridge; ip link set bridge up
        for p in st1x st2x; do ip link set $p master bridge; ip link set $p up; done; ip address add 10.9.0.101/24 dev bridge'
    cat >/run/connect.py <<'PYTHON'
import socket, sys, time
if sys.argv[1:]:
    sockets = [socket.create_connection(('10.9.0.101', 3260), 10, (near, 0)) for near in sys.argv[1:]]
    open('/run/connected', 'w').close()
else:
    listener = socket.create_server(('10.9.0.101', 3260))
    open('/run/listening', 'w').close()
    sockets = [listener.accept() for _ in range(2)]
time.sleep(600)
PYTHON
    ip netns exec storage python3 /run/connect.py >/dev/null 2>&1 </dev/null &
    while ! [ -e /run/listening ]; do sleep 0.1; done
    python3 /run/connect.py 10.9.0.1 10.9.0.2 >/dev/null 2>&1 </dev/null &
    for n in $(seq 300); do [ -e /run/connected ] && exit; sleep 0.1; done; exit 1";

/// Rules about ports that carry iSCSI now, broken by a command. Without any the kernel sends all by the first port.
const PLANTED_CONNECTED: [(&str, &str); 3] = [
    ("route-source", "true"),
    ("port-ipv6", "ip address add 2001:db8::2/64 dev st2 nodad"),
    ("subnet-overlap", "ip address add 10.9.0.130/25 dev st2"),
];

/// Without an address in the storage's network, all goes to a router. What `ip` has set of it goes with its address.
const ROUTED: [(&str, &str); 1] = [(
    "route-router",
    "for n in 1 2; do ip address flush dev st$n; ip address add 10.9.0.$n/32 dev st$n; done
     ip route add default via 10.9.0.99 dev st2 onlink",
)];

#[test]
fn at_ports_with_connections_each_fault_is_told_and_its_fix_and_undo_do_what_they_say() {
    at_ports_with_connections(&PLANTED_CONNECTED, "10.77.0.2/24");
}

#[test]
fn a_router_is_told_and_an_address_in_the_network_of_the_storage_takes_its_place() {
    at_ports_with_connections(&ROUTED, "10.9.0.3/24");
}

/// Breaks rules, and runs their fixes and undos. `address` is one for fixes that take an address.
fn at_ports_with_connections(planted_rules: &[(&str, &str)], address: &str) {
    let Some(namespace) = Namespace::new() else {
        return lunway_foreign::machine_lacks("network namespaces, or ip and nsenter");
    };
    let connected = namespace.run(CONNECTED);
    if !connected.status.success() {
        return lunway_foreign::not_run(&format!("a storage in a network namespace: {connected:?}"));
    }
    let state = tempfile::tempdir().unwrap();
    let broken = |findings: &[Value]| -> BTreeSet<String> {
        let alarms = findings.iter().filter(|finding| finding["verdict"] != "ok");
        let ids = alarms.map(|finding| finding["id"].as_str().unwrap().to_owned());
        ids.filter(|id| planted_rules.iter().any(|(rule, _)| rule == id)).collect()
    };
    for &(rule, plant) in planted_rules {
        let planted = namespace.run(plant);
        assert!(planted.status.success(), "{rule}: {planted:?}");
        let found = namespace.findings(state.path());
        assert_eq!(broken(&found), BTreeSet::from([rule.to_owned()]), "{plant}: {found:#?}");
        let at_second = |one: &&Value| one["id"] == rule && one["verdict"] != "ok" && one["where"] == "st2";
        let finding = found.iter().find(at_second).unwrap();
        // The addresses of the machine and what is set of it, to be the same after the undo.
        let set = || {
            let shown = namespace.run(
                "ip -brief address show dev st2 scope global; ip rule; ip route show table all; sysctl net.ipv6.conf.st2.disable_ipv6",
            );
            let text = String::from_utf8_lossy(&shown.stdout).into_owned();
            // The kernel's own routes come when they like: those of IPv6 once an address is known to be unique.
            let own = ["fe80", "anycast", "multicast", "local 2001"];
            let lines = text.lines().filter(|line| !own.iter().any(|word| line.contains(word)));
            lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<BTreeSet<_>>()
        };
        let before = set();
        let filled = |text: &str| text.replace("ADDRESS/LENGTH", address).replace("dev PORT", "dev st2");
        let (fix, undo) =
            (filled(finding["do"].as_str().unwrap()), filled(finding["undo"].as_str().unwrap()));
        let fixed = namespace.run(&fix);
        assert!(fixed.status.success(), "{rule}: {fix}: {fixed:?}");
        assert_eq!(broken(&namespace.findings(state.path())), BTreeSet::new(), "{rule}: {fix}");
        let undone = namespace.run(&undo);
        assert!(undone.status.success(), "{rule}: {undo}: {undone:?}");
        let found = namespace.findings(state.path());
        assert_eq!(broken(&found), BTreeSet::from([rule.to_owned()]), "{rule}: {undo}");
        assert_eq!(set(), before, "{rule}: {undo}");
        assert!(namespace.run(&fix).status.success(), "{rule}: {fix}");
    }
}

#[test]
fn a_run_takes_less_than_five_seconds_and_its_exit_code_is_its_verdict() {
    let state = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let output = finish(doctor::<&str>(&[], state.path()), PATIENCE);
    let took = began.elapsed();
    let found = findings(&output);
    let has = |verdict: &str| found.iter().any(|finding| finding["verdict"] == verdict);
    let code = match () {
        () if has("bad") => 4,
        () if has("warn") => 3,
        () if has("unknown") => 5,
        () => 0,
    };
    assert_eq!(output.status.code(), Some(code), "{found:#?}");
    // 5 s on an idle machine; here others may run.
    assert!(took < Duration::from_secs(30), "{took:?}");
    assert!(has("ok") && verdicts(&found, "mount-full").len() == verdicts(&found, "mount-sync").len());
}

#[test]
fn a_rule_is_muted_and_a_question_answered_once_is_remembered() {
    let state = tempfile::tempdir().unwrap();
    let verdict = |arguments: &[&str]| {
        verdicts(&findings(&finish(doctor(arguments, state.path()), PATIENCE)), "asked-ups")
    };
    assert_eq!(verdict(&[]), ["unknown"]);
    assert_eq!(verdict(&["--answer", "asked-ups=no"]), ["warn"]);
    assert_eq!(verdict(&[]), ["warn"], "it is remembered");
    assert_eq!(verdict(&["--mute", "asked-ups"]), Vec::<String>::new());
    assert_eq!(verdict(&["--answer", "asked-ups=yes"]), ["ok"]);
    for (arguments, sentence) in [
        (&["--mute", "nonsense"][..], "there is no rule \"nonsense\""),
        (&["--answer", "port-mtu=yes"], "is no question"),
        (&["--ask"], "--ask needs a terminal"),
    ] {
        let output = finish(doctor(arguments, state.path()), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(sentence), "{said}");
    }
}

#[test]
fn facts_are_judged_elsewhere_as_they_are_here_and_odd_files_cost_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let mut facts = lunway(&["doctor", "--facts"]);
    facts.env("XDG_STATE_HOME", folder.path());
    fs::write(path("facts.json"), succeed(facts)).unwrap();
    let here = findings(&finish(doctor::<&str>(&[], folder.path()), PATIENCE));
    let there = findings(&finish(doctor(&["--from", &path("facts.json")], folder.path()), PATIENCE));
    let ids =
        |found: &[Value]| -> BTreeSet<String> { found.iter().map(|one| one["id"].to_string()).collect() };
    assert_eq!(ids(&here), ids(&there));
    for (name, content) in [
        ("empty.json", &b""[..]),
        ("text.json", b"a text"),
        ("later.json", b"{\"schema\": 2}"),
        ("odd.json", b"{\"schema\": 1, \"ports\": [{\"mtu\": -1}]}"),
        ("bytes.json", &[0xff; 4096]),
        ("utf16.json", &[0xff, 0xfe, b'{', 0, b'x']),
    ] {
        fs::write(path(name), content).unwrap();
        let output = finish(doctor(&["--from", &path(name)], folder.path()), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.lines().count() == 1, "{name}: {said}");
        assert!(said.contains("cannot judge"), "{name}: {said}");
    }
    fs::write(path("host.json"), r#"{"schema":1}"#).unwrap();
    std::os::unix::fs::symlink("host.json", path("again.json")).unwrap();
    for (arguments, sentence) in [
        (["--from", &path("host.json"), "--from", &path("again.json")], "are the same file"),
        (["--answer", "asked-ups=yes", "--answer", "asked-ups=no"], "is given as yes and as no"),
    ] {
        let output = finish(doctor(&arguments, folder.path()), PATIENCE);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(sentence), "{said}");
    }
    // What the script for Windows writes, UTF-16 and marks of byte order included.
    let windows = r#"{"schema":1,"windows":{"name":"W","disk_timeout":30,"policy":{"unseen":"no MPIO"}}}"#;
    let bytes: Vec<u8> =
        [0xff, 0xfe].into_iter().chain(windows.encode_utf16().flat_map(u16::to_le_bytes)).collect();
    fs::write(path("windows.json"), bytes).unwrap();
    let found = findings(&finish(doctor(&["--from", &path("windows.json")], folder.path()), PATIENCE));
    assert_eq!(verdicts(&found, "windows-disk-timeout"), ["warn"]);
    assert_eq!(verdicts(&found, "windows-policy"), ["unknown"]);
}

#[test]
fn a_running_target_is_judged_with_its_stores_and_lanes() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::File::create(path("small.img")).unwrap().set_len(1 << 20).unwrap();
    // More than any machine of tests has left, and less than ext4 refuses.
    fs::File::create(path("thin.img")).unwrap().set_len(8 << 40).unwrap();
    let socket = path("socket");
    let (small, thin) = (format!("0={}", path("small.img")), format!("1={}", path("thin.img")));
    let served = Served::start(&["--lun", &small, "--lun", &thin, "--socket", &socket]);
    until(|| Path::new(&socket).exists());
    let found = findings(&finish(doctor(&["--socket", &socket], folder.path()), PATIENCE));
    assert_eq!(verdicts(&found, "store-thin"), ["warn"], "8 TiB were promised: {found:#?}");
    for (rule, verdict) in
        [("lun-serial", "ok"), ("lun-store-twice", "ok"), ("portal-idle", "ok"), ("target-closed", "ok")]
    {
        let all = verdicts(&found, rule);
        assert!(!all.is_empty() && all.iter().all(|one| one == verdict), "{rule}: {all:?}");
    }
    let url = served.url(0);
    let output = finish(doctor(&[&url, "--probe"], folder.path()), PATIENCE);
    let found = findings(&output);
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("probing 1 lane"),
        "it says first that it is active"
    );
    for rule in ["lane-answers", "lane-delayed"] {
        assert_eq!(verdicts(&found, rule), ["ok"], "{rule}: {found:#?}");
    }
    assert_eq!(verdicts(&found, "lane-lun"), ["ok"]);
    // Nothing is probed that is not there: the finding says what is.
    for more in [&[][..], &["--probe"], &["--pull", "--yes"]] {
        let absent = served.url(7);
        let output = finish(doctor(&[&[absent.as_str()], more].concat(), folder.path()), PATIENCE);
        let found = findings(&output);
        assert_eq!(
            (output.status.code(), verdicts(&found, "lane-lun")),
            (Some(4), vec!["bad".to_owned()]),
            "{found:#?}"
        );
        let finding = found.iter().find(|finding| finding["id"] == "lane-lun").unwrap().to_string();
        assert!(finding.contains("shows no LUN 7 to this initiator, but LUN 0, 1"), "{finding}");
    }
    drop(served);
    let output = finish(doctor(&["--socket", &path("nobody")], folder.path()), PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && said.contains("no daemon answers"), "{said}");
}
