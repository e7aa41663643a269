//! Lanes of a disk taken down one after another, while the disk is read.

use std::collections::BTreeMap;
use std::io::{self, BufRead, IsTerminal, Write};
use std::time::Duration;

use anyhow::anyhow;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lunway_block::{BlockDevice, Buf};
use lunway_device::OpenOptions;
use lunway_doctor::Seen;
use lunway_doctor::facts::LanePull;
use lunway_doctor::probe::NO_ANSWER;
use lunway_iscsi_paths::{IscsiMultipath, MultipathUrl};
use lunway_multipath::{LaneState, Policy};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::failure::Failure;

/// Time between two reads: 50 a second are under 1 % of what any storage with several lanes carries.
const READ_EVERY: Duration = Duration::from_millis(20);
/// Reads that may wait at once; the next ones are left out, as they would wait for the same.
const WAITING_MAX: usize = 256;
/// Time for which a lane is down: a loss is noticed within 1.05 s, and then reads go on.
const DOWN_TIME: Duration = Duration::from_secs(2);
/// Time for a lane to be there: before the first is taken down, and after each was put back.
const RETURN_TIME: Duration = Duration::from_secs(10);
/// Interval at which a lane's state is polled.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Time for the last reads and for logging out.
const END_TIME: Duration = Duration::from_secs(35);

/// Has the user agree, on a terminal, unless that was said on the command line.
pub(super) fn agree(disk: &str, lanes: usize, agreed: bool) -> Result<(), Failure> {
    if lanes < 2 {
        return Err(Failure::failed(anyhow!(
            "--pull: {disk} has one lane, and would stop without it; nothing was taken down"
        )));
    }
    let seconds = lanes as u64 * (DOWN_TIME.as_secs() + 1);
    let told = format!(
        "{lanes} lanes to {disk} are taken down one after another, those of this command alone, for {} s each and about {seconds} s in \
         all; sessions of other programs stay",
        DOWN_TIME.as_secs()
    );
    if agreed {
        eprintln!("lunway: {told}");
        return Ok(());
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::Usage(format!("--pull: {told}: agree with --yes")));
    }
    // On standard error: the results may go to a file.
    eprint!("{told}. Go on? [yes, or Enter to leave it] ");
    let _ = io::stderr().flush();
    let mut line = String::new();
    let _ = io::stdin().lock().read_line(&mut line);
    match line.trim() {
        "yes" | "y" => Ok(()),
        _ => Err(Failure::failed(anyhow!("nothing was taken down"))),
    }
}

/// Opens the disk over all its lanes, and takes each of them down for two seconds while it is read. One that does not
/// come back is the last: the next one could be all that is left. Gives what was measured, by the lanes' names.
///
/// Sessions are this command's own: its end, however it comes, leaves nothing behind.
pub(super) async fn one_by_one(url: &MultipathUrl) -> Result<BTreeMap<String, LanePull>, Failure> {
    let url = MultipathUrl { policy: Some(Policy::RoundRobin), ..url.clone() };
    let options = OpenOptions::default().iscsi;
    let disk = match timeout(RETURN_TIME, IscsiMultipath::open(&url, &options)).await {
        Ok(Ok(disk)) => disk,
        Ok(Err(error)) => return Err(Failure::failed(anyhow!("--pull: cannot open the disk: {error}"))),
        Err(_) => {
            let seconds = RETURN_TIME.as_secs();
            return Err(Failure::failed(anyhow!("--pull: the disk did not open within {seconds} s")));
        }
    };
    let pulled = pull_each(&disk).await;
    let _ = timeout(END_TIME, disk.close()).await;
    pulled
}

async fn pull_each(disk: &IscsiMultipath) -> Result<BTreeMap<String, LanePull>, Failure> {
    let names: Vec<String> = disk.device().lanes().into_iter().map(|lane| lane.name).collect();
    for (lane, name) in names.iter().enumerate() {
        if there(disk, lane).await.is_none() {
            return Err(Failure::failed(anyhow!(
                "--pull: {name} is not up, and taking another one down could stop the disk; nothing was taken down"
            )));
        }
    }
    let mut pulls = BTreeMap::new();
    for (lane, name) in names.into_iter().enumerate() {
        let down = async {
            sleep(5 * READ_EVERY).await;
            disk.set_lane_down(lane, "taken down by lunway doctor --pull");
            sleep(DOWN_TIME).await;
        };
        let reads = reads_during(disk, down).await;
        disk.set_lane_up(lane);
        let back = there(disk, lane).await;
        let back_ms = match back {
            Some(time) => Seen::Value(time.as_secs_f64() * 1e3),
            None => Seen::unseen(format!("{NO_ANSWER} within {} s", RETURN_TIME.as_secs())),
        };
        pulls.insert(name, LanePull { back_ms, ..reads });
        if back.is_none() {
            break;
        }
    }
    Ok(pulls)
}

/// Waits until a lane is logged in, and returns the time that took; `None` if it took too long.
async fn there(disk: &IscsiMultipath, lane: usize) -> Option<Duration> {
    let began = Instant::now();
    let is_there = || {
        let state = &disk.device().lanes()[lane].state;
        matches!(state, LaneState::Up | LaneState::Reserve | LaneState::HeldBack { .. })
    };
    while !is_there() {
        if began.elapsed() > RETURN_TIME {
            return None;
        }
        sleep(LOOK_EVERY).await;
    }
    Some(began.elapsed())
}

/// Reads a sector every 20 ms, whatever became of those before, until `event` has ended and they have too.
async fn reads_during(disk: &IscsiMultipath, event: impl Future<Output = ()>) -> LanePull {
    let device = disk.device();
    let sector = device.geometry().logical_sector as usize;
    let mut found = LanePull::default();
    let mut waiting = FuturesUnordered::new();
    let mut ticks = interval(READ_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    tokio::pin!(event);
    let mut over = false;
    let mut note = |(took, sound): (Duration, bool)| {
        found.reads += 1;
        found.failed += u64::from(!sound);
        found.pause_ms = found.pause_ms.max(took.as_secs_f64() * 1e3);
    };
    while !over {
        tokio::select! {
            () = &mut event => over = true,
            Some(ended) = waiting.next(), if !waiting.is_empty() => note(ended),
            _ = ticks.tick(), if waiting.len() < WAITING_MAX => waiting.push(async {
                let began = Instant::now();
                let sound = device.read(0, Buf::zeroed(sector)).await.is_ok();
                (began.elapsed(), sound)
            }),
        }
    }
    let rest = async {
        while let Some(ended) = waiting.next().await {
            note(ended);
        }
    };
    let late = timeout(END_TIME, rest).await.is_err();
    let left = waiting.len() as u64;
    if late {
        found.reads += left;
        found.failed += left;
    }
    found
}
