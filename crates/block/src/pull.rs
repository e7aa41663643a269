//! A pull under way: a device that fetches what it lacks from elsewhere, until it needs nothing but its own file.

use std::time::Duration;

/// Progress of a pull: what libvirt calls a block pull, and QEMU a block stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pull {
    /// Bytes that were fetched since the device was opened.
    pub copied: u64,
    /// Bytes that are still to be fetched. Those that its users write are not fetched.
    pub left: u64,
    /// Time since it began.
    pub elapsed: Duration,
    /// Reason why it does not get on, where it was tried and failed: it is tried again.
    pub error: Option<String>,
}

impl Pull {
    /// Time that the rest takes at the rate so far; `None`: nothing was copied yet.
    pub fn time_left(&self) -> Option<Duration> {
        let rate = self.copied as f64 / self.elapsed.as_secs_f64();
        (self.left == 0 || rate > 0.0 && rate.is_finite())
            .then(|| Duration::try_from_secs_f64(self.left as f64 / rate.max(1.0)).unwrap_or(Duration::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_as_its_part_of_what_was_copied_did() {
        let pull = |copied, left, seconds| {
            let elapsed = Duration::from_secs(seconds);
            Pull { copied, left, elapsed, error: None }.time_left()
        };
        assert_eq!(pull(100, 300, 10), Some(Duration::from_secs(30)));
        assert_eq!(pull(0, 300, 10), None);
        assert_eq!(pull(0, 0, 0), Some(Duration::ZERO));
        assert_eq!(pull(5, 5, 0), None);
    }
}
