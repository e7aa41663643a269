//! One pool of a cluster, on a connection.
#![expect(unsafe_code, reason = "librados is called with pointers: see each call")]

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use lunway_block::spec::RbdName;

use crate::RbdOpenError;
use crate::connection::{Connection, c_string};
use crate::library::{Library, Pool};

/// A pool of a cluster, for one image, and the connection that the image uses. It ends by [`shut`](Self::shut), which
/// may end the connection, or else with its last owner.
pub(crate) struct Cluster {
    pub(crate) library: &'static Library,
    pub(crate) connection: Arc<Connection>,
    pool: AtomicPtr<c_void>,
    /// It has left the connection.
    is_shut: AtomicBool,
}

impl Cluster {
    /// Opens the pool of `name` on a connection that counts this as one of its users. Blocks.
    pub(crate) fn open(connection: Arc<Connection>, name: &RbdName) -> Result<Self, RbdOpenError> {
        let library = connection.library;
        // Its end leaves the connection from here on.
        let cluster =
            Self { library, connection, pool: AtomicPtr::default(), is_shut: AtomicBool::new(false) };
        let (pool, mut opened) = (c_string(&name.pool)?, ptr::null_mut());
        let rados = cluster.connection.rados();
        // SAFETY: the connection is live, the text ends with zero, and the pool's handle is filled.
        let answer = unsafe { (library.rados_ioctx_create)(rados, pool.as_ptr(), &mut opened) };
        if answer == -libc::ENOENT {
            return Err(RbdOpenError::NoPool { name: name.to_string(), pool: name.pool.clone() });
        }
        RbdOpenError::of(answer, name, "opening the pool")?;
        cluster.pool.store(opened, Ordering::Release);
        if let Some(namespace) = &name.namespace {
            let namespace = c_string(namespace)?;
            // SAFETY: as above.
            unsafe { (library.rados_ioctx_set_namespace)(opened, namespace.as_ptr()) };
        }
        Ok(cluster)
    }

    /// The pool, for calls.
    pub(crate) fn pool(&self) -> Pool {
        self.pool.load(Ordering::Acquire)
    }

    /// Number of the pool, which is never used again in this cluster.
    pub(crate) fn pool_id(&self) -> i64 {
        // SAFETY: the handle is live.
        unsafe { (self.library.rados_ioctx_get_id)(self.pool()) }
    }

    /// Closes the pool and leaves the connection; nothing if that was done. The image is closed, and nothing calls the
    /// pool any more. Blocks, so it is not for a thread of librados.
    pub(crate) fn shut(&self) {
        if self.is_shut.swap(true, Ordering::AcqRel) {
            return;
        }
        let pool = self.pool.swap(ptr::null_mut(), Ordering::AcqRel);
        if !pool.is_null() {
            // SAFETY: the handle is live and ended once: it is gone from here.
            unsafe { (self.library.rados_ioctx_destroy)(pool) };
        }
        self.connection.leave();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // `Image` has this inside, and was closed.
        self.shut();
    }
}
