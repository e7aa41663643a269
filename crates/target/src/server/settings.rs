//! Settings that connections need from a configuration, in the form they need.

use std::collections::BTreeMap;
use std::sync::Arc;

use lunway_block::{MemoryLease, MemoryLimits};
use lunway_iscsi::chap::{ChapAccount, ChapAlgorithm};
use lunway_iscsi::login::ChapAuth;
use lunway_iscsi::negotiation::Parameters;
use lunway_iscsi::target::TargetConnectionConfig;
use lunway_scsi::{AccessState, LogicalUnitOptions, PortGroup};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::config::{
    ChapUser, Config, ConfigError, FIRST_PORTAL_GROUP, Limits, PortalGroupState, TargetConfig,
};
use crate::portal::PortalGroup;
use crate::shared::{Serving, Target};

/// File descriptors that are not connections: devices, sockets that listen, runtimes.
const DESCRIPTORS_RESERVED: usize = 256;
/// Least FirstBurstLength and MaxRecvDataSegmentLength that are offered, bytes: the default that RFC 7143 §13.12 has
/// for the latter.
const UNSOLICITED_MIN: usize = 8192;
/// Fewest connections before login, however few descriptors there are.
const BEFORE_LOGIN_MIN: usize = 16;

/// All that there are, the strongest first; the initiator's order decides.
const ALGORITHMS: [ChapAlgorithm; 4] =
    [ChapAlgorithm::Sha3, ChapAlgorithm::Sha256, ChapAlgorithm::Sha1, ChapAlgorithm::Md5];

/// Reads the secrets of a target.
pub(super) fn auth(config: &Config, target: &TargetConfig) -> Result<Option<ChapAuth>, ConfigError> {
    read(config, &format!("target {}", target.name), &target.chap, target.mutual_chap.as_ref())
}

/// Reads the secrets for discovery sessions; `None`: none are configured.
pub(super) fn discovery_auth(config: &Config) -> Result<Option<ChapAuth>, ConfigError> {
    read(config, "discovery", &config.discovery.chap, config.discovery.mutual_chap.as_ref())
}

fn read(
    config: &Config,
    place: &str,
    chap: &[ChapUser],
    mutual: Option<&ChapUser>,
) -> Result<Option<ChapAuth>, ConfigError> {
    if chap.is_empty() {
        return Ok(None);
    }
    let account = |section: &str, user: &ChapUser| {
        let secret = config.secret(&format!("{place}: {section}"), user)?;
        Ok::<_, ConfigError>(ChapAccount { user: user.user.clone(), secret })
    };
    let accounts = chap.iter().map(|user| account("chap", user)).collect::<Result<_, _>>()?;
    let mutual = mutual.map(|user| account("mutual_chap", user)).transpose()?;
    Ok(Some(ChapAuth {
        accounts,
        mutual,
        algorithms: ALGORITHMS.to_vec(),
        required: true,
        barred: Vec::new(),
    }))
}

/// Returns the CHAP proof of a discovery session where nothing is configured for it and the initiator offers CHAP
/// alone: that it is a user of some target. The daemon proves itself by the one account that all targets with mutual
/// CHAP have in common, if there is one.
fn any_users(targets: &BTreeMap<String, Arc<Target>>) -> Option<ChapAuth> {
    let known = || targets.values().filter_map(|target| target.auth.as_ref());
    let mut accounts: Vec<ChapAccount> = Vec::new();
    for account in known().flat_map(|auth| &auth.accounts) {
        if !accounts.contains(account) {
            accounts.push(account.clone());
        }
    }
    let mut mutual = known().filter_map(|auth| auth.mutual.as_ref());
    let first = mutual.next().filter(|first| mutual.all(|other| other == *first)).cloned();
    let auth = ChapAuth {
        accounts,
        mutual: first,
        algorithms: ALGORITHMS.to_vec(),
        required: false,
        barred: Vec::new(),
    };
    (!auth.accounts.is_empty()).then_some(auth)
}

/// The portal groups: `listen`, and the others.
pub(super) fn portal_groups(config: &Config) -> Vec<PortalGroup> {
    let first = PortalGroup { tag: FIRST_PORTAL_GROUP, listen: config.listen.clone() };
    let further = config.portal_groups.iter();
    let further = further.map(|group| PortalGroup { tag: group.tag, listen: group.listen.clone() });
    std::iter::once(first).chain(further).collect()
}

/// Returns the state that connections meet from now on. `discovery` is what [`discovery_auth`] has read.
pub(super) fn serving(
    config: &Config,
    limits: Limits,
    targets: BTreeMap<String, Arc<Target>>,
    discovery: Option<ChapAuth>,
) -> Serving {
    Serving {
        discovery: discovery.or_else(|| any_users(&targets)),
        advertise: config.discovery.advertise,
        targets,
        limits,
        connection: connection(config),
        bytes_executing_max: Memory::of(&limits).executing,
    }
}

/// Memory budgets of a session, bytes. Each of the two has room for at least one command of the longest transfer, on
/// each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memory {
    /// For data that the target asked for by R2T.
    solicited: usize,
    /// For buffers of commands that the devices have.
    executing: usize,
    /// For data that comes with a command, or right after it, of each command of the window.
    unsolicited: usize,
    /// Connections that the budgets can be divided among.
    connections: usize,
}

impl Memory {
    /// A quarter for R2Ts, a quarter for the devices, and what is left for a window full of unsolicited data, as that
    /// cannot be refused once the window is told.
    fn of(limits: &Limits) -> Self {
        const TRANSFER: usize = LogicalUnitOptions::MAX_TRANSFER as usize;
        let whole = limits.session_memory_mib << 20;
        let budget = (whole / 4).max(TRANSFER);
        let window = usize::from(limits.command_window.max(1));
        // RFC 7143 §13.12, §13.14: both lengths are whole words here, and what login needs at least.
        let unsolicited = (whole.saturating_sub(2 * budget) / window)
            .clamp(UNSOLICITED_MIN, Parameters::default().first_burst_length as usize);
        Self {
            solicited: budget,
            executing: budget,
            unsolicited: unsolicited & !511,
            connections: budget / TRANSFER,
        }
    }
}

fn connection(config: &Config) -> TargetConnectionConfig {
    let limits = &config.limits;
    let memory = Memory::of(limits);
    let connections = u16::try_from(memory.connections).unwrap_or(u16::MAX);
    TargetConnectionConfig {
        parameters: Parameters {
            header_digest: config.header_digest.into(),
            data_digest: config.data_digest.into(),
            error_recovery_level: config.error_recovery_level,
            max_connections: limits.connections_per_session.min(connections),
            max_recv_data_segment_length: memory.unsolicited as u32,
            first_burst_length: memory.unsolicited as u32,
            ..Parameters::default()
        },
        command_window: limits.command_window,
        data_out_max: LogicalUnitOptions::MAX_TRANSFER as usize,
        data_out_budget: memory.solicited,
        login_timeout: limits.login_timeout,
        nop_interval: limits.nop_interval,
        nop_timeout: limits.nop_timeout,
    }
}

/// Raises the limit of file descriptors as far as it goes, and fits the connections into it. The kernel's default of
/// 1024 is for programs that use `select`.
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

/// Returns the limits of the memory that principals share.
pub(super) fn memory_limits(limits: &Limits) -> MemoryLimits {
    MemoryLimits { whole: limits.memory_mib << 20, each: limits.principal_memory_mib << 20 }
}

/// Logs a warning if the sessions that these limits allow can hold more memory than the machine has: the kernel would
/// end the daemon, and with it the sessions of everybody.
pub(super) fn warn_of_memory(limits: &Limits) {
    let info = rustix::system::sysinfo();
    let unit = usize::try_from(info.mem_unit).unwrap_or(1);
    let machine = usize::try_from(info.totalram).unwrap_or(usize::MAX).saturating_mul(unit);
    if let Some(sessions) = beyond(limits, machine) {
        tracing::warn!(
            sessions_mib = sessions >> 20,
            machine_mib = machine >> 20,
            "the sessions that are allowed can hold more memory than the machine has: lower limits.memory_mib or \
             limits.sessions"
        );
    }
}

/// Returns the memory that all sessions together can hold, bytes; `None`: the machine has it.
fn beyond(limits: &Limits, machine: usize) -> Option<usize> {
    let connections = limits.sessions.saturating_mul(usize::from(limits.connections_per_session));
    let unshared = connections.saturating_mul(MemoryLease::RESERVE);
    let shared = limits.sessions.saturating_mul(limits.session_memory_mib << 20).min(limits.memory_mib << 20);
    let sessions = unshared.saturating_add(shared);
    (sessions > machine).then_some(sessions)
}

/// The portal groups of a target as target port groups: one port each, of the same number (SPC-4 §5.15.2.1).
pub(super) fn port_groups(config: &Config, target: &TargetConfig) -> Vec<PortGroup> {
    let group = |tag: u16, state: PortalGroupState, preferred: bool| PortGroup {
        tag,
        state: match state {
            PortalGroupState::ActiveOptimized => AccessState::ActiveOptimized,
            PortalGroupState::ActiveNonOptimized => AccessState::ActiveNonOptimized,
            PortalGroupState::Standby => AccessState::Standby,
            PortalGroupState::Unavailable => AccessState::Unavailable,
        },
        preferred,
        ports: vec![tag],
    };
    if target.portal_groups.is_empty() {
        let all = config.portal_group_tags().into_iter();
        return all.map(|tag| group(tag, PortalGroupState::ActiveOptimized, false)).collect();
    }
    target.portal_groups.iter().map(|of| group(of.tag, of.state, of.preferred)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_that_can_hold_more_memory_than_the_machine_has_are_told() {
        let gib = 1usize << 30;
        let limits = Limits { sessions: 256, session_memory_mib: 64, memory_mib: 1024, ..Limits::default() };
        assert_eq!((beyond(&limits, gib), beyond(&limits, 2 * gib)), (Some(gib + gib / 4), None));
        let small = Limits { sessions: 16, session_memory_mib: 16, ..limits };
        assert_eq!(beyond(&small, gib / 2), None, "16 sessions have 272 MiB");
        assert_eq!(beyond(&Limits { sessions: usize::MAX, ..limits }, 8 * gib), Some(usize::MAX));
    }

    #[test]
    fn what_a_session_may_take_is_what_is_promised() {
        for session_memory_mib in [16, 17, 32, 64, 100, 1024] {
            for command_window in [1, 16, 128] {
                let limits = Limits { session_memory_mib, command_window, ..Limits::default() };
                let Memory { solicited, executing, unsolicited, connections } = Memory::of(&limits);
                let least = usize::from(command_window) * UNSOLICITED_MIN;
                let sum = solicited + executing + usize::from(command_window) * unsolicited;
                assert!(sum <= (session_memory_mib << 20).max((16 << 20) + least), "{limits:?}");
                assert!(solicited / connections >= 8 << 20 && unsolicited.is_multiple_of(512));
            }
        }
        let default = Memory::of(&Limits::default());
        assert_eq!((default.solicited, default.unsolicited, default.connections), (16 << 20, 256 << 10, 2));
    }

    #[test]
    fn connections_before_login_fit_into_the_file_descriptors() {
        let limits = Limits { sessions: 256, connections_before_login: 1024, ..Limits::default() };
        assert_eq!(fit(limits, 20_000), limits);
        assert_eq!(fit(limits, 1024).connections_before_login, 1024 - 256 - DESCRIPTORS_RESERVED);
        assert_eq!(fit(limits, 100).connections_before_login, BEFORE_LOGIN_MIN);
    }
}
