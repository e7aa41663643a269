//! PERSISTENT RESERVE through the device server: parameter lists, what is told to whom, what outlives the unit.

use std::sync::{Arc, Mutex};

use lunway_block::Io;
use lunway_memory::RamDisk;
use lunway_scsi::cdb::{self, TransferFlags};
use lunway_scsi::{
    AdditionalSense, LogicalUnit, LogicalUnitOptions, LunView, MemoryStore, NexusTasks, PortGroup, PortPair,
    ReservationType, Response, Sense, SenseKey, StateError, StateStore, Status, UnitAttention, state_item,
};

use crate::support::{Initiator, Rig, SECTOR, SECTORS};

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const CLEAR: u8 = 3;
const PREEMPT: u8 = 4;
const PREEMPT_AND_ABORT: u8 = 5;
const REGISTER_AND_IGNORE: u8 = 6;
const REGISTER_AND_MOVE: u8 = 7;

const APTPL: u8 = 0x01;
const ALL_TG_PT: u8 = 0x04;
const SPEC_I_PT: u8 = 0x08;

const EXCLUSIVE: u8 = 3;

/// A service action with its CDB and parameter list.
struct Out {
    action: u8,
    kind: u8,
    list: Vec<u8>,
}

fn out(action: u8, kind: u8, key: u64, argument: u64) -> Out {
    let mut list = [key.to_be_bytes(), argument.to_be_bytes()].concat();
    list.resize(24, 0);
    Out { action, kind, list }
}

impl Out {
    fn flags(mut self, flags: u8) -> Self {
        self.list[20] |= flags;
        self
    }

    fn transport_ids(mut self, ids: &[Vec<u8>]) -> Self {
        let ids = ids.concat();
        self.list.extend((ids.len() as u32).to_be_bytes());
        self.list.extend(ids);
        self.flags(SPEC_I_PT)
    }

    fn send(&self, host: &Initiator) -> Response {
        let mut cdb = [0x5F, self.action, self.kind, 0, 0, 0, 0, 0, 0, 0];
        cdb[5..9].copy_from_slice(&(self.list.len() as u32).to_be_bytes());
        host.send(&cdb, &self.list)
    }

    fn good(&self, host: &Initiator) {
        let response = self.send(host);
        assert_eq!(response.status, Status::GOOD, "{:?}", response.sense);
    }

    fn conflicts(&self, host: &Initiator) {
        assert_eq!(self.send(host).status, Status::RESERVATION_CONFLICT);
    }

    fn sense(&self, host: &Initiator) -> Sense {
        *self.send(host).sense.expect("a refusal")
    }
}

/// A TransportID of format 01b.
fn port_id(name: &str) -> Vec<u8> {
    transport_id(0x45, &port(name))
}

fn transport_id(first: u8, text: &str) -> Vec<u8> {
    let len = (text.len() / 4 * 4 + 4).max(20);
    let mut id = vec![first, 0, 0, len as u8];
    id.extend(text.bytes());
    id.resize(4 + len, 0);
    id
}

/// The initiator port that a TransportID names: the whole ISID, unlike those of `Rig::login`.
fn port(name: &str) -> String {
    format!("{name},i,0x00023d000001")
}

fn login(rig: &Rig, name: &str) -> Initiator {
    login_through(rig, name, 1)
}

fn login_through(rig: &Rig, name: &str, target_port: u16) -> Initiator {
    let host = Initiator(rig.target.open_nexus(&port(name), target_port, LunView::ALL));
    host.send(&cdb::test_unit_ready(), &[]);
    host
}

/// Initiator port, target port and key of each registration.
fn registrations(rig: &Rig) -> Vec<(String, u16, u64)> {
    let summary = rig.unit.reservation_summary();
    let one = |found: lunway_scsi::RegistrationSummary| {
        (found.initiator_port, found.relative_target_port, found.key)
    };
    summary.registrations.into_iter().map(one).collect()
}

fn generation(host: &Initiator) -> u32 {
    let keys = host.good(&[0x5E, 0, 0, 0, 0, 0, 0, 1, 0, 0], &[]).data_in;
    u32::from_be_bytes(keys[..4].try_into().expect("four bytes"))
}

fn persistent() -> (Arc<MemoryStore>, LogicalUnitOptions) {
    let store = Arc::new(MemoryStore::default());
    let state: Arc<dyn StateStore> = store.clone();
    (store, LogicalUnitOptions { state: Some(state), ..Default::default() })
}

/// Ports 1 and 2.
fn two_ports(rig: &Rig) {
    let group = |tag| PortGroup { tag, state: Default::default(), preferred: false, ports: vec![tag] };
    rig.target.set_port_groups(vec![group(1), group(2)]);
}

#[test]
fn capabilities_say_what_is_there() {
    let capabilities = |rig: &Rig| rig.login("host").good(&[0x5E, 2, 0, 0, 0, 0, 0, 0, 8, 0], &[]).data_in;
    assert_eq!(capabilities(&Rig::new())[..], [0, 8, 0x1C, 0xC0, 0xEA, 0x01, 0, 0]);
    let rig = Rig::with(persistent().1);
    let host = login(&rig, "host");
    assert_eq!(capabilities(&rig)[2..4], [0x1D, 0xC0]);
    out(REGISTER, 0, 0, 1).flags(APTPL).good(&host);
    assert_eq!(host.good(&[0x5E, 2, 0, 0, 0, 0, 0, 0, 8, 0], &[]).data_in[3], 0xC1);
}

#[test]
fn generations_count_registrations_and_nothing_else() {
    let rig = Rig::new();
    let host = login(&rig, "host");
    let after = |action: Out| {
        action.send(&host);
        generation(&host)
    };
    assert_eq!(after(out(REGISTER, 0, 0, 1)), 1);
    assert_eq!(after(out(RESERVE, EXCLUSIVE, 1, 0)), 1);
    assert_eq!(after(out(RELEASE, EXCLUSIVE, 1, 0)), 1);
    assert_eq!(after(out(REGISTER, 0, 7, 2)), 1, "refused");
    assert_eq!(after(out(REGISTER_AND_IGNORE, 0, 9, 2)), 2);
    assert_eq!(after(out(PREEMPT, EXCLUSIVE, 2, 2)), 3);
    assert_eq!(after(out(REGISTER_AND_IGNORE, 0, 0, 2)), 4);
    assert_eq!(after(out(CLEAR, 0, 2, 0)), 5);
}

#[test]
fn spec_i_pt_registers_the_ports_that_are_named() {
    let rig = Rig::new();
    let (host, other) = (login(&rig, "host"), login(&rig, "other"));
    let ids = [port_id("absent"), transport_id(0x05, "other"), port_id("host")];
    out(REGISTER, 0, 0, 7).transport_ids(&ids).good(&host);
    assert_eq!(registrations(&rig), ["host", "absent", "other"].map(|name| (port(name), 1, 7)));
    out(RESERVE, EXCLUSIVE, 7, 0).good(&other);
    // Once more, all of it is refused, because those named are registered.
    let third = login(&rig, "third");
    let sense = out(REGISTER, 0, 0, 7).transport_ids(&[port_id("new"), port_id("absent")]).sense(&third);
    assert_eq!(sense.code, AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST);
    assert_eq!(registrations(&rig).len(), 3);
}

#[test]
fn spec_i_pt_is_for_register_alone_and_its_list_must_be_whole() {
    let rig = Rig::new();
    let host = login(&rig, "host");
    let ids = [port_id("b"), port_id("c")];
    for action in [REGISTER_AND_IGNORE, RESERVE, CLEAR, PREEMPT] {
        let response = out(action, EXCLUSIVE, 0, 7).transport_ids(&ids).send(&host);
        match action {
            REGISTER_AND_IGNORE => {
                let sense = response.sense.unwrap();
                assert_eq!(*sense, Sense::invalid_parameter(20));
            }
            _ => assert_eq!(response.status, Status::RESERVATION_CONFLICT, "it is not registered"),
        }
    }
    let mut cut = out(REGISTER, 0, 0, 7).transport_ids(&ids);
    cut.list.pop();
    assert_eq!(cut.sense(&host).code, AdditionalSense::PARAMETER_LIST_LENGTH_ERROR);
    let mut torn = out(REGISTER, 0, 0, 7).transport_ids(&ids);
    torn.list[27] -= 4;
    assert_eq!(torn.sense(&host).code, AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST);
    let unknown = out(REGISTER, 0, 0, 7).transport_ids(&[transport_id(0x05, "nobody")]);
    assert_eq!(unknown.sense(&host), Sense::invalid_parameter(28));
    let sas = out(REGISTER, 0, 0, 7).transport_ids(&[port_id("b"), transport_id(0x46, "x")]);
    assert_eq!(sas.sense(&host), Sense::invalid_parameter(28 + port_id("b").len() as u16));
    assert_eq!(registrations(&rig), []);
    let long = Out { list: vec![0; 28], ..out(REGISTER, 0, 0, 7) };
    assert_eq!(long.sense(&host).code, AdditionalSense::PARAMETER_LIST_LENGTH_ERROR);
}

#[test]
fn all_tg_pt_registers_at_every_port() {
    let rig = Rig::new();
    two_ports(&rig);
    let (host, there) = (login_through(&rig, "host", 2), login_through(&rig, "host", 1));
    out(REGISTER, 0, 0, 7).flags(ALL_TG_PT).transport_ids(&[port_id("b")]).good(&host);
    let expected = [("host", 2), ("host", 1), ("b", 2), ("b", 1)].map(|(name, at)| (port(name), at, 7));
    assert_eq!(registrations(&rig), expected);
    out(RESERVE, EXCLUSIVE, 7, 0).good(&there);
    out(RESERVE, EXCLUSIVE, 7, 0).conflicts(&host);
}

#[test]
fn register_and_move_hands_the_reservation_over() {
    let rig = Rig::new();
    two_ports(&rig);
    let (host, other) = (login(&rig, "host"), login_through(&rig, "other", 2));
    let moved = |to: &[u8], at: u16, flags: u8| {
        let mut action = out(REGISTER_AND_MOVE, 0, 1, 5);
        action.list[17] = flags;
        action.list[18..20].copy_from_slice(&at.to_be_bytes());
        action.list[20..24].copy_from_slice(&(to.len() as u32).to_be_bytes());
        action.list.extend(to);
        action
    };
    out(REGISTER, 0, 0, 1).good(&host);
    assert_eq!(moved(&port_id("other"), 2, 0).sense(&host).code, AdditionalSense::INVALID_FIELD_IN_CDB);
    out(RESERVE, EXCLUSIVE, 1, 0).good(&host);
    moved(&port_id("other"), 2, 0).conflicts(&other);
    assert_eq!(moved(&port_id("other"), 3, 0).sense(&host), Sense::invalid_parameter(18));
    assert_eq!(moved(&port_id("host"), 2, 0).sense(&host), Sense::invalid_parameter(24));
    assert_eq!(moved(&port_id("other"), 2, APTPL).sense(&host), Sense::invalid_parameter(17));
    let two = [port_id("other"), port_id("x")].concat();
    assert_eq!(moved(&two, 2, 0).sense(&host), Sense::invalid_parameter(24));
    let mut cut = moved(&port_id("other"), 2, 0);
    cut.list.pop();
    assert_eq!(cut.sense(&host).code, AdditionalSense::PARAMETER_LIST_LENGTH_ERROR);
    moved(&transport_id(0x05, "other"), 2, 0x02).good(&host);
    assert_eq!(registrations(&rig), [(port("other"), 2, 5)]);
    host.conflicts(&cdb::read16(0, 1, TransferFlags::NONE), &[]);
    other.good(&cdb::read16(0, 1, TransferFlags::NONE), &[]);
}

#[test]
fn with_aptpl_reservations_outlive_the_unit_and_without_they_do_not() {
    let (store, options) = persistent();
    let kind = ReservationType::WriteExclusiveRegistrantsOnly;
    let kept = || store.load("test/0", state_item::RESERVATIONS).unwrap();
    {
        let rig = Rig::with(options.clone());
        let (host, other) = (login(&rig, "host"), login(&rig, "other"));
        out(REGISTER, 0, 0, 1).good(&host);
        assert_eq!(kept(), None, "APTPL is not set yet");
        out(REGISTER, 0, 0, 2).flags(APTPL).good(&other);
        out(RESERVE, kind.code(), 2, 0).good(&other);
        assert!(rig.unit.reservation_summary().persists);
    }
    let rig = Rig::with(options.clone());
    assert_eq!(registrations(&rig), [(port("host"), 1, 1), (port("other"), 1, 2)]);
    let (host, stranger) = (login(&rig, "host"), login(&rig, "stranger"));
    assert_eq!(generation(&host), 0, "power on sets it to 0");
    stranger.conflicts(&cdb::write16(0, 1, TransferFlags::NONE), &[0; SECTOR]);
    host.good(&cdb::write16(0, 1, TransferFlags::NONE), &[0; SECTOR]);
    // The last registration decides for all.
    out(REGISTER_AND_IGNORE, 0, 0, 1).good(&host);
    assert_eq!(kept(), None);
    assert!(registrations(&Rig::with(options)).is_empty());
}

#[test]
fn kept_reservations_that_are_damaged_are_not_served() {
    let (store, options) = persistent();
    let options = LogicalUnitOptions { identity: "u".to_owned(), ..options };
    let disk = || Arc::new(RamDisk::new(SECTORS * SECTOR as u64, SECTOR as u32).unwrap());
    assert!(LogicalUnit::new(disk(), options.clone()).is_ok());
    let saved = store.save("u", state_item::RESERVATIONS, b"LWPR\x01\x01\0\x01".to_vec());
    assert!(matches!(saved, Io::Ready(Ok(()))));
    let error = LogicalUnit::new(disk(), options).unwrap_err();
    assert!(matches!(error, StateError::Damaged { .. }), "{error}");
}

/// A store that fails, or answers when it is told to.
#[derive(Debug, Default)]
pub(crate) struct SlowStore(pub(crate) Mutex<Vec<tokio::sync::oneshot::Sender<bool>>>);

impl StateStore for SlowStore {
    fn load(&self, _: &str, _: &str) -> Result<Option<Vec<u8>>, StateError> {
        Ok(None)
    }

    fn save(&self, owner: &str, item: &str, _: Vec<u8>) -> Io<Result<(), StateError>> {
        let (done, end) = tokio::sync::oneshot::channel();
        self.0.lock().expect("no panic").push(done);
        let (owner, item) = (owner.to_owned(), item.to_owned());
        Io::pending(async move {
            match end.await {
                Ok(true) => Ok(()),
                _ => Err(StateError::Unavailable { owner, item, why: "no".to_owned() }),
            }
        })
    }
}

#[tokio::test]
async fn good_comes_after_the_store_has_it_and_nothing_changes_where_it_cannot() {
    let store = Arc::new(SlowStore::default());
    let state: Arc<dyn StateStore> = store.clone();
    let rig = Rig::with(LogicalUnitOptions { state: Some(state), ..Default::default() });
    let host = login(&rig, "host");
    let action = out(REGISTER, 0, 0, 1).flags(APTPL);
    let send = || {
        let mut cdb = [0x5F, 0, 0, 0, 0, 0, 0, 0, 24, 0];
        cdb[8] = action.list.len() as u8;
        host.0.execute([0; 8], &cdb, lunway_block::Buf::copy_of(&action.list).freeze())
    };
    for works in [false, true] {
        let Io::Pending(response) = send() else { panic!("the store has not answered") };
        assert_eq!(registrations(&rig), [], "not in force before it is kept");
        let done = store.0.lock().unwrap().pop().unwrap();
        done.send(works).unwrap();
        let response = response.await;
        if works {
            assert_eq!(response.status, Status::GOOD);
        } else {
            assert_eq!(response.sense.unwrap().key, SenseKey::HARDWARE_ERROR);
        }
    }
    assert_eq!(registrations(&rig).len(), 1);
}

/// Of one thing, the changes are made one after another, each when it is kept: a window of them by one principal is not
/// a line in which another one waits.
#[tokio::test]
async fn one_principals_window_of_registrations_lets_another_principal_register_after_the_one_under_way() {
    let store = Arc::new(SlowStore::default());
    let state: Arc<dyn StateStore> = store.clone();
    let rig = Rig::with(LogicalUnitOptions { state: Some(state), ..Default::default() });
    let log_in = |principal: &str| {
        let (initiator_port, principal) = (port(principal), principal.to_owned());
        let ports = PortPair { initiator_port, relative_target_port: 1, principal };
        let host = Initiator(rig.target.open_nexus_between(ports, LunView::ALL));
        host.hears(UnitAttention::PowerOn);
        host
    };
    let (many, one) = (log_in("many"), log_in("one"));
    let send = |host: &Initiator, key| {
        let _entered = host.0.owner().enter();
        let list = out(REGISTER_AND_IGNORE, 0, 0, key).flags(APTPL).list;
        let cdb = [0x5F, REGISTER_AND_IGNORE, 0, 0, 0, 0, 0, 0, 24, 0];
        match host.0.execute([0; 8], &cdb, lunway_block::Buf::copy_of(&list).freeze()) {
            Io::Pending(response) => tokio::spawn(response),
            Io::Ready(response) => panic!("the store has not answered: {response:?}"),
        }
    };
    let window: Vec<_> = (1..=64).map(|key| send(&many, key)).collect();
    let other = send(&one, 99);
    let mut saves = 0;
    while !other.is_finished() {
        tokio::task::yield_now().await;
        if let Some(done) = store.0.lock().unwrap().pop() {
            done.send(true).unwrap();
            saves += 1;
        }
    }
    // The one under way, the other principal's turn, its own; one more may begin before it is seen to have ended.
    assert!(saves <= 4, "{saves} saves");
    assert_eq!(other.await.unwrap().status, Status::GOOD);
    assert!(!window[4].is_finished());
}

/// Tasks of a nexus that are aborted when it is asked for.
#[derive(Debug, Default)]
struct Tasks {
    asked: Mutex<Vec<u16>>,
    done: Mutex<Option<tokio::sync::oneshot::Receiver<()>>>,
}

impl NexusTasks for Tasks {
    fn abort(&self, lun: u16) -> Io<()> {
        self.asked.lock().expect("no panic").push(lun);
        match self.done.lock().expect("no panic").take() {
            Some(done) => Io::pending(async move { drop(done.await) }),
            None => Io::Ready(()),
        }
    }
}

#[tokio::test]
async fn preempt_and_abort_waits_for_the_end_of_the_preempted_commands() {
    let rig = Rig::with(LogicalUnitOptions { removable: true, ..Default::default() });
    let (host, victim, bystander) = (login(&rig, "host"), login(&rig, "victim"), login(&rig, "bystander"));
    let (theirs, others) = (Arc::new(Tasks::default()), Arc::new(Tasks::default()));
    victim.0.set_tasks(theirs.clone());
    bystander.0.set_tasks(others.clone());
    for (who, key) in [(&host, 1), (&victim, 2), (&bystander, 3)] {
        out(REGISTER, 0, 0, key).good(who);
    }
    out(RESERVE, EXCLUSIVE, 2, 0).good(&victim);
    victim.good(&[0x1E, 0, 0, 0, 1, 0], &[]);
    let (done, end) = tokio::sync::oneshot::channel();
    *theirs.done.lock().unwrap() = Some(end);
    let list = out(PREEMPT_AND_ABORT, EXCLUSIVE, 1, 2).list;
    let cdb = [0x5F, PREEMPT_AND_ABORT, EXCLUSIVE, 0, 0, 0, 0, 0, 24, 0];
    let data = lunway_block::Buf::copy_of(&list).freeze();
    let Io::Pending(mut response) = host.0.execute([0; 8], &cdb, data) else { panic!("they still run") };
    tokio::select! {
        biased;
        _ = &mut response => panic!("they still run"),
        () = tokio::task::yield_now() => {}
    }
    assert_eq!((&*theirs.asked.lock().unwrap(), &*others.asked.lock().unwrap()), (&vec![0], &vec![]));
    done.send(()).unwrap();
    assert_eq!(response.await.status, Status::GOOD);
    victim.hears(UnitAttention::RegistrationsPreempted);
    // The medium can be taken out: the victim's PREVENT went with its registration.
    host.good(&[0x1B, 0, 0, 0, 0x02, 0], &[]);
    bystander.conflicts(&cdb::write16(0, 1, TransferFlags::NONE), &[0; SECTOR]);
}

#[tokio::test]
async fn an_administrator_clears_and_everyone_concerned_hears_it() {
    let (store, options) = persistent();
    let rig = Rig::with(options);
    let (host, other) = (login(&rig, "host"), login(&rig, "other"));
    out(REGISTER, 0, 0, 1).flags(APTPL).good(&host);
    out(RESERVE, EXCLUSIVE, 1, 0).good(&host);
    rig.unit.clear_reservations().await.unwrap();
    assert_eq!(rig.unit.reservation_summary().registrations, []);
    host.hears(UnitAttention::ReservationsPreempted);
    other.is_ready();
    other.good(&[0x16, 0, 0, 0, 0, 0], &[]);
    assert_eq!(rig.unit.reservation_summary().reserved_by, Some(port("other")));
    rig.unit.clear_reservations().await.unwrap();
    other.hears(UnitAttention::ReservationsPreempted);
    host.is_ready();
    // APTPL was the registrants', who are gone; it stays as it was until the next registration.
    assert!(store.load("test/0", state_item::RESERVATIONS).unwrap().is_some());
    assert_eq!(registrations(&rig), []);
}

#[test]
fn an_unregistered_nexus_is_told_of_the_reset_before_the_conflict_and_of_the_rest_after_it() {
    let rig = Rig::new();
    let (host, victim) = (login(&rig, "host"), login(&rig, "victim"));
    out(REGISTER, 0, 0, 1).good(&host);
    out(REGISTER, 0, 0, 2).good(&victim);
    out(RESERVE, EXCLUSIVE, 1, 0).good(&host);
    out(PREEMPT, EXCLUSIVE, 1, 2).good(&host);
    let read = cdb::read16(0, 1, TransferFlags::NONE);
    victim.conflicts(&read, &[]);
    victim.hears(UnitAttention::RegistrationsPreempted);
    let again = rig.target.open_nexus(&port("late"), 1, LunView::ALL);
    assert_eq!(Initiator(again).refused(&read, &[]).code, AdditionalSense::POWER_ON_OCCURRED);
}
