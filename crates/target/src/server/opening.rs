//! Devices as the server gets them: opened by a function from outside, because this crate knows only [`BlockDevice`].

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use lunway_block::BlockDevice;

use crate::config::DeviceName;

/// Options for opening a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LunOpenOptions {
    /// Bytes of a logical sector; `None`: what the device says.
    pub sector: Option<u32>,
    /// Will only be read.
    pub read_only: bool,
    /// A file whose last bytes are no whole sector is served without them: it was served so before, and at a start
    /// no user is there to lengthen it.
    pub without_tail: bool,
}

/// An open device, and how to take leave of it.
pub struct OpenedDevice {
    /// The device.
    pub device: Arc<dyn BlockDevice>,
    /// Awaited when the device is flushed and no longer needed: a device that is reached over a network logs out.
    pub close: Option<Closing>,
}

/// The end of a device.
pub type Closing = Pin<Box<dyn Future<Output = ()> + Send>>;

impl From<Arc<dyn BlockDevice>> for OpenedDevice {
    fn from(device: Arc<dyn BlockDevice>) -> Self {
        Self { device, close: None }
    }
}

/// Reason why a device could not be opened: the back end's own error, whose text is a sentence for people.
pub type BackEndError = Box<dyn Error + Send + Sync>;

/// The reason may pass by itself: another has the device, who may have died without having been missed yet, or its
/// cluster does not answer. A logical unit that is opened at the start is becoming ready meanwhile, for its initiators,
/// and not gone.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PassingError(pub BackEndError);

/// A device being opened.
pub type OpeningDevice = Pin<Box<dyn Future<Output = Result<OpenedDevice, BackEndError>> + Send>>;

/// Opens what the device grammar describes. It is called on the runtime that the server was started on, which carries
/// the device as long as it is open.
pub type OpenDevice = Arc<dyn Fn(DeviceName, LunOpenOptions) -> OpeningDevice + Send + Sync>;
