//! Connection to a cluster, with one pool of it.
#![expect(unsafe_code, reason = "librados is called with pointers: see each call")]

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use lunway_block::spec::RbdName;

use crate::RbdOpenError;
use crate::library::{Library, Pool, Rados};

/// Length of an fsid as text, with the zero behind it.
const FSID_LEN: usize = 37;

/// A connection to a cluster: a client of its own, with the address that a blocklist names, and one of its pools.
///
/// Each device has one, so that fencing one image of this process ends none of the others. It ends by
/// [`shut`](Self::shut), which waits for threads of librados, or else with its last owner.
pub(crate) struct Cluster {
    pub(crate) library: &'static Library,
    rados: AtomicPtr<c_void>,
    pool: AtomicPtr<c_void>,
}

impl Cluster {
    /// Connects. Blocks, at most for the name's time limit.
    pub(crate) fn connect(library: &'static Library, name: &RbdName) -> Result<Self, RbdOpenError> {
        let cluster = name.cluster.as_deref().unwrap_or("ceph");
        let user = format!("client.{}", name.id.as_deref().unwrap_or("admin"));
        let mut rados = ptr::null_mut();
        let (cluster, user) = (c_string(cluster)?, c_string(&user)?);
        // SAFETY: the texts end with zero and outlive the call, which fills `rados`.
        let answer = unsafe { (library.rados_create2)(&mut rados, cluster.as_ptr(), user.as_ptr(), 0) };
        RbdOpenError::of(answer, name, "making a client")?;
        // Its end shuts the client down from here on.
        let connected = Self { library, rados: AtomicPtr::new(rados), pool: AtomicPtr::default() };
        connected.configure(name)?;
        // SAFETY: the handle is live.
        RbdOpenError::of(unsafe { (library.rados_connect)(rados) }, name, "connecting to the cluster")?;
        let pool = c_string(&name.pool)?;
        let mut opened = ptr::null_mut();
        // SAFETY: as above; the text ends with zero, and the pool's handle is filled.
        let answer = unsafe { (library.rados_ioctx_create)(rados, pool.as_ptr(), &mut opened) };
        if answer == -libc::ENOENT {
            return Err(RbdOpenError::NoPool { name: name.to_string(), pool: name.pool.clone() });
        }
        RbdOpenError::of(answer, name, "opening the pool")?;
        connected.pool.store(opened, Ordering::Release);
        if let Some(namespace) = &name.namespace {
            let namespace = c_string(namespace)?;
            // SAFETY: as above.
            unsafe { (library.rados_ioctx_set_namespace)(opened, namespace.as_ptr()) };
        }
        Ok(connected)
    }

    fn rados(&self) -> Rados {
        self.rados.load(Ordering::Acquire)
    }

    /// The pool, for calls.
    pub(crate) fn pool(&self) -> Pool {
        self.pool.load(Ordering::Acquire)
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

    /// Number of the pool, which is never used again in this cluster.
    pub(crate) fn pool_id(&self) -> i64 {
        // SAFETY: the handle is live.
        unsafe { (self.library.rados_ioctx_get_id)(self.pool()) }
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
}

impl Cluster {
    /// Ends the connection; nothing if that was done. All images of this pool are closed, and nothing calls it any
    /// more. Blocks, so it is not for a thread of librados.
    pub(crate) fn shut(&self) {
        let (pool, rados) = (&self.pool, &self.rados);
        let (pool, rados) =
            (pool.swap(ptr::null_mut(), Ordering::AcqRel), rados.swap(ptr::null_mut(), Ordering::AcqRel));
        // SAFETY: each handle is live and ended once: it is gone from here.
        unsafe {
            if !pool.is_null() {
                (self.library.rados_ioctx_destroy)(pool);
            }
            if !rados.is_null() {
                (self.library.rados_shutdown)(rados);
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // `Image` has this inside, and was closed.
        self.shut();
    }
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
