//! Opens what a command line or a configuration names: the one place that knows every back end.
//!
//! `target`, `bench` and the commands see only [`BlockDevice`]: a new back end is added here and in the grammar
//! ([`lunway_block::spec`]), and every front end has it.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use lunway_device::{OpenOptions, open};
//!
//! let opened = open(&"readonly:ram:1M".parse()?, &OpenOptions::default()).await?;
//! assert!(opened.device.geometry().read_only);
//! opened.close().await?;
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```

mod content_device;
mod damage;
mod open_error;
mod opened;
mod point;
mod proven;
mod pulled_point;
mod repository_point;

pub use lunway_block::BlockDevice;
pub use open_error::DeviceOpenError;
pub use opened::{OpenOptions, Opened, create_file, image_format, open, open_new_vhd};
pub use point::PointOpenError;
pub use repository_point::KEY_FILE_VARIABLE;
