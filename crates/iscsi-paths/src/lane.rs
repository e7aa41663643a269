//! A lane over an iSCSI session.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use lunway_block::{BlockDevice, BlockError, Geometry, Io, PathSample, PathState};
use lunway_initiator::{Detours, IscsiDevice, IscsiUrl, SessionEvent, SessionOptions, SharedObserver};
use lunway_scsi::AccessState;
use tokio::sync::Notify;

use crate::absent::Absent;
use crate::event_gate::EventGate;
use crate::reservation::{Registrar, Standing};
use lunway_multipath::plan::PlannedLane;
use lunway_multipath::{AluaState, Lane, LaneEvent, LaneListener};

/// Pause before a key that could not be registered is tried again.
const REGISTER_AGAIN: Duration = Duration::from_secs(1);

/// A lane over an iSCSI session.
///
/// It may exist before its session does: [`connect`](Self::connect) opens that, [`admit`](Self::admit) makes it part of
/// the disk once it was seen to be the same disk. Until then nothing is told of it, and its device refuses
/// everything.
///
/// With a reservation key, a session is `Up` only when the key is registered for it.
pub(crate) struct IscsiLane {
    pub(crate) planned: PlannedLane,
    pub(crate) name: String,
    url: IscsiUrl,
    registrar: Option<Arc<Registrar>>,
    device: OnceLock<IscsiDevice>,
    absent: OnceLock<Absent>,
    gate: EventGate,
    /// Number of its session.
    epoch: AtomicU64,
    /// Counts devices: what is heard of one before the last is not of this lane.
    attempt: AtomicU64,
    up: AtomicBool,
    /// Its own port is dead.
    port_down: AtomicBool,
    /// Being closed by the code that opened it.
    closing: AtomicBool,
    /// Reason why it could not be connected the last time.
    failure: Mutex<Option<String>>,
    /// Something gives hope, while it has never been connected.
    pub(crate) hope: Notify,
    weak: Weak<Self>,
}

impl fmt::Debug for IscsiLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IscsiLane").field("name", &self.name).finish_non_exhaustive()
    }
}

impl IscsiLane {
    pub(crate) fn new(planned: PlannedLane, url: IscsiUrl, registrar: Option<Arc<Registrar>>) -> Arc<Self> {
        Arc::new_cyclic(|weak| Self {
            name: planned.name(),
            planned,
            url,
            registrar,
            device: OnceLock::new(),
            absent: OnceLock::new(),
            gate: EventGate::default(),
            epoch: AtomicU64::new(0),
            attempt: AtomicU64::new(0),
            up: AtomicBool::new(false),
            port_down: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            failure: Mutex::default(),
            hope: Notify::new(),
            weak: weak.clone(),
        })
    }

    /// Opens a session. The device is not part of the lane before [`admit`](Self::admit).
    pub(crate) async fn connect(
        &self,
        options: &SessionOptions,
        detours: Detours,
    ) -> Result<IscsiDevice, lunway_initiator::IscsiOpenError> {
        let lane = self.weak.clone();
        let attempt = self.attempt.fetch_add(1, Ordering::Relaxed) + 1;
        let observer = SharedObserver::new(move |event| {
            // A device that was not admitted ends after the next one has begun.
            if let Some(lane) = lane.upgrade().filter(|lane| lane.attempt.load(Ordering::Relaxed) == attempt)
            {
                lane.happened(event);
            }
        });
        let options = SessionOptions { observer: Some(observer), detours: Some(detours), ..options.clone() };
        IscsiDevice::open(self.url.clone(), options).await
    }

    /// Takes the device that [`connect`](Self::connect) gave, and tells what has happened to it.
    pub(crate) fn admit(&self, device: IscsiDevice) {
        if self.device.set(device).is_err() {
            return;
        }
        if let (Some(device), Some(absent)) = (self.device.get(), self.absent.get()) {
            absent.take_callbacks().into_iter().for_each(|callback| device.on_resize(callback));
        }
        self.gate.admit();
    }

    /// The device that was connected is no part of the disk: its owner closes it.
    pub(crate) fn forget_session(&self) {
        self.attempt.fetch_add(1, Ordering::Relaxed);
        self.gate.forget();
        self.up.store(false, Ordering::Relaxed);
    }

    /// Removes its registration and logs out, once what is under way is answered.
    pub(crate) async fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        if let Some(device) = self.device.get() {
            if let Some(registrar) = self.registrar.as_ref().filter(|_| self.is_up()) {
                registrar.release(device).await;
            }
            device.close().await;
        }
    }

    /// Returns the reason why it is not there yet, for people.
    pub(crate) fn failed(&self, why: String) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if failure.as_ref() == Some(&why) {
            return;
        }
        *failure = Some(why.clone());
        drop(failure);
        self.gate.absent(LaneEvent::Lost { epoch: 0, why });
    }

    /// Notes that it will never be part of the disk.
    pub(crate) fn refused(&self, why: String) {
        tracing::error!(lane = self.name, "the lane is closed: {why}");
        self.gate.absent(LaneEvent::Closed { why });
    }

    /// Sets the geometry that the lane shows until it is there.
    pub(crate) fn resemble(&self, geometry: Geometry) {
        let _ = self.absent.set(Absent::new(geometry));
    }

    /// Its session's device, once there is one.
    pub(crate) fn session(&self) -> Option<&IscsiDevice> {
        self.device.get()
    }

    /// The portal group that it leads to, as far as is known.
    pub(crate) fn group(&self) -> Option<u16> {
        self.device.get().and_then(IscsiDevice::portal_group).or(self.planned.group)
    }

    /// Returns `true` if a session of this lane can be reinstated over another one: a session is named by the target's
    /// name and its portal group, and a group of the same tag under another name is another port.
    pub(crate) fn is_same_port(&self, other: &Self) -> bool {
        let name = |lane: &Self| lane.url.target.as_ref().map(|name| name.to_ascii_lowercase());
        self.group().is_some() && self.group() == other.group() && name(self) == name(other)
    }

    /// Returns `true` if its sessions register a reservation key.
    pub(crate) fn registers(&self) -> bool {
        self.registrar.is_some()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    /// Its own port is dead: the session ends, and the next one is tried for only now and then.
    pub(crate) fn set_port_down(&self, why: &str) {
        self.port_down.store(true, Ordering::Relaxed);
        if let Some(device) = self.device.get() {
            device.set_port_down(why);
        }
    }

    /// Its own port is alive again.
    pub(crate) fn set_port_up(&self) {
        self.port_down.store(false, Ordering::Relaxed);
        match self.device.get() {
            Some(device) => device.set_port_up(),
            None => self.hope.notify_one(),
        }
    }

    pub(crate) fn is_port_down(&self) -> bool {
        self.port_down.load(Ordering::Relaxed)
    }

    pub(crate) fn url(&self) -> &IscsiUrl {
        &self.url
    }

    /// Sample of the traffic over it, under its name.
    pub(crate) fn sample(&self) -> PathSample {
        let sample = self.device.get().and_then(|device| device.paths().into_iter().next());
        match sample {
            Some(sample) => PathSample { name: self.name.clone(), ..sample },
            None => PathSample::unused(&self.name, PathState::Down),
        }
    }

    fn happened(&self, event: SessionEvent) {
        match event {
            SessionEvent::Up { epoch } => {
                self.epoch.store(epoch, Ordering::Relaxed);
                self.up.store(true, Ordering::Relaxed);
                match &self.registrar {
                    None => self.gate.push(LaneEvent::Up { epoch }),
                    Some(registrar) => self.register(registrar.clone(), epoch),
                }
            }
            SessionEvent::Lost { epoch, why } => {
                self.up.store(false, Ordering::Relaxed);
                // The end of a session that is logged out is no loss.
                if !self.closing.load(Ordering::Relaxed) {
                    self.gate.push(LaneEvent::Lost { epoch, why });
                }
            }
            SessionEvent::Settled { epoch } => self.gate.push(LaneEvent::Settled { epoch }),
            SessionEvent::Silent => self.gate.push(LaneEvent::Silent),
            SessionEvent::Heard => self.gate.push(LaneEvent::Heard),
            SessionEvent::PowerOn => self.gate.push(LaneEvent::PowerOn),
            SessionEvent::Spoiled { why } => self.gate.push(LaneEvent::Spoiled { why }),
            // Before what was refused for it is answered, so that nothing is tried again meanwhile.
            SessionEvent::Preempted => {
                if let Some(registrar) = &self.registrar {
                    self.gate.push(LaneEvent::Preempted);
                    registrar.doubt();
                }
            }
            SessionEvent::Access(state) => {
                self.gate.push(LaneEvent::Access(access(state)));
            }
            SessionEvent::Closed { why } => {
                self.up.store(false, Ordering::Relaxed);
                if !self.closing.load(Ordering::Relaxed) {
                    tracing::error!(lane = self.name, "the lane is closed: {why}");
                }
                self.gate.push(LaneEvent::Closed { why });
            }
            // What a later version of the initiator tells is of no meaning here.
            _ => {}
        }
    }

    /// Tells whether this node may still write.
    pub(crate) fn tell_standing(&self, standing: &Standing) {
        self.gate.push(match standing {
            Standing::Registered => LaneEvent::Registered,
            Standing::Fenced(why) => LaneEvent::Fenced { why: why.clone() },
        });
    }

    /// Registers the key for a session before that is told to be up, if it is still there; where it was taken away the
    /// session is good for reading. The first session's is registered before it is admitted.
    fn register(&self, registrar: Arc<Registrar>, epoch: u64) {
        if self.device.get().is_none() {
            return self.gate.push(LaneEvent::Up { epoch });
        }
        let weak = self.weak.clone();
        tokio::spawn(async move {
            while let Some(lane) = weak.upgrade()
                && let Some(device) = lane.device.get()
            {
                let outcome = registrar.ensure(device).await;
                // Another session may have taken its place: then this is that one's business.
                if lane.epoch.load(Ordering::Relaxed) != epoch || !lane.is_up() {
                    return;
                }
                match outcome {
                    Ok(standing) => {
                        if let Standing::Fenced(_) = &standing {
                            lane.tell_standing(&standing);
                        }
                        return lane.gate.push(LaneEvent::Up { epoch });
                    }
                    Err(why) => {
                        let name = &lane.name;
                        tracing::warn!(lane = name, "the reservation key could not be registered: {why}");
                    }
                }
                drop(lane);
                tokio::time::sleep(REGISTER_AGAIN).await;
            }
        });
    }
}

impl Lane for IscsiLane {
    fn device(&self) -> &dyn BlockDevice {
        match self.device.get() {
            Some(device) => device,
            None => self.absent.get_or_init(Absent::shapeless),
        }
    }

    fn listen(&self, listener: Arc<dyn LaneListener>) {
        self.gate.listen(listener);
    }

    fn epoch(&self) -> u64 {
        // What was told last may be behind what is sent.
        self.device.get().map_or(0, IscsiDevice::epoch)
    }

    fn barrier(&self) -> Io<Result<(), BlockError>> {
        match self.device.get() {
            Some(device) => device.barrier(),
            None => Io::err(BlockError::gone("the lane has not been connected yet")),
        }
    }

    fn sever(&self, why: &str) {
        if let Some(device) = self.device.get() {
            device.sever(why);
        }
    }

    fn hurry(&self) {
        match self.device.get() {
            Some(device) => device.hurry(),
            None => self.hope.notify_one(),
        }
    }
}

fn access(state: AccessState) -> AluaState {
    match state {
        AccessState::ActiveOptimized => AluaState::Optimized,
        AccessState::ActiveNonOptimized => AluaState::NonOptimized,
        AccessState::Standby => AluaState::Standby,
        AccessState::Unavailable | AccessState::Transitioning => AluaState::Unavailable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(portal: &str, target: &str, group: Option<u16>) -> Arc<IscsiLane> {
        let url = IscsiUrl::parse(&format!("iscsi://{portal}/{target}/0")).unwrap();
        let planned = PlannedLane {
            from: None,
            near: None,
            interface: None,
            near_port: 0,
            portal: portal.parse().unwrap(),
            target: None,
            far_port: 0,
            group,
            reserve: false,
            weight: 1,
            speed: None,
            reason: String::new(),
        };
        IscsiLane::new(planned, url, None)
    }

    #[test]
    fn a_session_is_reinstated_only_over_lanes_of_its_targets_name_and_portal_group() {
        let own = lane("192.0.2.1:3260", "iqn.x:a", Some(1));
        assert!(own.is_same_port(&lane("192.0.2.2:3260", "iqn.x:A", Some(1))));
        assert!(!own.is_same_port(&lane("192.0.2.2:3260", "iqn.x:b", Some(1))), "another node");
        assert!(!own.is_same_port(&lane("192.0.2.2:3260", "iqn.x:a", Some(2))), "another controller");
        assert!(!own.is_same_port(&lane("192.0.2.2:3260", "iqn.x:a", None)), "nothing is known of it");
    }
}
