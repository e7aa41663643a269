//! An open image: what librbd answers at once, or blocks for.
#![expect(unsafe_code, reason = "librbd is called with pointers: see each call")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use lunway_block::spec::RbdName;

use crate::RbdOpenError;
use crate::cluster::Cluster;
use crate::connection::{c_string, string_of};
use crate::library::{ConfigOption, ImageHandle, ImageInfo, MirrorInfo, Pool, Updated, Watcher};

/// `RBD_FEATURE_EXCLUSIVE_LOCK` of `rbd/features.h`.
const EXCLUSIVE_LOCK: u64 = 1 << 2;
/// `RBD_LOCK_MODE_EXCLUSIVE`: the lock is not handed over to another client that asks for it.
const EXCLUSIVE: c_int = 0;
/// `RBD_MIRROR_IMAGE_DISABLED`: the image is not mirrored.
const NOT_MIRRORED: c_int = 2;
/// Room for names of lock owners: an exclusive lock has one.
const OWNERS: usize = 4;
/// Room for watchers at first; librbd says how many there are.
const WATCHERS: usize = 16;
/// Room for options of an image: Ceph 16 has 57, 19 has 70.
const OPTIONS: usize = 256;
/// Room for the name of a snapshot, which is not used.
const SNAPSHOT_LEN: usize = 256;
/// Room for an image's id, of which librbd says the length; ids have up to 16 characters.
const ID_LEN: usize = 64;

/// `rbd_open`, or `rbd_open_read_only`.
type OpenImage = unsafe extern "C" fn(Pool, *const c_char, *mut ImageHandle, *const c_char) -> c_int;

/// A piece of an image that is not as it was.
pub(crate) struct Difference {
    /// Bytes.
    pub(crate) range: Range<u64>,
    /// It may hold data; else it reads as zeroes now.
    pub(crate) is_data: bool,
}

/// An open image with its connection.
///
/// Blocking calls, and [`shut`](Self::shut), are made on the device's own thread alone, one after another. Operations
/// (`request`) are begun on any thread, but not after the device's gate was closed, and `shut` comes after the last of
/// them.
pub(crate) struct Image {
    handle: AtomicPtr<c_void>,
    // Behind the handle: the connection ends after the image was closed.
    pub(crate) cluster: Cluster,
}

impl Image {
    /// Opens the image, or its snapshot. Blocks.
    pub(crate) fn open(cluster: Cluster, name: &RbdName, read_only: bool) -> Result<Self, RbdOpenError> {
        let (image, mut handle) = (c_string(&name.image)?, ptr::null_mut());
        let snapshot = name.snapshot.as_deref().map(c_string).transpose()?;
        let snapshot_text = snapshot.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        let library = cluster.library;
        // SAFETY: the pool is open; the texts end with zero (that of the snapshot may be null) and outlive the call,
        // which fills `handle`.
        let mut call =
            |open: OpenImage| unsafe { open(cluster.pool(), image.as_ptr(), &mut handle, snapshot_text) };
        // One that is only read is opened for writing too: the cluster then knows that it is in use, does not let it be
        // removed, and tells of changes. A user who may only read gets neither.
        let mut answer = call(library.rbd_open);
        if read_only && [-libc::EPERM, -libc::EACCES, -libc::EROFS].contains(&answer) {
            answer = call(library.rbd_open_read_only);
        }
        if answer == -libc::ENOENT {
            return Err(RbdOpenError::NoImage { name: name.to_string() });
        }
        RbdOpenError::of(answer, name, "opening the image")?;
        Ok(Self { handle: AtomicPtr::new(handle), cluster })
    }

    /// The handle for a call.
    pub(crate) fn handle(&self) -> ImageHandle {
        self.handle.load(Ordering::Acquire)
    }

    /// Returns `true` until [`shut`](Self::shut).
    pub(crate) fn is_open(&self) -> bool {
        !self.handle().is_null()
    }

    /// Size of the image and of one object, bytes.
    pub(crate) fn sizes(&self) -> Result<(u64, u64), i32> {
        // SAFETY: all fields are numbers and arrays of such, for which zeroes are valid.
        let mut info: ImageInfo = unsafe { mem::zeroed() };
        // SAFETY: the image is open; the library fills at most the size that it is told.
        let answer =
            unsafe { (self.cluster.library.rbd_stat)(self.handle(), &mut info, mem::size_of::<ImageInfo>()) };
        if answer < 0 { Err(answer) } else { Ok((info.size, info.object_size)) }
    }

    /// Returns `true` if the image can be locked.
    pub(crate) fn can_lock(&self) -> Result<bool, i32> {
        let mut features = 0;
        // SAFETY: the image is open, and the number is filled.
        let answer = unsafe { (self.cluster.library.rbd_get_features)(self.handle(), &mut features) };
        if answer < 0 { Err(answer) } else { Ok(features & EXCLUSIVE_LOCK != 0) }
    }

    /// The reason why the image was not locked or changed, behind what the library has answered: of one that is not
    /// primary that is `EINVAL` where snapshots are mirrored, `EPERM` where a journal is, `EROFS` to a client without
    /// the lock (Ceph 16). Blocks.
    pub(crate) fn reason(&self, refused: RbdOpenError, name: &RbdName) -> RbdOpenError {
        let may_be = [-libc::EINVAL, -libc::EPERM, -libc::EROFS];
        match refused.errno().is_some_and(|errno| may_be.contains(&errno)) && self.is_not_primary() {
            true => RbdOpenError::NotPrimary { name: name.to_string(), image: name.image_path() },
            false => refused,
        }
    }

    /// Returns `true` if the image is mirrored (`rbd mirror`) and another cluster's is the primary one, so that no
    /// client may write here; `false` also where the library does not say. Blocks.
    fn is_not_primary(&self) -> bool {
        let library = self.cluster.library;
        let (Some(get), Some(free)) =
            (library.rbd_mirror_image_get_info, library.rbd_mirror_image_get_info_cleanup)
        else {
            return false;
        };
        let mut info = MirrorInfo { global_id: ptr::null_mut(), state: NOT_MIRRORED, primary: false };
        // SAFETY: the image is open; the library fills the size that it is told, or nothing.
        if unsafe { get(self.handle(), &mut info, mem::size_of::<MirrorInfo>()) } < 0 {
            return false;
        }
        // SAFETY: the library has filled it, and its text is not used.
        unsafe { free(&mut info) };
        info.state != NOT_MIRRORED && !info.primary
    }

    /// The image's id, which a clone, a copy and a later image of the same name do not have.
    pub(crate) fn id(&self) -> Result<String, i32> {
        let mut text = [0 as c_char; ID_LEN];
        // SAFETY: the image is open, and the library is told the length.
        let answer =
            unsafe { (self.cluster.library.rbd_get_id)(self.handle(), text.as_mut_ptr(), text.len()) };
        if answer < 0 { Err(answer) } else { Ok(string_of(&text)) }
    }

    /// Where the image with this id lies: cluster, pool, namespace, id.
    pub(crate) fn place(&self, name: &RbdName, id: &str) -> String {
        let namespace = name.namespace.as_deref().unwrap_or("");
        let (fsid, pool) = (self.cluster.connection.fsid(), self.cluster.pool_id());
        format!("{fsid}/{pool}/{namespace}/{id}")
    }

    /// Returns `true` if the cluster has the image with this id, and the snapshot with this number in it. Asked of the
    /// cluster, whatever this handle knows. Blocks.
    pub(crate) fn is_there(&self, id: &str, snapshot: Option<u64>) -> Result<bool, i32> {
        let (id, mut handle) = (CString::new(id).map_err(|_| -libc::EINVAL)?, ptr::null_mut());
        let library = self.cluster.library;
        // SAFETY: the pool is open; the text ends with zero and outlives the call, which fills `handle`.
        let answer = unsafe {
            (library.rbd_open_by_id_read_only)(self.cluster.pool(), id.as_ptr(), &mut handle, ptr::null())
        };
        if answer == -libc::ENOENT {
            return Ok(false);
        }
        if answer < 0 {
            return Err(answer);
        }
        let answer = snapshot.map_or(0, |number| {
            let (mut name, mut len) = ([0 as c_char; SNAPSHOT_LEN], SNAPSHOT_LEN);
            // SAFETY: the image is open, and the library is told the room for the name.
            unsafe { (library.rbd_snap_get_name)(handle, number, name.as_mut_ptr(), &mut len) }
        });
        // SAFETY: it was opened above, and is closed once. Nothing was written to it.
        unsafe { (library.rbd_close)(handle) };
        match answer {
            answer if answer == -libc::ENOENT => Ok(false),
            // The name is longer than the room for it.
            answer if answer < 0 && answer != -libc::ERANGE => Err(answer),
            _ => Ok(true),
        }
    }

    /// Number of a snapshot, which is never used again.
    pub(crate) fn snapshot_id(&self, snapshot: &str) -> Result<u64, i32> {
        let snapshot = CString::new(snapshot).map_err(|_| -libc::EINVAL)?;
        let mut id = 0;
        // SAFETY: the image is open, the text ends with zero, the number is filled.
        let answer =
            unsafe { (self.cluster.library.rbd_snap_get_id)(self.handle(), snapshot.as_ptr(), &mut id) };
        if answer < 0 { Err(answer) } else { Ok(id) }
    }

    /// Returns `true` if librbd keeps writes for this image, whatever this client was told: an option of the pool or of
    /// the image goes before those of the client. So it may where the library does not tell its options.
    pub(crate) fn has_cache(&self) -> Result<bool, i32> {
        let empty = ConfigOption { name: ptr::null_mut(), value: ptr::null_mut(), source: 0 };
        let (mut options, mut count) = (vec![empty; OPTIONS], OPTIONS as c_int);
        let library = self.cluster.library;
        let (Some(list), Some(free)) = (library.rbd_config_image_list, library.rbd_config_image_list_cleanup)
        else {
            return Ok(true);
        };
        // SAFETY: the image is open, and the library is told how many entries there is room for.
        let answer = unsafe { list(self.handle(), options.as_mut_ptr(), &mut count) };
        if answer < 0 {
            return Err(answer);
        }
        let filled = &options[..(count as usize).min(OPTIONS)];
        let set = filled.iter().any(|option| {
            // SAFETY: the library has filled so many entries with texts that end with zero, freed below.
            let (name, value) = unsafe { (CStr::from_ptr(option.name), CStr::from_ptr(option.value)) };
            match name.to_bytes() {
                b"rbd_cache" => value.to_bytes() == b"true",
                b"rbd_persistent_cache_mode" => !matches!(value.to_bytes(), b"" | b"disabled"),
                _ => false,
            }
        });
        // SAFETY: the entries are those that the library has filled, and not used any more.
        unsafe { free(options.as_mut_ptr(), count) };
        Ok(set)
    }

    /// Changes the size. Blocks.
    pub(crate) fn resize(&self, size: u64) -> Result<(), i32> {
        // SAFETY: the image is open.
        match unsafe { (self.cluster.library.rbd_resize)(self.handle(), size) } {
            answer if answer < 0 => Err(answer),
            _ => Ok(()),
        }
    }

    /// Makes a snapshot. The lock's owner makes it, if there is one. Blocks.
    pub(crate) fn create_snapshot(&self, snapshot: &str) -> Result<(), i32> {
        let snapshot = CString::new(snapshot).map_err(|_| -libc::EINVAL)?;
        // SAFETY: the image is open, and the text ends with zero.
        match unsafe { (self.cluster.library.rbd_snap_create)(self.handle(), snapshot.as_ptr()) } {
            answer if answer < 0 => Err(answer),
            _ => Ok(()),
        }
    }

    /// Removes a snapshot, as it was made. Blocks.
    pub(crate) fn remove_snapshot(&self, snapshot: &str) -> Result<(), i32> {
        let snapshot = CString::new(snapshot).map_err(|_| -libc::EINVAL)?;
        // SAFETY: the image is open, and the text ends with zero.
        match unsafe { (self.cluster.library.rbd_snap_remove)(self.handle(), snapshot.as_ptr()) } {
            answer if answer < 0 => Err(answer),
            _ => Ok(()),
        }
    }

    /// Pieces of a range that differ from an older snapshot, or from nothing: those that may hold data, with those of
    /// parents. In order, within the range. `whole`: whole objects, by the image's object map where it has one; else
    /// what was written of each object, which its OSD is asked for. Blocks.
    pub(crate) fn differences(
        &self,
        since: Option<&str>,
        range: Range<u64>,
        whole: bool,
    ) -> Result<Vec<Difference>, i32> {
        unsafe extern "C" fn note(offset: u64, len: usize, exists: c_int, list: *mut c_void) -> c_int {
            let piece = Difference { range: offset..offset.saturating_add(len as u64), is_data: exists != 0 };
            // SAFETY: the argument that `differences` passes: a list of its own, used by one call at a time.
            unsafe { &mut *list.cast::<Vec<Difference>>() }.push(piece);
            0
        }
        let since = since.map(CString::new).transpose().map_err(|_| -libc::EINVAL)?;
        let since = since.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        let mut list: Vec<Difference> = Vec::new();
        let argument = ptr::from_mut(&mut list).cast();
        let (offset, len) = (range.start, range.end - range.start);
        // SAFETY: the image is open; the snapshot's name is null or ends with zero; the list outlives the call, during
        // which alone it is written.
        let answer = unsafe {
            (self.cluster.library.rbd_diff_iterate2)(
                self.handle(),
                since,
                offset,
                len,
                1,
                u8::from(whole),
                note,
                argument,
            )
        };
        if answer < 0 {
            return Err(answer);
        }
        // librbd asks for several objects at once, and tells whole ones beyond the range.
        for piece in &mut list {
            piece.range = piece.range.start.max(range.start)..piece.range.end.min(range.end);
        }
        list.retain(|piece| !piece.range.is_empty());
        list.sort_unstable_by_key(|piece| piece.range.start);
        Ok(list)
    }

    /// Has `updated` called with `argument` after each change of the image's header, on a thread of librbd. Returns the
    /// watch.
    ///
    /// # Safety
    ///
    /// `argument` is valid for `updated` until [`unwatch`](Self::unwatch) and [`shut`](Self::shut) have returned.
    pub(crate) unsafe fn watch(&self, updated: Updated, argument: *mut c_void) -> Result<u64, i32> {
        let mut watch = 0;
        // SAFETY: the image is open; the caller vouches for the argument.
        let answer =
            unsafe { (self.cluster.library.rbd_update_watch)(self.handle(), &mut watch, updated, argument) };
        if answer < 0 { Err(answer) } else { Ok(watch) }
    }

    /// Ends a watch. Blocks.
    pub(crate) fn unwatch(&self, watch: u64) {
        // SAFETY: the image is open. An error means that there is no watch any more.
        unsafe { (self.cluster.library.rbd_update_unwatch)(self.handle(), watch) };
    }

    /// The client that holds the lock: its address.
    pub(crate) fn lock_owner(&self) -> Result<Option<String>, i32> {
        let (mut owners, mut count, mut mode) = ([ptr::null_mut::<c_char>(); OWNERS], OWNERS, 0);
        let library = self.cluster.library;
        // SAFETY: the image is open, and the library is told how many texts there is room for.
        let answer = unsafe {
            (library.rbd_lock_get_owners)(self.handle(), &mut mode, owners.as_mut_ptr(), &mut count)
        };
        match answer {
            answer if answer == -libc::ENOENT => return Ok(None),
            answer if answer < 0 => return Err(answer),
            _ => {}
        }
        let first = owners[..count.min(OWNERS)].first().filter(|owner| !owner.is_null());
        // SAFETY: the library has filled so many entries with texts that end with zero.
        let owner = first.map(|&owner| unsafe { CStr::from_ptr(owner) }.to_string_lossy().into_owned());
        // SAFETY: the entries are those that the library has filled, and not used any more.
        unsafe { (library.rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), count) };
        Ok(owner)
    }

    /// Addresses of the clients that have the image open for writing and were alive lately: for as long as an OSD waits
    /// for a client that it does not hear from (`osd_client_watch_timeout`, 30 s).
    pub(crate) fn watchers(&self) -> Result<Vec<String>, i32> {
        let empty = Watcher { address: ptr::null_mut(), id: 0, cookie: 0 };
        let library = self.cluster.library;
        let mut room = WATCHERS;
        loop {
            let (mut watchers, mut count) = (vec![empty; room], room);
            // SAFETY: the image is open, and the library is told how many entries there is room for.
            let answer =
                unsafe { (library.rbd_watchers_list)(self.handle(), watchers.as_mut_ptr(), &mut count) };
            if answer == -libc::ERANGE && count > room {
                room = count;
                continue;
            }
            if answer < 0 {
                return Err(answer);
            }
            let filled = &watchers[..count.min(room)];
            let addresses = filled
                .iter()
                // SAFETY: the library has filled so many entries with texts that end with zero.
                .map(|watcher| unsafe { CStr::from_ptr(watcher.address) }.to_string_lossy().into_owned())
                .collect();
            // SAFETY: the entries are those that the library has filled, and not used any more.
            unsafe { (library.rbd_watchers_list_cleanup)(watchers.as_mut_ptr(), count) };
            return Ok(addresses);
        }
    }

    /// Takes the lock and keeps it, also when another client asks for it. Blocks: for as long as a dead owner is waited
    /// for.
    pub(crate) fn lock(&self) -> Result<(), i32> {
        // SAFETY: the image is open.
        match unsafe { (self.cluster.library.rbd_lock_acquire)(self.handle(), EXCLUSIVE) } {
            answer if answer < 0 => Err(answer),
            _ => Ok(()),
        }
    }

    /// Takes the lock from the client with that address. `EBUSY`: another one holds it. Blocks.
    pub(crate) fn break_lock(&self, owner: &str) -> Result<(), i32> {
        let owner = CString::new(owner).map_err(|_| -libc::EINVAL)?;
        // SAFETY: the image is open, and the text ends with zero.
        match unsafe { (self.cluster.library.rbd_lock_break)(self.handle(), EXCLUSIVE, owner.as_ptr()) } {
            answer if answer < 0 => Err(answer),
            _ => Ok(()),
        }
    }

    /// Gives the lock back and closes the image; nothing if that was done. No operation is under way. Blocks.
    pub(crate) fn shut(&self, locked: bool) -> Result<(), i32> {
        let handle = self.handle.swap(ptr::null_mut(), Ordering::AcqRel);
        if handle.is_null() {
            return Ok(());
        }
        // SAFETY: the image was open, and is closed once: its handle is gone from here. What the lock's end fails for
        // makes the closing fail as well.
        let answer = unsafe {
            if locked {
                (self.cluster.library.rbd_lock_release)(handle);
            }
            (self.cluster.library.rbd_close)(handle)
        };
        if answer < 0 { Err(answer) } else { Ok(()) }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // Open until here only where opening the device has failed, on its own thread.
        let _ = self.shut(false);
    }
}
