//! `lunway`: a software SAN in one binary.
//!
//! This crate is what people and scripts touch: arguments, printing, exit codes. What the commands do is in the crates
//! they call.
//!
//! | part | is |
//! |---|---|
//! | `arguments` | the command line |
//! | `begun_by` | a command that a daemon has begun |
//! | `command` | one file per command |
//! | `device` | a device from the command line, open while something is done with it |
//! | `failure` | what goes wrong, and the exit code for it |
//! | `new_file` | who may read a file that a command makes |
//! | `no_shrink` | a device whose clients may not make it smaller |
//! | `output` | results as text, JSON and pages, and where they go |
//! | `percent` | percentages as people write them |
//! | `replaceable` | a file that gives way to a new one: what must be true of it |
//! | `report_file` | a file that results are written to: what may be replaced, and how |
//! | `terminal`, `screen`, `progress` | what depends on a person watching |
//! | `interrupt`, `logging`, `secret` | Ctrl-C; what is logged; what must not be shown |
//! | `protection` | a process that the kernel writes through: locked memory, OOM score, no I/O for memory |
//! | `sector` | sizes of sectors as people write them |
//! | `served_file` | the logical unit that a file in use is, for messages |
//! | `supervisor` | what systemd is told |
//! | `tail` | the end of a raw file that is no whole sector |

/// The standard library's, but that it does not panic where standard error is a closed pipe: see [`terminal::tell`].
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::terminal::tell(format_args!($($text)*), "\n") };
}

/// The same without the end of the line.
macro_rules! eprint {
    ($($text:tt)*) => { $crate::terminal::tell(format_args!($($text)*), "") };
}

mod arguments;
mod awaited;
mod begun_by;
mod command;
mod device;
mod failure;
mod freezing;
mod interrupt;
mod logging;
mod new_file;
mod no_shrink;
mod other_writer;
mod output;
mod overwritten;
mod percent;
mod progress;
mod protection;
mod replaceable;
mod report_file;
mod screen;
mod secret;
mod sector;
mod served_file;
mod supervisor;
mod tail;
mod terminal;
mod this_program;

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;

use crate::arguments::Arguments;
use crate::failure::Failure;

/// Stack of the thread that carries a command out, bytes: as much as the process's first one may have (`ulimit -s`).
const STACK: usize = 8 << 20;

/// Runs a command on a thread of its own. The kernel gives a process's signals to its first thread, which has to be
/// awake for that: one that waits for a disk that hangs is not, and Ctrl-C would not be heard before the disk answers.
fn on_a_thread(run: impl FnOnce() -> Result<(), Failure> + Send) -> Result<(), Failure> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, run);
        let thread = thread.context("starting a thread")?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            return secret::print_usage_error(&arguments::with_word_meant(error, std::env::args()));
        }
    };
    let command = arguments.command;
    let log =
        logging::start(arguments.verbose, arguments.log_format, command.breaks_things(), command.serves());
    let result = if command.serves() { command.run() } else { on_a_thread(|| command.run()) };
    drop(log);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report_with(&arguments::help_command(std::env::args())),
    }
}
