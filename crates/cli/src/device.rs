//! A device from the command line.

use std::future::{Future, IntoFuture};
use std::path::Path;

use anyhow::Context;
use lunway_block::spec::{DeviceSpec, SpecError};
use lunway_device::{OpenOptions, Opened};
use lunway_iscsi_paths::PathsFileError;

use crate::failure::Failure;

/// Reads a device's name: wrong names are wrong usage.
pub(crate) fn parse(text: &str) -> Result<DeviceSpec, Failure> {
    DeviceSpec::parse(text).map_err(|error| Failure::Usage(error.to_string()))
}

/// A path as text, to be written down.
pub(crate) fn written(path: &Path) -> Result<&str, Failure> {
    let path_in_words = || path.display().to_string();
    path.to_str().ok_or_else(|| Failure::failed(SpecError::NotUtf8 { path: path_in_words() }))
}

/// Opens a device.
pub(crate) async fn open(spec: &DeviceSpec, options: &OpenOptions) -> Result<Opened, Failure> {
    lunway_device::open(spec, options).await.map_err(|error| match error {
        lunway_device::DeviceOpenError::Url { .. } => Failure::Usage(error.to_string()),
        lunway_device::DeviceOpenError::PathsFile(error) => paths_file_failure(*error),
        error => Failure::Failed(error.into()),
    })
}

/// A `paths.toml` that is not there has failed, one that cannot be meant is wrong usage.
pub(crate) fn paths_file_failure(error: PathsFileError) -> Failure {
    match error {
        PathsFileError::Read { .. } => Failure::failed(error),
        error => Failure::Usage(error.to_string()),
    }
}

/// Runs a server on this thread, as [`run`] does. Whatever still runs when it has ended, such as a device that hangs
/// and was given up, is not waited for.
pub(crate) fn run_server<T>(server: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = runtime()?;
    let result = runtime.block_on(server);
    runtime.shutdown_background();
    result
}

/// Runs a command on this thread. An iSCSI session that it opens runs here too, between its own I/Os: that saves a
/// change of threads for each of them.
pub(crate) fn run<T>(command: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    runtime()?.block_on(command)
}

/// A runtime for code that is not asynchronous: what it opens lives on between two calls of [`wait`](Self::wait), and
/// moves only in them.
pub(crate) struct BlockingRuntime(Waits);

enum Waits {
    Own(tokio::runtime::Runtime),
    OnAnother(tokio::runtime::Handle),
}

impl BlockingRuntime {
    pub(crate) fn new() -> Result<Self, Failure> {
        runtime().map(Waits::Own).map(Self)
    }

    /// The same on a thread beside a server's runtime, which moves what is waited for. Must be made on that runtime.
    pub(crate) fn beside() -> Self {
        Self(Waits::OnAnother(tokio::runtime::Handle::current()))
    }

    /// Runs until this has come.
    pub(crate) fn wait<T>(&self, future: impl IntoFuture<Output = T>) -> T {
        match &self.0 {
            Waits::Own(runtime) => runtime.block_on(future.into_future()),
            Waits::OnAnother(runtime) => runtime.block_on(future.into_future()),
        }
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(runtime.context("cannot start the runtime")?)
}
