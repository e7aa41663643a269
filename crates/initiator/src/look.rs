//! Looks at an idle unit.

use std::sync::Arc;
use std::time::Duration;

use lunway_block::{Buf, SharedBuf};
use lunway_iscsi::Cdb;
use lunway_scsi::cdb;

use crate::session::Session;
use crate::session::slots::{Command, Effect};

/// Asks a unit for news while no other command is sent, until the device is closed.
///
/// A unit tells what has changed (its size, its identity, the state of its port, reservations that it has lost) with a
/// unit attention, which is the answer to the next command: without one, it is not heard of. TEST UNIT READY needs no
/// medium, and no reservation forbids it (SPC-4 table 46).
pub(crate) async fn look_while_idle(session: Arc<Session>, interval: Duration) {
    if interval.is_zero() {
        return;
    }
    let looks = async {
        while !session.lock().life.has_ended() {
            tokio::time::sleep(interval).await;
            let epoch = session.epoch();
            if !session.lock().is_idle() {
                continue;
            }
            let look = Command {
                cdb: Cdb::new(&cdb::test_unit_ready()),
                data_out: SharedBuf::default(),
                data_in: Buf::empty(),
                effect: Effect::Look,
            };
            if let Ok(ticket) = session.submit_in(Some(epoch), look) {
                // What it says has been heard before it is handed out.
                ticket.await;
            }
        }
    };
    // A look under way is given up, so that the logout does not wait for it.
    tokio::select! {
        () = looks => {}
        () = session.leaving.notified() => {}
        () = session.ended.notified() => {}
    }
}
