//! Predecessors: sessions that earlier processes left at the target without a logout, and their end.

use std::fs::File;
use std::future::Future;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use lunway_block::BlockError;
use lunway_block::duration::ExactDuration;
use tokio::time::{Instant, sleep, sleep_until};

use crate::fence::Fence;
use crate::ports::initiator_port::{ClaimedPort, UnitPorts};
use crate::{IscsiOpenError, IscsiUrl, SessionOptions};

/// Between two looks whether another process has done opening the same disk.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Longest time that another process may take for that, beside the time to settle.
const OPENING_MAX: Duration = Duration::from_secs(60);

/// Old sessions that are ended at a time.
const AT_ONCE: usize = 8;

/// Between two barriers of which the first was not answered.
const BARRIER_AGAIN: Duration = Duration::from_millis(250);

/// Most tries of a barrier.
const BARRIERS_MAX: usize = 8;

/// The sessions that processes of this host have left behind which used the same disk, and ended without a logout:
/// killed, for want of memory, or with a path that was gone. A write that such a process sent may still be in the
/// network, or in a buffer of the target. It must not land on what the next process writes.
///
/// So the code that opens a disk, before the first I/O:
///
/// 1. [`find`](Self::find)s what is left, by the records of [`InitiatorPorts`](crate::InitiatorPorts);
/// 2. [`reinstate`](Self::reinstate)s it: logs in under each old session's name over any path that leads to its portal
///    group, which ends it (RFC 7143 §6.3.5), and logs out;
/// 3. where a portal group cannot be reached, [`outlast`](Self::outlast)s it: waits for `settle`, then for a barrier.
///
/// A device of one path does this itself. For the lanes of a disk, the code that opens them does it once for all.
///
/// **Invariant**: as long as this lives no other process of this host gets further than `find` with the same disk.
#[derive(Debug)]
pub struct Predecessors {
    url: IscsiUrl,
    found: Instant,
    left: Vec<ClaimedPort>,
    /// Record of the ports, and the lock of the opening.
    records: Option<(UnitPorts, File)>,
}

impl Predecessors {
    /// Looks for what is left. Waits for another process that is opening the same disk.
    pub async fn find(url: &IscsiUrl, options: &SessionOptions) -> Result<Self, IscsiOpenError> {
        let failed =
            |error: std::io::Error| IscsiOpenError::Record { portal: url.portal(), why: error.to_string() };
        let mut this = Self { url: url.clone(), found: Instant::now(), left: Vec::new(), records: None };
        if options.isid.is_some() {
            return Ok(this);
        }
        let Some(ports) = UnitPorts::find(url, options).map_err(failed)? else { return Ok(this) };
        let until = this.found + OPENING_MAX + options.settle;
        let lock = loop {
            if let Some(lock) = ports.begin_opening().map_err(failed)? {
                break lock;
            }
            if Instant::now() >= until {
                return Err(failed(std::io::Error::other(
                    "another process has been opening the disk for too long",
                )));
            }
            sleep(LOOK_AGAIN).await;
        };
        this.left = ports.abandoned().map_err(failed)?;
        this.found = Instant::now();
        this.records = Some((ports, lock));
        Ok(this)
    }

    /// Ends the old sessions by logins over `paths`, of which host, port and `from` count, and over the paths that they
    /// went themselves.
    pub async fn reinstate(&mut self, paths: &[IscsiUrl], options: &SessionOptions) {
        let left = std::mem::take(&mut self.left);
        let url = &self.url;
        let all = stream::iter(left).map(|port| reinstate(port, url, paths, options));
        self.left = all.buffer_unordered(AT_ONCE).filter_map(|port| async { port }).collect().await;
    }

    /// Returns `true` if nothing is left.
    pub fn are_settled(&self) -> bool {
        self.left.is_empty()
    }

    /// Waits until nothing of what is left can reach the disk: until `settle` has passed, and then for `barrier`, which
    /// answers when the disk has done everything that it was given before (see
    /// [`IscsiDevice::barrier`](crate::IscsiDevice::barrier)).
    pub async fn outlast<B>(mut self, settle: Duration, barrier: impl Fn() -> B) -> Result<(), IscsiOpenError>
    where
        B: Future<Output = Result<(), BlockError>>,
    {
        if self.are_settled() {
            return Ok(());
        }
        let portals = self.portals();
        tracing::warn!(
            portals,
            "an earlier process of this host was ended with a session that nothing proves dead: the disk can be used when it has answered a barrier, \
             which is sent in {}: that takes as long as it is busy with what it was given before",
            ExactDuration(settle)
        );
        sleep_until(self.found + settle).await;
        let mut why = String::new();
        for _ in 0..BARRIERS_MAX {
            match barrier().await {
                Ok(()) => {
                    self.left.drain(..).for_each(ClaimedPort::release);
                    return Ok(());
                }
                Err(error) => why = error.to_string(),
            }
            sleep(BARRIER_AGAIN).await;
        }
        Err(self.not_proven(&why))
    }

    /// The error that says so.
    pub fn not_proven(&self, why: &str) -> IscsiOpenError {
        let record =
            self.records.as_ref().map_or(String::new(), |(ports, _)| ports.directory().display().to_string());
        IscsiOpenError::Predecessor { portals: self.portals(), why: why.to_owned(), record }
    }

    /// Portals of the old sessions.
    fn portals(&self) -> String {
        let mut portals: Vec<_> =
            self.left.iter().flat_map(ClaimedPort::groups).map(|group| group.portal.clone()).collect();
        portals.sort();
        portals.dedup();
        portals.join(", ")
    }
}

/// Reinstates the sessions of `port`, and returns what is left of it.
async fn reinstate(
    mut port: ClaimedPort,
    url: &IscsiUrl,
    paths: &[IscsiUrl],
    options: &SessionOptions,
) -> Option<ClaimedPort> {
    for group in port.groups().to_vec() {
        let fence = Fence { url, options, isid: port.isid, portal_group: group.tag };
        let same = |path: &IscsiUrl| path.portal() == group.portal && path.from == group.from;
        let mut paths = paths.to_vec();
        // Its own path last: it may be what has failed.
        if !paths.iter().any(same)
            && let Ok((host, port)) = IscsiUrl::parse_portal(&group.portal)
        {
            paths.push(IscsiUrl { host, port, from: group.from, ..url.clone() });
        }
        let Some((fresh, _)) = fence.run(paths).await else { continue };
        fresh.logout().await;
        tracing::info!(portal = group.portal, "the session of a process that was ended has been ended too");
        if let Err(error) = port.settle(group.tag) {
            tracing::warn!(%error, "the record of an initiator port cannot be written");
        }
    }
    if port.groups().is_empty() {
        port.release();
        return None;
    }
    Some(port)
}
