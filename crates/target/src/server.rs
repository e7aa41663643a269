//! Start, accept, stop.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lunway_block::{BlockDevice, BlockError};
use lunway_iscsi::chap::{ChapAccount, ChapAlgorithm};
use lunway_iscsi::login::ChapAuth;
use lunway_iscsi::negotiation::Parameters;
use lunway_iscsi::target::TargetConnectionConfig;
use lunway_scsi::{LogicalUnit, LogicalUnitOptions, ScsiTarget, StateError};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::config::{Config, ConfigError, Limits, TargetConfig};
use crate::log_limit::LogLimit;
use crate::portal;
use crate::registry::{Cause, Handle, Order, Registry};
use crate::secret;
use crate::shared::{Shared, Target};
use crate::worker::{self, Worker};

/// File descriptors that are not connections: devices, sockets that listen, runtimes.
const DESCRIPTORS_RESERVED: usize = 256;
/// Fewest connections before login, however few descriptors there are.
const BEFORE_LOGIN_MIN: usize = 16;
/// Connections that have to make place for newer ones and have not ended yet: with more of them nobody is accepted.
/// Waiting for each would let a crowd fill the kernel's queue, where whoever means well waits as well.
const LEAVING_MAX: usize = 32;
/// How long the oldest of them is waited for.
const LEAVING_TIME: Duration = Duration::from_secs(1);
/// Pause after an error of `accept`, such as too many open files: it would come again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long devices have to end their commands when the server stops, beyond the time given to initiators.
const FINISH_TIME: Duration = Duration::from_secs(30);

/// How a device is to be opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Bytes of a logical sector; `None`: what the device says.
    pub sector: Option<u32>,
    /// It will only be read.
    pub read_only: bool,
}

/// A device being opened; the error is a sentence.
pub type OpeningDevice = Pin<Box<dyn Future<Output = Result<Arc<dyn BlockDevice>, String>> + Send>>;

/// Opens what the device grammar describes. Given from outside: this crate knows devices only as [`BlockDevice`]s.
pub type OpenDevice = Arc<dyn Fn(String, OpenOptions) -> OpeningDevice + Send + Sync>;

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A portal.
    #[error("cannot listen on {address}: {source}; {advice}")]
    Bind {
        /// Its address.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
        /// What to do.
        advice: String,
    },
    /// A device.
    #[error("target {target}, lun {lun}: cannot open {device:?}: {why}")]
    Open {
        /// The target.
        target: String,
        /// The LUN.
        lun: u16,
        /// The device.
        device: String,
        /// What went wrong.
        why: String,
    },
    /// No thread or no runtime.
    #[error("cannot start a thread for connections: {0}")]
    Thread(io::Error),
}

/// A device whose data may not be on stable storage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("target {target}, lun {lun}: flushing {device:?} failed: {error}")]
pub struct FlushFailure {
    /// The target.
    pub target: String,
    /// The LUN.
    pub lun: u16,
    /// The device.
    pub device: String,
    /// What went wrong.
    pub error: BlockError,
}

/// What did not go well when a server stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.sentence())]
pub struct ShutdownError {
    /// Sessions whose commands the devices did not end in time.
    pub unfinished: usize,
    /// Devices that could not be flushed.
    pub flushes: Vec<FlushFailure>,
}

impl ShutdownError {
    fn sentence(&self) -> String {
        let sessions = (self.unfinished > 0).then(|| {
            format!("the devices did not end the commands of {} connection(s) in time", self.unfinished)
        });
        let parts = sessions.into_iter().chain(self.flushes.iter().map(ToString::to_string));
        parts.collect::<Vec<_>>().join("; ")
    }
}

/// A target as it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetSummary {
    /// Its name.
    pub name: String,
    /// Its name for people.
    pub alias: Option<String>,
    /// Initiators must authenticate.
    pub authenticated: bool,
    /// Its logical units.
    pub luns: Vec<LunSummary>,
}

/// A logical unit as it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LunSummary {
    /// Its number.
    pub id: u16,
    /// The device behind it, as configured.
    pub device: String,
    /// Bytes.
    pub size: u64,
    /// Bytes of a logical sector.
    pub sector: u32,
    /// Writes are refused.
    pub read_only: bool,
}

struct Lun {
    target: String,
    id: u16,
    text: String,
    device: Arc<dyn BlockDevice>,
    read_only: bool,
}

/// A running iSCSI target server.
///
/// One thread accepts; one thread per core serves. Every connection is given to the core that has the fewest and stays
/// there. None of them is the caller's: [`start`](Self::start) and [`shutdown`](Self::shutdown) are the only places where the
/// caller's runtime (tokio, with time) does anything, which is also where devices are opened and flushed.
///
/// A server that is dropped without `shutdown` breaks all connections and flushes nothing.
pub struct Server {
    shared: Arc<Shared>,
    luns: Vec<Lun>,
    workers: Arc<[Worker]>,
    acceptor: Option<Acceptor>,
}

struct Acceptor {
    /// The thread ends when this is dropped.
    stop: oneshot::Sender<()>,
    join: JoinHandle<()>,
}

impl Server {
    /// Binds all portals, opens all devices, and begins to serve.
    pub async fn start(config: Config, open: OpenDevice) -> Result<Self, StartError> {
        config.check()?;
        let limits = fit_descriptors(config.limits);
        let mut listeners = Vec::new();
        let mut portals = Vec::new();
        for &address in &config.listen {
            let listener = portal::bind(address).and_then(|listener| Ok((listener.local_addr()?, listener)));
            let (real, listener) = listener.map_err(|source| {
                let advice = portal::bind_advice(address, &source);
                StartError::Bind { address, source, advice }
            })?;
            portals.push(real);
            listeners.push(listener);
        }

        let mut targets = BTreeMap::new();
        let mut luns = Vec::new();
        for target in &config.targets {
            let scsi = ScsiTarget::new(target.name.as_str());
            for lun in open_luns(target, &open).await? {
                let refused = |why: String| StartError::Open {
                    target: lun.target.clone(),
                    lun: lun.id,
                    device: lun.text.clone(),
                    why,
                };
                let unit = logical_unit(target, &lun).map_err(|error| refused(error.to_string()))?;
                scsi.attach(lun.id, unit).map_err(|error| refused(error.to_string()))?;
                luns.push(lun);
            }
            let auth = auth(&config, target)?;
            targets
                .insert(target.name.as_str().to_owned(), Target { alias: target.alias.clone(), auth, scsi });
        }

        let shared = Arc::new(Shared {
            targets,
            portals,
            registry: Registry::new(limits.sessions, limits.connections_before_login),
            limits,
            connection: connection_config(&config),
            bytes_executing_max: session_memory(&limits) / 2,
            session_log: LogLimit::default(),
            reject_log: LogLimit::default(),
        });
        let cores = worker::allowed_cores();
        let count = config.cores.unwrap_or(cores.len()).max(1);
        let workers = (0..count).map(|index| Worker::start(index, cores[index % cores.len()]));
        let workers: Arc<[Worker]> = workers.collect::<io::Result<_>>().map_err(StartError::Thread)?;
        let acceptor = Acceptor::start(listeners, &shared, &workers).map_err(StartError::Thread)?;
        for lun in &luns {
            let size = lun.device.geometry().size;
            tracing::info!(target = %lun.target, lun = lun.id, device = %lun.text, size, "serving");
        }
        for portal in &shared.portals {
            tracing::info!(%portal, cores = count, "listening");
        }
        Ok(Self { shared, luns, workers, acceptor: Some(acceptor) })
    }

    /// The portals, with the ports that the kernel chose where the configuration said 0.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.shared.portals
    }

    /// What is served.
    pub fn targets(&self) -> Vec<TargetSummary> {
        let luns = |name: &str| {
            let luns = self.luns.iter().filter(|lun| lun.target == name);
            luns.map(Lun::summary).collect()
        };
        let targets = self.shared.targets.iter();
        targets
            .map(|(name, target)| TargetSummary {
                name: name.clone(),
                alias: target.alias.clone(),
                authenticated: target.auth.is_some(),
                luns: luns(name),
            })
            .collect()
    }

    /// Sessions now, those for discovery not among them.
    pub fn sessions(&self) -> usize {
        self.shared.registry.sessions()
    }

    /// Stops: accepts nobody any longer, asks every initiator to log out and waits for that up to `grace`, closes what is
    /// left, lets the devices end their commands, and flushes every device.
    pub async fn shutdown(mut self, grace: Duration) -> Result<(), ShutdownError> {
        if let Some(Acceptor { stop, join }) = self.acceptor.take() {
            drop(stop);
            let _ = join.join();
        }
        let (idle, sessions) = self.shared.registry.close();
        tracing::info!(sessions = sessions.len(), "shutting down");
        for connection in &idle {
            connection.send(Order::Close(Cause::Shutdown));
        }
        for session in &sessions {
            session.send(Order::RequestLogout(grace));
        }
        let connections: Vec<_> = idle.into_iter().chain(sessions).collect();
        all_ended(&connections, grace).await;
        // No session can have begun since the registry was closed; those that did not log out are closed now.
        for connection in &connections {
            connection.send(Order::Close(Cause::Shutdown));
        }
        let unfinished = all_ended(&connections, FINISH_TIME).await;

        let mut flushes = Vec::new();
        for lun in self.luns.iter().filter(|lun| !lun.read_only) {
            if let Err(error) = lun.device.flush().await {
                flushes.push(FlushFailure {
                    target: lun.target.clone(),
                    lun: lun.id,
                    device: lun.text.clone(),
                    error,
                });
            }
        }
        self.stop_workers();
        tracing::info!("shut down");
        if unfinished == 0 && flushes.is_empty() {
            Ok(())
        } else {
            Err(ShutdownError { unfinished, flushes })
        }
    }

    fn stop_workers(&mut self) {
        // The acceptor is gone, which had the only other handle.
        for worker in Arc::get_mut(&mut self.workers).into_iter().flatten() {
            worker.stop();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(Acceptor { stop, join }) = self.acceptor.take() {
            drop(stop);
            let _ = join.join();
        }
        self.stop_workers();
    }
}

impl Lun {
    fn summary(&self) -> LunSummary {
        let geometry = self.device.geometry();
        LunSummary {
            id: self.id,
            device: self.text.clone(),
            size: geometry.size,
            sector: geometry.logical_sector,
            read_only: self.read_only,
        }
    }
}

impl Acceptor {
    fn start(
        listeners: Vec<std::net::TcpListener>,
        shared: &Arc<Shared>,
        workers: &Arc<[Worker]>,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listeners = {
            let _context = runtime.enter();
            listeners.into_iter().map(TcpListener::from_std).collect::<io::Result<Vec<_>>>()?
        };
        let (stop, stopped) = oneshot::channel();
        let (shared, workers) = (Arc::clone(shared), Arc::clone(workers));
        let join = thread::Builder::new().name("lunway-accept".to_owned()).spawn(move || {
            for listener in listeners {
                runtime.spawn(accept(listener, Arc::clone(&shared), Arc::clone(&workers)));
            }
            // Ends with an error, when the sender is dropped.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self { stop, join })
    }
}

/// Accepts until the runtime ends.
async fn accept(listener: TcpListener, shared: Arc<Shared>, workers: Arc<[Worker]>) {
    let mut leaving = VecDeque::new();
    loop {
        let accepted = listener.accept().await.and_then(|(stream, peer)| Ok((stream.into_std()?, peer)));
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                shared
                    .reject_log
                    .info(|suppressed| tracing::warn!(suppressed, "cannot accept a connection: {error}"));
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some((ticket, crowded)) = shared.registry.enter() else { return };
        if let Some(worker) = workers.iter().min_by_key(|worker| worker.connections()) {
            worker.serve(stream, peer, ticket, Arc::clone(&shared));
        }
        leaving.extend(crowded);
        if leaving.len() > LEAVING_MAX
            && let Some(oldest) = leaving.pop_front()
        {
            let _ = tokio::time::timeout(LEAVING_TIME, oldest.ended()).await;
        }
    }
}

/// Waits for connections to end, up to a time. Returns how many have not.
async fn all_ended(connections: &[Arc<Handle>], within: Duration) -> usize {
    let by = tokio::time::Instant::now() + within;
    let mut left = 0;
    for connection in connections {
        left += usize::from(tokio::time::timeout_at(by, connection.ended()).await.is_err());
    }
    left
}

async fn open_luns(target: &TargetConfig, open: &OpenDevice) -> Result<Vec<Lun>, StartError> {
    let mut luns = Vec::new();
    for lun in &target.luns {
        let options = OpenOptions { sector: lun.sector, read_only: lun.read_only };
        let device = open(lun.device.clone(), options).await.map_err(|why| StartError::Open {
            target: target.name.to_string(),
            lun: lun.id,
            device: lun.device.clone(),
            why,
        })?;
        let read_only = lun.read_only || device.geometry().read_only;
        luns.push(Lun {
            target: target.name.to_string(),
            id: lun.id,
            text: lun.device.clone(),
            device,
            read_only,
        });
    }
    Ok(luns)
}

fn logical_unit(target: &TargetConfig, lun: &Lun) -> Result<Arc<LogicalUnit>, StateError> {
    let config = target.luns.iter().find(|config| config.id == lun.id);
    LogicalUnit::new(
        Arc::clone(&lun.device),
        LogicalUnitOptions {
            // The same after every start, so that initiators find their disk again.
            identity: format!("{}/{}", target.name, lun.id),
            serial: config.and_then(|config| config.serial.clone()).unwrap_or_default(),
            removable: config.is_some_and(|config| config.removable),
            read_only: lun.read_only,
            ..LogicalUnitOptions::default()
        },
    )
}

fn auth(config: &Config, target: &TargetConfig) -> Result<Option<ChapAuth>, ConfigError> {
    if target.chap.is_empty() {
        return Ok(None);
    }
    let account = |section, user: &crate::config::ChapUser| {
        let secret = config.secret(target, section, user)?;
        secret::warn(&user.secret_file, &secret);
        Ok::<_, ConfigError>(ChapAccount { user: user.user.clone(), secret })
    };
    let accounts = target.chap.iter().map(|user| account("chap", user)).collect::<Result<_, _>>()?;
    let mutual = target.mutual_chap.as_ref().map(|user| account("mutual_chap", user)).transpose()?;
    let algorithms =
        vec![ChapAlgorithm::Sha3, ChapAlgorithm::Sha256, ChapAlgorithm::Sha1, ChapAlgorithm::Md5];
    Ok(Some(ChapAuth { accounts, mutual, algorithms }))
}

fn session_memory(limits: &Limits) -> usize {
    limits.session_memory_mib << 20
}

fn connection_config(config: &Config) -> TargetConnectionConfig {
    let limits = &config.limits;
    TargetConnectionConfig {
        parameters: Parameters {
            header_digest: config.header_digest.into(),
            data_digest: config.data_digest.into(),
            ..Parameters::default()
        },
        command_window: limits.command_window,
        data_out_budget: session_memory(limits) / 2,
        login_timeout: Duration::from_secs(limits.login_timeout_s),
        nop_interval: Duration::from_secs(limits.nop_interval_s),
        nop_timeout: Duration::from_secs(limits.nop_timeout_s),
        ..TargetConnectionConfig::default()
    }
}

/// Raises the limit of file descriptors as far as it goes, and fits the connections into it. The kernel's default of 1024
/// is for programs that use `select`.
fn fit_descriptors(limits: Limits) -> Limits {
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

    #[test]
    fn everything_that_went_wrong_at_the_end_is_said_in_one_sentence() {
        let flush = FlushFailure {
            target: "iqn.t".to_owned(),
            lun: 3,
            device: "file:/x".to_owned(),
            error: BlockError::NoSpace,
        };
        let error = ShutdownError { unfinished: 1, flushes: vec![flush] };
        assert_eq!(
            error.to_string(),
            "the devices did not end the commands of 1 connection(s) in time; \
             target iqn.t, lun 3: flushing \"file:/x\" failed: no space left on the device's backing store"
        );
    }
}
