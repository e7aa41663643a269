//! The lanes of a disk: their plan, and with `--probe` what is measured on each.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{join_all, select_ok};
use lunway_block::{BlockDevice, Buf};
use lunway_device::OpenOptions;
use lunway_doctor::facts::{Lane, LaneProbe, Lanes, PlanFinding, Units};
use lunway_doctor::probe::{NO_ANSWER, direct, path_mtu, port_lost, segments};
use lunway_doctor::{Machine, Seen, owners};
use lunway_initiator::{IscsiUrl, luns};
use lunway_iscsi_paths::{IscsiMultipath, LaneName, MultipathUrl, PortalName};
use lunway_multipath::plan::{Plan, PlanKind, PlannedLane};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::pull;
use crate::command::paths;
use crate::device;
use crate::failure::Failure;

/// Time for a lane to log in, and for the question which logical units there are. Together with the other two a run
/// stays under 19 s.
const OPEN_TIME: Duration = Duration::from_secs(4);
/// Time for the small reads of all lanes, which take turns.
const READ_TIME: Duration = Duration::from_secs(4);
/// Time for the large reads, which all lanes make side by side.
const LOAD_TIME: Duration = Duration::from_secs(3);
/// Time for one of them: longer than any retransmission of a lane that works.
const ONE_READ_TIME: Duration = Duration::from_secs(2);
/// Small reads of a lane: the slowest 1 % are then the second slowest, which one late answer alone does not move.
const READS: usize = 101;
/// Microseconds that an answer takes which waited for a delayed acknowledgement: 40 ms of Linux, 200 ms of Windows, and
/// what a busy machine adds.
const DELAYED_US: [std::ops::Range<f64>; 2] = [38_000.0..60_000.0, 195_000.0..230_000.0];
/// Microseconds from which a small read is slow: a disk's seek, which is a quarter of a delayed acknowledgement.
const SLOW_US: f64 = 10_000.0;
/// Bytes that are read over each lane: 11,000 segments of 1448 bytes, or 1,800 of 8948.
const LOAD: u64 = 16 << 20;
/// Bytes of one of these reads: a burst of 180 segments, which a switch's buffers have to take.
const PART: usize = 256 << 10;
/// Share of its time over which a load is spread; the rest is for answers that are late.
const LOAD_SPREAD: f64 = 0.8;

/// Looks at the plan of a disk's lanes, and with `probe` at the lanes themselves. With `pull` they are taken down,
/// after a question unless it is true. Also names the interfaces that they leave by.
pub(super) fn look(device: &str, probe: bool, pull: Option<bool>) -> Result<(Lanes, Vec<String>), Failure> {
    let spec = device::parse(device)?;
    let url = paths::address(&spec)?;
    device::run(async {
        let options = OpenOptions::default().iscsi;
        let plan = match IscsiMultipath::plan_for(&url, &options).await {
            Ok(plan) => plan,
            // What this machine has to do with it is asked all the more.
            Err(error) => {
                let units = Seen::unseen(error.to_string());
                return Ok((Lanes { disk: url.to_string(), units, ..Lanes::default() }, Vec::new()));
            }
        };
        let units = units(&url, &plan).await;
        // Without the logical unit every lane would answer with the same error.
        let is_there = units.get().is_none_or(Units::has_named);
        let probes = if probe && is_there {
            eprintln!(
                "lunway: probing {} lanes: {READS} small reads, {} MiB, some dozen echo requests and 4 ARP requests each, for at most 15 s",
                plan.lanes.len(),
                LOAD >> 20
            );
            probed(&url, &plan).await
        } else {
            let why =
                if is_there { "--probe was not given" } else { "the target does not show the logical unit" };
            vec![Seen::unseen(why); plan.lanes.len()]
        };
        let pulls = match pull.filter(|_| is_there) {
            None => BTreeMap::new(),
            Some(agreed) => {
                pull::agree(&spec.to_string(), plan.lanes.len(), agreed)?;
                pull::one_by_one(&url).await?
            }
        };
        let lane = |(lane, probe): (&PlannedLane, Seen<LaneProbe>)| Lane {
            name: lane.name(),
            near: lane.near,
            portal: Some(lane.portal),
            reserve: lane.reserve,
            probe,
            pull: pulls.get(&lane.name()).cloned(),
        };
        let finding = |finding: &lunway_block::Finding| PlanFinding {
            id: finding.id.to_owned(),
            what: finding.what.clone(),
            place: finding.place.clone(),
            remedy: finding.remedy.clone(),
        };
        let lanes = Lanes {
            disk: url.to_string(),
            plan: plan.kind.to_string(),
            lanes: plan.lanes.iter().zip(probes).map(lane).collect(),
            findings: plan.warnings.iter().map(finding).collect(),
            units,
        };
        Ok((lanes, plan.lanes.iter().filter_map(|lane| lane.interface.clone()).collect()))
    })
}

/// Asks the target for its logical units, over the first lane that answers.
async fn units(url: &MultipathUrl, plan: &Plan) -> Seen<Units> {
    let Some(named) = url.base.lun else { return Seen::unseen("the address names none") };
    let options = OpenOptions::default().iscsi;
    let ask = |lane: &PlannedLane| {
        let address = IscsiUrl {
            host: lane.portal.ip().to_string(),
            port: lane.portal.port(),
            target: lane.target.clone().or_else(|| url.base.target.clone()),
            from: lane.near,
            ..url.base.clone()
        };
        let options = options.clone();
        Box::pin(async move { luns(&address, &options).await })
    };
    let asked = plan.lanes.iter().map(ask).collect::<Vec<_>>();
    if asked.is_empty() {
        return Seen::unseen("there is no lane to ask over");
    }
    match timeout(OPEN_TIME, select_ok(asked)).await {
        Ok(Ok((shown, _))) => Seen::Value(Units { named, shown }),
        Ok(Err(error)) => Seen::unseen(error.to_string()),
        Err(_) => Seen::unseen(format!("{NO_ANSWER} within {} s", OPEN_TIME.as_secs())),
    }
}

/// Measures every lane: each as a disk of its own.
async fn probed(url: &MultipathUrl, plan: &Plan) -> Vec<Seen<LaneProbe>> {
    let ports_before: Vec<Seen<u64>> = plan.lanes.iter().map(lost_by_port).collect();
    let opened = join_all(plan.lanes.iter().map(|lane| open(url, lane))).await;
    let times = small_reads(&opened).await;
    join_all(opened.iter().flatten().map(load)).await;
    let mtus = join_all(plan.lanes.iter().map(mtu)).await;
    let owners = join_all(plan.lanes.iter().map(owners_of)).await;
    let mut probes = Vec::new();
    for ((((lane, times), (port_mtu, path_mtu, direct)), before), [port_owners, portal_owners]) in
        plan.lanes.iter().zip(times).zip(mtus).zip(ports_before).zip(owners)
    {
        let counted =
            lane.near.map_or(Seen::unseen("its address is not known"), |near| segments(near, lane.portal));
        let counted = counted.known().copied().map_err(str::to_owned);
        let mss = counted.as_ref().map(|counted| counted.mss).map_err(Clone::clone);
        let mss = mss.and_then(|mss| if mss > 0 { Ok(mss) } else { Err("ss does not tell".to_owned()) });
        let now = lost_by_port(lane);
        let port_lost = match (before.known(), now.known()) {
            (Ok(before), Ok(now)) => Seen::Value(now.saturating_sub(*before)),
            (Err(why), _) | (_, Err(why)) => Seen::unseen(why),
        };
        let probe = times.map(|times| LaneProbe {
            port_mtu,
            path_mtu,
            direct,
            round_trip_us: times[times.len() / 2],
            round_trip_max_us: times[times.len() - 1],
            round_trip_p10_us: Seen::Value(times[times.len() / 10]),
            round_trip_p99_us: match times.len() {
                READS => Seen::Value(times[READS - 2]),
                made => Seen::unseen(format!("only {made} of {READS} reads were made in time")),
            },
            reads: times.len() as u32,
            held_back: held_back(&times),
            port_owners,
            portal_owners,
            lost: counted.as_ref().map_or(0, |counted| counted.lost),
            segments: counted.map(|counted| counted.all).into(),
            mss: mss.into(),
            port_lost,
        });
        probes.push(probe.into());
    }
    for disk in opened.iter().flatten() {
        let _ = timeout(LOAD_TIME, disk.close()).await;
    }
    probes
}

/// Returns the number of packets that a lane's port has lost since it came up.
fn lost_by_port(lane: &PlannedLane) -> Seen<u64> {
    lane.interface.as_deref().map_or_else(|| Seen::unseen("its port is not known"), port_lost)
}

/// Opens a disk that has this lane alone.
async fn open(url: &MultipathUrl, lane: &PlannedLane) -> Result<Arc<IscsiMultipath>, String> {
    let from = lane.near.ok_or("its local address is not known")?;
    let portal = PortalName {
        host: lane.portal.ip().to_string(),
        port: lane.portal.port(),
        target: lane.target.clone(),
    };
    let name = LaneName { from, portal, weight: None, reserve: false };
    let alone =
        MultipathUrl { lanes: vec![name], from: Vec::new(), plan: Some(PlanKind::Explicit), ..url.clone() };
    let options = OpenOptions::default().iscsi;
    match timeout(OPEN_TIME, IscsiMultipath::open(&alone, &options)).await {
        Ok(Ok(disk)) => Ok(Arc::new(disk)),
        Ok(Err(error)) => Err(format!("{NO_ANSWER}: {error}")),
        Err(_) => Err(format!("{NO_ANSWER} within {} s", OPEN_TIME.as_secs())),
    }
}

/// Times of reads of one sector over each lane, microseconds, in order.
///
/// Lanes take turns, so that what else the machine and the storage do meets all of them alike.
async fn small_reads(lanes: &[Result<Arc<IscsiMultipath>, String>]) -> Vec<Result<Vec<f64>, String>> {
    let started = |lane: &Result<_, String>| lane.as_ref().map(|_| Vec::new()).map_err(Clone::clone);
    let mut all: Vec<Result<Vec<f64>, String>> = lanes.iter().map(started).collect();
    let until = Instant::now() + READ_TIME;
    'turns: for _ in 0..READS {
        for (disk, times) in lanes.iter().zip(&mut all) {
            let (Ok(disk), Ok(taken)) = (disk, &mut *times) else { continue };
            let began = Instant::now();
            let left = until.saturating_duration_since(began);
            if left.is_zero() {
                break 'turns;
            }
            let sector = disk.device().geometry().logical_sector as usize;
            let read = disk.device().read(0, Buf::zeroed(sector));
            match timeout(left.min(ONE_READ_TIME), read).await {
                Ok(Ok(_)) => taken.push(began.elapsed().as_secs_f64() * 1e6),
                Ok(Err(error)) => *times = Err(format!("{NO_ANSWER} to a read: {error}")),
                // The time of all lanes is over, which is not this one's fault.
                Err(_) if left < ONE_READ_TIME && !taken.is_empty() => break 'turns,
                Err(_) => *times = Err(format!("{NO_ANSWER} to a read in time")),
            }
        }
    }
    for times in &mut all {
        match times {
            Ok(taken) if taken.is_empty() => *times = Err(format!("{NO_ANSWER} to a read in time")),
            Ok(taken) => taken.sort_by(f64::total_cmp),
            Err(_) => {}
        }
    }
    all
}

/// Reads that took as long as a delayed acknowledgement, where most of the slow ones did: beside programs that keep the
/// processors busy, reads take any time.
fn held_back(times: &[f64]) -> u32 {
    let delayed = times.iter().filter(|time| DELAYED_US.iter().any(|delayed| delayed.contains(time))).count();
    let slow = times.iter().filter(|time| **time >= SLOW_US).count();
    if delayed * 4 >= slow * 3 { delayed as u32 } else { 0 }
}

/// Owners of the local address of a lane, and of its portal's, by their answers to ARP.
async fn owners_of(lane: &PlannedLane) -> [Seen<Vec<String>>; 2] {
    let (Some(IpAddr::V4(near)), Some(port)) = (lane.near, lane.interface.clone()) else {
        return [
            Seen::unseen("only ports with IPv4 are asked"),
            Seen::unseen("only ports with IPv4 are asked"),
        ];
    };
    let portal = lane.portal.ip();
    let asked = tokio::task::spawn_blocking(move || {
        [owners(&port, None, near.into()), owners(&port, Some(near), portal)]
    });
    asked.await.unwrap_or_else(|_| [Seen::unseen("the probe ended"), Seen::unseen("the probe ended")])
}

/// Reads from the disk's beginning, in bursts of a part, so that losses show. They are spread over the time that there
/// is: at full speed the disk's users would have to share the lane with them.
async fn load(disk: &Arc<IscsiMultipath>) {
    let device = disk.device();
    let size = device.geometry().size;
    let part = (PART as u64).min(size);
    if part == 0 {
        return;
    }
    let (parts, count) = ((size / part).max(1), (LOAD / part).clamp(1, LOAD / PART as u64));
    let mut turns = interval(LOAD_TIME.mul_f64(LOAD_SPREAD) / count as u32);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let reads = async {
        for turn in 0..count {
            turns.tick().await;
            if device.read(turn % parts * part, Buf::zeroed(part as usize)).await.is_err() {
                return;
            }
        }
    };
    let _ = timeout(LOAD_TIME, reads).await;
}

/// The MTU of a lane's port, what of it gets to the other end and back, and whether a packet does that no router passes
/// on.
async fn mtu(lane: &PlannedLane) -> (u32, Seen<u32>, Seen<bool>) {
    let unseen = |why: &str| (0, Seen::unseen(why), Seen::unseen(why));
    let (Some(near), Some(interface)) = (lane.near, lane.interface.clone()) else {
        return unseen("its port is not known");
    };
    let Some(port) = Machine::mtu(&interface) else {
        return unseen("its port's MTU is not known");
    };
    let far = lane.portal.ip();
    let asked =
        tokio::task::spawn_blocking(move || (port, path_mtu(near, far, port), direct(near, far))).await;
    asked.unwrap_or_else(|_| unseen("the probe ended"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_that_take_any_time_are_no_delayed_acknowledgements() {
        let quick = || std::iter::repeat_n(700.0, 90);
        let delayed: Vec<f64> = quick().chain([40_500.0; 9]).chain([12_000.0; 2]).collect();
        assert_eq!(held_back(&delayed), 9);
        let busy: Vec<f64> =
            quick().chain([12_000.0, 18_000.0, 25_000.0, 41_000.0, 44_000.0, 52_000.0, 70_000.0]).collect();
        assert_eq!(held_back(&busy), 0);
        assert_eq!(held_back(&[700.0]), 0);
    }
}
