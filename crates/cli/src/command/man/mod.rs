//! `lunway man`: manual pages of the commands, the configuration files and the management interface.
//!
//! | part | is |
//! |---|---|
//! | `command` | section 1: a page for each command, made of the command line's definition |
//! | `reference` | sections 5 and 7: files and the management interface, made of their schemas |

mod command;
mod reference;

use clap::{Args, CommandFactory};

use crate::arguments::Arguments;
use crate::failure::Failure;
use crate::terminal;

/// Date of this version, for the foot of the pages.
const DATE: &str = "2026-11-23";

/// Print a manual page in the form of man(7).
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway man lunway-serve | man -l -
  for page in $(lunway man --list); do
    lunway man $page > /usr/local/share/man/man${page##*.}/$page
  done")]
pub(crate) struct Man {
    /// The page, with or without its section: lunway-serve, lunway.toml, lunway-api …
    #[arg(value_name = "PAGE", default_value = "lunway")]
    page: String,
    /// Print the names of all pages, with their sections
    #[arg(long, conflicts_with = "page")]
    list: bool,
}

impl Man {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let mut command = Arguments::command().disable_help_subcommand(true);
        command.build();
        let commands = command::pages(&command);
        let files = reference::pages();
        if self.list {
            let commands = commands.iter().map(|page| format!("{}.1", command::name(page)));
            let files = files.iter().map(reference::Page::file);
            return terminal::print(&commands.chain(files).collect::<Vec<_>>().join("\n"));
        }
        let asked = |name: &str, section: u8| {
            let rest = self.page.strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest == format!(".{section}"))
        };
        if let Some(page) = commands.into_iter().find(|page| asked(command::name(page), 1)) {
            return terminal::print(&command::rendered(page));
        }
        match files.iter().find(|page| asked(page.name, page.section)) {
            Some(page) => terminal::print(&page.rendered()),
            None => {
                Err(Failure::Usage(format!("there is no page {}: lunway man --list shows all", self.page)))
            }
        }
    }
}

/// Program and version, for the feet of the pages.
fn source() -> String {
    format!("lunway {}", env!("CARGO_PKG_VERSION"))
}
