//! Random numbers of the kernel.

use std::io;

use lunway_backup::{BackupError, Result};

/// Random bytes.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

/// A new number that names something.
pub(crate) fn new_number() -> Result<u64> {
    random()
        .map(u64::from_le_bytes)
        .map_err(BackupError::folder("asking for random numbers of", "the kernel"))
}
