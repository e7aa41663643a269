//! What of a configuration connections need, in the form they need it in.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lunway_iscsi::chap::{ChapAccount, ChapAlgorithm};
use lunway_iscsi::login::ChapAuth;
use lunway_iscsi::negotiation::Parameters;
use lunway_iscsi::target::TargetConnectionConfig;
use lunway_scsi::LogicalUnitOptions;
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::config::{ChapUser, Config, ConfigError, FIRST_PORTAL_GROUP, Limits, TargetConfig};
use crate::portal::PortalGroup;
use crate::secret;
use crate::shared::{Serving, Target};

/// File descriptors that are not connections: devices, sockets that listen, runtimes.
const DESCRIPTORS_RESERVED: usize = 256;
/// Fewest connections before login, however few descriptors there are.
const BEFORE_LOGIN_MIN: usize = 16;

/// Reads the secrets of a target.
pub(super) fn auth(config: &Config, target: &TargetConfig) -> Result<Option<ChapAuth>, ConfigError> {
    if target.chap.is_empty() {
        return Ok(None);
    }
    let account = |section, user: &ChapUser| {
        let secret = config.secret(target, section, user)?;
        secret::warn(&user.secret_file, &secret);
        Ok::<_, ConfigError>(ChapAccount { user: user.user.clone(), secret })
    };
    let accounts = target.chap.iter().map(|user| account("chap", user)).collect::<Result<_, _>>()?;
    let mutual = target.mutual_chap.as_ref().map(|user| account("mutual_chap", user)).transpose()?;
    let algorithms =
        vec![ChapAlgorithm::Sha3, ChapAlgorithm::Sha256, ChapAlgorithm::Sha1, ChapAlgorithm::Md5];
    Ok(Some(ChapAuth { accounts, mutual, algorithms, barred: Vec::new() }))
}

/// The portal groups: `listen`, and the others.
pub(super) fn portal_groups(config: &Config) -> Vec<PortalGroup> {
    let first = PortalGroup { tag: FIRST_PORTAL_GROUP, listen: config.listen.clone() };
    let further = config.portal_groups.iter();
    let further = further.map(|group| PortalGroup { tag: group.tag, listen: group.listen.clone() });
    std::iter::once(first).chain(further).collect()
}

/// What connections meet from now on.
pub(super) fn serving(config: &Config, limits: Limits, targets: BTreeMap<String, Arc<Target>>) -> Serving {
    Serving {
        targets,
        limits,
        connection: connection(config),
        bytes_executing_max: memory_of_a_direction(&limits),
    }
}

/// Half for what initiators write, half for what they read, bytes each.
fn memory_of_a_direction(limits: &Limits) -> usize {
    (limits.session_memory_mib << 20) / 2
}

fn connection(config: &Config) -> TargetConnectionConfig {
    let limits = &config.limits;
    TargetConnectionConfig {
        parameters: Parameters {
            header_digest: config.header_digest.into(),
            data_digest: config.data_digest.into(),
            error_recovery_level: 1,
            max_connections: limits.connections_per_session,
            ..Parameters::default()
        },
        command_window: limits.command_window,
        data_out_max: LogicalUnitOptions::MAX_TRANSFER as usize,
        data_out_budget: memory_of_a_direction(limits),
        login_timeout: Duration::from_secs(limits.login_timeout_s),
        nop_interval: Duration::from_secs(limits.nop_interval_s),
        nop_timeout: Duration::from_secs(limits.nop_timeout_s),
    }
}

/// Raises the limit of file descriptors as far as it goes, and fits the connections into it. The kernel's default of 1024
/// is for programs that use `select`.
pub(super) fn fit_descriptors(limits: Limits) -> Limits {
    let mut allowed = getrlimit(Resource::Nofile);
    if allowed.current != allowed.maximum {
        let raised = rustix::process::Rlimit { current: allowed.maximum, maximum: allowed.maximum };
        if setrlimit(Resource::Nofile, raised).is_ok() {
            allowed = raised;
        }
    }
    let descriptors =
        allowed.current.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
    let fitted = fit(limits, descriptors);
    if fitted != limits {
        tracing::warn!(
            descriptors,
            connections_before_login = fitted.connections_before_login,
            "fewer connections than configured fit into this process's file descriptors: raise LimitNOFILE or `ulimit -n`"
        );
    }
    fitted
}

fn fit(limits: Limits, descriptors: usize) -> Limits {
    let left = descriptors.saturating_sub(DESCRIPTORS_RESERVED + limits.sessions);
    let connections_before_login = limits.connections_before_login.min(left.max(BEFORE_LOGIN_MIN));
    Limits { connections_before_login, ..limits }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_before_login_fit_into_the_file_descriptors() {
        let limits = Limits { sessions: 256, connections_before_login: 1024, ..Limits::default() };
        assert_eq!(fit(limits, 20_000), limits);
        assert_eq!(fit(limits, 1024).connections_before_login, 1024 - 256 - DESCRIPTORS_RESERVED);
        assert_eq!(fit(limits, 100).connections_before_login, BEFORE_LOGIN_MIN);
    }
}
