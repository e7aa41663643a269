//! `lunway man`: manual pages, made of the command line's own definition.

use clap::{Args, Command, CommandFactory};
use clap_mangen::Man as Page;
use clap_mangen::roff::{Roff, roman};

use crate::arguments::Arguments;
use crate::failure::Failure;
use crate::terminal;

/// Date of this version, for the foot of the pages.
const DATE: &str = "2026-11-22";

/// Print a manual page in the form of man(7).
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway man lunway-serve | man -l -
  for page in $(lunway man --list); do lunway man $page > /usr/local/share/man/man1/$page.1; done")]
pub(crate) struct Man {
    /// The page: lunway, lunway-serve, lunway-lun-add …
    #[arg(value_name = "PAGE", default_value = "lunway")]
    page: String,
    /// Print the names of all pages
    #[arg(long, conflicts_with = "page")]
    list: bool,
}

impl Man {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let mut command = Arguments::command().disable_help_subcommand(true);
        command.build();
        if self.list {
            return terminal::print(&pages(&command).into_iter().map(name).collect::<Vec<_>>().join("\n"));
        }
        let all = pages(&command);
        let page = all.into_iter().find(|page| name(page) == self.page).ok_or_else(|| {
            Failure::Usage(format!("there is no page {}: lunway man --list names all", self.page))
        })?;
        terminal::print(&rendered(page))
    }
}

/// The command and all below it: a page each.
fn pages(command: &Command) -> Vec<&Command> {
    let below = command.get_subcommands().filter(|below| !below.is_hide_set()).flat_map(pages);
    std::iter::once(command).chain(below).collect()
}

fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

fn rendered(command: &Command) -> String {
    let page = Page::new(command.clone())
        .title(name(command).to_uppercase())
        .date(DATE)
        .manual("lunway")
        .source(format!("lunway {}", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    // Writing to memory does not fail.
    _ = page.render_title(&mut text);
    _ = page.render_name_section(&mut text);
    _ = page.render_synopsis_section(&mut text);
    _ = page.render_description_section(&mut text);
    _ = page.render_options_section(&mut text);
    if command.has_subcommands() {
        _ = page.render_subcommands_section(&mut text);
    }
    if let Some(notes) = command.get_after_help() {
        _ = notes_section(&notes.to_string()).to_writer(&mut text);
    }
    tidy(&String::from_utf8_lossy(&text))
}

/// The notes below the help: examples and tables, line by line as they are.
fn notes_section(notes: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["NOTES"]).control("nf", []);
    notes.lines().for_each(|line| _ = roff.text([roman(line)]));
    roff.control("fi", []);
    roff
}

/// The source without what mandoc's lint finds: the preamble of each section but the first, blanks at the ends of lines, and empty lines between breaks.
fn tidy(source: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    for (number, line) in source.lines().map(str::trim_end).enumerate() {
        let is_preamble = line.starts_with(".ie \\n(.g") || line.starts_with(".el .ds Aq");
        let is_second_break = line == ".br" && lines.last() == Some(&".br");
        if !(line.is_empty() || is_second_break || is_preamble && number > 1) {
            lines.push(line);
        }
    }
    lines.join("\n")
}
