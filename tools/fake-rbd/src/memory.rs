//! Pointers that a caller passes: each is what Ceph's headers say it is.

use std::ffi::{CStr, CString, c_char, c_void};
use std::slice;

/// A handle of an object that lives as long as the process.
pub(crate) fn give<T>(value: T) -> *mut c_void {
    Box::into_raw(Box::new(value)).cast()
}

/// The object of a handle.
pub(crate) fn lent<T>(handle: *mut c_void) -> &'static T {
    // SAFETY: handles come from `give`, for an object of this type, and are never freed.
    unsafe { &*handle.cast::<T>() }
}

/// Answers through a pointer.
pub(crate) fn put<T>(to: *mut T, value: T) {
    // SAFETY: the caller has room for it there.
    unsafe { to.write(value) };
}

/// A number of the caller's.
pub(crate) fn get(from: *const usize) -> usize {
    // SAFETY: the caller has a number there.
    unsafe { from.read() }
}

/// A text of the caller's; `None` for null.
pub(crate) fn text(from: *const c_char) -> Option<String> {
    // SAFETY: it is null or a text that ends with zero.
    (!from.is_null()).then(|| unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned())
}

/// Answers a text, cut to the room there is.
pub(crate) fn fill(to: *mut c_char, room: usize, text: &str) {
    let len = text.len().min(room - 1);
    // SAFETY: the caller has that much room there.
    let room = unsafe { slice::from_raw_parts_mut(to.cast::<u8>(), room) };
    room[..len].copy_from_slice(&text.as_bytes()[..len]);
    room[len] = 0;
}

/// A text that the caller would free.
pub(crate) fn leak(text: &str) -> *mut c_char {
    CString::new(text).unwrap_or_default().into_raw()
}

/// Memory of an operation under way, to be filled.
pub(crate) fn to(address: usize, len: usize) -> &'static mut [u8] {
    // SAFETY: the caller keeps it for the operation, and no other thread uses it until the completion.
    unsafe { slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(address), len) }
}

/// Memory of an operation under way, to be read.
pub(crate) fn from(address: usize, len: usize) -> &'static [u8] {
    // SAFETY: the caller keeps it as it is until the completion.
    unsafe { slice::from_raw_parts(std::ptr::with_exposed_provenance(address), len) }
}
