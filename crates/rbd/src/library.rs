//! librados and librbd, loaded at run time and bound by name.
//!
//! Not linked: one binary runs on machines with and without Ceph, and librbd (LGPL) stays a library of its own. Every
//! prototype is that of `rados/librados.h` and `rbd/librbd.h` of Ceph 16. All symbols are bound when the library is
//! loaded, so that one that is too old is said at once, and never while a disk is in use. What older ones lack is
//! optional where a disk can do without.
#![expect(
    unsafe_code,
    reason = "a library is loaded and its functions are given types, which the compiler cannot check: see `bind`"
)]

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::RbdOpenError;

/// Names of the libraries with the version of their interface, which they have had since 2009 and 2010: the names
/// without one come with the headers only.
const RADOS: &str = "librados.so.2";
const RBD: &str = "librbd.so.1";

/// `rados_t`.
pub(crate) type Rados = *mut c_void;
/// `rados_ioctx_t`.
pub(crate) type Pool = *mut c_void;
/// `rbd_image_t`.
pub(crate) type ImageHandle = *mut c_void;
/// `rbd_completion_t`.
pub(crate) type Completion = *mut c_void;
/// `rbd_callback_t`.
pub(crate) type Completed = unsafe extern "C" fn(Completion, *mut c_void);
/// `rbd_update_callback_t`.
pub(crate) type Updated = unsafe extern "C" fn(*mut c_void);
/// Callback of `rbd_diff_iterate2`: offset, length, whether it exists, argument.
pub(crate) type Differs = unsafe extern "C" fn(u64, usize, c_int, *mut c_void) -> c_int;

/// `rbd_image_info_t`.
#[repr(C)]
pub(crate) struct ImageInfo {
    pub(crate) size: u64,
    pub(crate) object_size: u64,
    pub(crate) objects: u64,
    pub(crate) order: c_int,
    pub(crate) block_name_prefix: [c_char; 24],
    pub(crate) parent_pool: i64,
    pub(crate) parent_name: [c_char; 96],
}

/// `rbd_image_watcher_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Watcher {
    pub(crate) address: *mut c_char,
    pub(crate) id: i64,
    pub(crate) cookie: u64,
}

/// `rbd_config_option_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ConfigOption {
    pub(crate) name: *mut c_char,
    pub(crate) value: *mut c_char,
    pub(crate) source: c_int,
}

/// `rbd_mirror_image_info_t`.
#[repr(C)]
pub(crate) struct MirrorInfo {
    pub(crate) global_id: *mut c_char,
    pub(crate) state: c_int,
    pub(crate) primary: bool,
}

/// A function by its name; `None`: the library has none.
///
/// # Safety
///
/// `F` is the function's type.
unsafe fn find<F: Copy>(library: &libloading::Library, name: &str) -> Option<F> {
    // SAFETY: the caller vouches for the type.
    let found = unsafe { library.get::<F>(name) };
    found.ok().map(|found| *found)
}

/// One struct field for each function, and the binding of all of them. One that some libraries lack is an `Option`; a
/// name behind `or` is the one that it had before.
macro_rules! functions {
    (
        needed { $($library:ident: $name:ident($($argument:ty),*) $(-> $answer:ty)? $(, or $before:ident)?;)* }
        optional { $($other:ident: $maybe:ident($($its:ty),*) $(-> $result:ty)?;)* }
    ) => {
        /// The functions that this crate calls.
        pub(crate) struct Library {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)*
            $(pub(crate) $maybe: Option<unsafe extern "C" fn($($its),*) $(-> $result)?>,)*
        }

        impl Library {
            fn bind(loaded: &Loaded) -> Result<Self, RbdOpenError> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the type beside the name is the prototype of this function in Ceph's headers, which
                        // has not changed since the function is there: that is what the version in the library's name
                        // promises.
                        let found = unsafe { find(&loaded.$library, stringify!($name)) };
                        // SAFETY: as above; the other name was the same function's.
                        $(let found = found.or_else(|| unsafe { find(&loaded.$library, stringify!($before)) });)?
                        found.ok_or(RbdOpenError::TooOld { missing: stringify!($name) })?
                    },)*
                    // SAFETY: as above.
                    $($maybe: unsafe { find(&loaded.$other, stringify!($maybe)) },)*
                })
            }
        }
    };
}

functions! {
    needed {
        rados: rados_create2(*mut Rados, *const c_char, *const c_char, u64) -> c_int;
        rados: rados_conf_read_file(Rados, *const c_char) -> c_int;
        rados: rados_conf_set(Rados, *const c_char, *const c_char) -> c_int;
        rados: rados_connect(Rados) -> c_int;
        rados: rados_shutdown(Rados);
        rados: rados_cluster_fsid(Rados, *mut c_char, usize) -> c_int;
        rados: rados_ioctx_create(Rados, *const c_char, *mut Pool) -> c_int;
        rados: rados_ioctx_destroy(Pool);
        rados: rados_ioctx_set_namespace(Pool, *const c_char);
        rados: rados_ioctx_get_id(Pool) -> i64;
        rados: rados_blocklist_add(Rados, *mut c_char, u32) -> c_int, or rados_blacklist_add;
        rados: rados_wait_for_latest_osdmap(Rados) -> c_int;
        rbd: rbd_open(Pool, *const c_char, *mut ImageHandle, *const c_char) -> c_int;
        rbd: rbd_open_read_only(Pool, *const c_char, *mut ImageHandle, *const c_char) -> c_int;
        rbd: rbd_open_by_id_read_only(Pool, *const c_char, *mut ImageHandle, *const c_char) -> c_int;
        rbd: rbd_close(ImageHandle) -> c_int;
        rbd: rbd_stat(ImageHandle, *mut ImageInfo, usize) -> c_int;
        rbd: rbd_get_features(ImageHandle, *mut u64) -> c_int;
        rbd: rbd_get_id(ImageHandle, *mut c_char, usize) -> c_int;
        rbd: rbd_snap_get_id(ImageHandle, *const c_char, *mut u64) -> c_int;
        rbd: rbd_snap_get_name(ImageHandle, u64, *mut c_char, *mut usize) -> c_int;
        rbd: rbd_aio_create_completion(*mut c_void, Completed, *mut Completion) -> c_int;
        rbd: rbd_aio_get_return_value(Completion) -> isize;
        rbd: rbd_aio_release(Completion);
        rbd: rbd_aio_read(ImageHandle, u64, usize, *mut c_char, Completion) -> c_int;
        rbd: rbd_aio_write(ImageHandle, u64, usize, *const c_char, Completion) -> c_int;
        rbd: rbd_aio_flush(ImageHandle, Completion) -> c_int;
        rbd: rbd_diff_iterate2(ImageHandle, *const c_char, u64, u64, u8, u8, Differs, *mut c_void) -> c_int;
        rbd: rbd_snap_create(ImageHandle, *const c_char) -> c_int;
        rbd: rbd_snap_remove(ImageHandle, *const c_char) -> c_int;
        rbd: rbd_resize(ImageHandle, u64) -> c_int;
        rbd: rbd_update_watch(ImageHandle, *mut u64, Updated, *mut c_void) -> c_int;
        rbd: rbd_update_unwatch(ImageHandle, u64) -> c_int;
        rbd: rbd_lock_acquire(ImageHandle, c_int) -> c_int;
        rbd: rbd_lock_release(ImageHandle) -> c_int;
        rbd: rbd_lock_get_owners(ImageHandle, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
        rbd: rbd_lock_get_owners_cleanup(*mut *mut c_char, usize);
        rbd: rbd_lock_break(ImageHandle, c_int, *const c_char) -> c_int;
        rbd: rbd_watchers_list(ImageHandle, *mut Watcher, *mut usize) -> c_int;
        rbd: rbd_watchers_list_cleanup(*mut Watcher, usize);
    }
    optional {
        // Ceph 16.
        rbd: rbd_aio_write_zeroes(ImageHandle, u64, usize, Completion, c_int, c_int) -> c_int;
        // Ceph 14.
        rbd: rbd_config_image_list(ImageHandle, *mut ConfigOption, *mut c_int) -> c_int;
        rbd: rbd_config_image_list_cleanup(*mut ConfigOption, c_int);
        // Ceph 15, the second one.
        rbd: rbd_mirror_image_get_info(ImageHandle, *mut MirrorInfo, usize) -> c_int;
        rbd: rbd_mirror_image_get_info_cleanup(*mut MirrorInfo);
    }
}

/// The two libraries; with `at` both are one file.
struct Loaded {
    rados: libloading::Library,
    rbd: libloading::Library,
}

impl Library {
    /// The functions of the installed libraries, or of one file that has them all (for tests). Loaded once for a
    /// process and never unloaded: their threads and thread-local data live as long as it does.
    pub(crate) fn load(at: Option<&Path>) -> Result<&'static Self, RbdOpenError> {
        static LOADED: Mutex<Option<HashMap<Option<PathBuf>, &'static Library>>> = Mutex::new(None);
        if cfg!(target_feature = "crt-static") {
            return Err(RbdOpenError::Static);
        }
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = loaded.get_or_insert_default();
        let key = at.map(Path::to_owned);
        if let Some(library) = loaded.get(&key) {
            return Ok(library);
        }
        let file = |name: &str| at.map_or_else(|| PathBuf::from(name), Path::to_owned);
        let load = |path: PathBuf| {
            // SAFETY: what these libraries do when they are loaded (constructors of C++) has no conditions.
            let library = unsafe { libloading::Library::new(&path) };
            library.map_err(|source| RbdOpenError::NoLibrary { library: path.display().to_string(), source })
        };
        let both = Box::leak(Box::new(Loaded { rados: load(file(RADOS))?, rbd: load(file(RBD))? }));
        let library: &'static Self = Box::leak(Box::new(Self::bind(both)?));
        loaded.insert(key, library);
        Ok(library)
    }
}
