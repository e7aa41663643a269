//! Threads for operations that outlive their commands: sanitize and format.

use std::pin::Pin;
use std::thread;

use lunway_scsi::Background;

/// A thread of its own for each operation: they are rare, last long, and would take turns with commands on a core.
#[derive(Debug)]
pub(crate) struct Threads;

impl Background for Threads {
    fn run(&self, work: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let begun = thread::Builder::new().name("lunway-medium".to_owned()).spawn(move || {
            match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime.block_on(work),
                // Dropping the work is how the unit learns that it failed.
                Err(error) => tracing::error!("no runtime for an operation on a medium: {error}"),
            }
        });
        if let Err(error) = begun {
            tracing::error!("no thread for an operation on a medium: {error}");
        }
    }
}
