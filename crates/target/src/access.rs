//! Access control of a target: its rules, applied.

use std::net::IpAddr;

use lunway_scsi::LunView;

use crate::config::{AccessRule, TargetConfig};

/// Decision of a target's rules about an asker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AccessDecision {
    /// Log in, and see and do this.
    Granted(LunView),
    /// Stay outside.
    Denied,
}

/// Initiator that asks, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker<'a> {
    /// Its iSCSI name; case does not matter.
    pub(crate) initiator: &'a str,
    /// Source address.
    pub(crate) from: IpAddr,
}

/// Gate of a target: its rules, and whether it is open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gate<'a> {
    rules: &'a [AccessRule],
    /// An initiator that matches no rule may do everything.
    open: bool,
}

impl<'a> From<&'a TargetConfig> for Gate<'a> {
    fn from(target: &'a TargetConfig) -> Self {
        Self { rules: &target.acl, open: target.open }
    }
}

/// Decides by the first rule that matches; an initiator that matches none may do everything where the target is open,
/// and nothing where it is not. An empty list of rules is no exception.
///
/// `user` is the CHAP user that was proven; none matches no rule that names users.
pub(crate) fn decide(gate: Gate<'_>, asker: Asker<'_>, user: Option<&str>) -> AccessDecision {
    match rule_of(gate.rules, asker, user) {
        Some(rule) if !rule.deny => AccessDecision::Granted(LunView {
            luns: rule.luns.as_ref().map(|luns| luns.iter().copied().collect()),
            read_only: rule.read_only,
        }),
        Some(_) => AccessDecision::Denied,
        None if gate.open => AccessDecision::Granted(LunView::ALL),
        None => AccessDecision::Denied,
    }
}

/// The rule that decides.
pub(crate) fn rule_of<'a>(
    rules: &'a [AccessRule],
    asker: Asker<'_>,
    user: Option<&str>,
) -> Option<&'a AccessRule> {
    let of_user = |rule: &AccessRule| {
        // RFC 7143 [9.2-6]
        rule.users.is_empty() || user.is_some_and(|user| rule.users.iter().any(|known| known == user))
    };
    rules.iter().find(|rule| matches(rule, asker) && of_user(rule))
}

/// The users who may not log in from there, if they prove to be who they say: what is known before they have.
pub(crate) fn barred<'a>(
    gate: Gate<'_>,
    asker: Asker<'_>,
    users: impl Iterator<Item = &'a str>,
) -> Vec<String> {
    let denied = |user: &&str| decide(gate, asker, Some(user)) == AccessDecision::Denied;
    users.filter(denied).map(str::to_owned).collect()
}

fn matches(rule: &AccessRule, Asker { initiator, from }: Asker<'_>) -> bool {
    let from = from.to_canonical();
    let initiator = initiator.to_ascii_lowercase();
    let named = || rule.initiators.iter().any(|pattern| fits(&pattern.to_ascii_lowercase(), &initiator));
    let near = || rule.from.iter().any(|network| network.contains(&from));
    (rule.initiators.is_empty() || named()) && (rule.from.is_empty() || near())
}

/// Returns `true` if `name` matches `pattern`, in which `*` stands for any text. Takes linear time, but for the product
/// of the two lengths at worst, whatever the pattern.
fn fits(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    let Some(mut rest) = rest.strip_suffix(last) else { return false };
    for part in parts {
        // The first place leaves the most for the others.
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn rule(text: &str) -> AccessRule {
        toml::from_str(text).unwrap()
    }

    fn asker<'a>(initiator: &'a str, from: &str) -> Asker<'a> {
        Asker { initiator, from: from.parse().unwrap() }
    }

    fn closed(rules: &[AccessRule]) -> Gate<'_> {
        Gate { rules, open: false }
    }

    fn open(rules: &[AccessRule]) -> Gate<'_> {
        Gate { rules, open: true }
    }

    const HOST: &str = "iqn.2026-11.com.example:host-1";

    #[test]
    fn a_star_stands_for_any_text_anywhere() {
        for (pattern, name, fit) in [
            ("*", HOST, true),
            ("*", "", true),
            (HOST, HOST, true),
            (HOST, "iqn.2026-11.com.example:host-10", false),
            ("iqn.2026-11.com.example:*", HOST, true),
            ("iqn.2026-11.com.example:host-1*", HOST, true),
            ("*:host-1", HOST, true),
            ("*:host", HOST, false),
            ("iqn.*.example:*-1", HOST, true),
            ("iqn.*.example:*-2", HOST, false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("*ab*ab*", "xabab", true),
            ("*ab*ab*", "xab", false),
            ("", HOST, false),
        ] {
            assert_eq!(fits(pattern, name), fit, "{pattern} {name}");
        }
    }

    #[test]
    fn what_matches_no_rule_is_refused_also_where_there_are_none_unless_the_target_is_open() {
        assert_eq!(decide(closed(&[]), asker(HOST, "10.0.0.1"), None), AccessDecision::Denied);
        assert_eq!(decide(open(&[]), asker(HOST, "10.0.0.1"), None), AccessDecision::Granted(LunView::ALL));
        let rules = [rule("initiators = [\"iqn.2026-11.com.example:other\"]\nread_only = true")];
        assert_eq!(decide(closed(&rules), asker(HOST, "10.0.0.1"), None), AccessDecision::Denied);
        assert_eq!(
            decide(open(&rules), asker(HOST, "10.0.0.1"), None),
            AccessDecision::Granted(LunView::ALL)
        );
        for gate in [closed(&rules), open(&rules)] {
            let other = decide(gate, asker("IQN.2026-11.com.example:OTHER", "10.0.0.1"), None);
            assert_eq!(other, AccessDecision::Granted(LunView { luns: None, read_only: true }));
        }
        let deny = [rule("from = [\"10.0.0.1/32\"]\ndeny = true")];
        assert_eq!(decide(open(&deny), asker(HOST, "10.0.0.1"), None), AccessDecision::Denied);
        assert_eq!(decide(open(&deny), asker(HOST, "10.0.0.2"), None), AccessDecision::Granted(LunView::ALL));
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let rules = [
            rule("from = [\"10.0.0.13/32\"]\ndeny = true"),
            rule("from = [\"10.0.0.0/8\", \"fd00::/8\"]\nluns = [0, 2]"),
            rule("read_only = true"),
        ];
        let of = |from: &str| decide(closed(&rules), asker(HOST, from), None);
        let some = LunView { luns: Some(BTreeSet::from([0, 2])), read_only: false };
        assert_eq!(of("10.0.0.13"), AccessDecision::Denied);
        assert_eq!(of("10.0.0.14"), AccessDecision::Granted(some.clone()));
        assert_eq!(of("::ffff:10.0.0.14"), AccessDecision::Granted(some.clone()));
        assert_eq!(of("fd00::7"), AccessDecision::Granted(some));
        assert_eq!(of("192.0.2.1"), AccessDecision::Granted(LunView { luns: None, read_only: true }));
    }

    #[test]
    fn a_rule_with_users_is_for_those_who_have_proven_to_be_one() {
        let rules = [rule("users = [\"admin\"]"), rule("users = [\"backup\"]\nread_only = true")];
        let of = |user| decide(closed(&rules), asker(HOST, "10.0.0.1"), user);
        assert_eq!(of(Some("admin")), AccessDecision::Granted(LunView::ALL));
        assert_eq!(of(Some("backup")), AccessDecision::Granted(LunView { luns: None, read_only: true }));
        assert_eq!(of(Some("other")), AccessDecision::Denied);
        assert_eq!(of(None), AccessDecision::Denied);
    }

    #[test]
    fn before_a_user_is_known_it_is_known_who_may_not() {
        let rules = [
            rule("users = [\"mallory\"]\ndeny = true"),
            rule("users = [\"admin\"]\nfrom = [\"10.0.0.0/8\"]"),
        ];
        let barred = |from: &str| barred(closed(&rules), asker(HOST, from), ["mallory", "admin"].into_iter());
        assert_eq!(barred("10.0.0.1"), ["mallory"]);
        assert_eq!(barred("192.0.2.1"), ["mallory", "admin"]);
    }
}
