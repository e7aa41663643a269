//! The pages of the documentation that are made of the rules.

use std::fmt::Write;

use lunway_block::Severity;

use crate::rules::{Group, RULES, Rule};

/// The rules of thumb that administrators pass on, by their numbers from 1.
const THUMBS: [&str; 22] = [
    "Follow the vendor's advice",
    "Use the vendor's multipath module, and keep it current",
    "Follow the vendor's subnet guidance: most want a subnet for each storage port, EqualLogic wants one in all",
    "No teaming on the storage side",
    "Two ports, 1:1 paths; for more, more pairs to different systems",
    "A mesh for redundancy only, with its extra paths passive",
    "No routers between",
    "All ports of a group have one type, speed and duplex",
    "Fixed link speed (where the standard allows it: 1000BASE-T must negotiate)",
    "VLANs, and no overlapping broadcast domains",
    "Jumbo frames on storage-only networks, the same everywhere",
    "Current drivers and firmware",
    "Nothing but IPv4 on storage ports",
    "Largest buffers of the card, offloads on",
    "Multipath and its default policy set before first use",
    "Journaling or synchronous writes off only with a UPS, and only on volumes that are iSCSI-only",
    "Current firmware of the storage",
    "Block, cluster and sector sizes that fit the work",
    "Volumes under 80 % full",
    "A UPS",
    "Write-back caching only with a trusted UPS",
    "Test it: pull a cable",
];

/// The page of the rules of thumb, and what checks each.
pub fn thumbs() -> String {
    let mut page = "# Doctor: rules of thumb\n\nAdvice on iSCSI storage that administrators pass on, and the rules of [`lunway doctor`](doctor.md) \
        that check it. Written by `LUNWAY_WRITE_DOCS=1 cargo test -p lunway-doctor`.\n\n| | rule of thumb | checked by |\n|---|---|---|\n"
        .to_owned();
    for (number, thumb) in (1u8..).zip(THUMBS) {
        let checks = RULES.into_iter().flatten().filter(|rule| rule.thumbs.contains(&number));
        let link = |rule: &Rule| format!("[{}]({}#{})", rule.id, file_name(rule.group), rule.id);
        let checks: Vec<String> = checks.map(link).collect();
        let _ = writeln!(page, "| {number} | {thumb} | {} |", checks.join(", "));
    }
    page
}

/// File name of a group's page in `docs/src`.
pub fn file_name(group: Group) -> String {
    format!("doctor-{}.md", group.name())
}

/// The page of a group: a paragraph for each rule.
pub fn page(group: Group) -> String {
    let mut page = format!(
        "# Doctor: {}\n\nRules that [`lunway doctor`](doctor.md) checks. Written by `LUNWAY_WRITE_DOCS=1 cargo test -p lunway-doctor`.\n",
        group.title().to_lowercase().replace("windows", "Windows")
    );
    let rules = RULES.into_iter().flatten().filter(|rule| rule.group == group);
    for rule in rules {
        paragraph(&mut page, rule);
    }
    page
}

fn paragraph(page: &mut String, rule: &Rule) {
    let severity = match rule.severity {
        Severity::Note => "note",
        Severity::Warning => "warning",
    };
    // Writing to a string cannot fail.
    let _ = write!(
        page,
        "\n## {}\n\n**{}.** Applies to: {}. Severity: {severity}.\n\nWhy: {}. Source: {}.\n",
        rule.id, rule.title, rule.applies, rule.why, rule.source
    );
    let _ = write!(page, "\nFix:\n\n```text\n{}\n```\n", steps(rule.fix));
    if !rule.undo.is_empty() {
        let _ = write!(page, "\nUndo:\n\n```text\n{}\n```\n", steps(rule.undo));
    } else {
        page.push_str("\nUndo: none.\n");
    }
}

/// Commands, one for each line.
fn steps(commands: &str) -> String {
    commands.replace("; ", "\n")
}
