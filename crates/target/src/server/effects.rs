//! Effects of a change on initiators, in words: which sessions must go, which targets let in nobody or everybody.

use std::collections::BTreeMap;
use std::sync::Arc;

use lunway_block::spec::DeviceSpec;

use super::summary::SessionSummary;
use super::warnings::{Warning, WarningKind};
use crate::access::Access;
use crate::config::{AccessRule, Config, LunConfig, TargetConfig};
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
        match (target.open || rule_for_all(target).is_some(), target.chap.is_empty()) {
            _ if !target.lets_somebody_in() => Self::None,
            (false, _) => Self::ByRule,
            (true, false) => Self::EveryUser,
            (true, true) => Self::Everybody,
        }
    }
}

/// A rule that lets in every initiator, from everywhere, as every user.
fn rule_for_all(target: &TargetConfig) -> Option<&AccessRule> {
    let all = |rule: &&AccessRule| {
        let names = rule.initiators.is_empty() || rule.initiators.iter().any(|pattern| pattern == "*");
        let networks = rule.from.is_empty() || rule.from.iter().any(|network| network.prefix_len() == 0);
        !rule.deny && names && networks && rule.users.is_empty()
    };
    target.acl.iter().find(all)
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
        Admits::Everybody => {
            let text = match rule_for_all(target).filter(|_| !target.open) {
                Some(rule) => format!(
                    "target {name} is open: its access rule{} matches every initiator; give the rule initiators, networks or users, \
                     or restrict the target with CHAP ([[target.chap]])",
                    name_of(rule)
                ),
                None => format!(
                    "target {name} is open: every initiator that can reach it{} may read and write; restrict it with CHAP \
                     ([[target.chap]]) or access rules instead of `open = true` ([[target.acl]])",
                    if target.acl.is_empty() { "" } else { " and matches no access rule" }
                ),
            };
            (WarningKind::OpenTarget, text)
        }
        Admits::ByRule | Admits::EveryUser => return None,
    };
    Some(Warning { kind, text })
}

/// Where a target's name departs from the standards' form, for its owner; `None`: nowhere.
pub(super) fn name_warning(name: &IscsiName) -> Option<String> {
    let departure = name.departure()?;
    Some(format!("the name of target {name} may be refused by initiators: {departure}"))
}

/// A session, for people.
fn titled(session: &SessionSummary) -> String {
    format!("{} ({})", session.initiator, session.peer)
}

/// The first [`NAMED_MAX`] of a list, and how many more there are; `None`: it is empty.
fn listed(names: &[String]) -> Option<String> {
    let more = names.len().saturating_sub(NAMED_MAX);
    let named = names[..names.len() - more].join(", ");
    match (names.is_empty(), more) {
        (true, _) => None,
        (false, 0) => Some(named),
        (false, _) => Some(format!("{named} and {more} more")),
    }
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
            effects.extend(opened_or_closed(&target.config, before, now));
        }
        if before.is_none() {
            effects.extend(name_warning(&target.config.name));
        }
        if old.get(name).is_some_and(|old| !old.config.chap.is_empty()) && target.config.chap.is_empty() {
            effects.push(format!(
                "target {name} has no CHAP users any more: initiators log in without a secret"
            ));
        }
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
            .map(titled)
            .collect();
        let Some(named) = listed(&leaving) else { continue };
        let (count, plural) = (leaving.len(), if leaving.len() == 1 { "" } else { "s" });
        let are = if made && count == 1 { "is" } else { may };
        effects.push(format!("{count} session{plural} {are} logged out of target {name}: {named}"));
    }
    effects
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

/// ` NAME`, where a rule has a name.
fn name_of(rule: &AccessRule) -> String {
    rule.name.iter().map(|name| format!(" {name}")).collect()
}

fn opened_or_closed(target: &TargetConfig, before: Option<Admits>, now: Admits) -> Option<String> {
    let name = &target.name;
    let whom = match rule_for_all(target).filter(|_| !target.open) {
        Some(rule) => format!("those that its access rule{} matches", name_of(rule)),
        None => "those that match no access rule".to_owned(),
    };
    match (before, now) {
        (None, Admits::None) => Some(format!(
            "no initiator may log in to target {name}: it needs an access rule that allows one, or `open`"
        )),
        (Some(_), Admits::None) => Some(format!(
            "no initiator may log in to target {name} any more: no access rule allows one, and it is not open"
        )),
        (_, Admits::Everybody) => Some(format!(
            "every initiator that reaches target {name} may log in: {whom} may do what is not forbidden there"
        )),
        (_, Admits::EveryUser) => Some(format!(
            "every CHAP user may log in to target {name}: {whom} may do what is not forbidden there"
        )),
        (Some(Admits::EveryUser | Admits::Everybody), Admits::ByRule) => {
            Some(format!("initiators that match no access rule may not log in to target {name} any more"))
        }
        (_, Admits::ByRule) => None,
    }
}

/// Logical units that a change takes away from targets with sessions, a sentence each.
pub(super) fn lost_luns(old: &Config, new: &Config, sessions: &[SessionSummary], made: bool) -> Vec<String> {
    let lose = if made { "lose" } else { "would lose" };
    let targets = old.targets.iter().filter_map(|target| Some((target, new.target(target.name.as_str())?)));
    targets
        .flat_map(|(old, new)| {
            let gone = old.luns.iter().filter(|lun| new.lun(lun.id).is_none());
            gone.filter_map(|lun| {
                let of = |session: &&SessionSummary| session.target.eq_ignore_ascii_case(old.name.as_str());
                let names: Vec<_> = sessions.iter().filter(of).map(titled).collect();
                let listed = listed(&names)?;
                Some(format!("sessions with target {} {lose} lun {}: {listed}", old.name, lun.id))
            })
        })
        .collect()
}

/// RAM disks that a change from `old` to `new` gives up, a sentence each: what they hold is gone with them.
pub(super) fn lost_memory(old: &Config, new: &Config, made: bool) -> Vec<String> {
    let is = if made { "is" } else { "would be" };
    let luns = old.targets.iter().flat_map(|target| target.luns.iter().map(move |lun| (target, lun)));
    luns.filter(|(target, lun)| {
        let now = new.target(target.name.as_str()).and_then(|target| target.lun(lun.id));
        let memory = |lun: &LunConfig| matches!(lun.device.spec().leaf(), DeviceSpec::Ram { .. });
        memory(lun) && !now.is_some_and(memory)
    })
    .map(|(target, lun)| {
        format!("what {} held, lun {} of target {}, {is} lost with it", lun.device, lun.id, target.name)
    })
    .collect()
}

/// Whether a session may go on when its target becomes `new`.
fn keeps(old: &Target, new: &Target, session: &SessionSummary) -> bool {
    let group = session.portal_group;
    let access = || new.access_of(&session.initiator, session.peer.ip(), session.user.as_deref(), group);
    old.config == new.config || access() != Access::Denied
}
