//! A card whose cable is this program.
#![expect(
    unsafe_code,
    reason = "the two requests of the kernel's packet devices that have no safe form: see at each for why it is sound"
)]

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

/// `TUNSETIFF` of linux/if_tun.h: makes the device.
const SET_DEVICE: Opcode = opcode::write::<i32>(b'T', 202);
/// `TUNSETCARRIER`: whether the device has a carrier.
const SET_CARRIER: Opcode = opcode::write::<i32>(b'T', 226);
/// Frames with their Ethernet header, nothing before them, and no device that is there already.
const FLAGS: u16 = IFF_TAP | IFF_NO_PI | IFF_TUN_EXCL;
const IFF_TAP: u16 = 0x0002;
const IFF_NO_PI: u16 = 0x1000;
const IFF_TUN_EXCL: u16 = 0x8000;
/// The longest name with its end, bytes.
const NAME: usize = 16;

/// The kernel's `struct ifreq` as `TUNSETIFF` uses it: a name, flags, and padding.
#[repr(C)]
struct DeviceRequest {
    name: [u8; NAME],
    flags: u16,
    rest: [u8; 22],
}

/// A TAP device. What the host sends by it is read here, what is written here the host receives. It is gone when this
/// is.
#[derive(Debug)]
pub(crate) struct Tap(File);

impl Tap {
    /// Makes one in the network namespace of the calling thread. Any thread may use it.
    pub(crate) fn new(name: &str) -> io::Result<Self> {
        let mut request = DeviceRequest { name: [0; NAME], flags: FLAGS, rest: [0; 22] };
        let bytes = name.as_bytes();
        if bytes.len() >= NAME {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        request.name[..bytes.len()].copy_from_slice(bytes);
        let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
        let file =
            OpenOptions::new().read(true).write(true).custom_flags(nonblocking).open("/dev/net/tun")?;
        // SAFETY: the request takes the address of a `struct ifreq`, 40 bytes, which this is; it is read and written
        // during the call only.
        unsafe { ioctl(&file, Setter::<SET_DEVICE, DeviceRequest>::new(request)) }?;
        Ok(Self(file))
    }

    /// Gives the device a carrier or takes it.
    pub(crate) fn set_carrier(&self, carrier: bool) -> io::Result<()> {
        // SAFETY: the request takes the address of an int, which is read during the call only.
        unsafe { ioctl(&self.0, Setter::<SET_CARRIER, i32>::new(i32::from(carrier))) }?;
        Ok(())
    }

    /// Receives one frame that the host has sent; an error of the kind `WouldBlock` if there is none.
    pub(crate) fn receive(&self, frame: &mut [u8]) -> io::Result<usize> {
        (&self.0).read(frame)
    }

    /// Hands the host one frame. Never waits: what the host cannot take is lost, as on a real card.
    pub(crate) fn send(&self, frame: &[u8]) -> io::Result<()> {
        (&self.0).write(frame).map(drop)
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

const _: () = assert!(size_of::<DeviceRequest>() == 40, "as in the kernel on 64-bit machines");
