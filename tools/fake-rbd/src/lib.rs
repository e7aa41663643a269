//! librados and librbd in memory: a shared object for tests, which delays, reorders, fails and remembers.
//!
//! For what a real cluster cannot be made to do, and for machines that have none. It has the functions that
//! `lunway-rbd` binds, with the prototypes of Ceph 16's headers. One process has as many clusters as there are
//! configuration files; the file is their script, and is read again for each operation:
//!
//! ```text
//! image POOL/NAME BYTES   there is an image, unless there was one before
//! no-lock                 images have no exclusive lock
//! cache                   librbd's cache is on, whatever the client says
//! reorder                 operations are carried out in another order than they were begun in
//! delay MILLISECONDS      each operation takes that long
//! fail OPERATION ERRNO    connect, open, owners, lock, unlock, read, write, zeroes, flush, resize, snapshot or diff
//!                         fails
//! hold OPERATION          connect, read, write, zeroes or flush wait until the line is gone
//! not-primary             images are mirrored, and those of another cluster are primary
//! dead ADDRESS            this client is not heard of any more
//! blocklist ADDRESS       operations of this client are refused; the first client of a process is 127.0.0.1:0/1
//! ```
//!
//! What was called is appended to the file's name with `.log` behind it, where that exists.
//!
//! **Maps.** A cluster has an epoch, which grows with each client on its blocklist, and a client knows the epoch of its
//! last `rados_wait_for_latest_osdmap`. The OSD learns an epoch only from an operation whose client knows it: a held
//! write of a client on the blocklist lands, unless the new owner has written with the new map before. That is what the
//! wait is for.
#![expect(
    unsafe_code,
    missing_docs,
    clippy::not_unsafe_ptr_arg_deref,
    reason = "functions of Ceph's headers, under their names, called by pointers: tests keep to the headers, and nothing is freed"
)]

mod cluster;
mod memory;

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use cluster::{Client, Cluster, Kind, Open, Operation};
use memory::{fill, give, lent, put, text};

/// Number of the pool that there is.
const POOL: i64 = 1;

#[unsafe(no_mangle)]
pub extern "C" fn rados_create2(to: *mut *mut c_void, _: *const c_char, _: *const c_char, _: u64) -> c_int {
    put(to, give(Client::new()));
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn rados_conf_read_file(client: *mut c_void, path: *const c_char) -> c_int {
    let client: &Client = lent(client);
    match text(path).and_then(|path| Cluster::of(&path)) {
        Some(cluster) => client.join(cluster),
        None => -libc::ENOENT,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn rados_conf_set(client: *mut c_void, key: *const c_char, value: *const c_char) -> c_int {
    let client: &Client = lent(client);
    let (key, value) = (text(key).unwrap_or_default(), text(value).unwrap_or_default());
    client.cluster().log(&format!("set {key} {value}"));
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn rados_connect(client: *mut c_void) -> c_int {
    let client: &Client = lent(client);
    client.cluster().log("connect");
    client.cluster().wait_while_held("connect");
    client.cluster().fails("connect").map_or(0, |errno| -errno)
}

#[unsafe(no_mangle)]
pub extern "C" fn rados_shutdown(client: *mut c_void) {
    let client: &Client = lent(client);
    if let Some(cluster) = client.joined() {
        cluster.log("shutdown");
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn rados_cluster_fsid(_: *mut c_void, to: *mut c_char, room: usize) -> c_int {
    fill(to, room, "00000000-0000-4000-8000-000000000000");
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn rados_ioctx_create(
    client: *mut c_void,
    pool: *const c_char,
    to: *mut *mut c_void,
) -> c_int {
    if text(pool).as_deref() != Some("rbd") {
        return -libc::ENOENT;
    }
    put(to, client);
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn rados_ioctx_destroy(_: *mut c_void) {}

#[unsafe(no_mangle)]
pub extern "C" fn rados_ioctx_set_namespace(_: *mut c_void, _: *const c_char) {}

#[unsafe(no_mangle)]
pub extern "C" fn rados_ioctx_get_id(_: *mut c_void) -> i64 {
    POOL
}

#[unsafe(no_mangle)]
pub extern "C" fn rados_blocklist_add(client: *mut c_void, address: *mut c_char, _: u32) -> c_int {
    blocklist(client, address)
}

/// Its name before Ceph 16.
#[unsafe(no_mangle)]
pub extern "C" fn rados_blacklist_add(client: *mut c_void, address: *mut c_char, _: u32) -> c_int {
    blocklist(client, address)
}

fn blocklist(client: *mut c_void, address: *mut c_char) -> c_int {
    let client: &Client = lent(client);
    client.cluster().blocklist(&text(address).unwrap_or_default());
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn rados_wait_for_latest_osdmap(client: *mut c_void) -> c_int {
    let client: &Client = lent(client);
    client.learn();
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_open(
    pool: *mut c_void,
    name: *const c_char,
    to: *mut *mut c_void,
    snapshot: *const c_char,
) -> c_int {
    open(pool, name, to, snapshot, true)
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_open_read_only(
    pool: *mut c_void,
    name: *const c_char,
    to: *mut *mut c_void,
    snapshot: *const c_char,
) -> c_int {
    open(pool, name, to, snapshot, false)
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_open_by_id_read_only(
    pool: *mut c_void,
    id: *const c_char,
    to: *mut *mut c_void,
    snapshot: *const c_char,
) -> c_int {
    let client: &'static Client = lent(pool);
    match client.name_of(&text(id).unwrap_or_default()) {
        Some(name) => open_as(client, &name, to, text(snapshot), false),
        None => -libc::ENOENT,
    }
}

fn open(
    pool: *mut c_void,
    name: *const c_char,
    to: *mut *mut c_void,
    snapshot: *const c_char,
    writes: bool,
) -> c_int {
    open_as(lent(pool), &text(name).unwrap_or_default(), to, text(snapshot), writes)
}

fn open_as(
    client: &'static Client,
    name: &str,
    to: *mut *mut c_void,
    snapshot: Option<String>,
    writes: bool,
) -> c_int {
    match Open::new(client, name, snapshot, writes) {
        Ok(opened) => {
            put(to, give(opened));
            0
        }
        Err(errno) => -errno,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_close(image: *mut c_void) -> c_int {
    let image: &Open = lent(image);
    image.close()
}

#[repr(C)]
pub struct Info {
    size: u64,
    object_size: u64,
    objects: u64,
    order: c_int,
    rest: [u8; 24 + 8 + 96],
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_stat(image: *mut c_void, to: *mut Info, _: usize) -> c_int {
    let image: &Open = lent(image);
    let (size, object_size) = (image.size(), cluster::OBJECT);
    let objects = size.div_ceil(object_size);
    put(to, Info { size, object_size, objects, order: object_size.ilog2() as c_int, rest: [0; 128] });
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_get_features(image: *mut c_void, to: *mut u64) -> c_int {
    let image: &Open = lent(image);
    put(to, if image.says("no-lock").is_some() { 1 } else { 61 });
    0
}

#[repr(C)]
pub struct MirrorInfo {
    global_id: *const c_char,
    state: c_int,
    primary: bool,
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_mirror_image_get_info(image: *mut c_void, to: *mut MirrorInfo, _: usize) -> c_int {
    let image: &Open = lent(image);
    let state = if image.says("not-primary").is_some() { 1 } else { 2 };
    put(to, MirrorInfo { global_id: c"".as_ptr(), state, primary: false });
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_mirror_image_get_info_cleanup(_: *mut MirrorInfo) {}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_get_id(image: *mut c_void, to: *mut c_char, room: usize) -> c_int {
    let image: &Open = lent(image);
    fill(to, room, image.id());
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_snap_get_id(image: *mut c_void, snapshot: *const c_char, to: *mut u64) -> c_int {
    let image: &Open = lent(image);
    match image.snapshot_number(&text(snapshot).unwrap_or_default()) {
        Some(number) => {
            put(to, number);
            0
        }
        None => -libc::ENOENT,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_snap_get_name(
    image: *mut c_void,
    number: u64,
    to: *mut c_char,
    room: *mut usize,
) -> c_int {
    let image: &Open = lent(image);
    match image.snapshot_name(number) {
        Some(name) => {
            fill(to, memory::get(room), &name);
            0
        }
        None => -libc::ENOENT,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_snap_create(image: *mut c_void, snapshot: *const c_char) -> c_int {
    let image: &Open = lent(image);
    image.create_snapshot(&text(snapshot).unwrap_or_default())
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_snap_remove(image: *mut c_void, snapshot: *const c_char) -> c_int {
    let image: &Open = lent(image);
    image.remove_snapshot(&text(snapshot).unwrap_or_default())
}

#[repr(C)]
pub struct ConfigOption {
    name: *const c_char,
    value: *const c_char,
    source: c_int,
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_config_image_list(
    image: *mut c_void,
    to: *mut ConfigOption,
    count: *mut c_int,
) -> c_int {
    let image: &Open = lent(image);
    let value = if image.says("cache").is_some() { c"true" } else { c"false" };
    put(to, ConfigOption { name: c"rbd_cache".as_ptr(), value: value.as_ptr(), source: 0 });
    put(count, 1);
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_config_image_list_cleanup(_: *mut ConfigOption, _: c_int) {}

/// A completion: the callback, its argument, the result.
struct Completion {
    call: unsafe extern "C" fn(*mut c_void, *mut c_void),
    argument: *mut c_void,
    result: std::sync::atomic::AtomicIsize,
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_aio_create_completion(
    argument: *mut c_void,
    call: unsafe extern "C" fn(*mut c_void, *mut c_void),
    to: *mut *mut c_void,
) -> c_int {
    put(to, give(Completion { call, argument, result: 0.into() }));
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_aio_get_return_value(completion: *mut c_void) -> isize {
    let completion: &Completion = lent(completion);
    completion.result.load(std::sync::atomic::Ordering::Acquire)
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_aio_release(_: *mut c_void) {}

fn begin(
    image: *mut c_void,
    kind: Kind,
    offset: u64,
    len: usize,
    memory: *mut c_char,
    completion: *mut c_void,
) -> c_int {
    let image: &'static Open = lent(image);
    let (memory, completion) = (memory.addr(), completion.addr());
    let done = Arc::new(move |result: isize| {
        let pointer = ptr::with_exposed_provenance_mut::<c_void>(completion);
        let ended: &Completion = lent(pointer);
        ended.result.store(result, std::sync::atomic::Ordering::Release);
        // SAFETY: the callback and its argument are the ones that the completion was made with, called once.
        unsafe { (ended.call)(pointer, ended.argument) };
    });
    image.begin(Operation { kind, offset, len, memory, done });
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_aio_read(
    image: *mut c_void,
    offset: u64,
    len: usize,
    to: *mut c_char,
    completion: *mut c_void,
) -> c_int {
    let _ = (to.expose_provenance(), completion.expose_provenance());
    begin(image, Kind::Read, offset, len, to, completion)
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_aio_write(
    image: *mut c_void,
    offset: u64,
    len: usize,
    from: *const c_char,
    completion: *mut c_void,
) -> c_int {
    let _ = (from.expose_provenance(), completion.expose_provenance());
    begin(image, Kind::Write, offset, len, from.cast_mut(), completion)
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_aio_write_zeroes(
    image: *mut c_void,
    offset: u64,
    len: usize,
    completion: *mut c_void,
    flags: c_int,
    _: c_int,
) -> c_int {
    let _ = completion.expose_provenance();
    begin(image, Kind::Zeroes { thick: flags != 0 }, offset, len, ptr::null_mut(), completion)
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_aio_flush(image: *mut c_void, completion: *mut c_void) -> c_int {
    let _ = completion.expose_provenance();
    begin(image, Kind::Flush, 0, 0, ptr::null_mut(), completion)
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_diff_iterate2(
    image: *mut c_void,
    since: *const c_char,
    offset: u64,
    len: u64,
    _: u8,
    whole: u8,
    call: unsafe extern "C" fn(u64, usize, c_int, *mut c_void) -> c_int,
    argument: *mut c_void,
) -> c_int {
    let image: &Open = lent(image);
    match image.differences(text(since), offset..offset + len, whole != 0) {
        Ok(pieces) => {
            // Backwards: the caller sorts.
            for (offset, len, is_data) in pieces.into_iter().rev() {
                // SAFETY: the callback and its argument are those of this call.
                unsafe { call(offset, len as usize, is_data.into(), argument) };
            }
            0
        }
        Err(errno) => -errno,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_resize(image: *mut c_void, size: u64) -> c_int {
    let image: &Open = lent(image);
    image.resize(size)
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_update_watch(
    image: *mut c_void,
    to: *mut u64,
    call: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
) -> c_int {
    let image: &Open = lent(image);
    let argument = argument.expose_provenance();
    let call = move || {
        // SAFETY: the callback and its argument are those of this call; it is not called once the watch has ended.
        unsafe { call(ptr::with_exposed_provenance_mut(argument)) };
    };
    put(to, image.watch(Box::new(call)));
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_update_unwatch(image: *mut c_void, watch: u64) -> c_int {
    let image: &Open = lent(image);
    image.unwatch(watch);
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_lock_acquire(image: *mut c_void, _: c_int) -> c_int {
    let image: &Open = lent(image);
    image.lock()
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_lock_release(image: *mut c_void) -> c_int {
    let image: &Open = lent(image);
    image.unlock();
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_lock_get_owners(
    image: *mut c_void,
    _: *mut c_int,
    to: *mut *mut c_char,
    count: *mut usize,
) -> c_int {
    let image: &Open = lent(image);
    if let Some(errno) = image.fails("owners") {
        return -errno;
    }
    let Some(owner) = image.owner() else { return -libc::ENOENT };
    put(to, memory::leak(&owner));
    put(count, 1);
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_lock_get_owners_cleanup(_: *mut *mut c_char, _: usize) {}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_lock_break(image: *mut c_void, _: c_int, owner: *const c_char) -> c_int {
    let image: &Open = lent(image);
    image.break_lock(&text(owner).unwrap_or_default())
}

#[repr(C)]
pub struct Watcher {
    address: *mut c_char,
    id: i64,
    cookie: u64,
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_watchers_list(image: *mut c_void, to: *mut Watcher, count: *mut usize) -> c_int {
    let image: &Open = lent(image);
    let watchers = image.watchers();
    if watchers.len() > memory::get(count) {
        put(count, watchers.len());
        return -libc::ERANGE;
    }
    for (at, address) in watchers.iter().enumerate() {
        put(to.wrapping_add(at), Watcher { address: memory::leak(address), id: at as i64, cookie: 1 });
    }
    put(count, watchers.len());
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn rbd_watchers_list_cleanup(_: *mut Watcher, _: usize) {}
