//! The pages made of lists and marks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use crate::mark::Mark;
use crate::requirement::{Chapter, Reason, Requirement};
use crate::{Standing, Trace};

const HEAD: &str = "# RFC 7143, requirement by requirement

What the RFC asks of a target and of an initiator, in our own words, with the code that obeys it and the test that shows it. The
lists are in [`docs/rfc7143`](rfc7143/), the marks in the sources; `LUNWAY_WRITE_DOCS=1 cargo test -p lunway-trace` makes
this page of them, and the test fails when a requirement has neither a mark nor a reason.

";

const SUMMARY_HEAD: &str = "# RFC 7143

Every requirement of RFC 7143, the standard of iSCSI, is listed in our own words and tied to the code that obeys it and the test that shows
it: the whole list is `docs/rfc7143.md` in the repository. This page, made from the same marks, says how things stand and what we do
not do, and why.

";

/// `docs/rfc7143.md`: every requirement.
pub fn whole(trace: &Trace) -> String {
    let mut page = HEAD.to_owned();
    counts(trace, &mut page);
    for chapter in trace.chapters() {
        line(&mut page, format_args!("\n## {}", chapter.title));
        for section in &chapter.sections {
            line(&mut page, format_args!("\n### {}\n", section.title));
            line(
                &mut page,
                format_args!("| id | | who | what | code | shown by |\n|---|---|---|---|---|---|"),
            );
            for requirement in &section.requirements {
                row(trace, requirement, &mut page);
            }
        }
    }
    page
}

/// `docs/src/rfc7143.md`: the counts, and what is not obeyed.
pub fn summary(trace: &Trace) -> String {
    let mut page = SUMMARY_HEAD.to_owned();
    counts(trace, &mut page);
    for (standing, title) in [(Standing::Refused, "Deliberately not"), (Standing::Missing, "Not yet")] {
        let mut reasons: BTreeMap<&str, Vec<&Requirement>> = BTreeMap::new();
        for requirement in trace.chapters().iter().flat_map(Chapter::requirements) {
            if trace.standing(requirement) == standing
                && let Some(reason) = &requirement.reason
            {
                reasons.entry(trace.words_of(reason.words())).or_default().push(requirement);
            }
        }
        if reasons.is_empty() {
            continue;
        }
        line(&mut page, format_args!("\n## {title}\n"));
        let mut groups: Vec<_> = reasons.into_iter().collect();
        groups.sort_by_key(|(_, requirements)| std::cmp::Reverse(requirements.len()));
        for (words, requirements) in groups {
            match requirements[..] {
                [one] => {
                    line(&mut page, format_args!("- {} *{}* ({} {})", one.words, words, one.id, one.level));
                }
                _ => {
                    let sections: BTreeSet<&str> =
                        requirements.iter().filter_map(|r| r.id.split('-').next()).collect();
                    let sections = sections.into_iter().collect::<Vec<_>>().join(", ");
                    line(
                        &mut page,
                        format_args!("- {words} ({} requirements: §{sections})", requirements.len()),
                    );
                }
            }
        }
    }
    page
}

fn line(page: &mut String, words: std::fmt::Arguments<'_>) {
    writeln!(page, "{words}").expect("writing to memory does not fail");
}

fn counts(trace: &Trace, page: &mut String) {
    let shown = &Standing::ALL[..5];
    let names: Vec<&str> = shown.iter().map(|standing| standing.name()).collect();
    line(
        page,
        format_args!("| chapter | {} | all |\n|---|{}---:|", names.join(" | "), "---:|".repeat(shown.len())),
    );
    let mut total = vec![0; shown.len() + 1];
    for chapter in trace.chapters() {
        let counts = trace.counts(chapter.requirements());
        let mut cells: Vec<usize> =
            shown.iter().map(|s| counts.get(s).copied().unwrap_or_default()).collect();
        cells.push(chapter.requirements().count());
        total.iter_mut().zip(&cells).for_each(|(sum, cell)| *sum += cell);
        numbers(page, &chapter.title, &cells);
    }
    numbers(page, "**all**", &total);
}

fn numbers(page: &mut String, name: &str, cells: &[usize]) {
    let cells: Vec<String> = cells.iter().map(usize::to_string).collect();
    line(page, format_args!("| {name} | {} |", cells.join(" | ")));
}

fn row(trace: &Trace, requirement: &Requirement, page: &mut String) {
    let code = match (&requirement.reason, places(trace.code(requirement))) {
        (Some(reason), links) => {
            let words = trace.words_of(reason.words());
            let gap = if links.is_empty() { "" } else { "<br>" };
            format!("*{}:* {words}{gap}{links}", standing_of_reason(reason))
        }
        (None, links) => links,
    };
    let Requirement { id, level, role, words, .. } = requirement;
    let tests = places(trace.tests(requirement));
    line(page, format_args!("| {id} | {level} | {role} | {words} | {code} | {tests} |"));
}

const fn standing_of_reason(reason: &Reason) -> &'static str {
    match reason {
        Reason::Refused(_) => Standing::Refused.name(),
        Reason::Missing(_) => Standing::Missing.name(),
        Reason::Absent(_) => Standing::Absent.name(),
    }
}

fn places(marks: &[Mark]) -> String {
    let mut links: Vec<String> = Vec::new();
    for mark in marks {
        let short = mark.file.strip_prefix("crates").unwrap_or(&mark.file);
        let link = format!("[{}](../{}) `{}`", slashes(short), slashes(&mark.file), mark.item);
        if !links.contains(&link) {
            links.push(link);
        }
    }
    links.join("<br>")
}

fn slashes(path: &Path) -> String {
    path.components().map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/")
}
