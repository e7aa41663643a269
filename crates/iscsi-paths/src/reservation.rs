//! Reservation key: registered on every lane, and watched for preemption.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use lunway_block::Buf;
use lunway_block::duration::HumanTime;
use lunway_initiator::IscsiDevice;
use lunway_scsi::{Sense, SenseKey, Status};
use tokio::time::{sleep, timeout};

use crate::lane::IscsiLane;
use lunway_multipath::SettingError;

/// PERSISTENT RESERVE IN (SPC-4 §6.15), and its service actions.
const RESERVE_IN: u8 = 0x5E;
const READ_KEYS: u8 = 0x00;
const READ_RESERVATION: u8 = 0x01;
const REPORT_CAPABILITIES: u8 = 0x02;
/// PERSISTENT RESERVE OUT (SPC-4 §6.16), and its service actions.
const RESERVE_OUT: u8 = 0x5F;
const REGISTER: u8 = 0x00;
const REGISTER_AND_IGNORE: u8 = 0x06;
/// Its parameter list (SPC-4 §6.16.3), and the bit APTPL in it.
const LIST_LEN: u8 = 24;
const APTPL: (usize, u8) = (20, 1);
/// PTPL_C in the parameter data of REPORT CAPABILITIES (SPC-4 §6.15.4).
const PTPL_C: (usize, u8) = (2, 1);
/// Room for 1,000 keys; the ALLOCATION LENGTH of 16 bits takes eight times that.
const KEYS_LEN: u16 = 8 + 8 * 1000;

/// Most tries to register a lane while others register, too.
const TRIES: usize = 8;
/// Pause before lanes are asked again of which none has answered whether the key is there.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Age from which on an answer no longer proves that the key was not preempted. Shorter than any decision to fence: a
/// cluster declares a node dead after its token and consensus timeouts (corosync.conf(5): 1 s and 1.2 s by default,
/// 3 s and 3.6 s since version 3.1), and only then preempts. It costs one round trip after such an idle time.
pub(crate) const PROOF_AGE_MAX: Duration = Duration::from_secs(1);
/// Time for which an orderly end waits for a registration to be removed.
const FAREWELL: Duration = Duration::from_secs(2);

/// Time of the registration of an address's reservation key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Registering {
    /// At the opening of the disk, and over a lane that joins or returns as long as the key is still there.
    #[default]
    First,
    /// As `First`, and also with a target that has lost every registration and reservation, as by a restart that keeps
    /// none.
    Again,
    /// Only where the key is registered already, also when the disk is opened.
    Present,
}

impl fmt::Display for Registering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::First => "first",
            Self::Again => "again",
            Self::Present => "present",
        })
    }
}

impl FromStr for Registering {
    type Err = SettingError;

    /// `first`, `again` or `present`.
    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text {
            "first" => Ok(Self::First),
            "again" => Ok(Self::Again),
            "present" => Ok(Self::Present),
            _ => Err(SettingError::new(text, "first, again, present")),
        }
    }
}

/// Permission of a lane's session to change the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The key is registered for it.
    Registered,
    /// The key was preempted, for this reason: nothing is registered any more.
    Fenced(String),
}

/// Reservation key of a disk: registered for the session of each lane, and watched for preemption.
///
/// # Fencing
///
/// A node that preempts a key removes it from every nexus at once (SPC-4 §5.13.11.2), and means that this node shall
/// write no more. So the key is registered when the disk is opened, and after that **only where it is still there**:
///
/// - A lane that returns registers with the key as the one that it has (REGISTER with its own key as RESERVATION KEY),
///   which succeeds only if its nexus still has it. Where its nexus is a new one, the key must be registered for
///   another nexus (READ KEYS); then it registers without replacing anything, and looks again: were all others removed
///   meanwhile, it takes its registration back.
/// - A unit attention that says that reservations or registrations were preempted, over any lane, makes all changes of
///   the disk wait until READ KEYS has told over a lane whether the key is there.
/// - A key that is nowhere any more, though it was registered, is **lost for good**: no lane registers again, and the
///   disk refuses changes, until it is opened anew.
///
/// A target that restarts and keeps no registrations looks as if all had been removed: no key, no reservation,
/// PRGENERATION 0. Whether this node was preempted before that cannot be known, so it counts as lost, except with
/// [`Registering::Again`]. It is asked to keep them (APTPL) where it says that it can.
pub(crate) struct Registrar {
    key: u64,
    when: Registering,
    state: Mutex<State>,
    /// Lock under which one lane after the other looks, registers and looks again.
    turn: tokio::sync::Mutex<()>,
    /// Number of preemptions reported.
    doubts: AtomicU64,
    /// A task asks whether the key is there.
    asking: AtomicBool,
    lanes: OnceLock<Vec<Weak<IscsiLane>>>,
}

#[derive(Default)]
struct State {
    /// Has been registered since the opening.
    held: bool,
    lost: Option<String>,
    /// `true` if the target keeps registrations over a loss of its power; `None`: not asked yet.
    keeps: Option<bool>,
}

/// Parameter data of READ KEYS.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Keys {
    generation: u32,
    keys: Vec<u64>,
}

impl Keys {
    fn parse(data: &[u8]) -> Option<Self> {
        let (header, list) = data.split_at_checked(8)?;
        let [a, b, c, d, len @ ..] = header else { return None };
        let len = u32::from_be_bytes(len.try_into().ok()?) as usize;
        let list = &list[..len.min(list.len())];
        let keys = list.as_chunks().0.iter().map(|key| u64::from_be_bytes(*key)).collect();
        Some(Self { generation: u32::from_be_bytes([*a, *b, *c, *d]), keys })
    }

    fn count(&self, key: u64) -> usize {
        self.keys.iter().filter(|other| **other == key).count()
    }

    /// Returns `true` if nothing has been registered since the target began.
    fn is_fresh(&self) -> bool {
        self.generation == 0 && self.keys.is_empty()
    }
}

/// The answer to a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Good,
    Conflict,
}

impl Registrar {
    pub(crate) fn new(key: u64, when: Registering) -> Arc<Self> {
        Arc::new(Self {
            key,
            when,
            state: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            doubts: AtomicU64::new(0),
            asking: AtomicBool::new(false),
            lanes: OnceLock::new(),
        })
    }

    /// The lanes of the disk. Called once.
    pub(crate) fn attend(&self, lanes: &[Arc<IscsiLane>]) {
        let _ = self.lanes.set(lanes.iter().map(Arc::downgrade).collect());
    }

    /// Registers the key for the session of `device`, if that may be. An error says why it is not known; it may be
    /// tried again.
    pub(crate) async fn ensure(&self, device: &IscsiDevice) -> Result<Standing, String> {
        if let Some(why) = self.lost() {
            return Ok(Standing::Fenced(why));
        }
        if self.lock().held {
            return self.rejoin(device).await;
        }
        if self.when == Registering::Present {
            if read_keys(device).await?.count(self.key) == 0 {
                return Err(format!(
                    "{:#x} is not registered, and register=present waits until it is",
                    self.key
                ));
            }
            self.lock().held = true;
            return self.rejoin(device).await;
        }
        self.register_first(device).await?;
        Ok(Standing::Registered)
    }

    /// The first registration: replaces the one that an earlier opening left for this very nexus, and no other.
    async fn register_first(&self, device: &IscsiDevice) -> Result<(), String> {
        if self.register(device, REGISTER, 0, self.key).await? == Reply::Conflict {
            let again = self.register(device, REGISTER_AND_IGNORE, 0, self.key).await?;
            if again == Reply::Conflict {
                return Err(Status::RESERVATION_CONFLICT.to_string());
            }
        }
        self.lock().held = true;
        Ok(())
    }

    /// Registers again where the key is still there.
    async fn rejoin(&self, device: &IscsiDevice) -> Result<Standing, String> {
        // Only a nexus that still has the key gets past this, so there is nothing that could come between.
        if self.register(device, REGISTER, self.key, self.key).await? == Reply::Good {
            return Ok(Standing::Registered);
        }
        let _turn = self.turn.lock().await;
        for _ in 0..TRIES {
            let before = read_keys(device).await?;
            let count = before.count(self.key);
            if count == 0 {
                if self.when == Registering::Again && before.is_fresh() && !is_reserved(device).await? {
                    tracing::warn!(
                        "the target has lost all registrations: {:#x} is registered again",
                        self.key
                    );
                    self.register_first(device).await?;
                    return Ok(Standing::Registered);
                }
                return Ok(Standing::Fenced(self.lose(&before)));
            }
            if self.register(device, REGISTER, 0, self.key).await? == Reply::Conflict {
                return Err("another key is registered for this session".to_owned());
            }
            let after = read_keys(device).await?;
            let alone = after.generation == before.generation.wrapping_add(1);
            if after.count(self.key) > count || alone {
                return Ok(Standing::Registered);
            }
            // The key was taken away between the two looks, or another lane has left: back to what was before.
            self.register(device, REGISTER, self.key, 0).await?;
        }
        Err("registrations of others come and go without end".to_owned())
    }

    /// A unit attention says that reservations or registrations were preempted. Changes must wait until the lanes are
    /// told [`Registered`](lunway_multipath::LaneEvent::Registered) or [`Fenced`](lunway_multipath::LaneEvent::Fenced).
    pub(crate) fn doubt(self: &Arc<Self>) {
        self.doubts.fetch_add(1, Ordering::SeqCst);
        if !self.asking.swap(true, Ordering::SeqCst) {
            tokio::spawn(self.clone().ask());
        }
    }

    async fn ask(self: Arc<Self>) {
        loop {
            let doubts = self.doubts.load(Ordering::SeqCst);
            let lanes: Vec<_> = self.lanes().collect();
            if lanes.is_empty() {
                // The disk was dropped.
                return;
            }
            let mut found = None;
            for lane in lanes.iter().filter(|lane| lane.is_up()) {
                let Some(device) = lane.session() else { continue };
                match read_keys(device).await {
                    Ok(keys) => {
                        found = Some(keys);
                        break;
                    }
                    Err(why) => {
                        tracing::debug!(lane = lane.name, "the registered keys could not be read: {why}");
                    }
                }
            }
            match found {
                Some(keys) if keys.count(self.key) == 0 => {
                    let why = self.lose(&keys);
                    lanes.iter().for_each(|lane| lane.tell_standing(&Standing::Fenced(why.clone())));
                    return;
                }
                Some(_) => {
                    self.asking.store(false, Ordering::SeqCst);
                    let is_certain = self.doubts.load(Ordering::SeqCst) == doubts;
                    if is_certain {
                        return lanes.iter().for_each(|lane| lane.tell_standing(&Standing::Registered));
                    }
                    if self.asking.swap(true, Ordering::SeqCst) {
                        // The task that came meanwhile has begun to ask.
                        return;
                    }
                }
                None => {
                    drop(lanes);
                    sleep(ASK_AGAIN).await;
                }
            }
        }
    }

    /// The key is gone for good. Says so for people.
    fn lose(&self, keys: &Keys) -> String {
        let how = match keys.is_fresh() {
            true => {
                "the target has restarted without its registrations, and whether this node was fenced before cannot be known"
            }
            false => "this node was fenced",
        };
        let why = format!(
            "the reservation key {:#x} was removed: {how}; writes are refused until the disk is opened again",
            self.key
        );
        let mut state = self.lock();
        if state.lost.is_none() {
            tracing::error!("{why}");
        }
        state.lost.get_or_insert(why).clone()
    }

    fn lost(&self) -> Option<String> {
        self.lock().lost.clone()
    }

    /// Removes the registration of a session that ends in order.
    pub(crate) async fn release(&self, device: &IscsiDevice) {
        if self.lost().is_some() || !self.lock().held {
            return;
        }
        let released = timeout(FAREWELL, self.register(device, REGISTER, self.key, 0)).await;
        // A conflict: there is none to remove.
        let why = match released {
            Ok(Ok(_)) => return,
            Ok(Err(why)) => why,
            Err(_) => format!("no answer to PERSISTENT RESERVE OUT within {}", HumanTime(FAREWELL)),
        };
        let (key, portal) = (self.key, device.url().portal());
        tracing::warn!(
            "the reservation key {key:#x} stays registered at {portal}, as it could not be removed: {why}"
        );
    }

    /// Sends a registration. The registrations and the reservation are kept over a loss of the target's power where it
    /// can keep them: the last registration decides that for all (APTPL, SPC-4 §5.13.5).
    async fn register(&self, device: &IscsiDevice, action: u8, from: u64, to: u64) -> Result<Reply, String> {
        let known = self.lock().keeps;
        let mut keeps = match known {
            Some(keeps) => keeps,
            None => can_keep(device).await?,
        };
        loop {
            let mut cdb = [0; 10];
            (cdb[0], cdb[1], cdb[8]) = (RESERVE_OUT, action, LIST_LEN);
            let mut list = [0; LIST_LEN as usize];
            list[..8].copy_from_slice(&from.to_be_bytes());
            list[8..16].copy_from_slice(&to.to_be_bytes());
            if keeps {
                list[APTPL.0] = APTPL.1;
            }
            let list = Buf::copy_of(&list).freeze();
            let answer = device.execute(&cdb, list, Buf::empty(), true).await;
            let (status, sense, _) = answer.map_err(|error| error.to_string())?;
            let refused = sense.as_ref().is_some_and(|sense| sense.key == SenseKey::ILLEGAL_REQUEST);
            if keeps && refused {
                // It says that it can, and does not.
                keeps = false;
                continue;
            }
            self.lock().keeps = Some(keeps);
            return match status {
                Status::GOOD => Ok(Reply::Good),
                Status::RESERVATION_CONFLICT => Ok(Reply::Conflict),
                status => Err(said(status, sense.as_ref())),
            };
        }
    }

    fn lanes(&self) -> impl Iterator<Item = Arc<IscsiLane>> {
        self.lanes.get().into_iter().flatten().filter_map(Weak::upgrade)
    }

    /// A panic elsewhere leaves it whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn said(status: Status, sense: Option<&Sense>) -> String {
    sense.map_or_else(|| status.to_string(), |sense| format!("{status}: {sense}"))
}

async fn reserve_in(
    device: &IscsiDevice,
    action: u8,
    len: u16,
) -> Result<(Status, Option<Sense>, Buf), String> {
    let mut cdb = [0; 10];
    (cdb[0], cdb[1]) = (RESERVE_IN, action);
    cdb[7..9].copy_from_slice(&len.to_be_bytes());
    let answer = device.execute(&cdb, Default::default(), Buf::zeroed(len.into()), true).await;
    answer.map_err(|error| error.to_string())
}

async fn read_keys(device: &IscsiDevice) -> Result<Keys, String> {
    let (status, sense, data) = reserve_in(device, READ_KEYS, KEYS_LEN).await?;
    match status {
        Status::GOOD => Keys::parse(&data).ok_or_else(|| "the answer to READ KEYS is too short".to_owned()),
        status => Err(said(status, sense.as_ref())),
    }
}

/// Tells whether there is a persistent reservation.
async fn is_reserved(device: &IscsiDevice) -> Result<bool, String> {
    let (status, sense, data) = reserve_in(device, READ_RESERVATION, 24).await?;
    match status {
        Status::GOOD => Ok(Keys::parse(&data).is_none_or(|data| !data.keys.is_empty())),
        status => Err(said(status, sense.as_ref())),
    }
}

/// Tells whether the target can keep registrations over a loss of its power. One that does not say cannot.
async fn can_keep(device: &IscsiDevice) -> Result<bool, String> {
    let (status, _, data) = reserve_in(device, REPORT_CAPABILITIES, 8).await?;
    Ok(status == Status::GOOD && data.get(PTPL_C.0).is_some_and(|byte| byte & PTPL_C.1 != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_far_as_they_came() {
        let mut data = vec![0, 0, 0, 7, 0, 0, 0, 24];
        data.extend(0xBEEFu64.to_be_bytes());
        data.extend(0x1u64.to_be_bytes());
        data.extend([0xFF; 5]);
        let keys = Keys::parse(&data).unwrap();
        assert_eq!(keys, Keys { generation: 7, keys: vec![0xBEEF, 1] });
        assert_eq!((keys.count(0xBEEF), keys.count(2), keys.is_fresh()), (1, 0, false));
        assert!(Keys::parse(&[0; 8]).unwrap().is_fresh());
        assert_eq!(Keys::parse(&[0; 7]), None);
        assert_eq!(Keys::parse(&[0, 0, 0, 1, 0xFF, 0xFF, 0xFF, 0xFF]).unwrap().keys, [0; 0]);
    }

    #[test]
    fn when_a_key_is_registered_is_read_as_it_is_written() {
        for text in ["first", "again", "present"] {
            assert_eq!(text.parse::<Registering>().unwrap().to_string(), text);
        }
        let error = "always".parse::<Registering>().unwrap_err().to_string();
        assert_eq!(error, r#""always" is none of first, again, present"#);
    }
}
