//! The sockets that listen, kept as they ought to be while the machine and the configuration change.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fmt, io};

use lunway_machine::{Machine, MachineAddress};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

use super::plan::{Plan, PortalGroup, Portals, SocketKey, assumed, meant, plan};
use super::socket::{self, BindError};
use super::spec::{PortalScope, PortalSpec};

/// The pause before something that failed is tried again: first, and then twice the last up to the longest.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LONGEST: Duration = Duration::from_secs(1);

/// Takes connections from sockets that listen.
pub(crate) trait Accept: fmt::Debug + Send + Sync {
    /// Accepts from one socket, until this future is dropped or the server lets no connection in.
    fn accept(self: Arc<Self>, listener: Arc<TcpListener>) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// The portals as connections see them: exchanged as a whole when they change.
#[derive(Debug, Default)]
pub(crate) struct PortalTable(RwLock<Arc<Portals>>);

impl PortalTable {
    pub(crate) fn now(&self) -> Arc<Portals> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn publish(&self, portals: Portals) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(portals);
    }
}

/// Listens on what `listen` says, on a thread of its own, which ends when this is dropped.
///
/// [`prepare`](Self::prepare) binds what a new configuration needs and can fail; [`commit`](Self::commit) makes it the
/// one that counts and cannot; dropping what was prepared leaves everything as it was. Connections are accepted from
/// [`serve`](Self::serve) on; those that come before wait.
///
/// The machine is followed: an address that appears is listened on and told to initiators, one that goes is not any
/// longer. What cannot be bound (another program has the port) is tried again, and said once. Connections are never
/// touched: an address that goes and comes back within TCP's patience has cost its sessions nothing.
///
/// The state is locked for the time of a few system calls, when something changes; connections read the
/// [`PortalTable`].
#[derive(Debug)]
pub(crate) struct Listeners {
    sockets: Arc<Sockets>,
    thread: Mutex<Option<Thread>>,
}

#[derive(Debug)]
struct Sockets {
    runtime: Handle,
    table: Arc<PortalTable>,
    state: Mutex<State>,
    /// There may be something to try again.
    committed: Notify,
}

#[derive(Debug)]
struct Thread {
    /// Ends when this is dropped.
    stop: oneshot::Sender<()>,
    join: JoinHandle<()>,
}

#[derive(Debug)]
struct State {
    groups: Vec<PortalGroup>,
    machine: Machine,
    /// `None`: they cannot be read.
    addresses: Option<Vec<MachineAddress>>,
    open: BTreeMap<SocketKey, Open>,
    failed: BTreeMap<SocketKey, BindError>,
    acceptor: Option<Arc<dyn Accept>>,
}

#[derive(Debug)]
struct Open {
    listener: Arc<TcpListener>,
    /// Another process has it as well, and goes on with it when this one ends.
    inherited: bool,
    /// With its real port.
    address: SocketAddr,
    /// `None`: it is not accepted from yet.
    accepts: Option<AbortHandle>,
}

impl Open {
    /// Connections are refused from now on, also where the socket is open elsewhere.
    fn refuse(&self) {
        let _ = socket2::SockRef::from(&*self.listener).shutdown(std::net::Shutdown::Both);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // The task holds the socket until it is dropped, which is soon. The port is free now. A socket from systemd is
        // closed and no more: the next daemon accepts what comes meanwhile.
        if !self.inherited {
            self.refuse();
        }
        if let Some(task) = &self.accepts {
            task.abort();
        }
    }
}

/// Sockets bound for a configuration that does not count yet; dropping them is the way back.
#[derive(Debug)]
pub(crate) struct PreparedListeners {
    groups: Vec<PortalGroup>,
    sockets: BTreeMap<SocketKey, Open>,
    /// As connections will see them.
    portals: Portals,
}

impl PreparedListeners {
    /// The portals of the configuration that they are for.
    pub(crate) fn portals(&self) -> &Portals {
        &self.portals
    }
}

/// An entry of `listen`, and what it stands for now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PortalSummary {
    /// The entry.
    #[schemars(with = "String")]
    pub listen: PortalSpec,
    /// The tag of its portal group.
    pub group: u16,
    /// The portals that it stands for, with real ports.
    #[schemars(with = "Vec<String>")]
    pub portals: Vec<SocketAddr>,
    /// Reason why there are none, or not all.
    pub waiting: Option<String>,
}

impl Listeners {
    /// Nothing listens yet.
    pub(crate) fn new() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let machine = {
            let _context = runtime.enter();
            Machine::watch()
        };
        let state = State {
            groups: Vec::new(),
            addresses: machine.addresses().inspect_err(cannot_read).ok(),
            machine,
            open: BTreeMap::new(),
            failed: BTreeMap::new(),
            acceptor: None,
        };
        let sockets = Arc::new(Sockets {
            runtime: runtime.handle().clone(),
            table: Arc::default(),
            state: Mutex::new(state),
            committed: Notify::new(),
        });
        let (stop, stopped) = oneshot::channel();
        let followed = Arc::clone(&sockets);
        let join = thread::Builder::new().name("lunway-accept".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    // Ends with an error, when the sender is dropped.
                    _ = stopped => {}
                    () = followed.follow() => {}
                }
            });
        })?;
        Ok(Self { sockets, thread: Mutex::new(Some(Thread { stop, join })) })
    }

    /// Returns the portal table that connections read.
    pub(crate) fn table(&self) -> &Arc<PortalTable> {
        &self.sockets.table
    }

    /// Binds what these groups need and is not bound. An address that the machine does not have is no error, nor is one
    /// that could not be bound before: these are tried until they can be.
    pub(crate) fn prepare(&self, groups: Vec<PortalGroup>) -> Result<PreparedListeners, BindError> {
        let state = self.sockets.lock();
        let known = state.plan();
        let mut sockets = BTreeMap::new();
        let plan = plan(&groups, &state.addresses_for(&groups));
        for &key in plan.keys() {
            if state.open.contains_key(&key) {
                continue;
            }
            match self.sockets.open(key, &state.open) {
                Ok(open) => _ = sockets.insert(key, open),
                Err(error) if error.is_for_now() || known.contains_key(&key) => {}
                Err(error) => return Err(error),
            }
        }
        let portals = state.portals(&plan, state.open.iter().chain(&sockets));
        Ok(PreparedListeners { groups, sockets, portals })
    }

    /// Entries of `listen` of these groups that are not listened on now: the tag of the group, the entry, and why.
    pub(crate) fn idle(&self, groups: &[PortalGroup]) -> Vec<(u16, PortalSpec, String)> {
        let state = self.sockets.lock();
        let addresses = state.addresses_for(groups);
        let entries = groups.iter().flat_map(|group| group.listen.iter().map(|spec| (group.tag, spec)));
        let why =
            |(tag, spec): (u16, &PortalSpec)| Some((tag, spec.clone(), state.waiting(spec, &addresses)?));
        entries.filter_map(why).collect()
    }

    /// From now on these groups count.
    pub(crate) fn commit(&self, prepared: PreparedListeners) {
        let mut state = self.sockets.lock();
        state.groups = prepared.groups;
        for (key, open) in prepared.sockets {
            state.open.entry(key).or_insert(open);
        }
        self.sockets.reconcile(&mut state);
        self.sockets.committed.notify_one();
    }

    /// Begins to accept.
    pub(crate) fn serve(&self, acceptor: Arc<dyn Accept>) {
        let mut state = self.sockets.lock();
        state.acceptor = Some(acceptor);
        self.sockets.accept(&mut state);
    }

    /// Stops listening, and returns when the thread has ended.
    pub(crate) fn stop(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Thread { stop, join }) = thread {
            drop(stop);
            let _ = join.join();
        }
        let mut state = self.sockets.lock();
        state.open.clear();
        state.acceptor = None;
        self.sockets.table.publish(Portals::default());
    }

    /// Returns the listening addresses, with real ports.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.lock().open.values().map(|open| open.address).collect()
    }

    /// Each entry of `listen`, and what it stands for.
    pub(crate) fn summaries(&self) -> Vec<PortalSummary> {
        let state = self.sockets.lock();
        let portals = self.sockets.table.now();
        let entries = state.groups.iter().flat_map(|group| group.listen.iter().map(|spec| (group.tag, spec)));
        entries.map(|(group, spec)| state.summary(group, spec, &portals)).collect()
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Sockets {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change of it is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for changes of the machine, and for the time to try again.
    async fn follow(&self) {
        let mut pause = RETRY_FIRST;
        loop {
            let (failed, change) = {
                let state = self.lock();
                (!state.failed.is_empty() || state.addresses.is_none(), state.machine.changed())
            };
            tokio::select! {
                () = change => pause = RETRY_FIRST,
                () = self.committed.notified() => pause = RETRY_FIRST,
                () = tokio::time::sleep(pause), if failed => pause = (pause * 2).min(RETRY_LONGEST),
            }
            let mut state = self.lock();
            match state.machine.addresses() {
                Ok(addresses) => state.addresses = Some(addresses),
                Err(error) => cannot_read(&error),
            }
            self.reconcile(&mut state);
        }
    }

    /// Opens and closes until everything is as planned, or has failed, and tells everybody.
    fn reconcile(&self, state: &mut State) {
        let plan = state.plan();
        // First the new, so that where one socket takes over from others no initiator is refused in between.
        let mut failed = BTreeMap::new();
        for key in plan.keys() {
            if state.open.contains_key(key) {
                continue;
            }
            match self.open(*key, &state.open) {
                Ok(open) => _ = state.open.insert(*key, open),
                Err(error) => {
                    if !state.failed.contains_key(key) && !error.is_for_now() {
                        tracing::warn!("{error}; trying again");
                    }
                    failed.insert(*key, error);
                }
            }
        }
        state.failed = failed;
        state.open.retain(|key, open| {
            let stays = plan.contains_key(key);
            if !stays {
                open.refuse();
            }
            stays
        });
        self.accept(state);
        self.publish(state, &plan);
    }

    fn open(&self, key: SocketKey, others: &BTreeMap<SocketKey, Open>) -> Result<Open, BindError> {
        let others: Vec<_> = others.values().map(|open| &*open.listener).collect();
        let _context = self.runtime.enter();
        let bound = socket::bind_beside(key.address, &others);
        let open = bound.and_then(|socket::Bound { listener, inherited }| {
            let listener = TcpListener::from_std(listener)?;
            let address = listener.local_addr()?;
            Ok(Open { listener: Arc::new(listener), inherited, address, accepts: None })
        });
        open.map_err(|source| BindError { address: key.address, source })
    }

    /// Starts to accept where no task does yet.
    fn accept(&self, state: &mut State) {
        let Some(acceptor) = &state.acceptor else { return };
        for open in state.open.values_mut().filter(|open| open.accepts.is_none()) {
            let accepting = Arc::clone(acceptor).accept(Arc::clone(&open.listener));
            open.accepts = Some(self.runtime.spawn(accepting).abort_handle());
        }
    }

    fn publish(&self, state: &State, plan: &Plan) {
        let portals = state.portals(plan, &state.open);
        let before = self.table.now();
        if *before == portals {
            return;
        }
        for portal in portals.iter().filter(|portal| !before.iter().any(|other| other == *portal)) {
            tracing::info!(address = %portal.address, group = portal.tag, "portal opened");
        }
        for portal in before.iter().filter(|portal| !portals.iter().any(|other| other == *portal)) {
            tracing::info!(address = %portal.address, group = portal.tag, "portal closed");
        }
        self.table.publish(portals);
    }
}

impl State {
    /// The portals of a plan on these sockets, as far as it has them.
    fn portals<'a>(&self, plan: &Plan, open: impl IntoIterator<Item = (&'a SocketKey, &'a Open)>) -> Portals {
        let mut portals = Portals::on(self.addresses.clone().unwrap_or_default());
        for (key, open) in open {
            if let Some(socket) = plan.get(key) {
                portals.add(*key, open.address.port(), socket);
            }
        }
        portals
    }

    fn plan(&self) -> Plan {
        plan(&self.groups, &self.addresses_for(&self.groups))
    }

    fn addresses_for(&self, groups: &[PortalGroup]) -> Vec<MachineAddress> {
        self.addresses.clone().unwrap_or_else(|| assumed(groups))
    }

    fn summary(&self, group: u16, spec: &PortalSpec, portals: &Portals) -> PortalSummary {
        let mut addresses = Vec::new();
        let meant = meant(spec.scope(), &self.addresses_for(&self.groups));
        for (key, open) in &self.open {
            if key.address.port() == spec.port() {
                let ips = meant.iter().filter(|ip| key.takes(**ip));
                let all = ips.map(|ip| SocketAddr::new(*ip, open.address.port()));
                addresses.extend(all.filter(|address| portals.tag_of(*address) == Some(group)));
            }
        }
        let waiting = self.waiting(spec, &self.addresses_for(&self.groups));
        PortalSummary { listen: spec.clone(), group, portals: addresses, waiting }
    }

    /// Returns the reason why an entry of `listen` stands for no portal, or not for all that it means; `None`: it does.
    fn waiting(&self, spec: &PortalSpec, addresses: &[MachineAddress]) -> Option<String> {
        let meant = meant(spec.scope(), addresses);
        let is_meant =
            |key: &SocketKey| key.address.port() == spec.port() && meant.iter().any(|ip| key.takes(*ip));
        let failed = self.failed.iter().rfind(|(key, _)| is_meant(key)).map(|(_, error)| error.to_string());
        let everything = matches!(spec.scope(), PortalScope::Address(ip) if ip.is_unspecified());
        let absent = meant.is_empty() && !everything;
        let lacking = || match spec.scope() {
            PortalScope::Address(_) => "this machine does not have that address now".to_owned(),
            PortalScope::Interface(name) => {
                format!("there is no interface {name} that is up and has an address")
            }
            PortalScope::Network(_) => "this machine has no address in that network now".to_owned(),
        };
        failed.or_else(|| absent.then(lacking))
    }
}

fn cannot_read(error: &io::Error) {
    tracing::warn!("cannot read this machine's addresses: {error}");
}
