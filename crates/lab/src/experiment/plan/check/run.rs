//! A run: who reaches what, over which paths, by which policies.

use super::at::At;
use super::measure::{backup, comparing, storage, wire};
use crate::experiment::plan::error::{ExperimentError, Problem};
use crate::experiment::plan::file::{MeasureName, OneOrMore, RunTable};
use crate::experiment::plan::run::{NO_POLICY, POLICIES, Run, RunPath, RunWork};
use crate::topology::Topology;

/// The most paths of a run.
const PATHS_MAX: usize = 64;
/// The most sessions of a team.
const SESSIONS_MAX: u16 = 64;

/// Checks a run.
pub(super) fn run(at: &At<'_>, topology: &Topology, mut table: RunTable) -> Result<Run, ExperimentError> {
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
        MeasureName::Storage => RunWork::Storage(storage(at, topology, &target, &table)?),
        MeasureName::Net => RunWork::Wire(wire(at, topology, &paths, &table)?),
        MeasureName::Compare => RunWork::Compare(comparing(at, topology, &target, &table)?),
        MeasureName::Backup => RunWork::Backup(backup(at, &paths, &table)?),
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

/// A key that the measure does not have would be without effect, and its author would not know.
fn foreign_keys(at: &At<'_>, table: &RunTable) -> Result<(), ExperimentError> {
    use MeasureName::{Backup, Compare, Net, Storage};
    let keys: [(&'static str, bool, &[MeasureName]); 18] = [
        ("control", table.control, &[Storage]),
        ("policy", table.policy.is_some(), &[Storage, Compare]),
        ("plan", table.plan.is_some(), &[Storage, Compare]),
        ("team", table.team.is_some(), &[Storage]),
        ("sessions", table.sessions.is_some(), &[Storage]),
        ("lun", table.lun.is_some(), &[Storage]),
        ("rw", table.rw.is_some(), &[Storage, Net]),
        ("bs", table.bs.is_some(), &[Storage, Backup]),
        ("qd", table.qd.is_some(), &[Storage, Backup]),
        ("ramp", table.ramp.is_some(), &[Storage]),
        ("size", table.size.is_some(), &[Storage, Compare, Backup]),
        ("mix", table.mix.is_some(), &[Storage]),
        ("verify", table.verify.is_some(), &[Storage]),
        ("event", table.events.is_some(), &[Storage]),
        ("window", table.window.is_some(), &[Net]),
        ("mtu", table.mtu.is_some(), &[Net]),
        ("delay", table.delay.is_some(), &[Net]),
        ("arm", table.arms.is_some(), &[Compare]),
    ];
    let more = [
        ("time", table.time.is_some(), &[Storage, Net, Compare][..]),
        ("way", table.way.is_some(), &[Backup][..]),
        ("changed", table.changed.is_some(), &[Backup][..]),
        ("cut", table.cut.is_some(), &[Backup][..]),
        ("patience", table.patience.is_some(), &[Backup][..]),
        ("write_behind", table.write_behind.is_some(), &[Backup][..]),
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
                Backup => "backup",
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
) -> Result<Vec<RunPath>, ExperimentError> {
    let written = match (written, &topology.cables[..]) {
        (Some(written), _) => written.0,
        // Where there is one cable there is one way.
        (None, [cable]) => vec![cable.name.clone()],
        _ => return Err(at.wrong("paths", Problem::Missing("there is more than one cable"))),
    };
    let paths = written.iter().map(|text| RunPath::parse(text)).collect::<Result<Vec<_>, _>>();
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
            topology.end_on(&path.leaves, from).ok_or_else(|| why("its first cable ends elsewhere"))?;
        let enters =
            topology.end_on(&path.enters, target).ok_or_else(|| why("its last cable ends elsewhere"))?;
        let addresses = topology.addresses();
        let subnet = |end| addresses.get(end).map(|address| address.octets()[..3].to_vec());
        if subnet(leaves) != subnet(enters) {
            return Err(why("the two are not of one network"));
        }
    }
    Ok(paths)
}

/// Returns the number of sessions of the run's team; `None` if the run has no team.
fn team(at: &At<'_>, paths: &[RunPath], table: &RunTable) -> Result<Option<u16>, ExperimentError> {
    let chooses = paths.iter().any(RunPath::has_options);
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

/// Returns the policies to measure, one after the other. Several sessions always have a policy; a single session has
/// none unless one is requested.
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
