//! From what a file says to an experiment that can be run: defaults filled in, names looked up, limits held.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::time::Duration;

use lunway_bench::compare::{PAIRS, ROUNDS_MAX};
use lunway_bench::{Access, BLOCK_SIZE_MAX, QUEUE_DEPTH_MAX};
use lunway_block::duration::{ExactDuration, parse_duration};
use lunway_block::size::{ExactSize, parse_size};

use super::Experiment;
use super::error::{ExperimentError, Problem};
use super::expression::{Condition, Expression, Others};
use super::figures::{Figure, Template, Verdict};
use super::file::{EventTable, FigureTable, FileTable, MeasureName, OneOrMore, RunTable, VerdictTable};
use super::run::{
    Comparing, Event, Incident, Measure, Moment, NO_POLICY, POLICIES, Path, Run, Storage, Window,
    Wire,
};
use crate::timeline::{self, Action, Timeline};
use crate::topology::{Cable, End, Topology};

/// The most runs, figures and verdicts.
const COUNT_MAX: usize = 200;
/// The most events of a run.
const EVENTS_MAX: usize = 100;
/// The most repeats.
const REPEAT_MAX: u32 = 100;
/// The most paths of a run.
const PATHS_MAX: usize = 64;
/// The longest measurement.
const TIME_MAX: Duration = Duration::from_secs(3600);
/// The smallest TCP window that the kernel keeps, bytes.
const WINDOW_MIN: u64 = 4096;
/// The largest TCP window that can be asked for, bytes.
const WINDOW_MAX: u64 = 64 << 20;
/// The most cells of a matrix.
const CELLS_MAX: usize = 200;
/// The most connections at once.
const STREAMS_MAX: u32 = 64;
/// The most sessions of a team.
const SESSIONS_MAX: u16 = 64;

/// What I/O runs without saying so.
const SIZE_DEFAULT: u64 = 256 << 20;
const TIME_DEFAULT: Duration = Duration::from_secs(10);
const CELL_TIME_DEFAULT: Duration = Duration::from_secs(3);
const PAIR_TIME_DEFAULT: Duration = Duration::from_secs(1);
const MARGIN_DEFAULT: f64 = 3.0;

/// Checks a whole file.
pub(super) fn experiment(file: &str, text: &str, table: FileTable) -> Result<Experiment, ExperimentError> {
    let at = At { file, table: "its head".to_owned() };
    at.name("name", &table.name)?;
    at.range("repeat", table.repeat, 1..=REPEAT_MAX)?;
    for (key, count) in
        [("run", table.runs.len()), ("figure", table.figures.len()), ("verdict", table.verdicts.len())]
    {
        at.range(key, count, usize::from(key == "run")..=COUNT_MAX)?;
    }
    let topology = Topology { hosts: table.hosts, switches: table.switches, cables: table.cables };
    topology.check().map_err(|source| ExperimentError::Topology { file: file.to_owned(), source })?;
    let mut experiment = Experiment {
        title: table.title.unwrap_or_else(|| table.name.clone()),
        name: table.name,
        about: table.about,
        repeat: table.repeat,
        topology,
        runs: Vec::new(),
        figures: Vec::new(),
        verdicts: Vec::new(),
        text: text.to_owned(),
    };
    for table in table.runs {
        let at = At { file, table: format!("[[run]] {}", table.test) };
        if experiment.runs.iter().any(|run| run.test == table.test) {
            return Err(at.wrong("test", Problem::Twice(table.test)));
        }
        let run = run(&at, &experiment.topology, table)?;
        if let Some(control) = experiment.control().filter(|_| run.is_control) {
            return Err(at.wrong("control", Problem::TwoControls(control.test.clone())));
        }
        experiment.runs.push(run);
    }
    let mut known: BTreeSet<String> = experiment.values().into_iter().collect();
    for table in table.figures {
        let at = At { file, table: format!("[[figure]] {}", table.name) };
        let figure = figure(&at, &mut known, table, &|name| experiment.others(name))?;
        experiment.figures.push(figure);
    }
    for (number, table) in table.verdicts.into_iter().enumerate() {
        let at = At { file, table: format!("[[verdict]] {}", number + 1) };
        let verdicts = verdicts(&at, &experiment, &known, &table, number)?;
        experiment.verdicts.extend(verdicts);
    }
    Ok(experiment)
}

/// Where in a file something stands.
struct At<'a> {
    file: &'a str,
    table: String,
}

impl At<'_> {
    fn wrong(&self, key: &'static str, problem: impl Into<Problem>) -> ExperimentError {
        ExperimentError::Meaning {
            file: self.file.to_owned(),
            table: self.table.clone(),
            key,
            problem: Box::new(problem.into()),
        }
    }

    fn name(&self, key: &'static str, name: &str) -> Result<(), ExperimentError> {
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        if name.is_empty() || name.len() > 40 || !plain {
            return Err(self.wrong(key, Problem::Name(name.chars().take(60).collect())));
        }
        Ok(())
    }

    fn range<T: PartialOrd + Display>(
        &self,
        key: &'static str,
        value: T,
        limits: std::ops::RangeInclusive<T>,
    ) -> Result<T, ExperimentError> {
        if limits.contains(&value) {
            return Ok(value);
        }
        let limits = format!("from {} to {}", limits.start(), limits.end());
        Err(self.wrong(key, Problem::Range { value: value.to_string(), limits }))
    }

    fn time(&self, key: &'static str, time: Duration, least: Duration) -> Result<Duration, ExperimentError> {
        if (least..=TIME_MAX).contains(&time) {
            return Ok(time);
        }
        let limits = format!("from {} to {}", ExactDuration(least), ExactDuration(TIME_MAX));
        Err(self.wrong(key, Problem::Range { value: ExactDuration(time).to_string(), limits }))
    }

    fn size(&self, key: &'static str, size: u64, least: u64, most: u64) -> Result<u64, ExperimentError> {
        if (least..=most).contains(&size) {
            return Ok(size);
        }
        let limits = format!("from {} to {}", ExactSize(least), ExactSize(most));
        Err(self.wrong(key, Problem::Range { value: ExactSize(size).to_string(), limits }))
    }

    fn no_such<'a>(
        &self,
        key: &'static str,
        what: &'static str,
        name: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) -> ExperimentError {
        let known: Vec<_> = known.into_iter().take(12).collect();
        let known = if known.is_empty() {
            "there is none".to_owned()
        } else {
            format!("there is {}", known.join(", "))
        };
        self.wrong(key, Problem::NoSuch { what, name: name.to_owned(), known })
    }

    fn cable(&self, key: &'static str, topology: &Topology, name: &str) -> Result<(), ExperimentError> {
        match topology.cable(name) {
            Some(_) => Ok(()),
            None => {
                let known = topology.cables.iter().map(|cable| cable.name.as_str());
                Err(self.no_such(key, "cable", name, known))
            }
        }
    }

    /// The host of that name, or the only one that can be meant.
    fn host(
        &self,
        key: &'static str,
        topology: &Topology,
        name: Option<String>,
        serves: bool,
    ) -> Result<String, ExperimentError> {
        let names = || topology.hosts.iter().map(|host| host.name.as_str());
        match name {
            Some(name) if topology.host(&name).is_none() => Err(self.no_such(key, "host", &name, names())),
            Some(name) => Ok(name),
            None => {
                let mut fitting = topology.hosts.iter().filter(|host| host.luns.is_empty() != serves);
                match (fitting.next(), fitting.next()) {
                    (Some(host), None) => Ok(host.name.clone()),
                    _ => Err(self.wrong(
                        key,
                        Problem::Missing(if serves {
                            "not exactly one host has luns, so say which one is meant"
                        } else {
                            "not exactly one host has no luns, so say which one is meant"
                        }),
                    )),
                }
            }
        }
    }
}

fn run(at: &At<'_>, topology: &Topology, mut table: RunTable) -> Result<Run, ExperimentError> {
    at.name("test", &table.test)?;
    foreign_keys(at, &table)?;
    let target = at.host("target", topology, table.target.take(), true)?;
    let from = at.host("from", topology, table.from.take(), false)?;
    if from == target {
        return Err(at.wrong("from", Problem::Not("a host does not reach itself over a cable")));
    }
    let paths = paths(at, topology, &from, &target, table.paths.take())?;
    let team = team(at, &paths, &table)?;
    let policies = policies(at, paths.len(), team, &mut table)?;
    let measure = match table.measure {
        MeasureName::Storage => Measure::Storage(storage(at, topology, &target, &table)?),
        MeasureName::Net => Measure::Wire(wire(at, topology, &paths, &table)?),
        MeasureName::Compare => Measure::Compare(comparing(at, topology, &target, &table)?),
    };
    Ok(Run {
        topology: table
            .topology
            .unwrap_or_else(|| format!("{} path{}", paths.len(), if paths.len() == 1 { "" } else { "s" })),
        test: table.test,
        from,
        target,
        paths,
        plan: table.plan,
        policies,
        team,
        is_control: table.control,
        measure,
    })
}

/// A key that the measure does not have would be without effect, and whoever wrote it would not know.
fn foreign_keys(at: &At<'_>, table: &RunTable) -> Result<(), ExperimentError> {
    use MeasureName::{Compare, Net, Storage};
    let keys: [(&'static str, bool, &[MeasureName]); 18] = [
        ("control", table.control, &[Storage]),
        ("policy", table.policy.is_some(), &[Storage, Compare]),
        ("plan", table.plan.is_some(), &[Storage, Compare]),
        ("team", table.team.is_some(), &[Storage]),
        ("sessions", table.sessions.is_some(), &[Storage]),
        ("lun", table.lun.is_some(), &[Storage]),
        ("rw", table.rw.is_some(), &[Storage, Net]),
        ("bs", table.bs.is_some(), &[Storage]),
        ("qd", table.qd.is_some(), &[Storage]),
        ("ramp", table.ramp.is_some(), &[Storage]),
        ("size", table.size.is_some(), &[Storage, Compare]),
        ("mix", table.mix.is_some(), &[Storage]),
        ("verify", table.verify.is_some(), &[Storage]),
        ("event", table.events.is_some(), &[Storage]),
        ("window", table.window.is_some(), &[Net]),
        ("mtu", table.mtu.is_some(), &[Net]),
        ("delay", table.delay.is_some(), &[Net]),
        ("arm", table.arms.is_some(), &[Compare]),
    ];
    let more = [
        ("streams", table.streams.is_some(), &[Net][..]),
        ("pairs", table.pairs.is_some(), &[Compare][..]),
        ("rounds", table.rounds.is_some(), &[Compare][..]),
        ("margin", table.margin.is_some(), &[Compare][..]),
    ];
    for (key, is_there, measures) in keys.into_iter().chain(more) {
        if is_there && !measures.contains(&table.measure) {
            let owner = match measures[0] {
                Storage => "storage",
                Net => "net",
                Compare => "compare",
            };
            return Err(at.wrong(key, Problem::Foreign(owner)));
        }
    }
    Ok(())
}

fn paths(
    at: &At<'_>,
    topology: &Topology,
    from: &str,
    target: &str,
    written: Option<OneOrMore<String>>,
) -> Result<Vec<Path>, ExperimentError> {
    let written = match (written, &topology.cables[..]) {
        (Some(written), _) => written.0,
        // Where there is one cable there is one way.
        (None, [cable]) => vec![cable.name.clone()],
        _ => return Err(at.wrong("paths", Problem::Missing("there is more than one cable"))),
    };
    let paths = written.iter().map(|text| Path::parse(text)).collect::<Result<Vec<_>, _>>();
    let paths = paths.map_err(|option| at.wrong("paths", Problem::PathOption(option)))?;
    at.range("paths", paths.len(), 1..=PATHS_MAX)?;
    for (index, path) in paths.iter().enumerate() {
        if paths[..index].iter().any(|other| other.is_way_of(path)) {
            return Err(at.wrong("paths", Problem::Twice(path.to_string())));
        }
        at.cable("paths", topology, &path.leaves)?;
        at.cable("paths", topology, &path.enters)?;
        let why = |why| {
            let (from, to) = (from.to_owned(), target.to_owned());
            at.wrong("paths", Problem::Path { path: path.to_string(), from, to, why })
        };
        let leaves =
            card(topology, &path.leaves, from).ok_or_else(|| why("its first cable ends elsewhere"))?;
        let enters =
            card(topology, &path.enters, target).ok_or_else(|| why("its last cable ends elsewhere"))?;
        let addresses = topology.addresses();
        let subnet = |end| addresses.get(end).map(|address| address.octets()[..3].to_vec());
        if subnet(leaves) != subnet(enters) {
            return Err(why("the two are not of one network"));
        }
    }
    Ok(paths)
}

/// How many sessions the run's team has, where its paths are one.
fn team(at: &At<'_>, paths: &[Path], table: &RunTable) -> Result<Option<u16>, ExperimentError> {
    let chooses = paths.iter().any(Path::has_options);
    if table.plan.is_some() && chooses {
        return Err(
            at.wrong("plan", Problem::Not("a plan says itself which paths are reserve, and their weights"))
        );
    }
    if table.team != Some(true) {
        return match table.sessions {
            Some(_) => Err(at.wrong("sessions", Problem::Not("only a team has sessions beside its paths"))),
            None => Ok(None),
        };
    }
    if table.plan.is_some() || chooses {
        return Err(at.wrong("team", Problem::Not("a team has no plan, and its paths have no options")));
    }
    at.range("sessions", table.sessions.unwrap_or(1), 1..=SESSIONS_MAX).map(Some)
}

/// What is measured one after the other. Several sessions always have a policy; one has none unless it is asked for.
fn policies(
    at: &At<'_>,
    paths: usize,
    team: Option<u16>,
    table: &mut RunTable,
) -> Result<Vec<String>, ExperimentError> {
    let one = team.map_or(paths == 1, |sessions| sessions == 1) && table.plan.is_none();
    let has_sessions = table.measure != MeasureName::Net;
    let unsaid = if one || !has_sessions { NO_POLICY } else { POLICIES[0] };
    let policies = table.policy.take().map_or_else(|| vec![unsaid.to_owned()], |policies| policies.0);
    for (index, policy) in policies.iter().enumerate() {
        if policies[..index].contains(policy) {
            return Err(at.wrong("policy", Problem::Twice(policy.clone())));
        }
        if policy == NO_POLICY && !one && has_sessions {
            return Err(at.wrong("policy", Problem::Not("several paths need a policy")));
        }
        if policy != NO_POLICY && !POLICIES.contains(&policy.as_str()) {
            return Err(at.no_such("policy", "policy", policy, POLICIES));
        }
    }
    if table.measure == MeasureName::Compare && policies.len() > 1 {
        return Err(at.wrong("policy", Problem::Not("units are compared over one policy")));
    }
    at.range("policy", policies.len(), 1..=POLICIES.len() + 1)?;
    Ok(policies)
}

/// Where a cable ends on a host.
pub(super) fn card<'a>(topology: &'a Topology, cable: &str, host: &str) -> Option<&'a End> {
    let Cable { ends, .. } = topology.cable(cable)?;
    ends.iter().find(|end| matches!(end, End::Card { host: name, .. } if name == host))
}

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

fn storage(
    at: &At<'_>,
    topology: &Topology,
    target: &str,
    table: &RunTable,
) -> Result<Storage, ExperimentError> {
    let block_size = table.bs.map_or(4096, |size| size.0);
    let size = table.size.map_or(SIZE_DEFAULT, |size| size.0);
    let time = table.time.map_or(TIME_DEFAULT, |time| time.0);
    let accesses = table.rw.as_ref().map_or_else(|| vec![Access::Read, Access::Write], |rw| rw.0.clone());
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

fn wire(at: &At<'_>, topology: &Topology, paths: &[Path], table: &RunTable) -> Result<Wire, ExperimentError> {
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
    let mtu = topology.cable(&path.leaves).map_or(crate::topology::MTU_DEFAULT, |cable| cable.mtu);
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
    let directions = table.rw.as_ref().map_or_else(|| vec![Access::Write], |rw| rw.0.clone());
    if directions.is_empty()
        || directions.iter().any(|access| !matches!(access, Access::Read | Access::Write))
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

fn comparing(
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

/// A figure may be made of those before it.
fn figure(
    at: &At<'_>,
    known: &mut BTreeSet<String>,
    table: FigureTable,
    others: &dyn Fn(&str) -> Option<Others>,
) -> Result<Figure, ExperimentError> {
    at.name("name", &table.name)?;
    let mut value = Expression::parse(&table.value).map_err(|error| at.wrong("value", error))?;
    names(at, "value", known, value.names())?;
    value.look_up(others);
    if !known.insert(table.name.clone()) {
        return Err(at.wrong("name", Problem::Twice(table.name)));
    }
    Ok(Figure { name: table.name, value })
}

/// The verdict of a table, or one for each policy of a run.
fn verdicts(
    at: &At<'_>,
    experiment: &Experiment,
    known: &BTreeSet<String>,
    table: &VerdictTable,
    number: usize,
) -> Result<Vec<Verdict>, ExperimentError> {
    let Some(test) = &table.each else { return Ok(vec![verdict(at, experiment, known, table, number)?]) };
    let tests = experiment.runs.iter().map(|run| run.test.as_str());
    let run = experiment.runs.iter().find(|run| run.test == *test);
    let run = run.ok_or_else(|| at.no_such("each", "run", test, tests))?;
    let of = |policy: &String| {
        // Names of a run with one policy have no brackets.
        let bracket = if run.policies.len() == 1 { String::new() } else { format!("[{policy}]") };
        let filled = |text: &String| text.replace("[*]", &bracket).replace("{*}", policy);
        let table = VerdictTable {
            each: None,
            when: OneOrMore(table.when.0.iter().map(filled).collect()),
            good: filled(&table.good),
            bad: filled(&table.bad),
        };
        verdict(at, experiment, known, &table, number)
    };
    run.policies.iter().map(of).collect()
}

fn verdict(
    at: &At<'_>,
    experiment: &Experiment,
    known: &BTreeSet<String>,
    table: &VerdictTable,
    number: usize,
) -> Result<Verdict, ExperimentError> {
    let when = table.when.0.iter().map(|text| Condition::parse(text)).collect::<Result<Vec<_>, _>>();
    let mut when = when.map_err(|error| at.wrong("when", error))?;
    if when.is_empty() {
        return Err(at.wrong("when", Problem::Missing("a verdict has at least one condition")));
    }
    let mut good = Template::parse(&table.good).map_err(|error| at.wrong("good", error))?;
    let mut bad = Template::parse(&table.bad).map_err(|error| at.wrong("bad", error))?;
    names(at, "when", known, when.iter().flat_map(Condition::names))?;
    names(at, "good", known, good.names())?;
    names(at, "bad", known, bad.names())?;
    let others = |name: &str| experiment.others(name);
    when.iter_mut().for_each(|condition| condition.look_up(&others));
    good.look_up(&others);
    bad.look_up(&others);
    Ok(Verdict { table: number, when, good, bad })
}

fn names<'a>(
    at: &At<'_>,
    key: &'static str,
    known: &BTreeSet<String>,
    names: impl IntoIterator<Item = &'a str>,
) -> Result<(), ExperimentError> {
    for name in names {
        if !known.contains(name) {
            // Those of the same thing help more than the first of all.
            let head = name.split(['.', '[']).next().unwrap_or_default();
            let alike: Vec<_> = known.iter().filter(|known| known.starts_with(head)).collect();
            let pool: Vec<_> = if alike.is_empty() { known.iter().collect() } else { alike };
            let shown: Vec<_> = pool.iter().take(6).map(|name| name.as_str()).collect();
            let known = format!("there is for example {}", shown.join(", "));
            return Err(at.wrong(key, Problem::NoValue { name: name.to_owned(), known }));
        }
    }
    Ok(())
}
