//! Flush after a measurement that wrote: figures of writes that the device could not make durable are not a success.

use std::time::{Duration, Instant};

use anyhow::anyhow;
use lunway_bench::Cancel;
use lunway_block::{BlockDevice, BlockError, Io};
use lunway_copy::of_paths;

use crate::terminal;

/// Interval at which a request to end is noticed, as that of a measurement.
const TURN: Duration = Duration::from_millis(100);

/// Time after which people are told what is waited for: shorter than they wait before they take a command for hung.
const TOLD_AFTER: Duration = Duration::from_secs(2);

/// Makes durable what a measurement has written; a request to end is no failure of the device.
pub(in crate::command) async fn make_durable(
    device: &dyn BlockDevice,
    cancel: &Cancel,
) -> anyhow::Result<()> {
    let answer = match device.flush() {
        Io::Ready(answer) => answer,
        Io::Pending(mut answer) => {
            let (begun, mut told) = (Instant::now(), false);
            loop {
                if let Ok(answer) = tokio::time::timeout(TURN, &mut answer).await {
                    break answer;
                }
                if cancel.is_cancelled() {
                    return Ok(());
                }
                if begun.elapsed() >= TOLD_AFTER && !told {
                    told = true;
                    terminal::say("waiting until the device has made durable what was written");
                }
            }
        }
    };
    answer.map_err(|error| {
        let ways = of_paths(device, &error);
        match error {
            BlockError::Timeout { .. } | BlockError::Gone { .. } => anyhow!(
                "the device did not answer the flush of what was written, which may not be durable: {error}{ways}"
            ),
            error => anyhow!("the device failed to make durable what was written: {error}{ways}"),
        }
    })
}
