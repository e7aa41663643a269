//! The cluster: images, clients, who may write, and the one thread that carries out operations.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use crate::memory;

/// Size of an object, bytes: small, so that the images of tests have many.
pub(crate) const OBJECT: u64 = 64 << 10;
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

#[derive(Default)]
struct Image {
    id: String,
    size: u64,
    objects: BTreeMap<u64, Vec<u8>>,
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

    fn fails(&self, operation: &str) -> Option<i32> {
        self.says(&format!("fail {operation} ")).and_then(|errno| errno.parse().ok())
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
            let result = match self.fails(operation.kind.name()) {
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
        match kind {
            Kind::Flush => return 0,
            Kind::Read => {}
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

impl Image {
    fn object(&mut self, number: u64) -> &mut Vec<u8> {
        self.objects.entry(number).or_insert_with(|| vec![0; OBJECT as usize])
    }
}

/// An open image.
pub(crate) struct Open {
    client: &'static Client,
    name: String,
    id: String,
    writes: bool,
    under_way: AtomicUsize,
}

impl Open {
    pub(crate) fn new(client: &'static Client, name: &str, writes: bool) -> Result<Self, i32> {
        let cluster = client.cluster();
        if let Some(errno) = cluster.fails("open") {
            return Err(errno);
        }
        let mut state = lock(&cluster.state);
        let next = format!("{:x}", 0x1000 + state.images.len());
        if !state.images.contains_key(name) {
            let size = cluster.says(&format!("image rbd/{name} ")).and_then(|size| size.parse().ok());
            let image = Image { id: next, size: size.ok_or(libc::ENOENT)?, ..Image::default() };
            state.images.insert(name.to_owned(), image);
        }
        let image = state.images.get_mut(name).ok_or(libc::ENOENT)?;
        if writes {
            image.watchers.push(client.address.clone());
        }
        let id = image.id.clone();
        Ok(Self { client, name: name.to_owned(), id, writes, under_way: AtomicUsize::new(0) })
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

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn size(&self) -> u64 {
        self.image(|image| image.size).unwrap_or(0)
    }

    pub(crate) fn begin(&'static self, operation: Operation) {
        self.under_way.fetch_add(1, Ordering::AcqRel);
        self.cluster().log(operation.kind.name());
        lock(&self.cluster().state).queue.push((self, operation));
        self.cluster().begun.notify_all();
    }

    /// Objects that exist, whole ones, of a range.
    pub(crate) fn objects(&self, offset: u64, len: u64) -> Result<Vec<(u64, u64)>, i32> {
        if let Some(errno) = self.cluster().fails("diff") {
            return Err(errno);
        }
        let there = |image: &mut Image| {
            let range = offset / OBJECT..(offset + len).div_ceil(OBJECT);
            image.objects.range(range).map(|(number, _)| (number * OBJECT, OBJECT)).collect()
        };
        self.image(there).ok_or(libc::ENOENT)
    }

    pub(crate) fn resize(&self, size: u64) -> i32 {
        if let Some(errno) = self.cluster().fails("resize") {
            return -errno;
        }
        let updates = self.image(|image| {
            image.size = size;
            image.objects.retain(|number, _| number * OBJECT < size);
            // What is cut off reads as zeroes when it is there again.
            if let Some(last) = image.objects.get_mut(&(size / OBJECT)) {
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
        let (owner, me) = (self.owner(), &self.client.address);
        if let Some(owner) = owner.filter(|owner| owner != me) {
            if self.watchers().contains(&owner) {
                return -libc::EROFS;
            }
            self.cluster().blocklist(&owner);
        }
        self.image(|image| image.owner = Some(me.clone()));
        0
    }

    pub(crate) fn unlock(&self) {
        let me = &self.client.address;
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
