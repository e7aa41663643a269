//! A device whose users may not make it smaller.

use std::io;
use std::sync::Arc;

use lunway_block::{BlockDevice, BlockError, Io, Layer, Permit};

/// A device that refuses a smaller size, because what is cut off is lost; a larger one passes.
///
/// For programs that use the device over a protocol that can resize (NBD, FUSE): there a resize is one request, which
/// asks for no confirmation. The error is the operating system's "not permitted".
pub(crate) struct NoShrink {
    inner: Arc<dyn BlockDevice>,
}

impl NoShrink {
    /// Wraps `inner`.
    pub(crate) fn new(inner: Arc<dyn BlockDevice>) -> Self {
        Self { inner }
    }
}

impl Layer for NoShrink {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn resize(&self, size: u64, permit: Permit) -> Io<Result<(), BlockError>> {
        let now = self.inner.geometry().size;
        if size < now {
            let message = format!(
                "shrinking the disk from {now} to {size} bytes is not permitted: data may be cut off"
            );
            return Io::err(BlockError::Io { kind: io::ErrorKind::PermissionDenied, message });
        }
        self.inner.resize(size, permit)
    }
}

#[cfg(test)]
mod tests {
    use lunway_block::conformance::{Check, Outcome, Subject};

    use super::*;

    #[tokio::test]
    async fn all_but_a_smaller_size_is_passed_on() {
        let layer = Subject::layer("no smaller size", &[], |inner| Arc::new(NoShrink::new(inner)));
        assert_eq!(layer.check(Check::PassesOn).await, Ok(Outcome::Holds));
        let device = layer.fresh().await.device;
        let size = device.geometry().size;
        let refused = device.resize(size / 2, Permit::default()).await;
        assert!(matches!(refused, Err(BlockError::Io { kind: io::ErrorKind::PermissionDenied, .. })));
        assert_eq!(device.geometry().size, size);
        device.resize(2 * size, Permit::default()).await.unwrap();
        assert_eq!(device.geometry().size, 2 * size);
    }
}
