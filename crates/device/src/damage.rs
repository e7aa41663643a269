//! What destinations of backups say, as errors of a device.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use lunway_backup::BackupError;
use lunway_block::BlockError;

/// Damage of a point: an error of the medium, which initiators pass on to their users. It is logged once.
#[derive(Default)]
pub(crate) struct Damage {
    is_logged: AtomicBool,
}

impl Damage {
    /// An error at a place of the point.
    pub(crate) fn told(&self, offset: u64, error: BackupError) -> BlockError {
        if !matches!(error, BackupError::Damaged { .. }) {
            return told(error);
        }
        if !self.is_logged.swap(true, Ordering::Relaxed) {
            tracing::error!("a point that is read at offset {offset}: {error}");
        }
        BlockError::Medium { offset }
    }
}

/// An error of a destination as one of a device.
pub(crate) fn told(error: BackupError) -> BlockError {
    let kind = match &error {
        BackupError::Folder { source, .. } => source.kind(),
        _ => io::ErrorKind::Other,
    };
    BlockError::Io { kind, message: error.to_string() }
}
