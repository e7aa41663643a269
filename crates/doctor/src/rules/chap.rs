//! Rules about CHAP in open-iscsi: secrets, the files that hold them, algorithms.

use lunway_block::Severity;

use super::{Group, Rule};
use crate::facts::{Chap, Facts, SecretFile};
use crate::verdict::{Outcome, Verdict};

const SECRETS: &str = "machines whose open-iscsi has CHAP secrets";

/// CHAP secrets, bytes: 96 bits at least (RFC 7143 §9.2.1); Windows takes 16 at most.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 12..=16;
/// Algorithms that are no weaker than SHA-256, by open-iscsi's names (IANA's numbers 7 and 8).
const STRONG: [&str; 2] = ["SHA256", "SHA3-256"];

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "chap-files",
        group: Group::Initiator,
        title: "Files with CHAP secrets are readable by root only",
        severity: Severity::Warning,
        applies: SECRETS,
        why: "every user of the machine can log in to the storage as the machine, and overwrite its disks (no published figure)",
        source: "RFC 7143 §9.2.1",
        thumbs: &[],
        fix: "chmod 600 {path}",
        undo: "chmod {mode} {path}",
        check: |facts| {
            let Some(initiator) = &facts.open_iscsi else { return Vec::new() };
            match initiator.secret_files.known() {
                Err(why) => vec![Outcome::unknown("/etc/iscsi", format!("files with CHAP secrets: {why}"))],
                Ok(files) => {
                    let judge = |file: &SecretFile| {
                        let what = format!("{} has mode {:o}", file.path, file.mode & 0o777);
                        Outcome::judged(file.mode & 0o077 == 0, Verdict::Bad, &file.path, what)
                            .with("path", &file.path)
                            .with("mode", format!("{:o}", file.mode & 0o777))
                    };
                    files.iter().map(judge).collect()
                }
            }
        },
    },
    Rule {
        id: "chap-length",
        group: Group::Initiator,
        title: "CHAP secrets have 12 to 16 bytes",
        severity: Severity::Warning,
        applies: SECRETS,
        why: "a secret of less than 96 bits can be found from one recorded login, and Windows refuses more than 16 \
              bytes",
        source: "RFC 7143 §9.2.1; Microsoft's initiator",
        thumbs: &[],
        fix: "set node.session.auth.password in {place} to 12 to 16 random bytes, here and at the target",
        undo: "",
        check: |facts| {
            chap(facts, |chap| {
                let what = format!("the secret in {} has {} bytes", chap.place, chap.length);
                Outcome::judged(SECRET_BYTES.contains(&chap.length), Verdict::Warn, &chap.place, what)
            })
        },
    },
    Rule {
        id: "chap-mutual",
        group: Group::Initiator,
        title: "The CHAP secrets of target and initiator differ",
        severity: Severity::Warning,
        applies: "machines whose open-iscsi has CHAP secrets for both ways",
        why: "with one secret for both directions, a challenge can be answered by reflecting it, which proves nothing (no \
              published figure)",
        source: "RFC 7143 §9.2.1: the same secret must not be used both ways",
        thumbs: &[],
        fix: "set node.session.auth.password_in in {place} to another secret, here and at the target",
        undo: "",
        check: |facts| {
            chap(facts, |chap| {
                let what = match chap.same_both_ways {
                    true => format!("{} has one secret for both ways", chap.place),
                    false => format!("{} has no secret for both ways", chap.place),
                };
                Outcome::judged(!chap.same_both_ways, Verdict::Bad, &chap.place, what)
            })
        },
    },
    Rule {
        id: "chap-algorithm",
        group: Group::Initiator,
        title: "CHAP offers SHA3-256 or SHA-256 before MD5 and SHA1",
        severity: Severity::Note,
        applies: SECRETS,
        why: "a target takes the first algorithm of the list that it has: open-iscsi offers only MD5 unless it is told otherwise. An attacker \
              who has recorded a login tries secrets against it, seven times as many in a second with MD5: 164 thousand million on one \
              graphics card, and 22 thousand million with SHA-256",
        source: "iscsid.conf: the default of chap_algs is MD5; RFC 7143 §12.1.3; hashcat 6.2.6's benchmark on an RTX 4090",
        thumbs: &[],
        fix: "iscsiadm -m node -T {target} -o update -n node.session.auth.chap_algs -v SHA3-256,SHA256,SHA1,MD5    # and log in again",
        undo: "iscsiadm -m node -T {target} -o update -n node.session.auth.chap_algs -v {old}",
        check: |facts| chap(facts, algorithm),
    },
];

/// A node record is changed by iscsiadm, and the file that new records are made of by sed.
fn algorithm(chap: &Chap) -> Outcome {
    /// The line is taken out, and stands at the end.
    const FIX: &str = "sed -i '/^node.session.auth.chap_algs *=/d' {place}; echo 'node.session.auth.chap_algs = \
                       SHA3-256,SHA256,SHA1,MD5' >> {place}    # for new records";
    let place = &chap.place;
    let is_strong = |name: &String| STRONG.contains(&name.as_str());
    let (what, strong) = match chap.algorithms.as_slice() {
        [] => (format!("{place} names no algorithm: open-iscsi offers MD5 alone"), false),
        all => (format!("{place} offers {}", all.join(", then ")), all.first().is_some_and(is_strong)),
    };
    let outcome = Outcome::judged(strong, Verdict::Warn, place, what);
    // Names of algorithms are these characters; a comma between them means nothing to a shell or to sed.
    let plain = |name: &String| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    let outcome = match chap.algorithms.iter().all(plain) {
        true => outcome.with_text("old", chap.algorithms.join(",")),
        false => outcome.with("old", chap.algorithms.join(",")),
    };
    match &chap.target {
        Some(target) => outcome.with("target", target),
        None if chap.algorithms.is_empty() => {
            outcome.fixed_by(FIX, "sed -i '/^node.session.auth.chap_algs *=/d' {place}")
        }
        None => outcome.fixed_by(
            FIX,
            "sed -i 's/^node.session.auth.chap_algs *=.*/node.session.auth.chap_algs = {old}/' {place}",
        ),
    }
}

fn chap(facts: &Facts, judge: impl Fn(&Chap) -> Outcome) -> Vec<Outcome> {
    let Some(initiator) = &facts.open_iscsi else { return Vec::new() };
    match initiator.chap.known() {
        Err(why) => vec![Outcome::unknown("/etc/iscsi", format!("CHAP secrets: {why}"))],
        Ok(all) => all.iter().map(|chap| judge(chap).with("place", &chap.place)).collect(),
    }
}
