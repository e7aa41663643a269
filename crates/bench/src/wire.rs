//! A device's figures as a share of what its wire can do.
//!
//! Two bare sockets move what the job moved: requests of 48 bytes, answers of 48 and a block, as many in flight (reads;
//! writes the reverse). Sequential I/O of large blocks is set against a stream instead. No protocol over one connection
//! can be faster, so a share near 1 cannot be improved on the storage's side, and a small one is not the network's
//! fault.

use std::time::Duration;

use lunway_net::{Client, DEPTH_MAX, NetError, Shape, StopFlag};
use serde_json::{Value, json};

use crate::load::access::Pattern;
use crate::load::job::Job;
use crate::measure::outcome::{Direction, Outcome};

/// From this block size on, sequential I/O is a stream, bytes.
const STREAM_FROM: u32 = 256 << 10;
/// Longest time for which a limit is measured.
const TIME_MAX: Duration = Duration::from_millis(500);
/// Shorter ones say nothing.
const TIME_MIN: Duration = Duration::from_millis(100);

/// Method by which a limit was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Requests and answers, this many in flight.
    RoundTrips {
        /// Their sizes.
        shape: Shape,
        /// In flight.
        depth: u32,
    },
    /// A stream one way.
    Stream(lunway_net::Direction),
}

/// Throughput limit of bare sockets for one direction of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Method of measurement.
    pub way: Way,
    /// Blocks per second.
    pub iops: f64,
    /// Bytes of blocks per second.
    pub bytes_per_second: f64,
}

/// An outcome beside the wire's limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// Of its reads.
    pub read: Option<Limit>,
    /// Of its writes.
    pub write: Option<Limit>,
    /// Share of the wire's limit that the device reached: 1 is all of it. Where a job reads and writes, both shares are
    /// added, as if the wire had carried one direction after the other.
    pub share: f64,
}

impl Share {
    /// Tells whether the share is plausible. A share far above 1 means that the wire was slower when it was measured
    /// than when the device was.
    pub fn is_plausible(&self) -> bool {
        self.share < IMPLAUSIBLE
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        let limit = |limit: &Limit| {
            let (how, request, answer, depth) = match limit.way {
                Way::RoundTrips { shape, depth } => {
                    ("round trips", Some(shape.request), Some(shape.answer), Some(depth))
                }
                Way::Stream(_) => ("stream", None, None, None),
            };
            json!({
                "how": how, "request": request, "answer": answer, "depth": depth,
                "iops": limit.iops, "bytes_per_second": limit.bytes_per_second,
            })
        };
        json!({
            "share": self.share,
            "plausible": self.is_plausible(),
            "read": self.read.as_ref().map(limit),
            "write": self.write.as_ref().map(limit),
        })
    }
}

/// From this share on the limit is wrong, not the device quick: both are measured a few per cent apart where the
/// machine is the same.
const IMPLAUSIBLE: f64 = 1.1;

/// Measures the wire to `client`'s responder with the I/O of each outcome, in about `budget` altogether, calling
/// `progress` with the fraction done. Blocks the caller. `None` for what has no such limit: a job that kept to a rate
/// or moved nothing, and everything after a stop.
pub fn shares(
    client: &Client,
    outcomes: &[Outcome],
    budget: Duration,
    stop: &StopFlag,
    progress: &mut dyn FnMut(f64),
) -> Result<Vec<Option<Share>>, NetError> {
    let mut ways: Vec<Way> = Vec::new();
    for (_, figures, way) in outcomes.iter().flat_map(directions) {
        if figures.ios > 0 && !ways.contains(&way) {
            ways.push(way);
        }
    }
    let count = u32::try_from(ways.len()).unwrap_or(u32::MAX).max(1);
    let time = (budget / count).clamp(TIME_MIN, TIME_MAX);
    let client = client.clone().with_stop(stop.clone());
    let measure = |way: Way| match way {
        Way::RoundTrips { shape, depth } => {
            client.round_trips(shape, depth, time).map(|measured| measured.bytes_per_second())
        }
        Way::Stream(direction) => {
            client.throughput(direction, 1, time).map(|measured| measured.bytes_per_second())
        }
    };
    let mut rates: Vec<(Way, f64)> = Vec::new();
    for way in ways {
        progress(rates.len() as f64 / f64::from(count));
        let rate = measure(way)?;
        if stop.is_stopped() {
            break;
        }
        rates.push((way, rate));
    }
    let measured = |rates: &[(Way, f64)]| -> Vec<Option<Share>> {
        outcomes.iter().map(|outcome| share(outcome, rates)).collect()
    };
    // A limit is the most that was ever seen: what the device has done better is looked at again.
    let below: Vec<_> = outcomes
        .iter()
        .zip(measured(&rates))
        .filter(|(_, share)| share.as_ref().is_some_and(|share| share.share > 1.0))
        .flat_map(|(outcome, _)| directions(outcome))
        .map(|(_, _, way)| way)
        .collect();
    for (way, rate) in rates.iter_mut().filter(|(way, _)| below.contains(way)) {
        if stop.is_stopped() {
            break;
        }
        *rate = rate.max(measure(*way)?);
    }
    Ok(measured(&rates))
}

/// The directions of an outcome that have a limit, whether each is a write, and how that is measured.
fn directions(outcome: &Outcome) -> Vec<(bool, &Direction, Way)> {
    if outcome.job.rate.is_some() {
        return Vec::new();
    }
    let both = [(false, &outcome.read), (true, &outcome.write)];
    let moved = both.into_iter().filter(|(_, figures)| figures.ios > 0);
    moved.map(|(write, figures)| (write, figures, way(&outcome.job, write, figures))).collect()
}

fn way(job: &Job, write: bool, figures: &Direction) -> Way {
    // Of split block sizes the mean counts.
    let block = u32::try_from(figures.bytes / figures.ios.max(1)).unwrap_or(u32::MAX).max(1);
    if job.pattern == Pattern::Sequential && block >= STREAM_FROM {
        return Way::Stream(if write { lunway_net::Direction::Send } else { lunway_net::Direction::Receive });
    }
    let depth = job.queue_depth.saturating_mul(job.jobs).clamp(1, DEPTH_MAX);
    Way::RoundTrips { shape: if write { Shape::write(block) } else { Shape::read(block) }, depth }
}

fn share(outcome: &Outcome, rates: &[(Way, f64)]) -> Option<Share> {
    let mut share = Share { read: None, write: None, share: 0.0 };
    let directions = directions(outcome);
    for &(write, figures, way) in &directions {
        let rate = rates.iter().find(|(measured, _)| *measured == way)?.1;
        let block = figures.bytes as f64 / figures.ios as f64;
        let limit = Some(Limit { way, iops: rate / block, bytes_per_second: rate });
        *(if write { &mut share.write } else { &mut share.read }) = limit;
        share.share += figures.bytes_per_second() / rate.max(1.0);
    }
    (!directions.is_empty()).then_some(share)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use lunway_net::{Loopback, Window};

    use super::*;
    use crate::load::access::Mix;
    use crate::load::job::Rate;
    use crate::measure::cpu::CpuTime;
    use crate::measure::outcome::End;
    use crate::measure::series::Series;

    /// Returns the outcome of one second of reads and writes.
    fn outcome(pattern: Pattern, block: u32, reads: u64, writes: u64) -> Outcome {
        let direction = |ios| Direction {
            ios,
            bytes: ios * u64::from(block),
            elapsed: Duration::from_secs(1),
            ..Direction::default()
        };
        let mix = Mix { read_percent: 50 };
        let job = Job { pattern, mix, block_sizes: block.into(), queue_depth: 4, ..Job::new("job") };
        Outcome {
            job,
            read: direction(reads),
            write: direction(writes),
            elapsed: Duration::from_secs(1),
            series: Series::default(),
            cpu: CpuTime::default(),
            depth_mean: 4.0,
            depth_max: 4,
            end: End::Limit,
            abandoned: 0,
            overdue: 0,
            verification: None,
        }
    }

    #[test]
    fn a_share_is_what_the_device_moved_of_what_the_wire_moves_of_the_same_blocks() {
        let responder = Loopback::start(Ipv4Addr::LOCALHOST.into()).unwrap();
        let client = Client::connect(responder.address(), None, Window::Auto).unwrap();
        let rated = Outcome {
            job: Job { rate: Some(Rate::Iops(10)), ..outcome(Pattern::RANDOM, 4096, 1, 0).job },
            ..outcome(Pattern::RANDOM, 4096, 10, 0)
        };
        let outcomes = [
            outcome(Pattern::RANDOM, 4096, 10, 0),
            outcome(Pattern::Sequential, 4 << 20, 0, 10),
            outcome(Pattern::RANDOM, 4096, 10, 10),
            rated,
            outcome(Pattern::RANDOM, 4096, 0, 0),
        ];
        let mut fractions = Vec::new();
        let found =
            shares(&client, &outcomes, Duration::ZERO, &StopFlag::new(), &mut |done| fractions.push(done));
        let found = found.unwrap();
        assert_eq!(fractions.len(), 3, "what is the same is measured once");

        let read = found[0].as_ref().unwrap();
        let limit = read.read.unwrap();
        assert_eq!(limit.way, Way::RoundTrips { shape: Shape::read(4096), depth: 4 });
        assert!((read.share / (10.0 / limit.iops) - 1.0).abs() < 1e-6 && read.share < 1.0, "{read:?}");
        assert_eq!(read.write, None);

        let large = found[1].as_ref().unwrap();
        assert_eq!(large.write.unwrap().way, Way::Stream(lunway_net::Direction::Send));

        let mixed = found[2].as_ref().unwrap();
        assert_eq!(mixed.read, read.read);
        assert!(mixed.share > read.share && mixed.write.is_some(), "{mixed:?}");
        assert_eq!(found[3..], [None, None]);
        assert_eq!(read.to_json()["read"]["request"], 48);
    }

    #[test]
    fn a_share_that_cannot_be_is_looked_at_again_and_then_marked() {
        let responder = Loopback::start(Ipv4Addr::LOCALHOST.into()).unwrap();
        let client = Client::connect(responder.address(), None, Window::Auto).unwrap();
        // 4 TB a second.
        let outcomes =
            [outcome(Pattern::RANDOM, 4096, 1_000_000_000, 0), outcome(Pattern::RANDOM, 4096, 10, 0)];
        let found = shares(&client, &outcomes, Duration::ZERO, &StopFlag::new(), &mut |_| {}).unwrap();
        let impossible = found[0].as_ref().unwrap();
        assert!(!impossible.is_plausible() && impossible.to_json()["plausible"] == false, "{impossible:?}");
        assert!(found[1].as_ref().is_some_and(Share::is_plausible));
    }

    #[test]
    fn after_a_stop_nothing_has_a_share() {
        let responder = Loopback::start(Ipv4Addr::LOCALHOST.into()).unwrap();
        let client = Client::connect(responder.address(), None, Window::Auto).unwrap();
        let stop = StopFlag::new();
        let outcomes = [outcome(Pattern::RANDOM, 4096, 10, 0)];
        let found = shares(&client, &outcomes, Duration::ZERO, &stop, &mut |_| stop.stop());
        assert!(found.is_err() || found.is_ok_and(|found| found == [None]));
    }
}
