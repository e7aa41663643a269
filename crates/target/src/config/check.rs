//! Validation: finds what cannot be served.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU64;
use std::time::Duration;

use lunway_block::duration::ExactDuration;
use lunway_block::rate::{ExactRate, parse_rate};
use lunway_block::size::parse_size;
use lunway_iscsi::chap::Secret;

use super::{
    AccessRule, ApiConfig, BackupConfig, ChapUser, Config, ConfigError, FIRST_PORTAL_GROUP, Limits,
    LunConfig, TargetConfig,
};
use crate::portal::PortalSpec;
use crate::secret;

/// Largest LUN that flat addressing can name (SAM-5 §4.7.5.4).
const LUN_MAX: u16 = 0x3fff;
/// Longest alias, bytes: as long as the simple values of RFC 7143 §6.1.
const ALIAS_MAX: usize = 255;
/// Shortest timeout and interval of pings: below it a busy machine or network looks like a dead peer, and pings would
/// be a load of their own. Chosen, not measured.
const TIME_MIN: Duration = Duration::from_millis(100);
/// Shortest deadline of a freeze: its command needs time to start.
const FREEZE_MIN: Duration = Duration::from_secs(1);
/// Longest time that makes sense anywhere: a day.
const TIME_MAX: Duration = Duration::from_secs(86_400);
/// Longest time to poll: waking a core takes 20 to 40 µs, which is less than a twentieth of a round trip beyond it.
const POLL_MAX: Duration = Duration::from_millis(1);

/// Shortest time that a limit may let pass at once: the timers of sessions are exact to a millisecond, and with less a
/// limit would not be reached. The longest: an hour, longer than people wait for what a limit is to even out.
const BURST_MIN: Duration = Duration::from_millis(10);
const BURST_MAX: Duration = Duration::from_secs(3600);
/// Lowest limit of bytes per second: one block of 4 KiB. Below it a single transfer of 8 MiB would take half an hour.
const RATE_MIN: u64 = 4096;

/// Most backups by the clock: ten for each of a hundred LUNs.
const BACKUPS_MAX: usize = 1000;
/// Longest name of a backup, bytes: as long as a name of the host.
const BACKUP_NAME_MAX: usize = 64;
/// Shortest interval of backups: a run of an unchanged disk takes about as long.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Longest interval of backups: a leap year.
const INTERVAL_MAX: Duration = Duration::from_secs(366 * 86_400);
/// Most runs that are made again: with the shortest wait, as many as a day has minutes.
const RETRIES_MAX: u32 = 1440;
/// Most times of a day: one each quarter of an hour.
const TIMES_MAX: usize = 96;

/// Returns `true` if a text has only visible characters, and no more than `most` of them.
fn is_visible(text: &str, most: usize) -> bool {
    (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Portal groups in a sentence: `1, 2`.
fn listed(tags: &[u16]) -> String {
    tags.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl Config {
    /// Refuses what cannot be served, from duplicate LUNs to unreadable secret files.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.targets.is_empty() && self.api.is_none() {
            return Err(ConfigError::NoTargets { origin: self.origin.clone() });
        }
        if self.listen.is_empty() {
            return Err(ConfigError::NoPortals { origin: self.origin.clone() });
        }
        self.check_portals()?;
        if let Some(cores) = self.cores.filter(|cores| !(1..=1024).contains(cores)) {
            return Err(self.wrong("cores", &cores, "1 to 1024 are possible"));
        }
        if self.error_recovery_level > 1 {
            let value = self.error_recovery_level;
            return Err(self.wrong("error_recovery_level", &value, "0 and 1 are possible"));
        }
        self.check_limits()?;
        self.check_chap(
            "discovery",
            "[[discovery.chap]]",
            &self.discovery.chap,
            self.discovery.mutual_chap.as_ref(),
        )?;
        if let Some(api) = &self.api {
            self.check_api(api)?;
        }
        if let Some(id) = self.machine_id.as_ref().filter(|id| !is_visible(id, 64)) {
            return Err(self.wrong("machine_id", id, "1 to 64 visible ASCII characters are possible"));
        }
        let mut names = HashSet::new();
        for target in &self.targets {
            if !names.insert(&target.name) {
                return Err(self.wrong("target: name", &target.name, "two targets have this name"));
            }
            self.check_target(target)?;
        }
        self.check_serials()?;
        self.check_backups()
    }

    fn check_backups(&self) -> Result<(), ConfigError> {
        let (mut names, mut destinations) = (HashSet::new(), HashMap::new());
        if self.backups.len() > BACKUPS_MAX {
            let why = format!("at most {BACKUPS_MAX} are possible");
            return Err(self.wrong("backup", &self.backups.len(), why));
        }
        for backup in &self.backups {
            let in_names = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            if !(1..=BACKUP_NAME_MAX).contains(&backup.name.len()) || !backup.name.chars().all(in_names) {
                let why = format!("1 to {BACKUP_NAME_MAX} letters, digits, `.`, `_` and `-` are possible");
                return Err(self.wrong("backup: name", &backup.name, why));
            }
            if !names.insert(&backup.name) {
                return Err(self.wrong("backup: name", &backup.name, "two backups have this name"));
            }
            if let Some(other) = destinations.insert(&backup.destination, &backup.name) {
                let key = format!("backup {}: destination", backup.name);
                let why = format!("backup {other} has it: each needs its own folder");
                return Err(self.wrong(&key, &backup.destination.display(), why));
            }
            self.check_backup(backup)?;
        }
        match self.backups.first() {
            Some(first) if self.state_folder().is_none() => {
                let why = "the snapshots that are read, and what is known of the last run, need a folder: set state_dir";
                Err(self.wrong("backup: name", &first.name, why))
            }
            _ => Ok(()),
        }
    }

    fn check_backup(&self, backup: &BackupConfig) -> Result<(), ConfigError> {
        let at = |key: &str| format!("backup {}: {key}", backup.name);
        match (&backup.at[..], backup.every) {
            ([], None) => {
                let why = "say when: at = [\"02:00\"], or every = \"6h\"";
                return Err(self.wrong("backup: name", &backup.name, why));
            }
            ([first, ..], Some(_)) => {
                return Err(self.wrong(
                    &at("at"),
                    first,
                    "at and every exclude each other: remove one of them",
                ));
            }
            ([], Some(_)) if !backup.days.is_empty() => {
                return Err(self.wrong(
                    &at("days"),
                    &backup.days.len(),
                    "days belong to at, and not to every",
                ));
            }
            ([], Some(every)) if !(INTERVAL_MIN..=INTERVAL_MAX).contains(&every) => {
                return Err(self.wrong(&at("every"), &ExactDuration(every), "1s to 8784h are possible"));
            }
            (times, _) if times.len() > TIMES_MAX => {
                let why = format!("at most {TIMES_MAX} times are possible: use every");
                return Err(self.wrong(&at("at"), &times.len(), why));
            }
            _ => {}
        }
        if let Some(jitter) = backup.jitter.filter(|jitter| *jitter > TIME_MAX) {
            return Err(self.wrong(&at("jitter"), &ExactDuration(jitter), "0s to 24h are possible"));
        }
        if let Some(deadline) = backup.deadline.filter(|time| !(FREEZE_MIN..=TIME_MAX).contains(time)) {
            return Err(self.wrong(&at("deadline"), &ExactDuration(deadline), "1s to 24h are possible"));
        }
        if let Some(wait) = backup.retry_after.filter(|time| !(INTERVAL_MIN..=TIME_MAX).contains(time)) {
            return Err(self.wrong(&at("retry_after"), &ExactDuration(wait), "1s to 24h are possible"));
        }
        if let Some(retries) = backup.retries.filter(|retries| *retries > RETRIES_MAX) {
            return Err(self.wrong(&at("retries"), &retries, format!("0 to {RETRIES_MAX} are possible")));
        }
        let of_freeze = [("thaw", backup.thaw.is_some()), ("freeze", backup.freeze.is_some())];
        if let [(missing, false), (given, true)] | [(given, true), (missing, false)] = of_freeze {
            let why = format!("{missing} is missing: a guest is frozen and thawed");
            return Err(self.wrong(&at(given), "", why));
        }
        if backup.freeze.is_none() && (backup.application || backup.deadline.is_some()) {
            let key = if backup.application { "application" } else { "deadline" };
            return Err(self.wrong(&at(key), "", "it belongs to freeze, which is missing"));
        }
        if let Some(limit) = &backup.limit {
            parse_rate(limit).map_err(|error| self.wrong(&at("limit"), limit, error.to_string()))?;
        }
        if let Some(area) = &backup.area {
            parse_size(area).map_err(|error| self.wrong(&at("area"), area, error.to_string()))?;
        }
        if backup.retention().iter().any(|(_, count)| count.is_some())
            && backup.retention().iter().all(|(_, count)| count.unwrap_or(0) == 0)
        {
            let why = "no rule keeps a point: at least one keep_… above 0 is needed, or none at all";
            return Err(self.wrong("backup: name", &backup.name, why));
        }
        Ok(())
    }

    /// A serial number makes a disk: two logical units with one would be taken for one disk, and torn.
    fn check_serials(&self) -> Result<(), ConfigError> {
        let mut serials = HashMap::new();
        for (target, lun) in
            self.targets.iter().flat_map(|target| target.luns.iter().map(move |lun| (target, lun)))
        {
            let Some(serial) = &lun.serial else { continue };
            if let Some((other, id)) = serials.insert(serial, (&target.name, lun.id)) {
                let key = format!("target {}: lun {}: serial", target.name, lun.id);
                let why = format!("lun {id} of {other} has it, and initiators would take both for one disk");
                return Err(self.wrong(&key, serial, why));
            }
        }
        Ok(())
    }

    fn check_portals(&self) -> Result<(), ConfigError> {
        let (mut portals, mut tags) = (HashSet::<&PortalSpec>::new(), HashSet::from([FIRST_PORTAL_GROUP]));
        for group in &self.portal_groups {
            if group.tag == 0 || !tags.insert(group.tag) {
                let why = "2 to 65535 are possible, each once; 1 is the group of the top-level `listen`";
                return Err(self.wrong("portal_group: tag", &group.tag, why));
            }
            if group.listen.is_empty() {
                let key = format!("portal_group {}: listen", group.tag);
                return Err(self.wrong(&key, "[]", "at least one address is needed"));
            }
        }
        let further = self.portal_groups.iter().flat_map(|group| &group.listen);
        for portal in self.listen.iter().chain(further).filter(|portal| portal.port() != 0) {
            if !portals.insert(portal) {
                return Err(self.wrong("listen", portal, "it is there twice"));
            }
        }
        Ok(())
    }

    fn check_api(&self, api: &ApiConfig) -> Result<(), ConfigError> {
        match (&api.listen, &api.token_file) {
            (Some(listen), None) => {
                let why =
                    "every client that can reach the TCP address could manage the daemon: add a token_file";
                Err(self.wrong("api: listen", listen, why))
            }
            _ if api.socket.is_none() && api.listen.is_none() => {
                Err(self.wrong("api", "{}", "name a socket, or an address to listen on"))
            }
            _ => Ok(()),
        }
    }

    fn check_limits(&self) -> Result<(), ConfigError> {
        let Limits { sessions, connections_before_login, command_window, .. } = self.limits;
        let least_one = "at least 1 is needed";
        if sessions == 0 || sessions > usize::from(u16::MAX) {
            return Err(self.wrong(
                "limits: sessions",
                &sessions,
                "1 to 65535 can be told apart (RFC 7143 §11.12.6)",
            ));
        }
        if self.limits.sessions_per_initiator == 0 {
            return Err(self.wrong("limits: sessions_per_initiator", &0, least_one));
        }
        if !(1..=8).contains(&self.limits.connections_per_session) {
            let value = self.limits.connections_per_session;
            return Err(self.wrong("limits: connections_per_session", &value, "1 to 8 are possible"));
        }
        let Limits { login_timeout, nop_interval, nop_timeout, poll, .. } = self.limits;
        let never = nop_interval.is_zero();
        for (key, time, off) in [
            ("login_timeout", login_timeout, false),
            ("nop_interval", nop_interval, never),
            ("nop_timeout", nop_timeout, never && nop_timeout.is_zero()),
        ] {
            if !off && !(TIME_MIN..=TIME_MAX).contains(&time) {
                let why = format!("{} to 24h are possible", ExactDuration(TIME_MIN));
                return Err(self.wrong(&format!("limits: {key}"), &ExactDuration(time), why));
            }
        }
        if connections_before_login == 0 {
            return Err(self.wrong("limits: connections_before_login", &0, least_one));
        }
        if !(1..=4096).contains(&command_window) {
            return Err(self.wrong("limits: command_window", &command_window, "1 to 4096 are possible"));
        }
        if !(16..=65536).contains(&self.limits.session_memory_mib) {
            let value = &self.limits.session_memory_mib;
            return Err(self.wrong("limits: session_memory_mib", value, "16 to 65536 are possible"));
        }
        let Limits { memory_mib, principal_memory_mib, .. } = self.limits;
        if !(64..=1 << 20).contains(&memory_mib) {
            return Err(self.wrong("limits: memory_mib", &memory_mib, "64 to 1048576 are possible"));
        }
        if !(16..=1 << 20).contains(&principal_memory_mib) {
            let value = &principal_memory_mib;
            return Err(self.wrong("limits: principal_memory_mib", value, "16 to 1048576 are possible"));
        }
        if poll > POLL_MAX {
            let why = format!("0s to {} make sense", ExactDuration(POLL_MAX));
            return Err(self.wrong("limits: poll", &ExactDuration(poll), why));
        }
        Ok(())
    }

    fn check_target(&self, target: &TargetConfig) -> Result<(), ConfigError> {
        let at = |key: &str| format!("target {}: {key}", target.name);
        if let Some(alias) =
            target.alias.as_ref().filter(|alias| alias.len() > ALIAS_MAX || alias.contains('\0'))
        {
            return Err(self.wrong(
                &at("alias"),
                alias,
                format!("an alias has at most {ALIAS_MAX} bytes, none of them 0"),
            ));
        }
        let place = format!("target {}", target.name);
        let users = self.check_chap(&place, "[[target.chap]]", &target.chap, target.mutual_chap.as_ref())?;
        let known = self.portal_group_tags();
        let mut tags = HashSet::new();
        for group in &target.portal_groups {
            if !known.contains(&group.tag) {
                let why = format!("there is no portal group {}; there are: {}", group.tag, listed(&known));
                return Err(self.wrong(&at("portal_group: tag"), &group.tag, why));
            }
            if !tags.insert(group.tag) {
                let why = "a target names a portal group only once";
                return Err(self.wrong(&at("portal_group: tag"), &group.tag, why));
            }
        }
        let mut rules = HashSet::new();
        for rule in &target.acl {
            if let Some(name) = &rule.name
                && (name.is_empty() || !rules.insert(name))
            {
                return Err(self.wrong(&at("acl: name"), name, "it must not be empty, nor there twice"));
            }
            self.check_rule(target, rule, &users)?;
        }
        let mut ids = HashSet::new();
        for lun in &target.luns {
            if !ids.insert(lun.id) {
                return Err(self.wrong(&at("lun: id"), &lun.id, "two LUNs have this number"));
            }
            self.check_lun(target, lun)?;
        }
        Ok(())
    }

    /// Users and secrets of one place, and the secret with which it proves itself. Returns the users.
    fn check_chap<'c>(
        &self,
        place: &str,
        section: &str,
        chap: &'c [ChapUser],
        mutual: Option<&ChapUser>,
    ) -> Result<HashSet<&'c String>, ConfigError> {
        let at = |key: &str| format!("{place}: {key}");
        let mut users = HashSet::new();
        let mut secrets = Vec::new();
        for chap in chap {
            if !users.insert(&chap.user) {
                return Err(self.wrong(&at("chap: user"), &chap.user, "it is there twice"));
            }
            secrets.push(self.secret(&at("chap"), chap)?);
        }
        if let Some(mutual) = mutual {
            if chap.is_empty() {
                let why = format!("mutual CHAP needs a CHAP user that initiators log in as: add a {section}");
                return Err(self.wrong(&at("mutual_chap: user"), &mutual.user, why));
            }
            // RFC 7143 [9.2.1-8]
            if secrets.contains(&self.secret(&at("mutual_chap"), mutual)?) {
                let file = &mutual.secret_file.display();
                let why = "the secrets of the two directions must differ (RFC 7143 §9.2.1)";
                return Err(self.wrong(&at("mutual_chap: secret_file"), file, why));
            }
        }
        Ok(users)
    }

    fn check_rule(
        &self,
        target: &TargetConfig,
        rule: &AccessRule,
        users: &HashSet<&String>,
    ) -> Result<(), ConfigError> {
        let at = |key: &str| format!("target {}: acl: {key}", target.name);
        let in_names = |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || "-.:*".contains(c);
        for pattern in &rule.initiators {
            if pattern.is_empty() || !pattern.chars().all(in_names) {
                let why = "write the name of an initiator, where * may stand for any characters";
                return Err(self.wrong(&at("initiators"), pattern, why));
            }
        }
        if let Some(user) = rule.users.iter().find(|user| !users.contains(user)) {
            return Err(self.wrong(&at("users"), user, "no [[target.chap]] of this target has that user"));
        }
        if let Some(lun) = rule.luns.iter().flatten().find(|lun| **lun > LUN_MAX) {
            return Err(self.wrong(&at("luns"), lun, format!("0 to {LUN_MAX} can be addressed")));
        }
        self.check_io_limit(&at, rule.iops_limit, rule.rate_limit, rule.limit_burst)
    }

    /// Limits of I/O, whose keys stand in the place that `at` says.
    fn check_io_limit(
        &self,
        at: &dyn Fn(&str) -> String,
        iops: Option<u64>,
        rate: Option<NonZeroU64>,
        burst: Option<Duration>,
    ) -> Result<(), ConfigError> {
        if iops == Some(0) {
            return Err(self.wrong(
                &at("iops_limit"),
                &0,
                "at least 1 is possible: leave it out for no limit",
            ));
        }
        if let Some(rate) = rate.filter(|rate| rate.get() < RATE_MIN) {
            return Err(self.wrong(&at("rate_limit"), &ExactRate(rate), "at least 4K is possible"));
        }
        let Some(burst) = burst else { return Ok(()) };
        if iops.is_none() && rate.is_none() {
            let why = "it belongs to iops_limit or rate_limit, which are missing";
            return Err(self.wrong(&at("limit_burst"), &ExactDuration(burst), why));
        }
        if !(BURST_MIN..=BURST_MAX).contains(&burst) {
            return Err(self.wrong(&at("limit_burst"), &ExactDuration(burst), "10ms to 1h are possible"));
        }
        Ok(())
    }

    fn check_lun(&self, target: &TargetConfig, lun: &LunConfig) -> Result<(), ConfigError> {
        let at = |key: &str| format!("target {}: lun {}: {key}", target.name, lun.id);
        if lun.id > LUN_MAX {
            return Err(self.wrong(&at("id"), &lun.id, format!("0 to {LUN_MAX} can be addressed")));
        }
        if let Err(why) = lun.device.spec().writable() {
            return Err(self.wrong(&at("device"), &lun.device, why.to_string()));
        }
        if let Some(sector) = lun.sector.filter(|sector| ![512, 4096].contains(sector)) {
            return Err(self.wrong(&at("sector"), &sector, "512 and 4096 are possible"));
        }
        if let Some(physical) = lun.physical_sector {
            let least = lun.sector.unwrap_or(512);
            if !physical.is_power_of_two() || !(least..=1 << 20).contains(&physical) {
                let why = "a power of two from `sector` to 1048576 is possible";
                return Err(self.wrong(&at("physical_sector"), &physical, why));
            }
        }
        if let Some(percent) = lun.threshold_percent.filter(|percent| !(1..=99).contains(percent)) {
            return Err(self.wrong(&at("threshold_percent"), &percent, "1 to 99 make sense"));
        }
        if let Some(policy) = lun.compact.first().filter(|_| !lun.device.spec().is_vhdx()) {
            let why = format!(
                "only a VHDX file is compacted, and {} is none: leave it out; initiators free space of \
                 other devices by UNMAP (`fstrim`), and `lunway disk compact FILE` frees that of a raw file which is not served",
                lun.device
            );
            return Err(self.wrong(&at("compact"), policy.name(), why));
        }
        if let Some(serial) = lun.serial.as_ref().filter(|serial| !is_visible(serial, 32)) {
            return Err(self.wrong(&at("serial"), serial, "1 to 32 visible ASCII characters are possible"));
        }
        self.check_io_limit(&at, lun.iops_limit, lun.rate_limit, lun.limit_burst)
    }

    /// Reads the secret of a CHAP entry; `place` says where it stands: `target iqn.…: chap`.
    pub(crate) fn secret(&self, place: &str, chap: &ChapUser) -> Result<Secret, ConfigError> {
        let at = |key: &str| format!("{place}: {key}");
        if chap.user.is_empty() || chap.user.len() > 255 || chap.user.contains('\0') {
            return Err(self.wrong(&at("user"), &chap.user, "a name has 1 to 255 bytes, none of them 0"));
        }
        secret::read(&chap.secret_file)
            .map_err(|error| self.wrong(&at("secret_file"), &chap.secret_file.display(), error.to_string()))
    }

    pub(crate) fn wrong(
        &self,
        key: &str,
        value: &(impl ToString + ?Sized),
        why: impl Into<String>,
    ) -> ConfigError {
        ConfigError::Value {
            origin: self.origin.clone(),
            key: key.to_owned(),
            value: value.to_string(),
            why: why.into(),
        }
    }
}
