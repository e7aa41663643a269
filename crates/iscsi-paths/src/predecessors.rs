//! Predecessors: sessions that killed processes have left to the same disk.

use std::time::Duration;

use lunway_block::BlockError;
use lunway_initiator::{IscsiDevice, IscsiUrl, Predecessors, SessionOptions};

use crate::open_error::PathsOpenError;
use lunway_multipath::Unproven;

/// Ends the sessions that earlier processes of this host have left, over all `paths` of the disk. What cannot be
/// reached so is left.
pub(crate) async fn reinstate(
    mut paths: Vec<IscsiUrl>,
    options: &SessionOptions,
) -> Result<Vec<Predecessors>, PathsOpenError> {
    // Sessions belong to a target's name. In an order that is the same for all processes, as each name is opened by one
    // at a time.
    let name = |path: &IscsiUrl| path.target.as_ref().map(|name| name.to_ascii_lowercase());
    paths.sort_by_key(name);
    let mut left = Vec::new();
    for paths in paths.chunk_by(|one, other| name(one) == name(other)) {
        let mut before = Predecessors::find(&paths[0], options).await.map_err(failed)?;
        before.reinstate(paths, options).await;
        // Others may open the disk as soon as nothing is left.
        left.extend(Some(before).filter(|before| !before.are_settled()));
    }
    Ok(left)
}

/// Waits until what is left can do nothing any more, as [`Unproven`] says.
pub(crate) async fn outlast(
    left: Vec<Predecessors>,
    lanes: &[(usize, IscsiDevice)],
    settle: Duration,
    unproven: Unproven,
) -> Result<(), PathsOpenError> {
    for before in left {
        if unproven == Unproven::Fail {
            return Err(failed(before.not_proven("unproven=fail")));
        }
        before.outlast(settle, || barrier(lanes)).await.map_err(failed)?;
    }
    Ok(())
}

/// Over one lane after the other, until one answers.
async fn barrier(lanes: &[(usize, IscsiDevice)]) -> Result<(), BlockError> {
    let mut outcome = Err(BlockError::gone("there is no lane"));
    for (_, device) in lanes {
        outcome = device.barrier().await;
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

fn failed(source: lunway_initiator::IscsiOpenError) -> PathsOpenError {
    PathsOpenError::Before { source }
}
