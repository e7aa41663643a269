//! A new client in the place of one that was fenced, or has lost the lock.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use lunway_block::BlockError;
use lunway_block::spec::RbdName;

use crate::RbdOpenError;
use crate::client::{Client, Listeners};
use crate::lane::Lane;
use crate::options::RbdOptions;

/// Delay between the first two attempts. Each further one is twice as long, up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_secs(1);
/// Longest delay between two attempts: half of the time after which an initiator has given up on a command as a rule.
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// Attempts, the first of them at once: five minutes, in which a monitor comes back, or a client that held the lock for
/// a repair has ended. Hosts give a command up after three.
const ATTEMPTS: u32 = 24;

/// The client that a device has now, and what makes the next one.
///
/// A client is fenced once, and for ever: its address is on the cluster's blocklist. From the first answer that says so
/// on, a thread opens the image with a new client: another connection, another address. It takes the lock if no other
/// client holds it, or if it is still that of the fenced one; it breaks none, whatever the device's name says. Between
/// the attempts operations are answered as busy, so that hosts repeat them, or refused where another client has the
/// disk, so that hosts look for another way to it. After the last attempt they are refused for good.
pub(crate) struct Slot {
    now: RwLock<Arc<Client>>,
    name: RbdName,
    options: RbdOptions,
    pub(crate) listeners: Arc<Listeners>,
    renewal: Mutex<Renewal>,
    /// For the attempts, which the end cuts short, and for the end, which waits for them.
    changed: Condvar,
}

#[derive(Default)]
struct Renewal {
    /// A thread makes a new client.
    is_under_way: bool,
    /// The device is closed: there is no next client.
    is_over: bool,
    /// Why operations are refused meanwhile, and not put off.
    refused: Option<String>,
    /// What the last attempt has met with.
    met: Option<String>,
}

fn lock(renewal: &Mutex<Renewal>) -> MutexGuard<'_, Renewal> {
    renewal.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends a client that is not used any more. Blocks.
fn end(client: &Client) {
    client.gate.close();
    if let Err(error) = client.end() {
        tracing::warn!(%error, "a client that is not used any more was not closed in order");
    }
}

impl Slot {
    /// Opens the first client. Blocks; on `lane`.
    pub(crate) fn open(lane: Lane, name: &RbdName, options: &RbdOptions) -> Result<Arc<Self>, RbdOpenError> {
        let listeners = Arc::<Listeners>::default();
        let client = Client::open(lane, name, options, &listeners, None)?;
        let slot = Arc::new(Self {
            now: RwLock::new(client),
            name: name.clone(),
            options: options.clone(),
            listeners,
            renewal: Mutex::default(),
            changed: Condvar::new(),
        });
        if options.renew {
            let weak = Arc::downgrade(&slot);
            let _ = slot.listeners.fenced.set(Box::new(move || {
                if let Some(slot) = weak.upgrade() {
                    Self::renew(&slot);
                }
            }));
        }
        Ok(slot)
    }

    /// The client there is, fenced or not.
    pub(crate) fn now(&self) -> Arc<Client> {
        Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The client for an operation.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub(crate) fn client(&self) -> Result<Arc<Client>, BlockError> {
        let client = self.now();
        match client.usable() {
            Ok(()) => Ok(client),
            Err(error) => Err(lock(&self.renewal).refused.clone().map_or(error, BlockError::gone)),
        }
    }

    /// What is wrong, for people.
    pub(crate) fn fault(&self) -> Option<String> {
        let fenced = self.now().fenced()?.clone();
        let renewal = lock(&self.renewal);
        Some(match (&renewal.refused, &renewal.met) {
            (Some(why), _) => why.clone(),
            (None, Some(met)) => format!("{fenced}; it is opened again, with a new client: {met}"),
            (None, None) if renewal.is_under_way => {
                format!("{fenced}; it is opened again, with a new client")
            }
            (None, None) => fenced,
        })
    }

    /// No client follows the one that is returned.
    pub(crate) fn stop(&self) -> Arc<Client> {
        lock(&self.renewal).is_over = true;
        self.changed.notify_all();
        self.now()
    }

    /// Waits until no client is being made. Only after [`stop`](Self::stop); at most as long as one attempt takes.
    pub(crate) fn wait(&self) {
        let mut renewal = lock(&self.renewal);
        while renewal.is_under_way {
            renewal = self.changed.wait(renewal).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Begins to make a new client. Never blocks: on a thread of librbd.
    fn renew(slot: &Arc<Self>) {
        let mut renewal = lock(&slot.renewal);
        if renewal.is_under_way || renewal.is_over {
            return;
        }
        match Lane::start() {
            Ok(lane) => {
                renewal.is_under_way = true;
                drop(renewal);
                let (slot, own) = (Arc::clone(slot), lane.clone());
                lane.run(move || {
                    slot.make(&own);
                    slot.changed.notify_all();
                });
            }
            Err(error) => {
                renewal.refused = Some(format!("{}: no thread to open it again: {error}", slot.name));
            }
        }
    }

    /// Makes a new client, or says why there is none.
    fn make(&self, lane: &Lane) {
        let why = match self.attempts(lane) {
            // From here on the new one may be fenced.
            Ok(()) => return,
            Err(why) => why,
        };
        let mut renewal = lock(&self.renewal);
        renewal.is_under_way = false;
        if !renewal.is_over {
            tracing::error!(device = %self.name, "{why}");
            renewal.refused = Some(why);
        }
    }

    /// Opens the image with a new client, again and again. An error is the reason for an end without one.
    fn attempts(&self, lane: &Lane) -> Result<(), String> {
        let old = self.now();
        let lost = old.fenced().cloned().unwrap_or_default();
        let ends = Arc::clone(&old);
        // On its own thread: it may wait for answers.
        old.lane.run(move || end(&ends));
        // Only its own lock is broken: as long as that stands no other client has written.
        let name = RbdName { break_lock: None, ..self.name.clone() };
        let mut pause = Duration::ZERO;
        for attempt in 1..=ATTEMPTS {
            if !self.pauses(pause) {
                return Err("it was closed".to_owned());
            }
            pause = (pause * 2).clamp(PAUSE, PAUSE_MAX);
            let error = match Client::open(
                lane.clone(),
                &name,
                &self.options,
                &self.listeners,
                old.address.as_deref(),
            ) {
                Ok(new) if new.identity == old.identity => return self.replace(&old, new),
                Ok(other) => {
                    end(&other);
                    let why = format!("another image is called {} by now", self.name.image_path());
                    return Err(format!("{lost}; {why}: open the device again to use that one"));
                }
                Err(error) => error,
            };
            tracing::warn!(device = %self.name, attempt, of = ATTEMPTS, %error, "not opened again");
            let mut renewal = lock(&self.renewal);
            // Another one has the disk, or any may, or it is gone: hosts shall not wait for this way to it.
            let is_refused = matches!(
                error,
                RbdOpenError::Held { .. }
                    | RbdOpenError::NoLock { .. }
                    | RbdOpenError::NotPrimary { .. }
                    | RbdOpenError::NoImage { .. }
            );
            renewal.refused = is_refused.then(|| format!("{lost}; not opened again yet: {error}"));
            renewal.met = Some(format!("attempt {attempt} of {ATTEMPTS}: {error}"));
        }
        let met = lock(&self.renewal).met.take().unwrap_or_default();
        Err(format!("{lost}; not opened again ({met}): open the device again to go on"))
    }

    /// Waits, and returns `false` if the device was closed meanwhile.
    fn pauses(&self, pause: Duration) -> bool {
        let by = Instant::now() + pause;
        let mut renewal = lock(&self.renewal);
        loop {
            let left = by.saturating_duration_since(Instant::now());
            if renewal.is_over || left.is_zero() {
                return !renewal.is_over;
            }
            renewal = self.changed.wait_timeout(renewal, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Goes on with a new client.
    fn replace(&self, old: &Client, new: Arc<Client>) -> Result<(), String> {
        let mut renewal = lock(&self.renewal);
        if renewal.is_over {
            drop(renewal);
            end(&new);
            return Err("it was closed".to_owned());
        }
        let was_ours = old.address.is_none() || new.before == old.address;
        let (before, after) = (old.geometry(), new.geometry());
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = new;
        *renewal = Renewal::default();
        drop(renewal);
        match was_ours {
            true => tracing::warn!(device = %self.name, "opened again with a new client"),
            false => tracing::warn!(
                device = %self.name,
                "opened again with a new client; another has held the image's lock meanwhile, and may have written: what hosts keep of the disk in their memory may be out of date"
            ),
        }
        if before.size != after.size {
            self.listeners.tell(after);
        }
        Ok(())
    }
}
