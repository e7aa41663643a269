//! `lunway completions`: completion of the command line in a shell.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::failure::Failure;
use crate::terminal;

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway completions bash > /etc/bash_completion.d/lunway
  lunway completions zsh > /usr/local/share/zsh/site-functions/_lunway
  lunway completions fish > /etc/fish/completions/lunway.fish")]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Arguments::command(), "lunway", &mut script);
        terminal::print(&String::from_utf8_lossy(&script))
    }
}
