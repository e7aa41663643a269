//! Limits of the network to a device, and the device's share of them.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use lunway_bench::wire::{self, Share, Way};
use lunway_bench::{Cancel, Outcome};
use lunway_block::PathSample;
use lunway_net::{Client, Loopback, NetError, StopFlag, Window, protocol};
use lunway_report::figure;
use serde_json::Value;

use crate::command::net;
use crate::{progress, terminal};

/// Time limit for all of it, beyond what finding the responder takes.
const BUDGET: Duration = Duration::from_secs(5);
/// The user did not ask for it: a machine that does not answer costs no more than this.
const QUICK: Duration = Duration::from_millis(300);

/// Figures of a run beside what bare sockets do on the same way.
///
/// The wire is that of the device's path; of several none is, unless one is named. It is measured after the device,
/// with the same block sizes and as many in flight: against the responder that was named; on the same addresses where
/// the portal is on this machine; or against a responder at its usual port on the portal's machine, if one is there.
#[derive(Default)]
pub(super) struct Wire {
    shares: Vec<Option<Share>>,
    /// Names of the jobs, in the same order.
    names: Vec<String>,
    /// Result of the measurement, or the reason why there is none.
    sentence: Option<String>,
}

impl Wire {
    /// Blocks the caller. A device without a path to a portal has no wire, and nothing is said.
    pub(super) fn measure(
        asked: Option<&str>,
        paths: &[PathSample],
        outcomes: &[Outcome],
        cancel: &Cancel,
    ) -> Self {
        let names = outcomes.iter().map(|outcome| outcome.job.name.clone()).collect();
        let mut wire = Self { shares: Vec::new(), names, sentence: None };
        let portal = paths.first().map(|path| portal(&path.name));
        if cancel.is_cancelled() || (portal.is_none() && asked.is_none()) {
            return wire;
        }
        if paths.len() > 1 && asked.is_none() {
            let count = paths.len();
            wire.sentence = Some(format!(
                "The wire is not measured: {count} paths were in use, and it would be one of them."
            ));
            return wire;
        }
        match Other::find(asked, portal) {
            Ok(other) => match other.shares(outcomes, cancel) {
                Ok(shares) => {
                    wire.shares = shares;
                    wire.sentence = Some(other.sentence);
                }
                Err(error) => wire.sentence = Some(format!("The wire could not be measured: {error}.")),
            },
            Err(sentence) => wire.sentence = Some(sentence),
        }
        wire
    }

    /// For below the table of results.
    pub(super) fn lines(&self) -> Vec<String> {
        let named = self.names.iter().zip(&self.shares);
        let rows: Vec<_> = named.filter_map(|(name, share)| Some((name, share.as_ref()?))).collect();
        let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let mut lines: Vec<_> = self.sentence.iter().cloned().collect();
        lines.extend(rows.iter().map(|(name, share)| format!("  {name:width$}  {}", said(share))));
        lines
    }

    /// Puts `wire` into the `lunway` object of each job of a document in fio's layout.
    pub(super) fn add_to(&self, document: &mut Value) {
        let Some(jobs) = document.get_mut("jobs").and_then(Value::as_array_mut) else { return };
        for (job, share) in jobs.iter_mut().zip(&self.shares) {
            if let (Some(share), Some(extra)) = (share, job.get_mut("lunway").and_then(Value::as_object_mut))
            {
                extra.insert("wire".to_owned(), share.to_json());
            }
        }
    }
}

/// "89 % of the wire", and what the wire does.
fn said(share: &Share) -> String {
    let limits = [(&share.read, "read"), (&share.write, "written")];
    let limits: Vec<_> = limits
        .into_iter()
        .filter_map(|(limit, word)| {
            let limit = limit.as_ref()?;
            let rate = format!("{} MB/s", figure(limit.bytes_per_second / 1e6));
            Some(match limit.way {
                Way::RoundTrips { depth, .. } => {
                    format!("{} IOPS, {rate} {word}, {depth} in flight", figure(limit.iops))
                }
                Way::Stream(_) => format!("{rate} {word} as a stream"),
            })
        })
        .collect();
    let limits = limits.join("; ");
    match share.is_plausible() {
        // What is a little above is the error of both.
        true => format!("{:>5.1} % of the wire ({limits})", 100.0 * share.share.min(1.0)),
        false => format!(
            "share unknown: the wire was slower when it was measured, after the device, than the device before ({limits}); measure \
             again on a quiet machine"
        ),
    }
}

/// Returns the portal to which a path leads; the path's name may include its origin.
fn portal(path: &str) -> &str {
    path.rsplit_once(" > ").map_or(path, |(_, portal)| portal)
}

/// The other end of the wire.
struct Other {
    client: Client,
    /// Lives as long as it is measured, where it is in this process.
    _own: Option<Loopback>,
    sentence: String,
}

impl Other {
    /// `Err` is the sentence that says how to get it.
    fn find(asked: Option<&str>, portal: Option<&str>) -> Result<Self, String> {
        if let Some(host) = asked {
            let client =
                net::connect(host, None).map_err(|error| format!("The wire is not measured: {error:#}."))?;
            let sentence =
                format!("The wire is that to {}, where lunway net serve answered:", terminal::clean(host));
            return Ok(Self { client, _own: None, sentence });
        }
        let portal = portal.unwrap_or_default();
        let ip =
            address(portal).ok_or_else(|| format!("The wire is not measured: {portal} has no address."))?;
        // Only an address of this machine can be listened on.
        if let Ok(own) = Loopback::start(ip) {
            let client = Client::connect_within(own.address(), Some(ip), Window::Auto, QUICK);
            let client = client.map_err(|error| format!("The wire is not measured: {error}."))?;
            let sentence = format!(
                "The portal is on this machine: the wire is its own stack, between two bare sockets on {ip}:"
            );
            return Ok(Self { client, _own: Some(own), sentence });
        }
        let peer = SocketAddr::new(ip, protocol::PORT);
        match Client::connect_within(peer, None, Window::Auto, QUICK) {
            Ok(client) => {
                let sentence = format!("The wire is that to {ip}, where lunway net serve answered:");
                Ok(Self { client, _own: None, sentence })
            }
            Err(_) => Err(format!(
                "What the wire to {ip} can do is not known: with lunway net serve --listen {ip} on that machine, the share of it is \
                 told here."
            )),
        }
    }

    fn shares(&self, outcomes: &[Outcome], cancel: &Cancel) -> Result<Vec<Option<Share>>, NetError> {
        let bar = progress::fraction();
        bar.set_prefix("the wire");
        let stop = StopFlag::new();
        let shares = wire::shares(&self.client, outcomes, BUDGET, &stop, &mut |done| {
            progress::set_fraction(&bar, done);
            if cancel.is_cancelled() {
                stop.stop();
            }
        });
        bar.finish_and_clear();
        shares
    }
}

/// The address of a portal, `HOST:PORT`.
fn address(portal: &str) -> Option<IpAddr> {
    Some(portal.to_socket_addrs().ok()?.next()?.ip())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use lunway_bench::wire::Limit;
    use lunway_block::PathState;
    use lunway_net::{Direction, Shape};
    use serde_json::json;

    use super::*;

    #[test]
    fn of_several_paths_none_is_the_wire_and_a_lane_leads_to_its_portal() {
        assert_eq!(portal("192.0.2.1 > 192.0.2.10:3260"), "192.0.2.10:3260");
        assert_eq!(portal("192.0.2.10:3260"), "192.0.2.10:3260");
        let paths = ["127.0.0.3 > 127.0.0.1:1", "127.0.0.4 > 127.0.0.2:1"]
            .map(|name| PathSample::unused(name, PathState::Up));
        let said = Wire::measure(None, &paths, &[], &Cancel::new()).lines().concat();
        assert!(said.contains("2 paths were in use"), "{said}");
    }

    fn measured() -> Wire {
        let round_trips = Way::RoundTrips { shape: Shape::read(4096), depth: 8 };
        let random = Limit { way: round_trips, iops: 100_000.0, bytes_per_second: 409.6e6 };
        let stream = Limit { way: Way::Stream(Direction::Send), iops: 26.7, bytes_per_second: 112e6 };
        Wire {
            shares: vec![
                Some(Share { read: Some(random), write: None, share: 0.5 }),
                None,
                Some(Share { read: None, write: Some(stream), share: 0.891 }),
            ],
            names: ["read 4K QD8", "rated", "write seq 4 MiB"].map(str::to_owned).to_vec(),
            sentence: Some("The wire is that to 192.0.2.1:".to_owned()),
        }
    }

    #[test]
    fn a_share_stands_beside_its_job_with_what_the_wire_does() {
        let lines = measured().lines();
        assert_eq!(
            lines[1..],
            [
                "  read 4K QD8       50.0 % of the wire (100,000 IOPS, 409.6 MB/s read, 8 in flight)",
                "  write seq 4 MiB   89.1 % of the wire (112.0 MB/s written as a stream)",
            ]
        );
        let mut wrong = measured();
        if let Some(share) = &mut wrong.shares[0] {
            share.share = 4.89;
        }
        let line = &wrong.lines()[1];
        assert!(line.contains("share unknown") && !line.contains("489"), "{line}");
        let mut document = json!({ "jobs": [{ "lunway": {} }, { "lunway": {} }, { "lunway": {} }] });
        measured().add_to(&mut document);
        assert_eq!(document["jobs"][2]["lunway"]["wire"]["share"], 0.891);
        assert_eq!(document["jobs"][1], json!({ "lunway": {} }));
    }

    #[test]
    fn the_wire_of_a_portal_on_this_machine_is_this_machine() {
        let portal = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let found = Other::find(None, Some(&portal)).map(|other| other.sentence);
        assert!(found.unwrap().contains("two bare sockets on 127.0.0.1"));
    }

    #[test]
    fn a_portal_without_a_responder_says_how_to_get_the_share() {
        // 192.0.2.0/24 is for documents (RFC 5737): no route, or no machine there.
        let found = Other::find(None, Some("192.0.2.1:3260")).map(|other| other.sentence);
        assert!(found.unwrap_err().contains("lunway net serve --listen 192.0.2.1"));
    }

    #[test]
    fn a_device_without_a_path_has_no_wire() {
        let wire = Wire::measure(None, &[], &[], &Cancel::new());
        assert_eq!((wire.lines(), wire.shares.len()), (Vec::<String>::new(), 0));
    }
}
