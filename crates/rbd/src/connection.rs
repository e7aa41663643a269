//! Connection to a cluster: a client with the address that a blocklist names.
#![expect(unsafe_code, reason = "librados is called with pointers: see each call")]

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use lunway_block::spec::RbdName;

use crate::RbdOpenError;
use crate::library::{Library, Rados};

/// Length of an fsid as text, with the zero behind it.
const FSID_LEN: usize = 37;

/// A connection to a cluster: a client of its own, with the address that a blocklist names.
///
/// Each image has one, so that fencing one image of this process ends none of the others; or one with all images that
/// are served under the same `share=`, which are then fenced together. Each image that uses it [leaves](Self::leave)
/// once; the last one ends the connection, which waits for threads of librados.
pub(crate) struct Connection {
    pub(crate) library: &'static Library,
    rados: AtomicPtr<c_void>,
    /// Images that use it. None: it has ended.
    users: AtomicUsize,
    /// The client's address, once a lock has told it.
    address: OnceLock<String>,
    /// Why the cluster refuses it for good, or is about to: no further image uses it.
    spent: OnceLock<String>,
}

impl Connection {
    /// The connection for an image: one of its own, or if it `may_share` one, that of its name. Blocks, at most for the
    /// name's time limit, or for twice that where another image's attempt fails.
    pub(crate) fn of(
        library: &'static Library,
        name: &RbdName,
        may_share: bool,
    ) -> Result<Arc<Self>, RbdOpenError> {
        match &name.share {
            Some(share) if may_share => shared(library, name, share),
            _ => Self::connect(library, name),
        }
    }

    fn connect(library: &'static Library, name: &RbdName) -> Result<Arc<Self>, RbdOpenError> {
        let cluster = name.cluster.as_deref().unwrap_or("ceph");
        let user = format!("client.{}", name.id.as_deref().unwrap_or("admin"));
        let mut rados = ptr::null_mut();
        let (cluster, user_text) = (c_string(cluster)?, c_string(&user)?);
        // SAFETY: the texts end with zero and outlive the call, which fills `rados`.
        let answer = unsafe { (library.rados_create2)(&mut rados, cluster.as_ptr(), user_text.as_ptr(), 0) };
        RbdOpenError::of(answer, name, "making a client")?;
        // Its end shuts the client down from here on.
        let connected = Self {
            library,
            rados: AtomicPtr::new(rados),
            users: AtomicUsize::new(1),
            address: OnceLock::new(),
            spent: OnceLock::new(),
        };
        connected.configure(name)?;
        // SAFETY: the handle is live.
        match unsafe { (library.rados_connect)(rados) } {
            answer if answer == -libc::ENOENT => Err(RbdOpenError::NoKey { name: name.to_string(), user }),
            answer if answer == -libc::EPERM || answer == -libc::EACCES => {
                Err(RbdOpenError::Refused { name: name.to_string(), user })
            }
            answer => {
                RbdOpenError::of(answer, name, "connecting to the cluster").map(|()| Arc::new(connected))
            }
        }
    }

    /// The handle for a call.
    pub(crate) fn rados(&self) -> Rados {
        self.rados.load(Ordering::Acquire)
    }

    fn configure(&self, name: &RbdName) -> Result<(), RbdOpenError> {
        let file = name.conf.as_ref().map(|path| c_string(&path.to_string_lossy())).transpose()?;
        let file_text = file.as_ref().map_or(ptr::null(), |path| path.as_ptr());
        // SAFETY: the handle is live, the text is null (the usual places) or ends with zero.
        let answer = unsafe { (self.library.rados_conf_read_file)(self.rados(), file_text) };
        if answer < 0 {
            let conf = name.conf.as_ref().map(|path| path.display().to_string());
            let source = std::io::Error::from_raw_os_error(-answer);
            return Err(RbdOpenError::Configuration { conf: conf.unwrap_or_default(), source });
        }
        let seconds = limit(name).as_secs().max(1).to_string();
        let keyring = name.keyring.as_ref().map(|path| path.display().to_string());
        let settings = [
            // No write is acknowledged before it is durable, and none is lost with this process.
            ("rbd_cache", Some("false")),
            // Without these a client waits for ever for a monitor or an OSD that does not answer.
            ("client_mount_timeout", Some(&*seconds)),
            ("rados_mon_op_timeout", Some(&*seconds)),
            ("rados_osd_op_timeout", Some(&*seconds)),
            ("keyring", keyring.as_deref()),
        ];
        for (key, value) in settings {
            let Some(value) = value else { continue };
            let (key_text, value) = (c_string(key)?, c_string(value)?);
            // SAFETY: as above.
            let answer =
                unsafe { (self.library.rados_conf_set)(self.rados(), key_text.as_ptr(), value.as_ptr()) };
            RbdOpenError::of(answer, name, &format!("setting {key}"))?;
        }
        Ok(())
    }

    /// The cluster's identity.
    pub(crate) fn fsid(&self) -> String {
        let mut text = [0 as c_char; FSID_LEN];
        // SAFETY: the handle is live and connected; the library writes at most the length that it is given.
        let answer =
            unsafe { (self.library.rados_cluster_fsid)(self.rados(), text.as_mut_ptr(), text.len()) };
        if answer < 0 { String::new() } else { string_of(&text) }
    }

    /// Has all OSDs refuse a client for as long as the monitors say by default (an hour), and waits until this client
    /// knows so: its own operations then carry the new map with them, and no late write of the other can follow one.
    pub(crate) fn blocklist(&self, address: &str) -> Result<(), i32> {
        let address = CString::new(address).map_err(|_| -libc::EINVAL)?;
        // SAFETY: the handle is live; the text ends with zero, and the library reads it alone.
        let answer =
            unsafe { (self.library.rados_blocklist_add)(self.rados(), address.as_ptr().cast_mut(), 0) };
        if answer < 0 {
            return Err(answer);
        }
        self.wait_for_map()
    }

    /// Waits until this client has the latest map of the OSDs.
    pub(crate) fn wait_for_map(&self) -> Result<(), i32> {
        // SAFETY: the handle is live.
        match unsafe { (self.library.rados_wait_for_latest_osdmap)(self.rados()) } {
            answer if answer < 0 => Err(answer),
            _ => Ok(()),
        }
    }

    /// Takes note of the client's address, as a lock that it holds names it.
    pub(crate) fn has_address(&self, address: &str) {
        let _ = self.address.set(address.to_owned());
    }

    /// Returns `true` if this client is known to have that address.
    pub(crate) fn is_at(&self, address: &str) -> bool {
        self.address.get().is_some_and(|own| own == address)
    }

    /// The client is of no use any more: no further image uses it, and those that do find that out here.
    pub(crate) fn spend(&self, why: &str) {
        let _ = self.spent.set(why.to_owned());
    }

    /// Why the client is of no use any more.
    pub(crate) fn spent(&self) -> Option<&String> {
        self.spent.get()
    }

    /// A further image uses it; `false`: it has ended, or is of no use any more.
    fn join(&self) -> bool {
        let joined = |users: usize| (users > 0).then(|| users + 1);
        self.spent.get().is_none()
            && self.users.fetch_update(Ordering::AcqRel, Ordering::Acquire, joined).is_ok()
    }

    /// An image uses it no more. The last one ends the connection. Blocks, so it is not for a thread of librados.
    pub(crate) fn leave(&self) {
        if self.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shut();
        }
    }

    fn shut(&self) {
        let rados = self.rados.swap(ptr::null_mut(), Ordering::AcqRel);
        if !rados.is_null() {
            // SAFETY: the handle is live and ended once: it is gone from here. No pool of it is open.
            unsafe { (self.library.rados_shutdown)(rados) };
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Live until here only where connecting has failed.
        self.shut();
    }
}

/// All that a connection is made of, and the name under which images share it.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    /// Address of the functions: tests have two libraries.
    library: usize,
    cluster: Option<String>,
    conf: Option<PathBuf>,
    id: Option<String>,
    keyring: Option<PathBuf>,
    limit: Duration,
    share: String,
}

/// The connection of one key.
#[derive(Default)]
struct Shared {
    connection: Weak<Connection>,
    /// One image connects; the others wait for it.
    is_connecting: bool,
    /// Attempts to connect that have failed.
    failures: u64,
    /// What the library answered at the last of them, where it has answered.
    errno: Option<i32>,
}

static SHARED: LazyLock<Mutex<HashMap<Key, Shared>>> = LazyLock::new(Mutex::default);
/// An attempt to connect has ended.
static CONNECTED: Condvar = Condvar::new();

/// The connection under this name: the one that there is, or a new one. Images that are opened at the same time wait
/// for the first of them, and fail with it: a cluster that does not answer costs each one time limit, and not one after
/// another.
fn shared(library: &'static Library, name: &RbdName, share: &str) -> Result<Arc<Connection>, RbdOpenError> {
    let key = Key {
        library: ptr::from_ref(library).addr(),
        cluster: name.cluster.clone(),
        conf: name.conf.clone(),
        id: name.id.clone(),
        keyring: name.keyring.clone(),
        limit: limit(name),
        share: share.to_owned(),
    };
    let mut all = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|other, there| *other == key || there.is_connecting || there.connection.strong_count() > 0);
    let failures = all.entry(key.clone()).or_default().failures;
    loop {
        let there = all.entry(key.clone()).or_default();
        if let Some(errno) = there.errno.filter(|_| there.failures > failures) {
            return Err(RbdOpenError::failed(errno, name, "connecting to the cluster"));
        }
        if let Some(connection) = there.connection.upgrade().filter(|there| there.join()) {
            return Ok(connection);
        }
        if !there.is_connecting {
            there.is_connecting = true;
            break;
        }
        all = CONNECTED.wait(all).unwrap_or_else(PoisonError::into_inner);
    }
    drop(all);
    let connected = Connection::connect(library, name);
    let mut all = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let there = all.entry(key).or_default();
    there.is_connecting = false;
    match &connected {
        Ok(connection) => there.connection = Arc::downgrade(connection),
        Err(error) => {
            there.failures += 1;
            there.errno = error.errno();
        }
    }
    CONNECTED.notify_all();
    connected
}

/// Time limit of operations: as given, else 30 s, after which an initiator has given up on a command as a rule.
pub(crate) fn limit(name: &RbdName) -> Duration {
    name.timeout.unwrap_or(Duration::from_secs(30))
}

/// A text for the library.
pub(crate) fn c_string(text: &str) -> Result<CString, RbdOpenError> {
    CString::new(text).map_err(|_| RbdOpenError::ZeroInName)
}

/// The text in a buffer that the library has filled.
pub(crate) fn string_of(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().map(|&byte| byte as u8).collect();
    CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}
