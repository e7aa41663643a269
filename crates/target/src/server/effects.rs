//! Effects of a change on initiators, in words: which sessions must go, which targets let in nobody or everybody.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::summary::SessionSummary;
use super::warnings::{Warning, WarningKind};
use crate::access::Access;
use crate::config::{AccessRule, TargetConfig};
use crate::name::IscsiName;
use crate::shared::Target;

/// Initiators that one sentence names; more are only counted.
const NAMED_MAX: usize = 8;

/// Whom a target lets in, as far as its configuration alone says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admits {
    /// No initiator.
    None,
    /// Those that a rule lets in.
    ByRule,
    /// Every initiator that proves to be one of the CHAP users, but for what rules say.
    EveryUser,
    /// Every initiator that reaches it, but for what rules say.
    Everybody,
}

impl Admits {
    fn of(target: &TargetConfig) -> Self {
        match (target.open, target.chap.is_empty()) {
            _ if !target.lets_somebody_in() => Self::None,
            (false, _) => Self::ByRule,
            (true, false) => Self::EveryUser,
            (true, true) => Self::Everybody,
        }
    }
}

/// What the present configuration of a target should make its owner look twice; `None`: nothing.
pub(super) fn warning(target: &TargetConfig) -> Option<Warning> {
    let name = &target.name;
    let (kind, text) = match Admits::of(target) {
        Admits::None if target.acl.is_empty() => (
            WarningKind::ClosedTarget,
            format!(
                "target {name} admits no initiator: it has no access rules and is not open; add `open = true` to its [[target]] to \
             admit every initiator, as configurations without rules did before, or [[target.acl]] rules"
            ),
        ),
        Admits::None => (
            WarningKind::ClosedTarget,
            format!(
                "target {name} admits no initiator: all its access rules deny, and it is not open; add a rule that allows one, \
             or `open = true`"
            ),
        ),
        Admits::Everybody => (
            WarningKind::OpenTarget,
            format!(
                "target {name} is open: every initiator that can reach it{} may read and write; restrict it with CHAP \
                 ([[target.chap]]) or access rules instead of `open = true` ([[target.acl]])",
                if target.acl.is_empty() { "" } else { " and matches no access rule" }
            ),
        ),
        Admits::ByRule | Admits::EveryUser => return None,
    };
    Some(Warning { kind, text })
}

/// Where a target's name departs from the standards' form, for its owner; `None`: nowhere.
pub(super) fn name_warning(name: &IscsiName) -> Option<String> {
    let departure = name.departure()?;
    Some(format!("the name of target {name} may be refused by initiators: {departure}"))
}

/// What a change from `old` to `new` means for initiators, a sentence each. `sessions` are those of now; `made`: the
/// change is made, and not only tried.
pub(super) fn effects(
    old: &BTreeMap<String, Arc<Target>>,
    new: &BTreeMap<String, Arc<Target>>,
    sessions: &[SessionSummary],
    made: bool,
) -> Vec<String> {
    let mut effects = Vec::new();
    for (name, target) in new {
        let before = old.get(name).map(|old| Admits::of(&old.config));
        let now = Admits::of(&target.config);
        if before != Some(now) {
            effects.extend(opened_or_closed(name, before, now));
        }
        if before.is_none() {
            effects.extend(name_warning(&target.config.name));
        }
        if old.get(name).is_some_and(|old| !old.config.chap.is_empty()) && target.config.chap.is_empty() {
            effects.push(format!(
                "target {name} has no CHAP users any more: initiators log in without a secret"
            ));
        }
        let known = old.get(name).map_or(&[][..], |old| &old.config.acl);
        let new_rules = target.config.acl.iter().enumerate().filter(|(_, rule)| !known.contains(rule));
        effects.extend(new_rules.filter_map(|(at, rule)| unrestricted(name, at, rule)));
        let groups = |target: &Arc<Target>| offered_through(&target.config);
        if let Some(before) = old.get(name).map(groups).filter(|before| *before != groups(target)) {
            effects.push(format!("target {name} is offered through {} (before: {before})", groups(target)));
        }
    }
    let may = if made { "are" } else { "would be" };
    for (name, target) in old {
        let leaving: Vec<_> = sessions
            .iter()
            .filter(|session| session.target.eq_ignore_ascii_case(name))
            .filter(|session| !new.get(name).is_some_and(|new| keeps(target, new, session)))
            .map(|session| format!("{} ({})", session.initiator, session.peer))
            .collect();
        if leaving.is_empty() {
            continue;
        }
        let named = leaving[..leaving.len().min(NAMED_MAX)].join(", ");
        let more = match leaving.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let (count, plural) = (leaving.len(), if leaving.len() == 1 { "" } else { "s" });
        let are = if made && count == 1 { "is" } else { may };
        effects.push(format!("{count} session{plural} {are} logged out of target {name}: {named}{more}"));
    }
    effects
}

/// A rule that lets every initiator in, in words; `None`: it does not.
fn unrestricted(target: &str, at: usize, rule: &AccessRule) -> Option<String> {
    let matches_all = rule.initiators.is_empty() && rule.from.is_empty() && rule.users.is_empty();
    let name = rule.name.clone().unwrap_or_else(|| (at + 1).to_string());
    let may = if rule.read_only { "read" } else { "read and write" };
    (matches_all && !rule.deny)
        .then(|| format!("rule {name} of target {target} matches every initiator: all that log in may {may}"))
}

/// The portal groups that offer a target, in words.
fn offered_through(target: &TargetConfig) -> String {
    let tags: Vec<_> = target.portal_groups.iter().map(|group| group.tag.to_string()).collect();
    match &tags[..] {
        [] => "all portal groups".to_owned(),
        [only] => format!("portal group {only} only"),
        several => format!("portal groups {} only", several.join(", ")),
    }
}

fn opened_or_closed(name: &str, before: Option<Admits>, now: Admits) -> Option<String> {
    match (before, now) {
        (None, Admits::None) => Some(format!(
            "no initiator may log in to target {name}: it needs an access rule that allows one, or `open`"
        )),
        (Some(_), Admits::None) => Some(format!(
            "no initiator may log in to target {name} any more: no access rule allows one, and it is not open"
        )),
        (_, Admits::Everybody) => Some(format!(
            "everybody may log in to target {name}: every initiator that reaches it and matches no access rule may read and write"
        )),
        (_, Admits::EveryUser) => Some(format!(
            "every CHAP user may log in to target {name}: those that match no access rule may read and write"
        )),
        (Some(Admits::EveryUser | Admits::Everybody), Admits::ByRule) => {
            Some(format!("initiators that match no access rule may not log in to target {name} any more"))
        }
        (_, Admits::ByRule) => None,
    }
}

/// Whether a session may go on when its target becomes `new`.
fn keeps(old: &Target, new: &Target, session: &SessionSummary) -> bool {
    let group = session.portal_group;
    let access = || new.access_of(&session.initiator, session.peer.ip(), session.user.as_deref(), group);
    old.config == new.config || access() != Access::Denied
}
