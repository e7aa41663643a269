//! The socket options that no safe crate has.
#![expect(
    unsafe_code,
    reason = "getsockopt(TCP_INFO) and setsockopt(TCP_WINDOW_CLAMP) take memory by address: it is a buffer or an integer on \
              this stack, and its length is passed with it"
)]

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use libc::{c_int, socklen_t};

/// Room for `struct tcp_info` of kernels to come; what the kernel does not fill stays zero.
pub(crate) const INFO_SIZE: usize = 320;

/// The bytes of `struct tcp_info` (linux/tcp.h), as many as this kernel has.
pub(crate) fn tcp_info(stream: &TcpStream) -> io::Result<[u8; INFO_SIZE]> {
    let mut info = [0u8; INFO_SIZE];
    let mut len = INFO_SIZE as socklen_t;
    // SAFETY: `info` is valid for `len` bytes of writing for the whole call, and the descriptor is open while `stream`
    // lives.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result == 0 { Ok(info) } else { Err(io::Error::last_os_error()) }
}

/// The most that the socket ever advertises as its receive window, bytes (tcp(7)).
pub(crate) fn clamp_window(socket: &impl AsRawFd, bytes: u32) -> io::Result<()> {
    let value = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    // SAFETY: `value` is an integer that lives longer than the call, passed with its size.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_WINDOW_CLAMP,
            (&raw const value).cast(),
            size_of::<c_int>() as socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
