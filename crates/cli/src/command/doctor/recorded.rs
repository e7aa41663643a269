//! Sessions that lunway's initiator has on this machine, by the records of its processes.

use lunway_doctor::Seen;
use lunway_doctor::facts::LunwaySession;
use lunway_initiator::RecordedSession;

/// Those of this user's processes: others keep records of their own.
pub(super) fn sessions() -> Seen<Vec<LunwaySession>> {
    let session = |session: RecordedSession| LunwaySession {
        initiator: session.initiator,
        target: session.target,
        lun: session.lun.into(),
        isid: session.isid,
        local: session.from,
        portal: session.portal.parse().ok(),
        process: session.process,
    };
    let all = RecordedSession::all().map_err(|error| format!("its records cannot be read: {error}"));
    all.map(|all| all.into_iter().map(session).collect()).into()
}
