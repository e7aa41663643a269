//! Work that blocks, on threads.

use lunway_file::ThreadPool;

use crate::error::{BackupError, Result};

/// Runs a job that blocks on a thread.
///
/// # Errors
///
/// Those of the job.
pub async fn on<T: Send + Unpin + 'static>(
    pool: &ThreadPool,
    job: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match pool.io(move || Ok(Box::new(job()))).await {
        Ok(answer) => *answer,
        Err(_) => Err(BackupError::Lost),
    }
}
