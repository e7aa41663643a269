//! The cluster: images, clients, who may write, and the one thread that carries out operations.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use crate::memory;

/// Size of an object, bytes: small, so that the images of tests have many.
pub(crate) const OBJECT: u64 = 64 << 10;
/// Pieces of objects in differences, bytes: as librbd tells what was written.
const BLOCK: u64 = 4096;
/// Time for which the operations to be reordered are collected.
const COLLECT: Duration = Duration::from_micros(200);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A cluster, named by its configuration.
pub(crate) struct Cluster {
    conf: String,
    state: Mutex<State>,
    begun: Condvar,
}

#[derive(Default)]
struct State {
    images: HashMap<String, Image>,
    queue: Vec<(&'static Open, Operation)>,
    /// Clients that are refused, from the OSD's epoch on that stands beside.
    blocklist: HashMap<String, u64>,
    epoch: u64,
    /// Epoch of the OSD.
    osd: u64,
    /// Chooses among the operations to be reordered.
    chance: usize,
}

/// What an image holds, now or at the moment of a snapshot.
#[derive(Clone, Default)]
struct Held {
    size: u64,
    objects: BTreeMap<u64, Vec<u8>>,
}

#[derive(Default)]
struct Image {
    id: String,
    held: Held,
    /// By name, with the number.
    snapshots: BTreeMap<String, (u64, Held)>,
    /// Snapshots that there ever were.
    numbers: u64,
    owner: Option<String>,
    watchers: Vec<String>,
    updates: Arc<Mutex<Updates>>,
}

/// Callbacks for changes of the header; locked while one runs, so that a watch that has ended is not called.
type Updates = Vec<(u64, Box<dyn Fn() + Send>)>;

impl Cluster {
    /// The cluster of this file; `None` where there is no file.
    pub(crate) fn of(conf: &str) -> Option<&'static Self> {
        static ALL: Mutex<Option<HashMap<String, &'static Cluster>>> = Mutex::new(None);
        fs::metadata(conf).ok()?;
        let mut all = lock(&ALL);
        let cluster = *all.get_or_insert_default().entry(conf.to_owned()).or_insert_with(|| {
            let new: &'static Self = Box::leak(Box::new(Self {
                conf: conf.to_owned(),
                state: Mutex::default(),
                begun: Condvar::new(),
            }));
            thread::spawn(|| new.work());
            new
        });
        Some(cluster)
    }

    fn script(&self) -> String {
        fs::read_to_string(&self.conf).unwrap_or_default()
    }

    /// The rest of the first line that begins so.
    fn says(&self, start: &str) -> Option<String> {
        let script = self.script();
        script.lines().find_map(|line| line.strip_prefix(start)).map(|rest| rest.trim().to_owned())
    }

    pub(crate) fn fails(&self, operation: &str) -> Option<i32> {
        self.says(&format!("fail {operation} ")).and_then(|errno| errno.parse().ok())
    }

    /// Waits for as long as operations of this kind are held.
    pub(crate) fn wait_while_held(&self, operation: &str) {
        while self.says(&format!("hold {operation}")).is_some() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn log(&self, line: &str) {
        let file = OpenOptions::new().append(true).open(format!("{}.log", self.conf));
        if let Ok(mut file) = file {
            let _ = writeln!(file, "{line}");
        }
    }

    pub(crate) fn blocklist(&self, address: &str) {
        self.log(&format!("blocklist {address}"));
        let mut state = lock(&self.state);
        state.epoch += 1;
        let epoch = state.epoch;
        state.blocklist.insert(address.to_owned(), epoch);
    }

    /// Carries out operations for ever, one at a time.
    fn work(&self) {
        loop {
            let mut state = lock(&self.state);
            while state.queue.is_empty() {
                state = self.begun.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            drop(state);
            let script = self.script();
            let reorder = script.lines().any(|line| line == "reorder");
            if reorder {
                thread::sleep(COLLECT);
            }
            if let Some(millis) = self.says("delay ").and_then(|millis| millis.parse().ok()) {
                thread::sleep(Duration::from_millis(millis));
            }
            let held = |operation: &Operation| {
                script.lines().any(|line| line.strip_prefix("hold ") == Some(operation.kind.name()))
            };
            let mut state = lock(&self.state);
            let free: Vec<usize> = (0..state.queue.len()).filter(|at| !held(&state.queue[*at].1)).collect();
            if free.is_empty() {
                drop(state);
                thread::sleep(Duration::from_millis(1));
                continue;
            }
            state.chance = state.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = if reorder { free[(state.chance >> 33) % free.len()] } else { free[0] };
            let (image, operation) = state.queue.remove(at);
            let fenced =
                script.lines().any(|line| line.strip_prefix("blocklist ") == Some(&*image.client.address));
            let result = match self.fails(operation.kind.name()) {
                _ if fenced => -(libc::ESHUTDOWN as isize),
                Some(errno) => -(errno as isize),
                None => state.carry_out(image, &operation),
            };
            drop(state);
            image.under_way.fetch_sub(1, Ordering::AcqRel);
            (operation.done)(result);
        }
    }
}

/// A client.
pub(crate) struct Client {
    cluster: OnceLock<&'static Cluster>,
    address: String,
    /// The epoch that it knows.
    epoch: AtomicU64,
}

impl Client {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let address = format!("127.0.0.1:0/{}", NEXT.fetch_add(1, Ordering::Relaxed));
        Self { cluster: OnceLock::new(), address, epoch: AtomicU64::new(0) }
    }

    pub(crate) fn join(&self, cluster: &'static Cluster) -> i32 {
        let _ = self.cluster.set(cluster);
        0
    }

    pub(crate) fn joined(&self) -> Option<&'static Cluster> {
        self.cluster.get().copied()
    }

    pub(crate) fn cluster(&self) -> &'static Cluster {
        self.joined().expect("a configuration was read")
    }

    /// The image with that id.
    pub(crate) fn name_of(&self, id: &str) -> Option<String> {
        let state = lock(&self.cluster().state);
        state.images.iter().find(|(_, image)| image.id == id).map(|(name, _)| name.clone())
    }

    pub(crate) fn learn(&self) {
        self.cluster().log("wait_for_map");
        self.epoch.store(lock(&self.cluster().state).epoch, Ordering::Release);
    }
}

/// Kind of an operation.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Read,
    Write,
    Zeroes { thick: bool },
    Flush,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Zeroes { .. } => "zeroes",
            Self::Flush => "flush",
        }
    }
}

/// An operation: its memory is read or filled when it is carried out, not before.
pub(crate) struct Operation {
    pub(crate) kind: Kind,
    pub(crate) offset: u64,
    pub(crate) len: usize,
    pub(crate) memory: usize,
    pub(crate) done: Arc<dyn Fn(isize) + Send + Sync>,
}

impl State {
    fn carry_out(&mut self, image: &Open, operation: &Operation) -> isize {
        self.osd = self.osd.max(image.client.epoch.load(Ordering::Acquire));
        if self.blocklist.get(&image.client.address).is_some_and(|since| *since <= self.osd) {
            return -(libc::ESHUTDOWN as isize);
        }
        let Some(there) = self.images.get_mut(&image.name) else { return -(libc::ENOENT as isize) };
        let Operation { kind, offset, len, memory, .. } = *operation;
        let end = offset + len as u64;
        let frozen = image.snapshot.as_ref();
        let there = match frozen {
            None => &mut there.held,
            Some(name) => match there.snapshots.get_mut(name) {
                Some((_, held)) => held,
                // As in Ceph: of a snapshot that was removed, what was written later is read.
                None => &mut there.held,
            },
        };
        match kind {
            Kind::Flush => return 0,
            Kind::Read => {}
            Kind::Write | Kind::Zeroes { .. } if frozen.is_some() => return -(libc::EROFS as isize),
            Kind::Write | Kind::Zeroes { .. } if end > there.size => return -(libc::EINVAL as isize),
            _ => {}
        }
        let end = end.min(there.size);
        let mut at = offset;
        while at < end {
            let (object, within) = (at / OBJECT, (at % OBJECT) as usize);
            let part = (OBJECT as usize - within).min((end - at) as usize);
            let from = (at - offset) as usize;
            match kind {
                Kind::Read => {
                    let to = memory::to(memory + from, part);
                    match there.objects.get(&object) {
                        Some(bytes) => to.copy_from_slice(&bytes[within..within + part]),
                        None => to.fill(0),
                    }
                }
                Kind::Write => there.object(object)[within..within + part]
                    .copy_from_slice(memory::from(memory + from, part)),
                Kind::Zeroes { thick: false } if part as u64 == OBJECT => {
                    there.objects.remove(&object);
                }
                Kind::Zeroes { thick } => {
                    if thick || there.objects.contains_key(&object) {
                        there.object(object)[within..within + part].fill(0);
                    }
                }
                Kind::Flush => {}
            }
            at += part as u64;
        }
        if matches!(kind, Kind::Read) { end.saturating_sub(offset) as isize } else { 0 }
    }
}

impl Held {
    fn object(&mut self, number: u64) -> &mut Vec<u8> {
        self.objects.entry(number).or_insert_with(|| vec![0; OBJECT as usize])
    }
}

/// An open image.
pub(crate) struct Open {
    client: &'static Client,
    name: String,
    snapshot: Option<String>,
    id: String,
    writes: bool,
    /// It is this one of its client's that holds the lock.
    holds: AtomicBool,
    under_way: AtomicUsize,
}

impl Open {
    pub(crate) fn new(
        client: &'static Client,
        name: &str,
        snapshot: Option<String>,
        writes: bool,
    ) -> Result<Self, i32> {
        let cluster = client.cluster();
        if let Some(errno) = cluster.fails("open") {
            return Err(errno);
        }
        let mut state = lock(&cluster.state);
        let next = format!("{:x}", 0x1000 + state.images.len());
        if !state.images.contains_key(name) {
            let size = cluster.says(&format!("image rbd/{name} ")).and_then(|size| size.parse().ok());
            let held = Held { size: size.ok_or(libc::ENOENT)?, ..Held::default() };
            let image = Image { id: next, held, ..Image::default() };
            state.images.insert(name.to_owned(), image);
        }
        let image = state.images.get_mut(name).ok_or(libc::ENOENT)?;
        if snapshot.as_ref().is_some_and(|snapshot| !image.snapshots.contains_key(snapshot)) {
            return Err(libc::ENOENT);
        }
        if writes {
            image.watchers.push(client.address.clone());
        }
        let id = image.id.clone();
        let (holds, under_way) = (AtomicBool::new(false), AtomicUsize::new(0));
        Ok(Self { client, name: name.to_owned(), snapshot, id, writes, holds, under_way })
    }

    fn cluster(&self) -> &'static Cluster {
        self.client.cluster()
    }

    fn image<T>(&self, look: impl FnOnce(&mut Image) -> T) -> Option<T> {
        lock(&self.cluster().state).images.get_mut(&self.name).map(look)
    }

    /// Ends the process where operations are under way: their callbacks would come after the end.
    pub(crate) fn close(&self) -> i32 {
        self.cluster().log("close");
        if self.under_way.load(Ordering::Acquire) > 0 {
            eprintln!("an image was closed with operations under way");
            std::process::abort();
        }
        self.unlock();
        let (address, writes) = (&self.client.address, self.writes);
        self.image(|image| {
            if let Some(at) = image.watchers.iter().position(|watcher| writes && watcher == address) {
                image.watchers.remove(at);
            }
        });
        0
    }

    pub(crate) fn says(&self, start: &str) -> Option<String> {
        self.cluster().says(start)
    }

    pub(crate) fn fails(&self, operation: &str) -> Option<i32> {
        self.cluster().fails(operation)
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// What it shows: the image as it is, or its snapshot.
    fn held<T>(&self, look: impl FnOnce(&Held) -> T) -> Option<T> {
        self.image(|image| match &self.snapshot {
            None => Some(look(&image.held)),
            Some(name) => image.snapshots.get(name).map(|(_, held)| look(held)),
        })
        .flatten()
    }

    pub(crate) fn size(&self) -> u64 {
        self.held(|held| held.size).unwrap_or(0)
    }

    pub(crate) fn create_snapshot(&self, snapshot: &str) -> i32 {
        self.cluster().log(&format!("snapshot {snapshot}"));
        if let Some(errno) = self.cluster().fails("snapshot") {
            return -errno;
        }
        let made = self.image(|image| {
            if image.snapshots.contains_key(snapshot) {
                return -libc::EEXIST;
            }
            image.numbers += 1;
            image.snapshots.insert(snapshot.to_owned(), (image.numbers, image.held.clone()));
            0
        });
        made.unwrap_or(-libc::ENOENT)
    }

    pub(crate) fn remove_snapshot(&self, snapshot: &str) -> i32 {
        self.cluster().log(&format!("unsnapshot {snapshot}"));
        let removed = self
            .image(|image| image.snapshots.remove(snapshot).is_some().then(|| Arc::clone(&image.updates)));
        let Some(updates) = removed.flatten() else { return -libc::ENOENT };
        thread::spawn(move || lock(&updates).iter().for_each(|(_, call)| call()));
        0
    }

    pub(crate) fn snapshot_name(&self, number: u64) -> Option<String> {
        self.image(|image| {
            let found = image.snapshots.iter().find(|(_, (of, _))| *of == number);
            found.map(|(name, _)| name.clone())
        })
        .flatten()
    }

    pub(crate) fn snapshot_number(&self, snapshot: &str) -> Option<u64> {
        self.image(|image| image.snapshots.get(snapshot).map(|(number, _)| *number)).flatten()
    }

    pub(crate) fn begin(&'static self, operation: Operation) {
        self.under_way.fetch_add(1, Ordering::AcqRel);
        self.cluster().log(operation.kind.name());
        lock(&self.cluster().state).queue.push((self, operation));
        self.cluster().begun.notify_all();
    }

    /// Pieces of a range that differ from an older snapshot, or from nothing, and whether there is anything: whole
    /// objects, or blocks of them.
    pub(crate) fn differences(
        &self,
        since: Option<String>,
        range: Range<u64>,
        whole: bool,
    ) -> Result<Vec<(u64, u64, bool)>, i32> {
        if let Some(errno) = self.cluster().fails("diff") {
            return Err(errno);
        }
        let before = match since {
            None => Held::default(),
            Some(since) => {
                let before = self.image(|image| image.snapshots.get(&since).map(|(_, held)| held.clone()));
                before.flatten().ok_or(libc::ENOENT)?
            }
        };
        let step = if whole { OBJECT } else { BLOCK };
        let differ = |held: &Held| {
            let mut pieces = Vec::new();
            for object in range.start / OBJECT..range.end.div_ceil(OBJECT) {
                let (old, new) = (before.objects.get(&object), held.objects.get(&object));
                for within in (0..OBJECT).step_by(step as usize) {
                    let part = within as usize..(within + step) as usize;
                    let (old, new) = (old.map(|old| &old[part.clone()]), new.map(|new| &new[part]));
                    if old != new {
                        pieces.push((object * OBJECT + within, step, new.is_some()));
                    }
                }
            }
            pieces
        };
        self.held(differ).ok_or(libc::ENOENT)
    }

    pub(crate) fn resize(&self, size: u64) -> i32 {
        if let Some(errno) = self.cluster().fails("resize") {
            return -errno;
        }
        let updates = self.image(|image| {
            let held = &mut image.held;
            held.size = size;
            held.objects.retain(|number, _| number * OBJECT < size);
            // What is cut off reads as zeroes when it is there again.
            if let Some(last) = held.objects.get_mut(&(size / OBJECT)) {
                last[(size % OBJECT) as usize..].fill(0);
            }
            Arc::clone(&image.updates)
        });
        let Some(updates) = updates else { return -libc::ENOENT };
        thread::spawn(move || lock(&updates).iter().for_each(|(_, call)| call()));
        0
    }

    pub(crate) fn watch(&self, call: Box<dyn Fn() + Send>) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        if let Some(updates) = self.image(|image| Arc::clone(&image.updates)) {
            lock(&updates).push((number, call));
        }
        number
    }

    pub(crate) fn unwatch(&self, watch: u64) {
        if let Some(updates) = self.image(|image| Arc::clone(&image.updates)) {
            lock(&updates).retain(|(number, _)| *number != watch);
        }
    }

    pub(crate) fn owner(&self) -> Option<String> {
        self.image(|image| image.owner.clone()).flatten()
    }

    /// Clients that are heard of.
    pub(crate) fn watchers(&self) -> Vec<String> {
        let script = self.cluster().script();
        let dead: Vec<&str> = script.lines().filter_map(|line| line.strip_prefix("dead ")).collect();
        let all = self.image(|image| image.watchers.clone()).unwrap_or_default();
        all.into_iter().filter(|address| !dead.contains(&&**address)).collect()
    }

    /// Takes the lock if it is free, or if its owner is not heard of: that one is put on the blocklist.
    pub(crate) fn lock(&self) -> i32 {
        self.cluster().log("lock");
        if let Some(errno) = self.fails("lock") {
            return -errno;
        }
        let (owner, me) = (self.owner(), &self.client.address);
        if let Some(owner) = owner.filter(|owner| owner != me) {
            if self.watchers().contains(&owner) {
                return -libc::EROFS;
            }
            self.cluster().blocklist(&owner);
        }
        self.image(|image| image.owner = Some(me.clone()));
        self.holds.store(true, Ordering::Release);
        0
    }

    /// Gives the lock back; a client on the blocklist cannot.
    pub(crate) fn unlock(&self) {
        let me = &self.client.address;
        if !self.holds.load(Ordering::Acquire) || self.cluster().fails("unlock").is_some() {
            return;
        }
        let fenced = lock(&self.cluster().state).blocklist.contains_key(me);
        if fenced || self.cluster().script().lines().any(|line| line.strip_prefix("blocklist ") == Some(me)) {
            return;
        }
        self.image(|image| image.owner.take_if(|owner| owner == me));
    }

    pub(crate) fn break_lock(&self, owner: &str) -> i32 {
        self.cluster().log(&format!("break {owner}"));
        match self.owner() {
            None => -libc::ENOENT,
            Some(holder) if holder != owner => -libc::EBUSY,
            Some(_) => {
                self.image(|image| image.owner = None);
                0
            }
        }
    }
}
