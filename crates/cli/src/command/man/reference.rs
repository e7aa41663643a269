//! Manual pages of files and of the management interface, made of the schemas that the pages of the book are made of.

use clap_mangen::roff::{Inline, Roff, bold, roman};
use lunway_reference::{Section, Span, Table, interface, keys, spans};

/// A page that is no command's.
pub(super) struct Page {
    /// Its name, without the section.
    pub(super) name: &'static str,
    /// Its section of the manual.
    pub(super) section: u8,
    /// Title, a few words.
    title: &'static str,
    /// Its first paragraphs.
    description: &'static [&'static str],
    /// Sections of the page.
    sections: Vec<Section>,
    /// An example, line by line as it is.
    example: &'static str,
    /// Other pages.
    see_also: &'static [&'static str],
}

/// All of them.
pub(super) fn pages() -> Vec<Page> {
    let document = lunway_console::openapi();
    let types = &document["components"]["schemas"];
    let paths = lunway_iscsi_paths::paths_file_schema();
    vec![
        Page {
            name: "lunway.toml",
            section: 5,
            title: "configuration of the lunway daemon",
            description: &[
                "The file that `lunway serve -c FILE` reads, in TOML. Unknown keys are errors; each message names the file, the line and the key.",
                "Relative paths are relative to the directory of the file. Secrets are stored in files of their own.",
                "`lunway reload` applies an edited file to the running daemon. Commands such as `lunway lun add` change the file and keep its comments.",
            ],
            sections: keys(&types["Config"], types),
            example: "\
listen = [\"0.0.0.0:3260\"]
state_dir = \"/var/lib/lunway\"

[[target]]
name = \"iqn.2026-11.com.example:disks\"
open = true

[[target.lun]]
id = 0
device = \"/srv/disk.img\"",
            see_also: &["lunway-serve(1)", "lunway-reload(1)", "lunway-config(1)", "lunway-api(7)"],
        },
        Page {
            name: "lunway-paths.toml",
            section: 5,
            title: "one disk over several network paths",
            description: &[
                "A file whose name ends in `paths.toml`, or that is named as `paths:FILE`, describes an iSCSI disk with several paths. Every command that takes \
                 a device takes it.",
                "Relative paths are relative to the directory of the file. Unknown keys are errors.",
            ],
            sections: keys(&paths, &paths["$defs"]),
            example: "\
target = \"iqn.2026-11.com.example:disk\"
lun = 0
portal = [\"10.0.1.10\", \"10.0.2.10\"]
plan = \"paired\"
user = \"joe\"
secret_file = \"joe.secret\"",
            see_also: &["lunway(1)", "lunway-paths(1)"],
        },
        Page {
            name: "lunway-api",
            section: 7,
            title: "management interface of the lunway daemon",
            description: &[
                "HTTP/1.1 with JSON, over the Unix socket that `lunway serve` prints and, where `api.listen` is configured, over TCP with a bearer token. \
                 `GET /v1/openapi.json` returns this page as an OpenAPI document.",
                "Each change is one transaction: it takes effect completely, in the running daemon and in its configuration file, or not at all. An error is \
                 answered with a status of 400 or above and an object with the field `error`.",
            ],
            sections: interface(&document),
            example: "curl --unix-socket /run/lunway/lunway.sock http://localhost/v1/targets",
            see_also: &["lunway-serve(1)", "lunway-target(1)", "lunway-lun(1)", "lunway.toml(5)"],
        },
    ]
}

impl Page {
    /// Name and section, as in the file's name.
    pub(super) fn file(&self) -> String {
        format!("{}.{}", self.name, self.section)
    }

    /// The page in the form of man(7).
    pub(super) fn rendered(&self) -> String {
        let mut roff = Roff::new();
        let section = self.section.to_string();
        let title = self.name.to_uppercase();
        roff.control(
            "TH",
            [title.as_str(), section.as_str(), super::DATE, super::source().as_str(), "lunway"],
        );
        roff.control("SH", ["NAME"]).text([roman(format!("{} - {}", self.name, self.title))]);
        roff.control("SH", ["DESCRIPTION"]);
        for (index, paragraph) in self.description.iter().enumerate() {
            if index > 0 {
                roff.control("PP", []);
            }
            roff.text(inline(paragraph));
        }
        roff.control("SH", ["EXAMPLE"]).control("nf", []);
        self.example.lines().for_each(|line| _ = roff.text([roman(line)]));
        roff.control("fi", []).control("SH", [if self.section == 5 { "KEYS" } else { "OPERATIONS" }]);
        for section in &self.sections {
            let heading = section.heading.replace('`', "");
            if section.level == 1 {
                roff.control("SH", [heading.to_uppercase().as_str()]);
            } else {
                roff.control("SS", [heading.as_str()]);
            }
            if !section.text.is_empty() {
                roff.text(inline(&section.text));
            }
            if let Some(table) = &section.table {
                rows(&mut roff, table);
            }
            if !section.after.is_empty() {
                roff.control("PP", []).text(inline(&section.after));
            }
        }
        roff.control("SH", ["SEE ALSO"]).text([roman(self.see_also.join(", "))]);
        roff.to_roff()
    }
}

/// The rows of a table as a list: the name, then what it takes, its default, and what it means.
fn rows(roff: &mut Roff, table: &Table) {
    for row in &table.rows {
        let (meaning, cells) = row.cells.split_last().expect("a row has a description");
        let cells: Vec<_> = cells
            .iter()
            .zip(&table.headings[1..])
            .filter(|(cell, _)| !cell.is_empty())
            .map(|(cell, heading)| {
                if *heading == "default" && cell != "required" {
                    format!("default {cell}")
                } else {
                    cell.clone()
                }
            })
            .collect();
        roff.control("TP", []);
        let mut head = vec![bold(row.name.as_str())];
        if !cells.is_empty() {
            head.push(roman("  ("));
            head.extend(inline(&cells.join("; ")));
            head.push(roman(")"));
        }
        roff.text(head).text(inline(meaning));
    }
}

/// A text with its code in bold.
fn inline(text: &str) -> Vec<Inline> {
    let inlines = spans(text).into_iter().map(|span| match span {
        Span::Plain(text) => roman(text),
        Span::Code(code) => bold(code),
    });
    inlines.collect()
}
