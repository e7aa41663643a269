//! Manual pages of the commands, made of the command line's own definition.

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

/// The command and all below it: a page each.
pub(super) fn pages(command: &Command) -> Vec<&Command> {
    let below = command.get_subcommands().filter(|below| !below.is_hide_set()).flat_map(pages);
    std::iter::once(command).chain(below).collect()
}

pub(super) fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

pub(super) fn rendered(command: &Command) -> String {
    let page = Man::new(command.clone())
        .title(name(command).to_uppercase())
        .date(super::DATE)
        .manual("lunway")
        .source(super::source());
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

/// The source without what mandoc's lint finds: the preamble of each section but the first, blanks at the ends of
/// lines, and empty lines between breaks.
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
