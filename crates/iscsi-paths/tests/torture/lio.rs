//! LIO, the Linux kernel's target, in a Linux kernel that is a process (User Mode Linux): it needs neither root nor
//! modules of this machine's kernel, and is killed and stopped as any process. `lio.sh` sets it up and does what it is
//! told.
//!
//! A kill is a power cut of the whole storage: what was not flushed was in its page cache, its connections are not
//! ended but unknown to whoever comes after, and no unit attention tells of it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;

use lunway_foreign::namespace::ip;
use rustix::process::{Pid, Signal, kill_process_group};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;

use crate::LANES;

/// The cable's two ends: this one in the network namespace of the test, that one in the kernel that serves.
const NEAR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(crate) const FAR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// Of the first lane's portal; the others follow.
pub(crate) const PORT: u16 = 3260;
/// The packet device between them.
const TAP: &str = "tap-lio";
/// A kernel that is started again has the card of the one before.
const CARD: &str = "52:54:00:00:00:01";
/// Of linux/elf.h: the register set of whatever XSAVE saves.
const NT_X86_XSTATE: u64 = 0x202;
/// Programs of a kernel without XSAVE leave alone the registers that FXSAVE does not know: of glibc's functions for
/// strings (2.36, `sysdeps/x86_64/multiarch`) those without AVX.
const GLIBC_TUNABLES: &str =
    "glibc.cpu.hwcaps=-AVX,-AVX2,-AVX512F,-AVX512BW,-AVX512VL,-AVX_Fast_Unaligned_Load";

/// Whether what is needed is there.
pub(crate) fn is_there() -> bool {
    if !Path::new("/dev/net/tun").exists() {
        lunway_foreign::machine_lacks("/dev/net/tun, for LIO");
        return false;
    }
    lunway_foreign::program("linux.uml").is_some()
}

/// Makes the network in a namespace that has none.
pub(crate) fn make_network() {
    ip("link set lo up");
    ip(&format!("tuntap add mode tap name {TAP}"));
    ip(&format!("address add {NEAR}/30 dev {TAP}"));
    ip(&format!("link set {TAP} up"));
}

/// Starts a kernel that serves one of the disks in the folder under that target's name.
pub(crate) fn start(folder: &Path, name: &str, disk: &str) -> Child {
    let program = lunway_foreign::program("linux.uml").unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/torture/lio.sh");
    let mut command = std::process::Command::new(program);
    command
        .args(["mem=192M", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "oops=panic"])
        .arg(format!("init={script}"))
        .arg(format!("vec0:transport=tap,ifname={TAP},depth=128,gro=1,mac={CARD}"))
        // The console is how it is told things; what the kernel says is written to a file by `lio.sh`.
        .args(["con0=fd:0,fd:1", "con=null", "loglevel=1", "umid=lio"])
        .arg(format!("uml_dir={}/", folder.display()))
        .args([format!("TORTURE_FOLDER={}", folder.display()), format!("TORTURE_DISK={disk}")])
        .args([format!("TORTURE_NAME={name}"), format!("TORTURE_ADDRESS={FAR}")])
        .args([format!("TORTURE_PORT={PORT}"), format!("TORTURE_LANES={LANES}")])
        .arg(format!("GLIBC_TUNABLES={GLIBC_TUNABLES}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // It is several processes.
        .process_group(0);
    let (mut command, runtime) = (Command::from(command), Handle::current());
    let spawn = || {
        let _runtime = runtime.enter();
        seccompiler::apply_filter(&without_xsave()).unwrap();
        command.kill_on_drop(true).spawn().unwrap()
    };
    // A filter is for the rest of a thread's life, and of those that it starts.
    std::thread::scope(|scope| scope.spawn(spawn).join().unwrap())
}

/// Answers a tracer that asks for XSAVE's registers, or sets them, as a processor without them would.
///
/// User Mode Linux keeps its programs' registers by ptrace. Version 6.1 has a fixed room for those of XSAVE and does
/// not start where there are more, as with AMX. Where it is told that there are none it uses those of FXSAVE.
fn without_xsave() -> BpfProgram {
    let is = |argument, value| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, value).unwrap()
    };
    let rule = |request: u32| SeccompRule::new(vec![is(0, request.into()), is(2, NT_X86_XSTATE)]).unwrap();
    let rules = [libc::PTRACE_GETREGSET, libc::PTRACE_SETREGSET].map(rule).into();
    let refused = SeccompAction::Errno(libc::ENODEV as u32);
    let processor = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(
        BTreeMap::from([(libc::SYS_ptrace, rules)]),
        SeccompAction::Allow,
        refused,
        processor,
    );
    filter.unwrap().try_into().unwrap()
}

/// Signals all of its processes.
pub(crate) fn signal(child: &Child, signal: Signal) {
    let group = child.id().and_then(|id| Pid::from_raw(id as i32));
    kill_process_group(group.unwrap(), signal).unwrap();
}
