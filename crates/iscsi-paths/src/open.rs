//! From an address to a disk over its lanes.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use lunway_block::{BlockDevice, BlockError, Io};
use lunway_initiator::{
    Detours, InitiatorPorts, IscsiDevice, IscsiUrl, IsidFamily, KnownDisk, SessionOptions, VpdIdentity,
};
use lunway_machine::Machine;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::address::MultipathUrl;
use crate::lane::IscsiLane;
use crate::local::Local;
use crate::open_error::PathsOpenError;
use crate::reservation::{PROOF_AGE_MAX, Registrar, Standing};
use crate::{portals, predecessors, watch};
use lunway_multipath::plan::{Inventory, NamedLane, Plan, Wish};
use lunway_multipath::{Lane, MultipathDevice, Options};

/// Time for which the other lanes are waited for once the first is there: longer than a connection that is not refused
/// takes to fail, so that what begins at once begins with all that works.
const GRACE: Duration = Duration::from_millis(1200);

/// Waits between attempts to connect a lane that was never there: the first, and the longest.
const RETRY: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// While its own port is dead: see [`IscsiDevice::set_port_down`].
const RETRY_PORT_DOWN: Duration = Duration::from_secs(30);

/// Time for which closing a disk waits for operations in flight before registrations are removed: a caller that closes
/// it has none, or gave up.
const UNDER_WAY: Duration = Duration::from_secs(2);

/// Disk over several iSCSI sessions, and the plan by which they were chosen.
///
/// [`open`](Self::open) asks for the portals, makes a [`Plan`] and connects all its lanes at once. One is enough to
/// begin with; the others are tried again and again, and join. What a lane leads to must be the same disk as the
/// others' (VPD page 83h, or the serial number), even if its address says otherwise: at the opening another disk is an
/// error, later it closes the lane.
///
/// Sessions, and news of cables, belong to the runtime that this is called on, and to the network namespace of its
/// thread.
pub struct IscsiMultipath {
    device: Arc<MultipathDevice>,
    lanes: Vec<Arc<IscsiLane>>,
    plan: Plan,
    tasks: Vec<AbortHandle>,
}

impl IscsiMultipath {
    /// Opens the disk. Of `options`, our name and what a command may take are used, for each lane; the rest is as
    /// [`SessionOptions::fail_fast`] has it.
    ///
    /// Boxed, so that it is compiled here and not again in each crate that awaits it.
    pub fn open<'a>(
        url: &'a MultipathUrl,
        options: &'a SessionOptions,
    ) -> BoxFuture<'a, Result<Self, PathsOpenError>> {
        Box::pin(Self::open_now(url, options))
    }

    async fn open_now(url: &MultipathUrl, options: &SessionOptions) -> Result<Self, PathsOpenError> {
        let trusted = options.cache_survives_power_on;
        let mut options = lane_options(options);
        let command_timeout = options.command_timeout;
        let machine = Machine::watch();
        let plan = plan_on(url, &options, &machine).await?;
        let (settle, unproven) =
            (url.settle.unwrap_or(Options::default().settle), url.unproven.unwrap_or_default());
        options.settle = settle;
        let team = Team::new(url, &plan, options);
        // Before the lanes log in, as the lowest free ports are theirs then.
        let before = predecessors::reinstate(team.ways(), &team.options).await?;
        let (connected, disk) = team.connect_all().await?;
        if let Err(error) = predecessors::outlast(before, &connected, settle, unproven).await {
            for (_, device) in connected {
                device.close().await;
            }
            return Err(error);
        }
        for lane in &team.lanes {
            lane.resemble(disk.geometry);
        }
        let shapes =
            team.lanes.iter().map(|lane| (lane.planned.shape(), lane.clone() as Arc<dyn Lane>)).collect();
        let mut behaviour = Options { cache_survives_power_on: trusted, ..Options::default() };
        behaviour.policy = url.policy.unwrap_or(behaviour.policy);
        behaviour.failback = url.failback.unwrap_or(behaviour.failback);
        behaviour.when_none = url.when_none.unwrap_or(behaviour.when_none);
        behaviour.busy = url.base.command_timeout.unwrap_or(command_timeout);
        behaviour.settle = url.settle.unwrap_or(behaviour.settle);
        behaviour.unproven = url.unproven.unwrap_or(behaviour.unproven);
        for (n, device) in connected {
            team.lanes[n].admit(device);
        }
        let device = Arc::new(MultipathDevice::new(shapes, behaviour));
        let disk = Arc::new(disk);
        let mut tasks = vec![tokio::spawn(watch::watch(machine, team.lanes.clone())).abort_handle()];
        for n in (0..team.lanes.len()).filter(|n| team.lanes[*n].session().is_none()) {
            let (team, disk) = (team.clone(), disk.clone());
            tasks.push(tokio::spawn(async move { team.keep_trying(n, &disk).await }).abort_handle());
        }
        Ok(Self { device, lanes: team.lanes.clone(), plan, tasks })
    }

    /// The plan that [`open`](Self::open) would follow, without opening anything but a session to ask for portals.
    pub async fn plan_for(url: &MultipathUrl, options: &SessionOptions) -> Result<Plan, PathsOpenError> {
        plan_on(url, &lane_options(options), &Machine::watch()).await
    }

    /// The disk.
    pub fn device(&self) -> &Arc<MultipathDevice> {
        &self.device
    }

    /// Plan by which the lanes were chosen.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Smoothed round trips of the lanes' connections, in their order.
    pub fn round_trips(&self) -> Vec<Option<Duration>> {
        self.lanes.iter().map(|lane| lane.sample().round_trip).collect()
    }

    /// Takes a lane down as if its cable had been pulled: its connection is dropped, and it connects again only now and
    /// then until [`set_lane_up`](Self::set_lane_up). What was under way on it goes over the others.
    ///
    /// # Panics
    ///
    /// Like indexing, if there is no such lane.
    pub fn set_lane_down(&self, lane: usize, why: &str) {
        self.lanes[lane].set_port_down(why);
    }

    /// Lets a lane connect again, at once.
    ///
    /// # Panics
    ///
    /// Like indexing, if there is no such lane.
    pub fn set_lane_up(&self, lane: usize) {
        self.lanes[lane].set_port_up();
    }

    /// Logs out on all lanes, once what is under way is answered, and removes their registrations of the reservation
    /// key before that.
    pub async fn close(&self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        end(&self.device, &self.lanes).await;
    }
}

async fn end(device: &MultipathDevice, lanes: &[Arc<IscsiLane>]) {
    let until = Instant::now() + UNDER_WAY;
    // A write that arrived after its lane's registration has gone would be a conflict.
    let registers = lanes.iter().any(|lane| lane.registers());
    while registers && device.lanes().iter().any(|lane| lane.in_flight > 0) && Instant::now() < until {
        sleep(Duration::from_millis(1)).await;
    }
    let all: FuturesUnordered<_> = lanes.iter().map(|lane| lane.close()).collect();
    all.collect::<()>().await;
}

/// The disk of lanes, ended with what belongs to it beside the lanes.
impl lunway_block::Layer for IscsiMultipath {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.device
    }

    fn close(&self) -> Io<Result<(), BlockError>> {
        self.tasks.iter().for_each(AbortHandle::abort);
        let (device, lanes) = (self.device.clone(), self.lanes.clone());
        Io::pending(async move {
            end(&device, &lanes).await;
            Ok(())
        })
    }
}

impl Drop for IscsiMultipath {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

fn lane_options(options: &SessionOptions) -> SessionOptions {
    let lane = SessionOptions::fail_fast();
    SessionOptions {
        // Shorter ones, where the caller has them.
        nop_interval: options.nop_interval.min(lane.nop_interval),
        nop_timeout: options.nop_timeout.min(lane.nop_timeout),
        initiator_name: options.initiator_name.clone(),
        initiator_ports: options.initiator_ports.clone(),
        command_timeout: options.command_timeout,
        abort_timeout: options.abort_timeout,
        logout_timeout: options.logout_timeout,
        transfer_max: options.transfer_max,
        spin: options.spin,
        ..lane
    }
}

async fn plan_on(
    url: &MultipathUrl,
    options: &SessionOptions,
    machine: &Machine,
) -> Result<Plan, PathsOpenError> {
    let mut wish =
        Wish { kind: url.plan, from: url.from.clone(), weights: url.weights.clone(), lanes: Vec::new() };
    for lane in &url.lanes {
        let portal = portals::resolve(&lane.portal.host, lane.portal.port, Some(lane.from)).await?;
        let (target, weight, reserve) = (url.own_name(&lane.portal), lane.weight, lane.reserve);
        wish.lanes.push(NamedLane { from: lane.from, portal, target, weight, reserve });
    }
    let portals = if wish.lanes.is_empty() { portals::find(url, options).await? } else { Vec::new() };
    let local = Local::look(machine);
    let inventory =
        Inventory { locals: local.ports.clone(), portals, route: &|from, to| local.route(from, to) };
    Plan::make(&wish, &inventory).map_err(|source| PathsOpenError::Plan { device: url.to_string(), source })
}

/// The disk that all lanes must lead to.
struct Disk {
    /// Name of the lane over which it was seen, for people.
    lane: String,
    identity: VpdIdentity,
    geometry: lunway_block::Geometry,
}

impl Disk {
    fn of(lane: &IscsiLane, device: &IscsiDevice) -> Self {
        Self { lane: lane.name.clone(), identity: device.identity().clone(), geometry: device.geometry() }
    }

    /// Returns the reason why what another lane leads to is something else.
    fn differs(&self, device: &IscsiDevice) -> Option<String> {
        let (identity, sector) = (device.identity(), device.geometry().logical_sector);
        if !self.identity.same_disk(identity) {
            return Some(format!("it is {identity}, while {} leads to {}", self.lane, self.identity));
        }
        let known = self.geometry.logical_sector;
        (sector != known)
            .then(|| format!("it has sectors of {sector} bytes, while over {} it has {known}", self.lane))
    }
}

/// The lanes of a disk, which know each other.
struct Team {
    lanes: Vec<Arc<IscsiLane>>,
    registrar: Option<Arc<Registrar>>,
    options: SessionOptions,
    /// ISIDs for where ports are not recorded.
    isids: IsidFamily,
}

impl Team {
    fn new(url: &MultipathUrl, plan: &Plan, options: SessionOptions) -> Arc<Self> {
        let registrar = url.key.map(|key| Registrar::new(key, url.register.unwrap_or_default()));
        let lane = |planned: &lunway_multipath::plan::PlannedLane| {
            let address = url.lane(planned.from, planned.portal, planned.target.as_deref());
            IscsiLane::new(planned.clone(), address, registrar.clone())
        };
        let lanes: Vec<_> = plan.lanes.iter().map(lane).collect();
        if let Some(registrar) = &registrar {
            registrar.attend(&lanes);
        }
        let options = SessionOptions { proof_age_max: registrar.as_ref().map(|_| PROOF_AGE_MAX), ..options };
        Arc::new(Self { lanes, registrar, options, isids: IsidFamily::random() })
    }

    /// The ways of all lanes, as far as one disk is concerned.
    fn ways(&self) -> Vec<IscsiUrl> {
        self.lanes.iter().map(|lane| lane.url().clone()).collect()
    }

    /// Connects all lanes. Gives those that were connected when the first one's grace was over, and what they lead to.
    async fn connect_all(&self) -> Result<(Vec<(usize, IscsiDevice)>, Disk), PathsOpenError> {
        let attempt = |n, known| async move { (n, self.connect(n, known).await) };
        let mut attempts: FuturesUnordered<_> = (0..self.lanes.len()).map(|n| attempt(n, None)).collect();
        let (mut connected, mut failures): (Vec<(usize, IscsiDevice)>, Vec<_>) = (Vec::new(), Vec::new());
        // Lanes to ports that are not active: with what another has told of the disk they can be opened too.
        let mut inactive = Vec::new();
        let mut deadline = None;
        loop {
            if let Some((_, device)) = connected.first() {
                attempts.extend(inactive.drain(..).map(|n| attempt(n, Some(device.known()))));
            }
            let next = match deadline {
                None => attempts.next().await,
                Some(deadline) => match timeout_at(deadline, attempts.next()).await {
                    Ok(next) => next,
                    Err(_) => break,
                },
            };
            match next {
                None => break,
                Some((n, Ok(device))) => {
                    deadline.get_or_insert_with(|| Instant::now() + GRACE);
                    connected.push((n, device));
                }
                Some((n, Err(why))) => {
                    if why.is_inactive {
                        inactive.push(n);
                    }
                    self.lanes[n].failed(why.text.clone());
                    failures.push(format!("{}: {}", self.lanes[n].name, why.text));
                }
            }
        }
        drop(attempts);
        let Some((first, device)) = connected.first() else {
            return Err(PathsOpenError::NoLane { failures: failures.join("; ") });
        };
        let disk = Disk::of(&self.lanes[*first], device);
        let strange = connected.iter().find_map(|(n, device)| Some((*n, disk.differs(device)?)));
        if let Some((n, why)) = strange {
            for (_, device) in connected {
                device.close().await;
            }
            return Err(PathsOpenError::OtherDisk { lane: self.lanes[n].name.clone(), why });
        }
        Ok((connected, disk))
    }

    /// Connects a lane, and registers the key over it.
    async fn connect(&self, n: usize, known: Option<KnownDisk>) -> Result<IscsiDevice, Failure> {
        let lane = &self.lanes[n];
        let mut options = SessionOptions { known, ..self.options.clone() };
        match options.initiator_ports {
            InitiatorPorts::Random => options.isid = Some(self.isids.member(n as u16)),
            _ => options.lane = Some(lane.planned.name()),
        }
        let device = lane.connect(&options, self.detours(n)).await?;
        let Some(registrar) = &self.registrar else { return Ok(device) };
        match registrar.ensure(&device).await {
            Ok(Standing::Registered) => Ok(device),
            Ok(fenced) => {
                lane.tell_standing(&fenced);
                Ok(device)
            }
            Err(why) => {
                lane.forget_session();
                device.close().await;
                let text = format!("the reservation key could not be registered: {why}");
                Err(Failure { text, is_inactive: false })
            }
        }
    }

    /// Other ways to where a lane leads: the lanes of its target's name and portal group, first those that are up and
    /// share no port with it.
    fn detours(&self, n: usize) -> Detours {
        let all: Vec<Weak<IscsiLane>> = self.lanes.iter().map(Arc::downgrade).collect();
        Detours::new(move || {
            let Some(own) = all[n].upgrade() else { return Vec::new() };
            let others = all.iter().enumerate().filter(|(other, _)| *other != n);
            let mut others: Vec<_> =
                others.filter_map(|(_, lane)| lane.upgrade()).filter(|lane| own.is_same_port(lane)).collect();
            others.sort_by_key(|lane| {
                let same_near = lane.planned.near_port == own.planned.near_port;
                let same_far = lane.planned.far_port == own.planned.far_port;
                (!lane.is_up(), u8::from(same_near) + u8::from(same_far))
            });
            others.iter().map(|lane| lane.url().clone()).collect()
        })
    }

    /// Tries a lane that was not there at the opening until it is, or leads to another disk.
    async fn keep_trying(&self, n: usize, disk: &Disk) {
        let lane = &self.lanes[n];
        let mut wait = RETRY;
        loop {
            let now = if lane.is_port_down() { RETRY_PORT_DOWN } else { wait };
            let hurried = timeout(now, lane.hope.notified()).await.is_ok();
            if hurried && lane.is_port_down() {
                // What gives others hope gives this one none.
                continue;
            }
            wait = if hurried { RETRY } else { (wait * 2).min(RETRY_MAX) };
            let known = self.lanes.iter().find_map(|lane| lane.session()).map(IscsiDevice::known);
            match self.connect(n, known).await {
                Ok(device) => {
                    let Some(why) = disk.differs(&device) else { return lane.admit(device) };
                    lane.forget_session();
                    device.close().await;
                    return lane.refused(format!("another disk answers there: {why}"));
                }
                Err(why) => lane.failed(why.text),
            }
        }
    }
}

/// Reason why a lane could not be connected.
struct Failure {
    /// For people.
    text: String,
    /// Its port is not active, and the disk's geometry was not known.
    is_inactive: bool,
}

impl From<lunway_initiator::IscsiOpenError> for Failure {
    fn from(error: lunway_initiator::IscsiOpenError) -> Self {
        let is_inactive = matches!(error, lunway_initiator::IscsiOpenError::Inactive { .. });
        Self { text: error.to_string(), is_inactive }
    }
}
