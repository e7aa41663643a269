//! Diagnoses counted, as text and as JSON.

use lunway_doctor::{Diagnosis, Group, Verdict, rule};
use serde_json::{Value, json};

use crate::terminal;

/// Verdicts of a run.
pub(super) struct Verdicts {
    /// All that is not muted, in the order of the rules.
    pub(super) found: Vec<Diagnosis>,
    /// Number of muted verdicts.
    pub(super) muted: usize,
    /// Subject of the examination.
    pub(super) subject: String,
}

impl Verdicts {
    pub(super) fn count(&self, verdict: Verdict) -> usize {
        self.found.iter().filter(|diagnosis| diagnosis.verdict == verdict).count()
    }

    /// The worst of all. Nothing that was seen is not ok, but unknown.
    pub(super) fn worst(&self) -> Verdict {
        self.found.iter().map(|diagnosis| diagnosis.verdict).max().unwrap_or(Verdict::Unknown)
    }

    pub(super) fn exit_code(&self) -> u8 {
        match self.worst() {
            Verdict::Ok => 0,
            Verdict::Warn => 3,
            Verdict::Bad => 4,
            Verdict::Unknown => 5,
        }
    }

    /// Returns the diagnoses with that verdict, unanswered questions left out.
    pub(super) fn with(&self, verdict: Verdict) -> impl Iterator<Item = &Diagnosis> {
        self.found.iter().filter(move |diagnosis| diagnosis.verdict == verdict && !is_question(diagnosis))
    }

    /// Questions that were not answered.
    pub(super) fn questions(&self) -> Vec<&'static str> {
        self.found.iter().filter(|found| is_question(found)).map(|found| found.finding.id).collect()
    }

    /// Summary in one sentence: the number of each verdict.
    pub(super) fn sentence(&self) -> String {
        let counts = [Verdict::Bad, Verdict::Warn, Verdict::Unknown, Verdict::Ok]
            .map(|verdict| format!("{} {verdict}", self.count(verdict)));
        let muted = if self.muted > 0 { format!(", {} muted", self.muted) } else { String::new() };
        format!("{}{muted}", counts.join(", "))
    }

    pub(super) fn text(&self, all: bool) -> String {
        let mut blocks = Vec::new();
        for verdict in [Verdict::Bad, Verdict::Warn] {
            blocks.extend(self.with(verdict).map(block));
        }
        let mut lines: Vec<String> = self.with(Verdict::Unknown).map(line).collect();
        let questions = self.questions();
        if !questions.is_empty() {
            lines.push(format!(
                "unknown  {} questions that no program can answer: lunway doctor --ask, or --answer {}=yes",
                questions.len(),
                questions[0]
            ));
        }
        if all {
            lines.extend(self.with(Verdict::Ok).map(line));
        }
        if !lines.is_empty() {
            blocks.push(lines.join("\n"));
        }
        blocks.push(format!("{}: {}", terminal::clean(&self.subject), self.sentence()));
        blocks.join("\n\n")
    }

    /// The findings, and the worst verdict. What is ok is among them.
    pub(super) fn document(&self) -> Value {
        let finding = |diagnosis: &Diagnosis| {
            let finding = &diagnosis.finding;
            json!({
                "id": finding.id,
                "severity": finding.severity.to_string(),
                "verdict": diagnosis.verdict.to_string(),
                "where": finding.place,
                "what": finding.what,
                "why": finding.why,
                "do": finding.remedy,
                "undo": diagnosis.undo,
            })
        };
        let counts: serde_json::Map<String, Value> =
            Verdict::ALL.iter().map(|verdict| (verdict.to_string(), self.count(*verdict).into())).collect();
        json!({
            // By this a report of ours is known, which may be replaced.
            "lunway": { "schema": 1 },
            "subject": self.subject,
            "verdict": self.worst().to_string(),
            "counts": counts,
            "muted": self.muted,
            "findings": self.found.iter().map(finding).collect::<Vec<_>>(),
        })
    }
}

fn is_question(diagnosis: &Diagnosis) -> bool {
    let asked = rule(diagnosis.finding.id).is_some_and(|rule| rule.group == Group::Asked);
    asked && diagnosis.verdict == Verdict::Unknown
}

fn line(diagnosis: &Diagnosis) -> String {
    let finding = &diagnosis.finding;
    format!("{:7}  {:20}  {}", diagnosis.verdict, finding.id, terminal::clean(&finding.what))
}

/// The undo of a broken rule as people read it: that there is none is said.
pub(super) fn undo(diagnosis: &Diagnosis) -> &str {
    let lacks = diagnosis.undo.is_empty() && !diagnosis.finding.remedy.is_empty();
    if lacks { "none" } else { &diagnosis.undo }
}

/// A broken rule: what, why, what to do.
fn block(diagnosis: &Diagnosis) -> String {
    let finding = &diagnosis.finding;
    let mut lines = vec![terminal::heading(&line(diagnosis))];
    let parts = [("why", finding.why.as_str()), ("do", finding.remedy.as_str()), ("undo", undo(diagnosis))];
    let parts = parts.into_iter().filter(|(_, text)| !text.is_empty());
    lines.extend(parts.map(|(name, text)| format!("         {name:4}  {}", terminal::clean(text))));
    lines.join("\n")
}
