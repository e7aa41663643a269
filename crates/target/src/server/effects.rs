//! Effects of a change on initiators, in words: which sessions must go, which targets let in no initiator or every one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipnet::IpNet;
use lunway_block::spec::DeviceSpec;

use crate::access::AccessDecision;
use crate::config::{AccessRule, BackupConfig, Config, LunConfig, TargetConfig};
use crate::name::IscsiName;
use crate::portal::Portals;
use crate::shared::Target;
use crate::summary::SessionSummary;
use crate::warning::{Warning, WarningKind};

/// Initiators that one sentence names; more are only counted.
const NAMED_MAX: usize = 8;

/// Whom a target lets in, as far as its configuration alone says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admits {
    /// No initiator.
    None,
    /// Initiators that a rule lets in.
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

/// A rule of a target that is not `open` that lets in every initiator, from everywhere, as every user.
fn rule_for_all(target: &TargetConfig) -> Option<&AccessRule> {
    let all = |rule: &&AccessRule| {
        let names = rule.initiators.is_empty() || rule.initiators.iter().any(|pattern| pattern == "*");
        let networks = rule.from.is_empty() || rule.from.iter().any(|network| network.prefix_len() == 0);
        !rule.deny && names && networks && rule.users.is_empty()
    };
    if target.open { None } else { target.acl.iter().find(all) }
}

/// Returns the warning to the owner about the present configuration of a target; `None`: there is none.
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
            let text = match rule_for_all(target) {
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

/// Returns the warning to the owner that a target's name departs from the standards' form; `None`: it does not.
pub(super) fn name_warning(name: &IscsiName) -> Option<String> {
    let departure = name.departure()?;
    Some(format!("the name of target {name} may be refused by initiators: {departure}"))
}

/// Access rules that never decide, a sentence each: an earlier rule matches whatever they match, or no initiator can
/// have the names that they ask for.
fn idle_rules(target: &TargetConfig) -> Vec<String> {
    let mut idle = Vec::new();
    for (at, rule) in target.acl.iter().enumerate() {
        let called = |at: usize| match &target.acl[at].name {
            Some(name) => format!("rule {name}"),
            None => format!("rule {}", at + 1),
        };
        if let Some(first) = target.acl[..at].iter().position(|earlier| covers(earlier, rule)) {
            idle.push(format!(
                "target {}: {} never matches: {} (position {}) matches first; put it at position {}",
                target.name,
                called(at),
                called(first),
                first + 1,
                first + 1
            ));
        }
        for pattern in rule.initiators.iter().filter(|pattern| !can_match(pattern)) {
            idle.push(format!(
                "target {}: {}: no iSCSI name begins like {pattern}: they begin with iqn., eui. or naa.",
                target.name,
                called(at)
            ));
        }
    }
    idle
}

/// Returns `true` if `earlier` matches every initiator that `later` matches, as far as equal patterns show it.
fn covers(earlier: &AccessRule, later: &AccessRule) -> bool {
    let name = |wanted: &String| {
        earlier.initiators.iter().any(|pattern| pattern == "*" || pattern.eq_ignore_ascii_case(wanted))
    };
    let any_name = earlier.initiators.is_empty() || earlier.initiators.iter().any(|pattern| pattern == "*");
    let names = any_name || !later.initiators.is_empty() && later.initiators.iter().all(name);
    let network = |wanted: &IpNet| earlier.from.iter().any(|network| network.contains(wanted));
    let networks = earlier.from.is_empty() || !later.from.is_empty() && later.from.iter().all(network);
    let user = |wanted: &String| earlier.users.contains(wanted);
    let users = earlier.users.is_empty() || !later.users.is_empty() && later.users.iter().all(user);
    names && networks && users
}

/// Returns `true` if a pattern can match a name of one of the three kinds (RFC 7143 §4.2.7.2).
fn can_match(pattern: &str) -> bool {
    let begin = pattern.split('*').next().unwrap_or_default().to_ascii_lowercase();
    let open = pattern.contains('*');
    ["iqn.", "eui.", "naa."].iter().any(|kind| begin.starts_with(kind) || open && kind.starts_with(&begin))
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

/// The initiators of some sessions, the first [`NAMED_MAX`] by name; `None`: there is none.
pub(super) fn listed_each<'s>(sessions: impl Iterator<Item = &'s SessionSummary>) -> Option<Vec<String>> {
    let mut names: Vec<_> = sessions.map(titled).collect();
    let more = names.len().saturating_sub(NAMED_MAX);
    names.truncate(NAMED_MAX);
    names.extend((more > 0).then(|| format!("{more} more")));
    (!names.is_empty()).then_some(names)
}

/// Returns the effects of a change from `old` to `new` on initiators, a sentence each. `sessions` are those of now;
/// `made`: the change is made, and not only tried.
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
        let had = old.get(name).map_or_else(Vec::new, |old| idle_rules(&old.config));
        effects.extend(idle_rules(&target.config).into_iter().filter(|idle| !had.contains(idle)));
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
        let leaving: Vec<&SessionSummary> = sessions
            .iter()
            .filter(|session| session.target.eq_ignore_ascii_case(name))
            .filter(|session| !new.get(name).is_some_and(|new| keeps(target, new, session)))
            .collect();
        let initiators: BTreeSet<&str> = leaving.iter().map(|session| session.initiator.as_str()).collect();
        let leaving: Vec<_> = leaving.into_iter().map(titled).collect();
        let Some(named) = listed(&leaving) else { continue };
        let (count, plural) = (leaving.len(), if leaving.len() == 1 { "" } else { "s" });
        let are = if made && count == 1 { "is" } else { may };
        effects.push(format!("{count} session{plural} {are} logged out of target {name}: {named}"));
        if new.contains_key(name) {
            effects.extend(registrations_that_stay(target, &initiators));
        }
    }
    effects
}

/// Registrations of initiators that are logged out, a sentence for each logical unit: what others may do there still
/// depends on them.
fn registrations_that_stay(target: &Target, initiators: &BTreeSet<&str>) -> Vec<String> {
    let name = &target.config.name;
    let luns = target.scsi.luns().into_iter();
    luns.filter_map(|(lun, unit)| {
        let registrations = unit.reservation_summary().registrations;
        let is_registered = |initiator: &&str| {
            let ports = format!("{},", initiator.to_ascii_lowercase());
            registrations.iter().any(|registration| registration.initiator_port.starts_with(&ports))
        };
        let registered: Vec<_> = initiators.iter().copied().filter(is_registered).map(str::to_owned).collect();
        let named = listed(&registered)?;
        Some(format!(
            "registrations on lun {lun} of target {name} stay, with the reservation that one of them may hold: {named}; \
             `lunway reservation clear {name} {lun}` removes all of that LUN"
        ))
    })
    .collect()
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
    let rights = match rule_for_all(target) {
        Some(rule) if rule.read_only => format!("access rule{} gives all of them read access", name_of(rule)),
        Some(rule) => format!("access rule{} matches all of them", name_of(rule)),
        None if target.acl.is_empty() => "all of them have full access".to_owned(),
        None => "those that match no access rule have full access".to_owned(),
    };
    match (before, now) {
        (None, Admits::None) => Some(format!(
            "no initiator may log in to target {name}: it needs an access rule that allows one, or `open`"
        )),
        (Some(_), Admits::None) => Some(format!(
            "no initiator may log in to target {name} any more: no access rule allows one, and it is not open"
        )),
        (_, Admits::Everybody) => {
            Some(format!("every initiator that reaches target {name} may log in: {rights}"))
        }
        (_, Admits::EveryUser) => Some(format!("every CHAP user may log in to target {name}: {rights}")),
        (Some(Admits::EveryUser | Admits::Everybody), Admits::ByRule) => {
            Some(format!("initiators that match no access rule may not log in to target {name} any more"))
        }
        (_, Admits::ByRule) => None,
    }
}

/// Returns `true` if a session with a target, which is looked for among `serving`, may use one of its logical units.
pub(super) fn sees(serving: &BTreeMap<String, Arc<Target>>, session: &SessionSummary, lun: u16) -> bool {
    let found = serving.iter().find(|(name, _)| session.target.eq_ignore_ascii_case(name));
    let view = found
        .map(|(_, target)| target.view_of(&session.initiator, session.peer.ip(), session.user.as_deref()));
    view.is_none_or(|view| view.luns.is_none_or(|luns| luns.contains(&lun)))
}

/// Logical units that a change takes away from sessions that may use them, a sentence each. `serving` is what it
/// changes.
pub(super) fn lost_luns(
    old: &Config,
    new: &Config,
    serving: &BTreeMap<String, Arc<Target>>,
    sessions: &[SessionSummary],
    made: bool,
) -> Vec<String> {
    let lose = if made { "lose" } else { "would lose" };
    let targets = old.targets.iter().filter_map(|target| Some((target, new.target(target.name.as_str())?)));
    targets
        .flat_map(|(old, new)| {
            let gone = old.luns.iter().filter(|lun| new.lun(lun.id).is_none());
            gone.filter_map(move |lun| {
                let of = |session: &&SessionSummary| session.target.eq_ignore_ascii_case(old.name.as_str());
                let losing = sessions.iter().filter(of).filter(|session| sees(serving, session, lun.id));
                let names = listed(&losing.map(titled).collect::<Vec<_>>())?;
                Some(format!("sessions with target {} {lose} lun {}: {names}", old.name, lun.id))
            })
        })
        .collect()
}

/// Sessions with targets that stay whose portal a change from `before` to `now` takes away or moves to another portal
/// group, a sentence for each target.
pub(super) fn lost_portals(
    before: &Portals,
    now: &Portals,
    targets: &BTreeMap<String, Arc<Target>>,
    sessions: &[SessionSummary],
    made: bool,
) -> Vec<String> {
    let are = if made { "are" } else { "would be" };
    let loses = |session: &&SessionSummary| {
        before.tag_of(session.portal).is_some_and(|tag| now.tag_of(session.portal) != Some(tag))
    };
    let losing: Vec<_> = sessions.iter().filter(loses).collect();
    targets
        .values()
        .filter_map(|target| {
            let name = &target.config.name;
            let of = |session: &&&SessionSummary| session.target.eq_ignore_ascii_case(name.as_str());
            let names: Vec<_> = losing.iter().filter(of).map(|session| titled(session)).collect();
            let listed = listed(&names)?;
            Some(format!("sessions with target {name} {are} asked to log out, their portal goes: {listed}"))
        })
        .collect()
}

/// Targets that a change from `before` to `now` leaves without a portal that is listened on, a sentence each. A portal
/// that is configured and waits for its address lets in no initiator.
pub(super) fn unreachable(
    before: &Portals,
    now: &Portals,
    targets: &BTreeMap<String, Arc<Target>>,
    made: bool,
) -> Vec<String> {
    let can = if made { "can" } else { "could" };
    let cut = targets.values().filter(|target| {
        let groups = &target.config.portal_groups;
        let offered = |tag: u16| groups.is_empty() || groups.iter().any(|group| group.tag == tag);
        before.any(offered) && !now.any(offered)
    });
    cut.map(|target| {
        let name = &target.config.name;
        format!("no initiator {can} log in to target {name}: no portal that offers it has an address now")
    })
    .collect()
}

/// Logical units that a change from `old` to `new` adds and that this daemon serves already, a sentence each: an
/// initiator takes the two for two disks. The name of a target is unique in the world (RFC 7143 §4.2.7.1).
pub(super) fn served_again(old: &Config, new: &Config) -> Vec<String> {
    let luns = new.targets.iter().flat_map(|target| target.luns.iter().map(move |lun| (target, lun)));
    luns.filter_map(|(target, lun)| {
        let DeviceSpec::Iscsi { url } = lun.device.spec().leaf() else { return None };
        let (_, name, id) = url.parts()?;
        let id = id.parse().ok()?;
        let origin = new.target(name).and_then(|target| target.lun(id))?;
        let had = old.target(target.name.as_str()).and_then(|target| target.lun(lun.id));
        (had.map(|had| &had.device) != Some(&lun.device)).then(|| {
            format!(
                "lun {} of target {} is lun {} of target {name} once more: an initiator takes them for two disks, and writing to both \
                 damages what is on them",
                lun.id, target.name, origin.id
            )
        })
    })
    .collect()
}

/// Backups by the clock whose logical unit a change from `old` to `new` takes away, a sentence each: their runs fail.
pub(super) fn lost_sources(old: &Config, new: &Config) -> Vec<String> {
    let has = |config: &Config, backup: &BackupConfig| {
        let source = &backup.source;
        config.target(&source.target).is_some_and(|target| target.lun(source.lun).is_some())
    };
    let lost = new.backups.iter().filter(|backup| has(old, backup) && !has(new, backup));
    lost.map(|BackupConfig { name, source, .. }| {
        format!("backup {name} has no source any more, {source}: its runs fail, until its [[backup]] is changed or removed")
    })
    .collect()
}

/// RAM disks that a change from `old` to `new` gives up, a sentence each: what they hold is gone with them.
pub(super) fn lost_memory(old: &Config, new: &Config, made: bool) -> Vec<String> {
    let is = if made { "is" } else { "would be" };
    let luns = old.targets.iter().flat_map(|target| target.luns.iter().map(move |lun| (target, lun)));
    luns.filter(|(target, lun)| {
        let now = new.target(target.name.as_str()).and_then(|target| target.lun(lun.id));
        let memory = |lun: &LunConfig| lun.device.spec().is_memory();
        memory(lun) && !now.is_some_and(memory)
    })
    .map(|(target, lun)| {
        format!("what {} held, lun {} of target {}, {is} lost with it", lun.device, lun.id, target.name)
    })
    .collect()
}

/// Returns `true` if a session may go on when its target becomes `new`.
fn keeps(old: &Target, new: &Target, session: &SessionSummary) -> bool {
    let group = session.portal_group;
    let access = || new.access_of(&session.initiator, session.peer.ip(), session.user.as_deref(), group);
    old.config == new.config || access() != AccessDecision::Denied
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle(rules: &str) -> Vec<String> {
        let text = format!("[[target]]\nname = \"iqn.2026-11.com.example:disk\"\n{rules}");
        idle_rules(&Config::from_toml(&text, "lunway.toml").unwrap().targets[0])
    }

    #[test]
    fn a_backup_is_told_that_loses_its_lun_and_none_that_had_none() {
        let config = |luns: &[u16]| {
            let mut text = "[[backup]]\nname = \"nightly\"\nsource = \"iqn.2026-11.com.example:disk/3\"\n\
                destination = \"/srv/share\"\nevery = \"24h\"\n[[target]]\nname = \"iqn.2026-11.com.example:disk\"\n"
                .to_owned();
            for lun in luns {
                text += &format!("[[target.lun]]\nid = {lun}\ndevice = \"ram:1M\"\n");
            }
            Config::from_toml(&text, "lunway.toml").unwrap()
        };
        let told = lost_sources(&config(&[0, 3]), &config(&[0]));
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("backup nightly has no source any more, iqn.2026-11.com.example:disk/3"));
        for (old, new) in [(config(&[3]), config(&[0, 3])), (config(&[0]), config(&[]))] {
            assert_eq!(lost_sources(&old, &new), Vec::<String>::new());
        }
    }

    #[test]
    fn a_lun_of_this_daemon_that_is_added_to_it_again_is_told_once() {
        let name = "iqn.2026-11.com.example:disk";
        let config = |more: &str| {
            let text =
                format!("[[target]]\nname = \"{name}\"\n[[target.lun]]\nid = 0\ndevice = \"ram:1M\"\n{more}");
            Config::from_toml(&text, "lunway.toml").unwrap()
        };
        let lun = |name: &str, id: u16| {
            config(&format!("[[target.lun]]\nid = 3\ndevice = \"iscsi://192.0.2.1:3260/{name}/{id}\"\n"))
        };
        let told = served_again(&config(""), &lun(name, 0));
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with(&format!("lun 3 of target {name} is lun 0 of target {name} once more")));
        for (old, new) in [
            (lun(name, 0), lun(name, 0)),
            (config(""), lun(name, 7)),
            (config(""), lun("iqn.2026-11.com.example:other", 0)),
        ] {
            assert_eq!(served_again(&old, &new), Vec::<String>::new());
        }
    }

    #[test]
    fn a_rule_behind_one_that_matches_as_much_is_told() {
        let all = "[[target.acl]]\nname = \"all\"\ninitiators = [\"*\"]\n";
        let no = "[[target.acl]]\nname = \"no\"\nfrom = [\"127.0.0.1/32\"]\ndeny = true\n";
        let told = idle(&format!("{all}{no}"));
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("rule no never matches: rule all (position 1) matches first"), "{told:?}");
        assert_eq!(idle(&format!("{no}{all}")), Vec::<String>::new());
        let net = "[[target.acl]]\nname = \"net\"\nfrom = [\"127.0.0.0/8\"]\n";
        assert_eq!(idle(&format!("{net}{no}")).len(), 1);
        // One that asks for a user lets others through to the next rule.
        let user = "[[target.acl]]\nname = \"user\"\nusers = [\"u\"]\n";
        assert_eq!(idle(&format!("{user}{no}")), Vec::<String>::new());
    }

    #[test]
    fn a_name_that_no_initiator_has_is_told() {
        let rule = |pattern: &str| idle(&format!("[[target.acl]]\ninitiators = [\"{pattern}\"]\n"));
        for odd in ["foo", "foo*", "iqm.2026-11.*"] {
            assert!(rule(odd).concat().contains("no iSCSI name begins like"), "{odd}");
        }
        for usual in ["*", "*:host", "i*", "IQN.2026-11.com.example:host", "eui.*", "naa.52004567BA64678D"] {
            assert_eq!(rule(usual), Vec::<String>::new(), "{usual}");
        }
    }
}
