//! Principals: who sessions, reservations and registrations belong to.

use std::net::IpAddr;

use sha2::{Digest, Sha256};

use crate::access::{self, Asker};
use crate::config::AccessRule;
use crate::source::SourceHost;

/// Digits of a rule without a name, in hexadecimal: 64 bits tell the rules of one target apart, which its administrator
/// writes.
const RULE_DIGITS: usize = 16;

/// Beginning of the principals that are users proven by CHAP.
const USER: &str = "user:";

/// Returns `true` if the principal is a user proven by CHAP: one peer with its secret, whatever its hosts say their
/// names are. Others are those that a rule lets in, which may be many peers.
pub(crate) fn is_user(principal: &str) -> bool {
    principal.starts_with(USER)
}

/// Returns the principal that has logged in to a target with these rules. A `user` is one that has been proven by CHAP.
///
/// A name of an initiator is what it says it is, and PERSISTENT RESERVE IN tells everybody the names of the others. So
/// what an initiator port has, such as a session that a login with its name takes the place of, is its principal's: the
/// proven user; without CHAP whom the rules can tell apart, that is the rule that lets it in. Addresses that one rule
/// lets in are one principal, because a host comes by another card of its own to fence its sessions over the first.
/// Where everybody is let in alike, it is empty.
///
/// A rule is known by its name, or where it has none by whom it is for; not by its place nor by what it allows. So it
/// stays the same over changes of the configuration.
pub(crate) fn of(rules: &[AccessRule], asker: Asker<'_>, user: Option<&str>) -> String {
    if let Some(user) = user {
        return format!("{USER}{user}");
    }
    match access::rule_of(rules, asker, None) {
        None if rules.is_empty() => String::new(),
        // Of an open target, those for whom there is no rule.
        None => "open".to_owned(),
        Some(AccessRule { name: Some(name), .. }) => format!("rule:{name}"),
        Some(rule) => {
            let initiators = rule.initiators.iter().map(|pattern| pattern.to_ascii_lowercase());
            let networks = rule.from.iter().map(|network| network.trunc().to_string());
            let mut whom: Vec<String> = initiators.chain(networks).collect();
            whom.sort_unstable();
            let digest = Sha256::digest(whom.join("\n"));
            let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("rule-for:{}", &digits[..RULE_DIGITS])
        }
    }
}

/// Returns the name under which memory is counted for a session of this principal from this address: the proven user's.
/// Without CHAP, each source that a rule lets in is one of its own, as the peers that one rule lets in need not be one
/// host, and what a host says its name is costs it nothing.
pub(crate) fn memory_owner(principal: &str, from: IpAddr) -> String {
    match principal {
        user if is_user(user) => user.to_owned(),
        "" => SourceHost::from(from).to_string(),
        rule => format!("{rule} from {}", SourceHost::from(from)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "iqn.2026-11.com.example:host-1";

    fn of_host(rules: &[&str], from: &str, user: Option<&str>) -> String {
        let rules: Vec<AccessRule> = rules.iter().map(|rule| toml::from_str(rule).unwrap()).collect();
        of(&rules, Asker { initiator: HOST, from: from.parse().unwrap() }, user)
    }

    #[test]
    fn a_proven_user_is_one_wherever_it_comes_from() {
        assert_eq!(of_host(&[], "10.0.0.1", Some("joe")), "user:joe");
        assert_eq!(of_host(&["from = [\"10.0.0.0/8\"]"], "10.0.0.1", Some("joe")), "user:joe");
    }

    #[test]
    fn without_users_the_rule_that_lets_in_tells_principals_apart() {
        let rules = ["from = [\"10.0.0.0/24\"]", "from = [\"10.0.1.0/24\"]"];
        let one = of_host(&rules, "10.0.0.1", None);
        assert_eq!(one, of_host(&rules, "10.0.0.2", None));
        assert_ne!(one, of_host(&rules, "10.0.1.1", None));
        assert_eq!(of_host(&[], "10.0.0.1", None), "");
    }

    #[test]
    fn memory_is_the_users_or_that_of_each_source() {
        let owner = |principal, from: &str| memory_owner(principal, from.parse().unwrap());
        assert_eq!(owner("user:joe", "10.0.0.1"), owner("user:joe", "10.0.0.2"));
        assert_eq!(owner("rule:a", "10.0.0.1"), "rule:a from 10.0.0.1");
        assert_ne!(owner("rule:a", "10.0.0.1"), owner("rule:b", "10.0.0.1"));
        assert_ne!(owner("", "10.0.0.1"), owner("", "10.0.0.2"));
        assert_eq!(owner("", "2001:db8::1"), owner("", "2001:db8::2:1"), "a host has a whole /64");
    }

    #[test]
    fn a_rule_is_the_same_wherever_it_stands_and_whatever_it_allows() {
        let (rule, other) = ("from = [\"10.0.0.0/24\"]", "from = [\"10.0.1.0/24\"]");
        let one = of_host(&[rule], "10.0.0.1", None);
        assert_eq!(
            one,
            of_host(&[other, &format!("{rule}\nluns = [0]\nread_only = true")], "10.0.0.1", None)
        );
        let named = |rule: &str| of_host(&[&format!("name = \"a\"\n{rule}")], "10.0.0.1", None);
        assert_eq!((named(rule), named("").as_str()), ("rule:a".to_owned(), "rule:a"));
    }
}
