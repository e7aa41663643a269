//! Check of a run's measurement.

use std::time::Duration;

use lunway_bench::compare::{PAIRS, ROUNDS_MAX};
use lunway_bench::{BLOCK_SIZE_MAX, QUEUE_DEPTH_MAX, RwMode};
use lunway_block::duration::{ExactDuration, parse_duration};
use lunway_block::size::parse_size;

use super::at::At;
use crate::experiment::plan::error::{ExperimentError, Problem};
use crate::experiment::plan::file::{EventTable, OneOrMore, RunTable};
use crate::experiment::plan::run::{
    BackupRun, BackupWay, Comparing, Cut, Event, Incident, Moment, RunPath, Storage, Window, Wire,
};
use crate::timeline::{self, Action, Timeline};
use crate::topology::{MTU_DEFAULT, Topology};

/// The most events of a run.
const EVENTS_MAX: usize = 100;
/// The smallest TCP window that the kernel keeps, bytes.
const WINDOW_MIN: u64 = 4096;
/// The largest TCP window that can be asked for, bytes.
const WINDOW_MAX: u64 = 64 << 20;
/// The most cells of a matrix.
const CELLS_MAX: usize = 200;
/// The most connections at once.
const STREAMS_MAX: u32 = 64;

/// Defaults of an I/O run.
const SIZE_DEFAULT: u64 = 256 << 20;
const TIME_DEFAULT: Duration = Duration::from_secs(10);
const CELL_TIME_DEFAULT: Duration = Duration::from_secs(3);
const PAIR_TIME_DEFAULT: Duration = Duration::from_secs(1);
const MARGIN_DEFAULT: f64 = 3.0;

/// Defaults of a backup: what copies of today do, and a day's changes.
const COPY_BLOCK_DEFAULT: u64 = 1 << 20;
const COPY_DEPTH_DEFAULT: u32 = 16;
const CHANGED_DEFAULT: f64 = 0.01;
/// Kernels' clients of shares wait for a minute; so does this one.
const PATIENCE_DEFAULT: Duration = Duration::from_secs(60);
/// Least data of a backup: with less, its time is that of its beginning and its end.
const BACKUP_MIN: u64 = 4 << 20;
/// Most data of a backup: it is written to a temporary file, and what is made of it beside that.
const BACKUP_MAX: u64 = 64 << 30;

/// A unit that the target has, by its number: `1=ram:1G` is unit 1.
fn lun(
    at: &At<'_>,
    key: &'static str,
    topology: &Topology,
    target: &str,
    number: Option<u16>,
) -> Result<u16, ExperimentError> {
    let luns = topology.host(target).map_or(&[][..], |host| &host.luns);
    let mut numbers = Vec::new();
    for lun in luns {
        let number = lun.split_once('=').and_then(|(number, device)| {
            if device.is_empty() { None } else { number.trim().parse::<u16>().ok() }
        });
        let malformed =
            Problem::Not("a lun of a host is NUMBER=DEVICE, such as 1=ram:1G or 2=scratch:1G,sector=4096");
        numbers.push(number.ok_or_else(|| at.wrong(key, malformed))?);
    }
    match (number, &numbers[..]) {
        (_, []) => Err(at.wrong(key, Problem::Missing("the target's host has no luns"))),
        (None, [first, ..]) => Ok(*first),
        (Some(number), _) if numbers.contains(&number) => Ok(number),
        (Some(number), _) => {
            let known: Vec<_> = numbers.iter().map(u16::to_string).collect();
            Err(at.no_such(key, "lun", &number.to_string(), known.iter().map(String::as_str)))
        }
    }
}

/// I/O on a unit.
pub(super) fn storage(
    at: &At<'_>,
    topology: &Topology,
    target: &str,
    table: &RunTable,
) -> Result<Storage, ExperimentError> {
    let block_size = table.bs.map_or(4096, |size| size.0);
    let size = table.size.map_or(SIZE_DEFAULT, |size| size.0);
    let time = table.time.map_or(TIME_DEFAULT, |time| time.0);
    let accesses = table.rw.as_ref().map_or_else(|| vec![RwMode::Read, RwMode::Write], |rw| rw.0.clone());
    for (index, access) in accesses.iter().enumerate() {
        if accesses[..index].contains(access) {
            return Err(at.wrong("rw", Problem::Twice(access.name().to_owned())));
        }
    }
    at.range("rw", accesses.len(), 1..=6)?;
    if table.mix.is_some() && !accesses.iter().any(|access| access.is_mixed()) {
        return Err(at.wrong("mix", Problem::Not("only rw and randrw mix reads and writes")));
    }
    let block_size = at.size("bs", block_size, 512, BLOCK_SIZE_MAX.into())?;
    let mut events = Vec::new();
    for table in table.events.iter().flatten() {
        events.push(event(at, topology, time, table)?);
    }
    at.range("event", events.len(), 0..=EVENTS_MAX)?;
    events.sort_by_key(|event| event.at.within(time, time));
    Ok(Storage {
        lun: lun(at, "lun", topology, target, table.lun)?,
        accesses,
        block_size: u32::try_from(block_size).unwrap_or(BLOCK_SIZE_MAX),
        queue_depth: at.range("qd", table.qd.unwrap_or(1), 1..=QUEUE_DEPTH_MAX)?,
        time: at.time("time", time, Duration::from_millis(100))?,
        ramp: at.time("ramp", table.ramp.map_or(Duration::ZERO, |ramp| ramp.0), Duration::ZERO)?,
        size: at.size("size", size, block_size, 1 << 40)?,
        mix: at.range("mix", table.mix.unwrap_or(50), 0..=100)?,
        verify: table.verify.unwrap_or(false),
        events,
    })
}

fn event(
    at: &At<'_>,
    topology: &Topology,
    time: Duration,
    table: &EventTable,
) -> Result<Event, ExperimentError> {
    let moment = match table.at.trim().strip_suffix('%') {
        Some(number) => number.trim().parse().ok().map(|percent: f64| Moment::Share(percent / 100.0)),
        None => parse_duration(table.at.trim()).ok().map(Moment::After),
    };
    let out_of_range = || {
        let limits = format!("a time up to {}, or a share of it such as 30%", ExactDuration(time));
        at.wrong("at", Problem::Range { value: table.at.clone(), limits })
    };
    let moment = moment.filter(|moment| match *moment {
        Moment::After(after) => after <= time,
        Moment::Share(share) => (0.0..=1.0).contains(&share),
    });
    let moment = moment.ok_or_else(out_of_range)?;
    let cables = [
        ("pull", table.pull.clone().map(Action::Pull)),
        ("plug", table.plug.clone().map(Action::Plug)),
        ("black_hole", table.black_hole.clone().map(Action::BlackHole)),
        ("clear", table.clear.clone().map(Action::Clear)),
        ("slow", table.slow.clone().map(Action::Slow)),
        ("delay", table.delay.clone().map(Action::Delay)),
        ("loss", table.loss.clone().map(Action::Loss)),
        ("flap", table.flap.clone().map(Action::Flap)),
    ];
    let mut incidents = Vec::new();
    for (key, action) in cables {
        let Some(action) = action else { continue };
        at.cable(key, topology, action.cable())?;
        let event = timeline::Event { at: moment.within(time, time), action: action.clone() };
        Timeline::new(&[event], topology).map_err(|error| at.wrong(key, error))?;
        incidents.push(Incident::Cable(action));
    }
    for (key, host, is_stop) in [("stop", &table.stop, true), ("start", &table.start, false)] {
        let Some(host) = host.clone() else { continue };
        let serving = topology.hosts.iter().filter(|host| !host.luns.is_empty());
        let serving: Vec<_> = serving.map(|host| host.name.as_str()).collect();
        if !serving.contains(&host.as_str()) {
            return Err(at.no_such(key, "host with luns", &host, serving));
        }
        incidents.push(if is_stop { Incident::Stop(host) } else { Incident::Start(host) });
    }
    match (incidents.pop(), incidents.is_empty()) {
        (Some(incident), true) => Ok(Event { at: moment, incident }),
        (None, _) => Err(at.wrong("event", Problem::Event("none of them"))),
        (Some(_), false) => Err(at.wrong("event", Problem::Event("several at once"))),
    }
}

/// Bare TCP.
pub(super) fn wire(
    at: &At<'_>,
    topology: &Topology,
    paths: &[RunPath],
    table: &RunTable,
) -> Result<Wire, ExperimentError> {
    let [path] = paths else {
        return Err(at.wrong("paths", Problem::Not("bare TCP is measured over one path")));
    };
    let mut windows = Vec::new();
    let written = table.window.clone().unwrap_or_else(|| OneOrMore(vec!["auto".to_owned()]));
    for text in written.0 {
        let bytes = match text.as_str() {
            "auto" => None,
            text => {
                let size = parse_size(text).map_err(|_| {
                    let limits = "a size such as 64K, or auto".to_owned();
                    at.wrong("window", Problem::Range { value: text.to_owned(), limits })
                })?;
                u32::try_from(at.size("window", size, WINDOW_MIN, WINDOW_MAX)?).ok()
            }
        };
        windows.push(Window { text, bytes });
    }
    let mtu = topology.cable(&path.leaves).map_or(MTU_DEFAULT, |cable| cable.mtu);
    let mtus = table.mtu.clone().map_or_else(|| vec![mtu], |mtus| mtus.0);
    for mtu in &mtus {
        at.range("mtu", *mtu, 576..=65_500)?;
    }
    let delays = table
        .delay
        .clone()
        .map_or_else(|| vec![Duration::ZERO], |delays| delays.0.iter().map(|delay| delay.0).collect());
    for delay in &delays {
        at.time("delay", *delay, Duration::ZERO)?;
    }
    for (key, cells) in [("window", windows.len()), ("mtu", mtus.len()), ("delay", delays.len())] {
        at.range(key, cells, 1..=CELLS_MAX)?;
    }
    at.range("window", windows.len() * mtus.len() * delays.len(), 1..=CELLS_MAX)?;
    let directions = table.rw.as_ref().map_or_else(|| vec![RwMode::Write], |rw| rw.0.clone());
    if directions.is_empty()
        || directions.iter().any(|access| !matches!(access, RwMode::Read | RwMode::Write))
    {
        return Err(at.wrong("rw", Problem::Not("on the wire there are read and write")));
    }
    let time = table.time.map_or(CELL_TIME_DEFAULT, |time| time.0);
    Ok(Wire {
        windows,
        mtus,
        delays,
        streams: at.range("streams", table.streams.unwrap_or(1), 1..=STREAMS_MAX)?,
        directions,
        time: at.time("time", time, Duration::from_millis(100))?,
    })
}

/// Two units in turns.
pub(super) fn comparing(
    at: &At<'_>,
    topology: &Topology,
    target: &str,
    table: &RunTable,
) -> Result<Comparing, ExperimentError> {
    let arms = table.arms.clone().unwrap_or_default();
    let arms: [_; 2] = arms.try_into().map_err(|_| {
        at.wrong("arm", Problem::Missing("a comparison has two [[run.arm]], each with a name and a lun"))
    })?;
    for arm in &arms {
        lun(at, "arm", topology, target, Some(arm.lun))?;
        if arm.name.is_empty() || arm.name.chars().count() > 20 {
            return Err(at.wrong("arm", Problem::Not("the name of an arm has 1 to 20 characters")));
        }
    }
    if arms[0].name == arms[1].name {
        return Err(at.wrong("arm", Problem::Twice(arms[0].name.clone())));
    }
    let time = table.time.map_or(PAIR_TIME_DEFAULT, |time| time.0);
    Ok(Comparing {
        arms,
        pairs: at.range("pairs", table.pairs.unwrap_or(PAIRS), 6..=1000)?,
        rounds: at.range("rounds", table.rounds.unwrap_or(1), 1..=ROUNDS_MAX)?,
        margin: at.range("margin", table.margin.unwrap_or(MARGIN_DEFAULT), 0.1..=50.0)?,
        time: at.time("time", time, Duration::from_millis(50))?,
        size: at.size("size", table.size.map_or(SIZE_DEFAULT, |size| size.0), 16 << 20, 1 << 40)?,
    })
}

/// A disk backed up into a share.
pub(super) fn backup(at: &At<'_>, paths: &[RunPath], table: &RunTable) -> Result<BackupRun, ExperimentError> {
    let [_] = paths else {
        return Err(at.wrong("paths", Problem::Not("a share is reached over one path")));
    };
    let missing = "copy-dynamic, copy-fixed, full or increment";
    let way = table.way.ok_or_else(|| at.wrong("way", Problem::Missing(missing)))?;
    let is_copy = way.disk().is_some();
    for (key, is_there, belongs) in [
        ("bs", table.bs.is_some(), is_copy),
        ("qd", table.qd.is_some(), is_copy),
        ("changed", table.changed.is_some(), way == BackupWay::Increment),
    ] {
        if is_there && !belongs {
            let why =
                if key == "changed" { "only an increment is made of changes" } else { "only a copy has it" };
            return Err(at.wrong(key, Problem::Not(why)));
        }
    }
    let block_size = at.size("bs", table.bs.map_or(COPY_BLOCK_DEFAULT, |size| size.0), 4096, 16 << 20)?;
    let cut = table.cut.as_ref().map(|cut| {
        let time = at.time("cut", cut.time.0, Duration::from_millis(100))?;
        Ok(Cut { kind: cut.kind, at: share(at, "cut", &cut.at)?, time })
    });
    let size = table.size.map_or(SIZE_DEFAULT, |size| size.0);
    if !size.is_multiple_of(1 << 20) {
        return Err(at.wrong("size", Problem::Not("a disk is made of whole mebibytes")));
    }
    Ok(BackupRun {
        way,
        size: at.size("size", size, BACKUP_MIN, BACKUP_MAX)?,
        block_size: u32::try_from(block_size).unwrap_or(u32::MAX),
        queue_depth: at.range("qd", table.qd.unwrap_or(COPY_DEPTH_DEFAULT), 1..=QUEUE_DEPTH_MAX)?,
        changed: table.changed.as_ref().map_or(Ok(CHANGED_DEFAULT), |text| share(at, "changed", text))?,
        cut: cut.transpose()?,
        patience: at.time(
            "patience",
            table.patience.map_or(PATIENCE_DEFAULT, |time| time.0),
            Duration::from_secs(1),
        )?,
        write_behind: table.write_behind.unwrap_or(false),
    })
}

/// A share of the whole, such as `40%`.
fn share(at: &At<'_>, key: &'static str, text: &str) -> Result<f64, ExperimentError> {
    let percent = text.trim().strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    percent.map(|percent| percent / 100.0).filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| {
        let limits = "a share such as 40%, from 0% to 100%".to_owned();
        at.wrong(key, Problem::Range { value: text.to_owned(), limits })
    })
}
