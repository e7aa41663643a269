//! Children that are killed when this process ends, and can be started in namespaces of their own.
#![expect(
    unsafe_code,
    reason = "what is done between fork and exec, and leaving a namespace: see at each for why it is sound"
)]

use std::env;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{self, Child, Command};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, getegid, geteuid, set_parent_process_death_signal};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Isolation in which a child starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// Outside of this process's user, network and mount namespace, and of its process group.
    Apart,
    /// As process 1 of a process namespace.
    First,
}

impl Start {
    /// Starts it. The child is killed when the calling thread ends, which must have been made for this.
    pub(super) fn spawn(self, command: &mut Command) -> io::Result<Child> {
        match self {
            Self::Apart => {
                let maps = Maps::of_this_user();
                command.process_group(0);
                // SAFETY: the closure makes system calls on data made before the fork, and neither allocates nor locks.
                unsafe { command.pre_exec(move || leave(&maps)) };
            }
            // Not between fork and exec: it holds for children, and who has done it can have no more threads.
            // SAFETY: the flag takes nothing apart that threads share.
            Self::First => unsafe { unshare_unsafe(UnshareFlags::NEWPID) }?,
        }
        tied(command)
    }
}

/// Names the tie to the child: the number of a descriptor.
pub(crate) const TIE: &str = "LUNWAY_SANDBOX_TIE";

fn tied(command: &mut Command) -> io::Result<Child> {
    // It is never written to. Its end is at hand when this process has died. This process's end of it is held by
    // `command`.
    //
    // The signal alone is not enough: a thread of a dying process that has handed its children on to the machine's
    // first process leaves that process's other threads with the pipe for a moment, and a child that asks just then
    // sees a parent that lives and is never told of its death. So the child goes on watching the pipe: see
    // `end_with_parent`.
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    command.env(TIE, read.as_raw_fd().to_string());
    let mut write = Some(write);
    let tie = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        drop(write.take());
        Ok(fcntl_setfd(&read, FdFlags::empty())?)
    };
    // SAFETY: as above; closing a descriptor is a system call.
    unsafe { command.pre_exec(tie) };
    command.spawn()
}

/// Ends this process when its parent has ended, by a thread that watches the tie. `None`: there is none.
pub(super) fn end_with_parent() -> Option<()> {
    let number = env::var(TIE).ok()?.parse().ok()?;
    // SAFETY: the parent has left the descriptor open for this, under this number, and nothing else here knows of it.
    let tie = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl_setfd(&tie, FdFlags::CLOEXEC).ok()?;
    thread::spawn(move || {
        loop {
            let mut fds = [PollFd::new(&tie, PollFlags::IN)];
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => {}
                _ => process::exit(KILLED),
            }
        }
    });
    Some(())
}

/// Exit code that shells report for a killed process.
const KILLED: i32 = 137;

/// This user as root of the new namespace: the texts of the kernel's files.
struct Maps {
    user: String,
    group: String,
}

impl Maps {
    fn of_this_user() -> Self {
        Self { user: format!("0 {} 1", geteuid().as_raw()), group: format!("0 {} 1", getegid().as_raw()) }
    }
}

/// Leaves the namespaces. Called between fork and exec.
fn leave(maps: &Maps) -> io::Result<()> {
    let apart = UnshareFlags::NEWNET | UnshareFlags::NEWNS | UnshareFlags::NEWIPC;
    // SAFETY: none of these flags takes apart what threads share of memory or files, and this process has one thread.
    let left = unsafe { unshare_unsafe(UnshareFlags::NEWUSER | apart) };
    match left {
        // Groups may be mapped only after setgroups is given up.
        Ok(()) => {
            write_file(c"/proc/self/setgroups", b"deny")?;
            write_file(c"/proc/self/uid_map", maps.user.as_bytes())?;
            write_file(c"/proc/self/gid_map", maps.group.as_bytes())
        }
        // The real root needs no user namespace for the others.
        // SAFETY: as above.
        Err(error) if geteuid().is_root() => match unsafe { unshare_unsafe(apart) } {
            Ok(()) => Ok(()),
            Err(_) => Err(error.into()),
        },
        Err(error) => Err(error.into()),
    }
}

fn write_file(path: &std::ffi::CStr, text: &[u8]) -> io::Result<()> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    match rustix::io::write(&file, text)? {
        written if written == text.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Moves the calling thread into a network namespace of its own, and returns what keeps that alive.
pub(crate) fn new_network() -> io::Result<OwnedFd> {
    // SAFETY: the flag concerns this thread's network only; no descriptor or memory is taken apart from other threads.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
    Ok(File::open("/proc/thread-self/ns/net")?.into())
}

/// Moves the calling thread into a network namespace.
pub(crate) fn enter_network(namespace: &impl AsFd) -> io::Result<()> {
    let kind = Some(rustix::thread::LinkNameSpaceType::Network);
    Ok(rustix::thread::move_into_link_name_space(namespace.as_fd(), kind)?)
}
