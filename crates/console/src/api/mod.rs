//! The operations, one file for each kind of thing.

mod backup;
mod config;
mod daemon;
mod element;
mod epoch;
mod portal;
mod reservation;
mod schedule;
mod session;
mod snapshot;
mod target;

use crate::route::Route;

/// All of them.
pub(crate) fn routes() -> Vec<Route> {
    let kinds = [
        daemon::routes(),
        config::routes(),
        target::routes(),
        epoch::routes(),
        backup::routes(),
        schedule::routes(),
        snapshot::routes(),
        portal::routes(),
        session::routes(),
        reservation::routes(),
    ];
    kinds.into_iter().flatten().collect()
}
