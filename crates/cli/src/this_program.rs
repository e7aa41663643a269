//! This program, started once more for one of its commands.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// A command of this program as a process of its own. Of what it says, only errors are of use.
pub(crate) fn this_program(words: &[&str]) -> Command {
    // Not current_exe(): the file may have been replaced since this process was started from it.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("lunway").args(words);
    command.env("RUST_LOG", "error").env_remove("LUNWAY_LOG_FORMAT");
    command
}
