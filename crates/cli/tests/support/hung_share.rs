//! A mounted file system whose server takes each request and answers none: what asks it waits in the kernel, and cannot
//! be killed.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// `FUSE_INIT` (include/uapi/linux/fuse.h), the only request that is answered.
const INIT: u32 = 26;
/// Version of the protocol that is spoken. Its `fuse_init_out` has 64 bytes.
const VERSION: [u32; 2] = [7, 31];
/// Longest request, bytes: `FUSE_MIN_READ_BUFFER` is 8 KiB, and a write of [`MAX_WRITE`] has as much again.
const REQUEST_MAX: usize = 16 << 10;
const MAX_WRITE: u32 = 4096;

/// Mounted until it is dropped, which ends all that wait for it.
pub(crate) struct HungShare(PathBuf);

impl HungShare {
    /// `None` where FUSE cannot be had.
    pub(crate) fn mount(point: &Path) -> Option<Self> {
        let server = File::options().read(true).write(true).open("/dev/fuse");
        let (Ok(mut server), true) = (server, rustix::process::geteuid().is_root()) else {
            lunway_foreign::machine_lacks("/dev/fuse, for root");
            return None;
        };
        fs::create_dir(point).unwrap();
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("hung", point, "fuse", flags, CString::new(data).unwrap().as_c_str()).unwrap();
        thread::spawn(move || {
            let mut request = vec![0; REQUEST_MAX];
            // An unmount ends it.
            while server.read(&mut request).is_ok() {
                if request[4..8] == INIT.to_ne_bytes() {
                    let mut answer = [0; 80];
                    answer[..4].copy_from_slice(&80_u32.to_ne_bytes());
                    answer[8..16].copy_from_slice(&request[8..16]);
                    answer[16..20].copy_from_slice(&VERSION[0].to_ne_bytes());
                    answer[20..24].copy_from_slice(&VERSION[1].to_ne_bytes());
                    answer[36..40].copy_from_slice(&MAX_WRITE.to_ne_bytes());
                    server.write_all(&answer).unwrap();
                }
            }
        });
        Some(Self(point.to_owned()))
    }
}

impl Drop for HungShare {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::FORCE | UnmountFlags::DETACH);
    }
}
