//! Run: one measurement of an experiment.

use std::fmt;
use std::time::Duration;

use lunway_bench::RwMode;
use lunway_block::size::ExactSize;
use lunway_multipath::Policy;
use lunway_vhdx::DiskKind;
use serde::Deserialize;

use crate::timeline::Action;

/// Placeholder for a policy where there is nothing to choose.
pub(crate) const NO_POLICY: &str = "-";
/// The policies; the first is that of several paths where none is said.
pub(crate) const POLICIES: [&str; Policy::NAMES.len()] = Policy::NAMES;

/// One measurement: which host reaches which storage over which paths, and what it does there.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Its name in tables, and in figures.
    pub test: String,
    /// Name of the topology, for people.
    pub topology: String,
    /// The host that reads and writes.
    pub from: String,
    /// The host whose target serves, or that answers on the wire.
    pub target: String,
    /// The ways from one to the other.
    pub paths: Vec<RunPath>,
    /// Rule that makes paths of what `paths` names; `None`: they are named one by one.
    pub plan: Option<Plan>,
    /// Policies, each of which is measured; `-` where there is nothing to choose.
    pub policies: Vec<String>,
    /// The paths are one team, not paths: so many sessions between one address of the host and one of the storage, and
    /// each goes where a hash of its addresses and ports sends it.
    pub team: Option<u16>,
    /// The others are compared with this one.
    pub is_control: bool,
    /// The measurement.
    pub measure: RunWork,
}

/// A way from a host to a storage: the cable that leaves the one, and the cable that enters the other. They are the
/// same where nothing is between.
///
/// Written as `lane1`, or `lane1 > port2`; behind it, for the policies that know them, `reserve`, `weight=N` and
/// `throughput=N`, as in `lane2 > port2, reserve`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunPath {
    /// The cable at the host.
    pub leaves: String,
    /// The cable at the storage.
    pub enters: String,
    /// Used only when no other is left.
    pub reserve: bool,
    /// Weight for `weighted`: the path with the least is taken.
    pub weight: Option<u32>,
    /// Weight for `service-time`: throughput relative to the other paths.
    pub throughput: Option<u32>,
}

impl RunPath {
    /// Reads a path. Whether there are such cables the check says.
    ///
    /// # Errors
    ///
    /// What stands behind a comma, where it is no option.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let way = parts.next().unwrap_or_default();
        let (leaves, enters) = way.split_once('>').unwrap_or((way, way));
        let mut path = Self {
            leaves: leaves.trim().to_owned(),
            enters: enters.trim().to_owned(),
            reserve: false,
            weight: None,
            throughput: None,
        };
        for option in parts.map(str::trim) {
            let wrong = || option.to_owned();
            match option.split_once('=') {
                None if option == "reserve" => path.reserve = true,
                Some(("weight", number)) => path.weight = Some(number.parse().map_err(|_| wrong())?),
                Some(("throughput", number)) => path.throughput = Some(number.parse().map_err(|_| wrong())?),
                _ => return Err(wrong()),
            }
        }
        Ok(path)
    }

    /// Returns the lane's `weight` in the device grammar under a policy: two policies read it in opposite senses.
    pub(crate) fn weight_for(&self, policy: &str) -> Option<u32> {
        if policy == "service-time" { self.throughput } else { self.weight }
    }

    /// Returns `true` if it has something that a policy goes by.
    pub(crate) fn has_options(&self) -> bool {
        self.reserve || self.weight.is_some() || self.throughput.is_some()
    }

    /// Returns `true` if it is the same way, whatever its options.
    pub fn is_way_of(&self, other: &Self) -> bool {
        (&self.leaves, &self.enters) == (&other.leaves, &other.enters)
    }
}

impl fmt::Display for RunPath {
    /// The way, as a table or a chart calls it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.leaves == self.enters {
            true => f.write_str(&self.leaves),
            false => write!(f, "{} > {}", self.leaves, self.enters),
        }
    }
}

/// Rule that makes paths of cards that can reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Plan {
    /// Each card of the host with one of the storage, and no card twice.
    Paired,
    /// As few as use every card of both.
    Balanced,
    /// Each card of the host with every card of the storage that it reaches.
    Mesh,
    /// As paired, and the rest of the mesh for when those fail.
    Redundant,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Paired => "paired",
            Self::Balanced => "balanced",
            Self::Mesh => "mesh",
            Self::Redundant => "redundant",
        })
    }
}

/// Work done over the paths of a [`Run`].
#[derive(Clone, Debug, PartialEq)]
pub enum RunWork {
    /// I/O on a logical unit.
    Storage(Storage),
    /// Bare TCP, as a matrix of windows, MTUs and delays.
    Wire(Wire),
    /// Logical units against each other, row by row.
    Compare(Comparing),
    /// A disk of the host, backed up into a share of the storage.
    Backup(BackupRun),
}

/// I/O on a logical unit.
#[derive(Clone, Debug, PartialEq)]
pub struct Storage {
    /// Number of the unit.
    pub lun: u16,
    /// Access patterns, measured one after the other; each is a row.
    pub accesses: Vec<RwMode>,
    /// Bytes per I/O.
    pub block_size: u32,
    /// I/Os in flight.
    pub queue_depth: u32,
    /// Duration of each measurement.
    pub time: Duration,
    /// Ramp time: how long the same runs before the measurement, on the same sessions.
    pub ramp: Duration,
    /// The part of the unit that is used, bytes from its start. It is written before anything is measured.
    pub size: u64,
    /// Per cent of reads of mixed accesses.
    pub mix: u8,
    /// Blocks are stamped when written and checked when read.
    pub verify: bool,
    /// Events on the network during the measurement, in order of time.
    pub events: Vec<Event>,
}

/// Up to this many bytes a request is small: most of what it takes is not its bytes.
const SMALL: u32 = 16 << 10;

impl Storage {
    /// Returns `true` if the run measures the latency of a single request. Processor time is part of that latency: one
    /// core is always busy with it, and a network of any rate would not change that.
    pub(crate) fn is_latency(&self) -> bool {
        self.queue_depth == 1 && self.block_size <= SMALL
    }
}

/// Names of the rows that an access makes: one for each direction.
pub(crate) fn rows(access: RwMode) -> &'static [&'static str] {
    match access {
        RwMode::Read => &["read"],
        RwMode::Write => &["write"],
        RwMode::Randread => &["randread"],
        RwMode::Randwrite => &["randwrite"],
        RwMode::Rw => &["rw-read", "rw-write"],
        RwMode::Randrw => &["randrw-read", "randrw-write"],
    }
}

/// Something happens to the network, or to a target.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Time of the event.
    pub at: Moment,
    /// The incident.
    pub incident: Incident,
}

/// A time in a measurement: from its start, the ramp not counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Moment {
    /// So long after it; moved in proportion where the measurement is made shorter or longer than its file says.
    After(Duration),
    /// After this share of it, 0..=1.
    Share(f64),
}

impl Moment {
    /// The moment in a measurement of `time` whose file says `written`.
    pub fn within(self, time: Duration, written: Duration) -> Duration {
        let share = match self {
            Self::Share(share) => share,
            Self::After(after) if time == written => return after,
            Self::After(after) => after.as_secs_f64() / written.as_secs_f64(),
        };
        time.mul_f64(share)
    }
}

/// Kind of incident.
#[derive(Clone, Debug, PartialEq)]
pub enum Incident {
    /// To a cable.
    Cable(Action),
    /// A host's target is killed.
    Stop(String),
    /// Started again.
    Start(String),
}

impl fmt::Display for Incident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cable(action) => action.fmt(f),
            Self::Stop(host) => write!(f, "target of {host} killed"),
            Self::Start(host) => write!(f, "target of {host} started"),
        }
    }
}

/// Bare TCP between two hosts: every window with every MTU and every delay.
#[derive(Clone, Debug, PartialEq)]
pub struct Wire {
    /// TCP windows.
    pub windows: Vec<Window>,
    /// MTUs, bytes.
    pub mtus: Vec<u32>,
    /// Delays per direction: a round trip takes twice as long. Zero is a cable without a line.
    pub delays: Vec<Duration>,
    /// Connections at once.
    pub streams: u32,
    /// `read` (towards the host `from`), `write`, or both.
    pub directions: Vec<RwMode>,
    /// Duration of each cell's measurement.
    pub time: Duration,
}

/// A TCP window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// As it was written: figures call it that.
    pub text: String,
    /// Bytes; `None` leaves it to the system.
    pub bytes: Option<u32>,
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes {
            Some(bytes) if bytes % 1000 == 0 => write!(f, "{} kB", bytes / 1000),
            Some(bytes) => write!(f, "{}", ExactSize(bytes.into())),
            None => f.write_str("auto"),
        }
    }
}

/// A disk that is backed up into a share over one path.
#[derive(Clone, Debug, PartialEq)]
pub struct BackupRun {
    /// How.
    pub way: BackupWay,
    /// Bytes of data on the disk.
    pub size: u64,
    /// Bytes of each write of a copy.
    pub block_size: u32,
    /// Writes of a copy in flight.
    pub queue_depth: u32,
    /// The part of the data that is changed before an increment, 0..=1.
    pub changed: f64,
    /// The cable is cut in the middle.
    pub cut: Option<Cut>,
    /// A connection to the share over which nothing is heard for so long is given up.
    pub patience: Duration,
    /// The share's client answers a write before its server has.
    pub write_behind: bool,
}

/// A way to back up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackupWay {
    /// A copy into a dynamic VHDX file that is attached over the share.
    CopyDynamic,
    /// The same into a fixed one.
    CopyFixed,
    /// `lunway backup run` into an empty folder.
    Full,
    /// `lunway backup run` after a change.
    Increment,
}

impl BackupWay {
    /// The disk that a copy is made into; `None`: it is none.
    pub(crate) fn disk(self) -> Option<DiskKind> {
        match self {
            Self::CopyDynamic => Some(DiskKind::Dynamic),
            Self::CopyFixed => Some(DiskKind::Fixed),
            Self::Full | Self::Increment => None,
        }
    }
}

/// A cut of the cable at the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cut {
    /// How it is cut.
    pub kind: CutKind,
    /// After this share of what is to be sent, 0..=1.
    pub at: f64,
    /// For so long.
    pub time: Duration,
}

/// A way to cut a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CutKind {
    /// Both ends lose their carrier.
    Pull,
    /// It swallows every frame, and neither end is told.
    BlackHole,
}

/// Logical units against each other, in interleaved pairs.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparing {
    /// The two.
    pub arms: [Arm; 2],
    /// Measurements of each row on each arm before the first test whether they decide.
    pub pairs: u32,
    /// Further rounds of as many pairs, for rows that are not decided.
    pub rounds: u32,
    /// Margin of differences of no importance, per cent.
    pub margin: f64,
    /// Duration of each measurement.
    pub time: Duration,
    /// The part of the units that is used, bytes from their start.
    pub size: u64,
}

/// One arm of a [`Comparing`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arm {
    /// Its column.
    pub name: String,
    /// Its logical unit.
    pub lun: u16,
}
