//! The place where networks are built: namespaces that end with the process that asked for them.

mod apart;
mod supervise;

use apart::Start;
pub(crate) use apart::{TIE, enter_network, new_network};

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{self, Command};
use std::sync::OnceLock;

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

/// Tells the program which of its three selves it is. Children of the inner one do not get it.
pub(crate) const STAGE: &str = "LUNWAY_SANDBOX";
const KEEPER: &str = "keeper";
const INSIDE: &str = "inside";

/// Set where this process is inside.
static ENTERED: OnceLock<()> = OnceLock::new();

/// Proof that this process runs in a sandbox: a user, network, mount and process namespace of its own, made without
/// root.
///
/// [`enter`](Self::enter) is called first thing by a command that builds networks, before it has done anything that
/// must not be done twice. It starts this same program again, inside:
///
/// ```text
///   outer    the process that the user started: passes signals in, and the exit code out
///   keeper   has left the user, network and mount namespace; only a child of it can be in the new process namespace
///   inner    process 1 of the namespace: where `enter` returns `Side::Inside`
/// ```
///
/// **Nothing is left behind, whatever happens.** Each is killed by the kernel when the one above it ends, by any means,
/// and watches a pipe from it for the moments that the kernel misses; when the inner one ends, the kernel kills
/// everything else in its process namespace; when the last process is gone, so are the network namespaces and all that
/// is in them, and the mounts. Nothing has a name in a file system that would keep it.
///
/// The three are in a process group apart from the shell's, so that Ctrl-C reaches the inner process once, through the
/// outer one, and targets that run inside not at all: it is the inner process that ends them in order. SIGINT, SIGTERM,
/// SIGHUP and SIGQUIT are passed on.
///
/// Inside, the user is root of namespaces that have nothing but what is made there. Files are seen as before, with the
/// rights of the user who started it.
#[derive(Debug)]
pub struct Sandbox(());

/// Side of the sandbox that this process is on after [`Sandbox::enter`].
#[derive(Debug)]
pub enum Side {
    /// Inside: go on with the work.
    Inside(Sandbox),
    /// Outside, and the inner process has ended with this code: end with it too.
    Outside(u8),
}

/// Reason why there is no sandbox.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The kernel, or who runs it, forbids it.
    #[error("networks are built in a user namespace, which is not available here: {reason} ({source})")]
    Forbidden {
        /// The restriction and its remedy.
        reason: &'static str,
        /// Error that the kernel returned.
        source: io::Error,
    },
    /// The program could not be started again.
    #[error("the sandbox could not start this program again: {0}")]
    Start(io::Error),
    /// Signals could not be watched, or the inner process not be waited for.
    #[error("the sandbox cannot be watched: {0}")]
    Watch(io::Error),
    /// The mounts of the machine could not be kept apart.
    #[error("the sandbox cannot have mounts of its own: {0}")]
    Mounts(io::Error),
    /// The marks of a sandbox without the sandbox.
    #[error("the variable {STAGE} is set, but this process was not started by a sandbox: unset it")]
    Marked,
}

impl Sandbox {
    /// Runs this program again inside, with `arguments`, and returns there as [`Side::Inside`], here with its exit
    /// code. The calling thread waits; its end would end the sandbox.
    ///
    /// # Errors
    ///
    /// [`SandboxError`], of which [`SandboxError::Forbidden`] is what people meet.
    pub fn enter<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Result<Side, SandboxError> {
        let stage = env::var_os(STAGE);
        match stage.as_deref().and_then(OsStr::to_str) {
            None => supervise::run(Start::Apart, this_program(arguments, KEEPER)).map(Side::Outside),
            Some(KEEPER) => {
                // Before there is a process namespace for children: then threads are no longer possible.
                apart::end_with_parent().ok_or(SandboxError::Marked)?;
                let code = supervise::run(Start::First, this_program(arguments, INSIDE))?;
                process::exit(code.into())
            }
            Some(INSIDE) if process::id() == 1 => {
                apart::end_with_parent().ok_or(SandboxError::Marked)?;
                own_mounts().map_err(|errno| SandboxError::Mounts(errno.into()))?;
                let _ = ENTERED.set(());
                Ok(Side::Inside(Self(())))
            }
            Some(_) => Err(SandboxError::Marked),
        }
    }

    /// Returns `true` if this process is inside.
    pub fn is_entered() -> bool {
        ENTERED.get().is_some()
    }
}

fn this_program<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>, stage: &str) -> Command {
    // Not current_exe(): the file may have been replaced since this process was started from it.
    let mut command = Command::new("/proc/self/exe");
    command.args(arguments).env(STAGE, stage);
    if let Some(name) = env::args_os().next() {
        command.arg0(name);
    }
    command
}

/// Keeps mounts apart, and shows the processes of this namespace in `/proc`. In containers that hide parts of `/proc`
/// the second is refused, and nothing here depends on it.
fn own_mounts() -> rustix::io::Result<()> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let _ = mount("proc", "/proc", "proc", flags, None);
    Ok(())
}

impl SandboxError {
    fn forbidden(source: io::Error) -> Self {
        let setting = |name: &str| {
            let value = fs::read_to_string(format!("/proc/sys/{name}")).ok()?;
            Some(value.trim().to_owned())
        };
        Self::Forbidden { reason: who_forbids(setting), source }
    }
}

/// Returns the setting of this machine that forbids user namespaces.
fn who_forbids(setting: impl Fn(&str) -> Option<String>) -> &'static str {
    let is = |name: &str, value: &str| setting(name).as_deref() == Some(value);
    if is("user/max_user_namespaces", "0") {
        "the sysctl user.max_user_namespaces is 0; root can raise it"
    } else if is("kernel/unprivileged_userns_clone", "0") {
        "the sysctl kernel.unprivileged_userns_clone is 0; root can set it to 1, or run this"
    } else if is("kernel/apparmor_restrict_unprivileged_userns", "1") {
        "AppArmor forbids it to programs without a profile; root can set the sysctl \
         kernel.apparmor_restrict_unprivileged_userns to 0, or run this"
    } else if setting("user/max_user_namespaces").is_none() {
        "this kernel was built without user namespaces"
    } else {
        "a container's seccomp profile often forbids it; run this outside of the container, or allow it unshare"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_forbids_namespaces_is_named_with_what_to_do() {
        const MANY: (&str, &str) = ("user/max_user_namespaces", "9000");
        let machine = |settings: &[(&str, &str)]| {
            who_forbids(|name| {
                let found = settings.iter().find(|(setting, _)| *setting == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        assert!(machine(&[("user/max_user_namespaces", "0")]).contains("root can raise it"));
        assert!(machine(&[]).contains("built without"));
        assert!(machine(&[MANY]).contains("container"));
        let debian = [MANY, ("kernel/unprivileged_userns_clone", "0")];
        assert!(machine(&debian).contains("unprivileged_userns_clone is 0"));
        let ubuntu = [MANY, ("kernel/apparmor_restrict_unprivileged_userns", "1")];
        assert!(machine(&ubuntu).contains("AppArmor"));
    }
}
