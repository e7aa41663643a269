//! Effects of a change on initiators, in words: which sessions must go, which targets let in nobody or everybody.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::summary::SessionSummary;
use super::warnings::{Warning, WarningKind};
use crate::access::Access;
use crate::config::TargetConfig;
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

fn opened_or_closed(name: &str, before: Option<Admits>, now: Admits) -> Option<String> {
    match (before, now) {
        (None, Admits::None) => Some(format!(
            "nobody may log in to target {name}: it needs an access rule that lets an initiator in, or `open`"
        )),
        (Some(_), Admits::None) => Some(format!(
            "nobody may log in to target {name} any more: no access rule lets an initiator in, and it is not open"
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
