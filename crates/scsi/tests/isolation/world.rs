//! A target with two logical units, their owner with a partner, and one more nexus that tries what it can.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use lunway_block::{Buf, Io};
use lunway_scsi::{
    AccessState, LogicalUnit, LogicalUnitOptions, Lun, LunView, MemoryStore, Nexus, NexusTasks, PortGroup,
    Response, ScsiTarget, StateStore, Status, state_item,
};

use crate::device::{Disk, HELD};

pub(crate) const TARGET: &str = "iqn.2026-11.com.example:isolation";
pub(crate) const OWNER_KEY: u64 = 1;
/// The list identifier of the owner's copy.
pub(crate) const OWNERS_COPY: u8 = 7;

/// The nexus that tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// Sees both units and may write: what it changes shows that an attempt is a real one.
    Writer,
    /// Sees both units and may not write.
    Reader,
    /// Sees unit 1 alone, and may write to it.
    Masked,
    /// Sees unit 1 alone, and may not write to it.
    MaskedReader,
}

impl Who {
    fn view(self) -> LunView {
        let all = matches!(self, Self::Writer | Self::Reader);
        LunView {
            luns: (!all).then(|| [1].into()),
            read_only: matches!(self, Self::Reader | Self::MaskedReader),
        }
    }

    /// The units that are not its to change.
    pub(crate) fn spared(self) -> &'static [u16] {
        if self == Self::Masked { &[0] } else { &[0, 1] }
    }
}

/// What is going on when it tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Situation {
    /// Nothing.
    Quiet,
    /// The owner has RESERVE on both units.
    Reserved,
    /// The owner, its partner, and the nexus that tries are registered, with APTPL.
    Registered,
    /// The same, and the owner holds a reservation that registrants share.
    Held,
    /// The same, and the owner has moved the reservation to the nexus that tries.
    Moved,
    /// The owner has ejected both media.
    Ejected,
    /// A sanitize operation of both units has failed, in unrestricted mode.
    Failed,
}

impl Situation {
    pub(crate) const ALL: [Self; 7] =
        [Self::Quiet, Self::Reserved, Self::Registered, Self::Held, Self::Moved, Self::Ejected, Self::Failed];

    /// The medium can be used by the owner.
    pub(crate) fn usable(self) -> bool {
        !matches!(self, Self::Ejected | Self::Failed)
    }
}

/// The transport of the owner, which counts for each unit how often it had to drop commands.
#[derive(Debug, Default)]
pub(crate) struct Dropped(pub(crate) [AtomicUsize; 2]);

impl NexusTasks for Dropped {
    fn abort(&self, lun: u16) -> Io<()> {
        self.0[usize::from(lun)].fetch_add(1, Ordering::SeqCst);
        Io::Ready(())
    }
}

pub(crate) type Pending = Pin<Box<dyn Future<Output = Response> + Send>>;

pub(crate) struct World {
    pub(crate) situation: Situation,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) target: Arc<ScsiTarget>,
    pub(crate) disks: [Arc<Disk>; 2],
    pub(crate) units: [Arc<LogicalUnit>; 2],
    pub(crate) owner: Arc<Nexus>,
    pub(crate) partner: Arc<Nexus>,
    pub(crate) intruder: Arc<Nexus>,
    pub(crate) dropped: Arc<Dropped>,
    /// A READ and a copy of the owner that the device has.
    pub(crate) in_flight: Vec<Pending>,
    /// Attempts that have no answer yet.
    unanswered: Vec<Pending>,
}

pub(crate) fn port_of(name: &str) -> String {
    format!("iqn.2026-11.com.example:{name},i,0x000000000001")
}

/// The TransportID of an initiator port (SPC-4 7.6.4.6).
pub(crate) fn transport_id(name: &str) -> Vec<u8> {
    let text = port_of(name);
    let len = (text.len() / 4 + 1) * 4;
    let mut id = vec![0x45, 0, 0, len as u8];
    id.extend(text.bytes());
    id.resize(4 + len, 0);
    id
}

/// Polls as often as a command takes that waits for nobody.
pub(crate) fn poll(pending: &mut Pending) -> Option<Response> {
    (0..1000).find_map(|_| match pending.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(response) => Some(response),
        Poll::Pending => None,
    })
}

fn start(nexus: &Nexus, lun: Lun, cdb: &[u8], data: &[u8]) -> Result<Response, Pending> {
    settled(nexus.execute(lun.0, cdb, Buf::copy_of(data).freeze()))
}

fn settled(io: Io<Response>) -> Result<Response, Pending> {
    match io {
        Io::Ready(response) => Ok(response),
        Io::Pending(mut pending) => poll(&mut pending).ok_or(pending),
    }
}

/// `None`: it waits for something.
pub(crate) fn send(nexus: &Nexus, lun: u16, cdb: &[u8], data: &[u8]) -> Option<Response> {
    start(nexus, Lun::new(lun), cdb, data).ok()
}

fn good(nexus: &Nexus, lun: u16, cdb: &[u8], data: &[u8]) {
    let response = send(nexus, lun, cdb, data).expect("nothing to wait for");
    assert_eq!(response.status, Status::GOOD, "{cdb:02x?}: {:?}", response.sense);
}

pub(crate) fn reserve_out(action: u8, kind: u8, key: u64, argument: u64, flags: u8) -> (Vec<u8>, Vec<u8>) {
    let mut list = [key.to_be_bytes(), argument.to_be_bytes()].concat();
    list.resize(24, 0);
    list[20] = flags;
    (vec![0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0], list)
}

/// REGISTER AND MOVE to another initiator port, with APTPL or UNREG in `flags`.
pub(crate) fn move_to(name: &str, new_key: u64, flags: u8) -> (Vec<u8>, Vec<u8>) {
    let id = transport_id(name);
    let (mut cdb, mut list) = reserve_out(7, 0, OWNER_KEY, new_key, 0);
    [list[17], list[19], list[23]] = [flags, 1, id.len() as u8];
    list.extend(&id);
    cdb[8] = list.len() as u8;
    (cdb, list)
}

/// EXTENDED COPY of a block within or between units, named by their NAA designators.
pub(crate) fn copy(id: u8, from: (&LogicalUnit, u64), to: (&LogicalUnit, u64)) -> (Vec<u8>, Vec<u8>) {
    let mut list = vec![0; 16];
    list[0] = id;
    list[3] = 64;
    list[11] = 28;
    for unit in [from.0, to.0] {
        let mut slot = [0; 32];
        [slot[0], slot[4], slot[5], slot[7]] = [0xE4, 1, 3, 16];
        slot[8..24].copy_from_slice(&unit.identity().naa());
        list.extend(slot);
    }
    list.extend([0x02, 0, 0, 24, 0, 0, 0, 1, 0, 0, 0, 1]);
    list.extend(from.1.to_be_bytes());
    list.extend(to.1.to_be_bytes());
    let mut cdb = vec![0; 16];
    cdb[0] = 0x83;
    cdb[13] = list.len() as u8;
    (cdb, list)
}

impl World {
    /// `busy`: the owner has commands in flight.
    pub(crate) fn new(who: Who, situation: Situation, busy: bool) -> Self {
        let store = Arc::new(MemoryStore::default());
        let disks = [Arc::new(Disk::new()), Arc::new(Disk::new())];
        let units = [0, 1].map(|index: usize| {
            let identity = format!("isolation/{index}");
            if situation == Situation::Failed {
                let kept = store.save(&identity, state_item::SANITIZE, vec![1, 1]);
                assert!(matches!(kept, Io::Ready(Ok(()))));
            }
            let options = LogicalUnitOptions {
                identity,
                removable: true,
                atomic_writes: Some(true),
                state: Some(store.clone()),
                ..LogicalUnitOptions::default()
            };
            LogicalUnit::new(disks[index].clone(), options).expect("what is kept is whole")
        });
        let target = ScsiTarget::with_state(TARGET, store.clone()).expect("nothing is kept of it");
        for (lun, unit) in (0..).zip(&units) {
            target.attach(lun, unit.clone()).expect("a new target");
        }
        let group = |tag, state| PortGroup { tag, state, preferred: false, ports: vec![tag] };
        target.set_port_groups(vec![
            group(1, AccessState::ActiveOptimized),
            group(2, AccessState::ActiveNonOptimized),
        ]);
        let open = |name: &str, view: LunView| target.open_nexus(&port_of(name), 1, view);
        let (owner, partner) = (open("owner", LunView::ALL), open("partner", LunView::ALL));
        let intruder = open("intruder", who.view());
        let dropped = Arc::new(Dropped::default());
        owner.set_tasks(dropped.clone());
        partner.set_tasks(dropped.clone());
        let mut world = Self {
            situation,
            store,
            target,
            disks,
            units,
            owner,
            partner,
            intruder,
            dropped,
            in_flight: Vec::new(),
            unanswered: Vec::new(),
        };
        for nexus in [&world.owner, &world.partner, &world.intruder] {
            hear(nexus, 0);
            hear(nexus, 1);
        }
        world.prepare();
        if busy && situation.usable() {
            world.begin();
        }
        for lun in [0, 1] {
            hear(&world.intruder, lun);
        }
        world
    }

    fn prepare(&self) {
        for lun in [0, 1] {
            match self.situation {
                Situation::Quiet | Situation::Failed => {}
                Situation::Reserved => good(&self.owner, lun, &[0x16, 0, 0, 0, 0, 0], &[]),
                Situation::Ejected => good(&self.owner, lun, &[0x1B, 0, 0, 0, 0x02, 0], &[]),
                Situation::Registered | Situation::Held | Situation::Moved => {
                    // SPEC_I_PT and APTPL.
                    let (mut cdb, mut list) = reserve_out(0, 0, 0, OWNER_KEY, 0x09);
                    let others = [transport_id("partner"), transport_id("intruder")].concat();
                    list.extend((others.len() as u32).to_be_bytes());
                    list.extend(others);
                    cdb[8] = list.len() as u8;
                    good(&self.owner, lun, &cdb, &list);
                    if self.situation != Situation::Registered {
                        let (cdb, list) = reserve_out(1, 5, OWNER_KEY, 0, 0);
                        good(&self.owner, lun, &cdb, &list);
                    }
                    if self.situation == Situation::Moved {
                        let (cdb, list) = move_to("intruder", OWNER_KEY, 0x01);
                        good(&self.owner, lun, &cdb, &list);
                    }
                }
            }
        }
    }

    fn begin(&mut self) {
        self.disks[0].hold(true);
        let mut read = vec![0x88, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];
        read[2..10].copy_from_slice(&HELD.to_be_bytes());
        let unit = &*self.units[0];
        let (copy, list) = copy(OWNERS_COPY, (unit, HELD), (unit, 3));
        for (cdb, data) in [(read, Vec::new()), (copy, list)] {
            match start(&self.owner, Lun::new(0), &cdb, &data) {
                Err(pending) => self.in_flight.push(pending),
                Ok(response) => panic!("{cdb:02x?} should wait: {response:?}"),
            }
        }
    }

    /// Lets the owner's commands end; says whether all of them do, and well.
    pub(crate) fn release(&mut self) -> bool {
        self.disks[0].hold(false);
        let mut ends = std::mem::take(&mut self.in_flight);
        ends.iter_mut().all(|pending| poll(pending).is_some_and(|response| response.status == Status::GOOD))
    }

    /// One attempt, which may have no answer yet.
    pub(crate) fn attempt(&mut self, lun: Lun, cdb: &[u8], data: &[u8]) {
        let sent = start(&self.intruder, lun, cdb, data);
        self.unanswered.extend(sent.err());
    }

    /// The same with the attribute ORDERED.
    pub(crate) fn attempt_ordered(&mut self, lun: Lun, cdb: &[u8], data: &[u8]) {
        let sent = settled(self.intruder.execute_ordered(lun.0, cdb, Buf::copy_of(data).freeze()));
        self.unanswered.extend(sent.err());
    }
}

/// Takes all unit attentions of a nexus on a unit: their additional sense codes.
pub(crate) fn hear(nexus: &Nexus, lun: u16) -> Vec<u16> {
    let mut heard = Vec::new();
    loop {
        let sense =
            send(nexus, lun, &[0x03, 0, 0, 0, 18, 0], &[]).expect("REQUEST SENSE never waits").data_in;
        match sense.get(2) {
            Some(key) if key & 0xF == 6 => heard.push(u16::from_be_bytes([sense[12], sense[13]])),
            _ => return heard,
        }
    }
}
