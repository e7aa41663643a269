//! Warnings: parts of a configuration that are served as they are, and may not be meant so.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use lunway_iscsi::chap::Secret;

use super::effects;
use crate::config::{ChapUser, Config, TargetConfig};
use crate::portal::PortalSpec;
use crate::secret;
use crate::warning::{Warning, WarningKind};

/// Permission bit of Unix for everybody to read a file.
const OTHERS_READ: u32 = 0o004;

impl Warning {
    /// An entry of `listen` that is not listened on now.
    pub(super) fn idle_portal(group: u16, listen: &PortalSpec, why: &str) -> Self {
        let text = format!("portal group {group} does not listen on {listen}: {why}; lunway waits for it");
        Self { kind: WarningKind::IdlePortal, text }
    }

    /// A logical unit that is configured and not served.
    pub(super) fn offline_lun(target: &str, lun: u16, why: &str) -> Self {
        let text = format!("lun {lun} of target {target} is offline: {why}; lunway keeps trying to open it");
        Self { kind: WarningKind::OfflineLun, text }
    }

    /// A logical unit with work under way that has outlived its caller.
    pub(super) fn unsettled_lun(target: &str, lun: u16, why: &str) -> Self {
        let text =
            format!("lun {lun} of target {target} is unsettled: {why}; resizes and snapshots are refused");
        Self { kind: WarningKind::UnsettledLun, text }
    }

    /// Warning of a step with files that has not ended although its caller no longer waits.
    pub(super) fn unsettled_config(step: &str) -> Self {
        let text = format!(
            "{step} has not ended: changes of the configuration are refused until it has, and those that were given up are never \
             made; check that file system"
        );
        Self { kind: WarningKind::UnsettledConfig, text }
    }

    /// A configuration file that is not what is served.
    pub(super) fn differing_config(why: &str) -> Self {
        Self { kind: WarningKind::UnsettledConfig, text: why.to_owned() }
    }

    /// A logical unit with `track` whose changes are not recorded.
    pub(super) fn untracked_lun(target: &str, lun: u16, why: &str) -> Self {
        let text = format!(
            "the changes of lun {lun} of target {target} are not tracked, so everything counts as changed: {why}; tracking begins \
             again with the next closed epoch (`lunway lun epoch close`, a backup)"
        );
        Self { kind: WarningKind::UntrackedLun, text }
    }

    /// A served file that is not where or as long as it was.
    pub(super) fn lost_file(target: &str, lun: u16, why: &str) -> Self {
        Self { kind: WarningKind::LostFile, text: format!("lun {lun} of target {target}: {why}") }
    }

    /// A raw image that is shorter than when it was served last.
    pub(super) fn shrunk_lun(target: &str, lun: u16, why: &str) -> Self {
        Self { kind: WarningKind::ShrunkLun, text: format!("lun {lun} of target {target}: {why}") }
    }

    /// A state directory whose path leads elsewhere.
    pub(super) fn lost_state_dir(why: String) -> Self {
        Self { kind: WarningKind::LostStateDir, text: why }
    }

    /// Returns the warning that a target lets in every initiator or none; `None`: neither.
    pub fn of_access(target: &TargetConfig) -> Option<Self> {
        effects::warning(target)
    }

    /// Returns the warnings of a configuration. Reads the files with secrets, so not on a core.
    pub fn of(config: &Config) -> Vec<Self> {
        let mut warnings = Vec::new();
        for target in &config.targets {
            warnings.extend(Self::of_access(target));
            let odd = effects::name_warning(&target.name);
            warnings.extend(odd.map(|text| Self { kind: WarningKind::OddName, text }));
        }
        let targets = config.targets.iter().flat_map(|target| target.chap.iter().chain(&target.mutual_chap));
        let users = config.discovery.chap.iter().chain(&config.discovery.mutual_chap).chain(targets);
        for warning in users.flat_map(Self::of_secret) {
            // Several targets may have one file.
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
        let token = config.api.as_ref().and_then(|api| api.token_file.as_deref());
        warnings.extend(token.and_then(|file| Self::of_mode(file, "the token of the API")));
        warnings
    }

    fn of_secret(user: &ChapUser) -> Vec<Self> {
        let file = &user.secret_file;
        let is_weak = secret::read(file).is_ok_and(|secret| secret.is_weak());
        let weak = is_weak.then(|| {
            let (file, least) = (file.display(), Secret::LEN_STRONG);
            let text = format!("the CHAP secret in {file} can be guessed: it has fewer than {least} bytes");
            Self { kind: WarningKind::WeakSecret, text }
        });
        weak.into_iter().chain(Self::of_mode(file, "the CHAP secret")).collect()
    }

    /// Returns the warning that every user of this machine may read a file.
    fn of_mode(file: &Path, what: &str) -> Option<Self> {
        let mode = file.metadata().ok()?.permissions().mode();
        (mode & OTHERS_READ != 0).then(|| {
            let file = file.display();
            let text = format!("every user of this machine may read {what} in {file}: chmod 600 {file}");
            Self { kind: WarningKind::ReadableSecret, text }
        })
    }

    /// Returns `true` if the effects of a change say it in their own words.
    pub(super) fn is_told_by_effects(&self) -> bool {
        matches!(self.kind, WarningKind::OpenTarget | WarningKind::ClosedTarget | WarningKind::OddName)
    }
}
