//! Addresses of disks behind several paths.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use lunway_block::duration::parse_duration;
use lunway_block::size::parse_size;
use lunway_block::spec::split_options;
use lunway_initiator::{IscsiUrl, UrlError};
use percent_encoding::percent_decode_str;

use crate::reservation::Registering;
use lunway_multipath::plan::{PlanKind, UnknownPlan};
use lunway_multipath::{Failback, Policy, QUEUE_FOREVER, Unproven, WhenNone};

/// Most portals, local addresses and lanes that are read: more than any machine has cables.
const NAMES_MAX: usize = 64;

/// Longest time to settle: who wants to wait longer wants no answer.
const SETTLE_MAX: Duration = Duration::from_secs(3600);

/// The keys that make an address one of several paths.
const KEYS: &str = "portal, from (several), lane, plan, policy, failback, queue, when_none, settle, unproven, key, register, weight";

/// An `iscsi://` address: of one path, or of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Single path: one portal, at most one local address, and nothing that concerns several paths. One session.
    One(IscsiUrl),
    /// Several paths to one disk.
    Several(MultipathUrl),
}

/// Address of one disk over several paths.
///
/// ```text
/// iscsi://[user[%secret]@]host[:port]/target/lun?portal=H:P&portal=H:P,TARGET&from=IP&from=IP&plan=paired&…
/// ```
///
/// To the keys of [`IscsiUrl`], which go to every path, come:
///
/// | key | is |
/// |---|---|
/// | `portal` | another portal, `host[:port]`, with the target's name behind a comma where it is another one there; several times. Without it the target is asked for all it has |
/// | `from` | a local address to leave from; several times |
/// | `lane` | a lane of an explicit plan, `from>host[:port][,target][,weight=N][,reserve]`; several times |
/// | `plan` | `paired`, `balanced`, `mesh`, `redundant`, `explicit` |
/// | `policy` | which lane an I/O takes: see [`Policy`] |
/// | `failback` | when a lane that came back is used again: `immediate`, `manual`, or a time such as `30s` |
/// | `queue` | when no lane is left: how long I/O waits for one, and with how much at most: `TIME[:SIZE]`, `forever[:SIZE]`, or `fail` |
/// | `when_none` | the same in other words: `fail`, or `queue[:TIME[:SIZE]]` |
/// | `settle` | how long a lost session may take to be proven dead: a time such as `10s`, at most `1h` |
/// | `unproven` | what then becomes of writes that were under way in it: `resend`, `fail` |
/// | `key` | a reservation key, which is registered on every lane: `0x…` |
/// | `register` | when that key is registered: `first`, `again`, `present`; see [`Registering`] |
/// | `weight` | weights of the lanes in the plan's order: `1,10` |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MultipathUrl {
    /// The first portal, and what is the same on all paths. Its `from` is not used.
    pub base: IscsiUrl,
    /// More portals.
    pub portals: Vec<PortalName>,
    /// Local addresses to leave from; empty: those that reach a portal.
    pub from: Vec<IpAddr>,
    /// The lanes of an explicit plan.
    pub lanes: Vec<LaneName>,
    /// Kind of plan by which ports and portals become lanes.
    pub plan: Option<PlanKind>,
    /// Policy that selects the lane of an I/O.
    pub policy: Option<Policy>,
    /// Failback: when a lane that came back is used again.
    pub failback: Option<Failback>,
    /// Behaviour when no lane is left.
    pub when_none: Option<WhenNone>,
    /// Time allowed to prove that a lost session is dead.
    pub settle: Option<Duration>,
    /// Treatment, after that, of writes that were under way in it.
    pub unproven: Option<Unproven>,
    /// Reservation key.
    pub key: Option<u64>,
    /// Time of its registration.
    pub register: Option<Registering>,
    /// Of the lanes in order; those missing have 1.
    pub weights: Vec<u32>,
}

/// A portal, as an address says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortalName {
    /// Name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// The target's name there, where the portal was given one: arrays have a name for each port or node, and one disk
    /// behind all.
    pub target: Option<String>,
}

/// A lane of an explicit plan, as an address says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneName {
    /// Local address.
    pub from: IpAddr,
    /// Portal that it leads to.
    pub portal: PortalName,
    /// Its weight.
    pub weight: Option<u32>,
    /// Carries something only when no other is left.
    pub reserve: bool,
}

/// Reason why an address of several paths cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The part that is the same on all paths.
    #[error("{0}{more}", more = more(.0))]
    Url(#[from] UrlError),
    /// A portal that is none.
    #[error("in `{key}={value}`: {source}")]
    Portal {
        /// Key of the value.
        key: &'static str,
        /// Value given.
        value: String,
        /// Error in the value.
        source: UrlError,
    },
    /// Not a lane.
    #[error(
        "`{0}` is no lane: it should be a local address and a portal, as in lane=192.0.2.20>192.0.2.10:3260, with a target's name, \
         ,weight=0 to 100 and ,reserve behind them where wanted"
    )]
    Lane(String),
    /// Not a plan.
    #[error(transparent)]
    Plan(#[from] UnknownPlan),
    /// Not a policy.
    #[error("{0}")]
    Policy(String),
    /// Not a time of failing back.
    #[error("in failback: {0}")]
    Failback(String),
    /// Not a way to bear it.
    #[error(
        "when_none cannot be `{0}`: it is fail, or queue with a time and a size, as in when_none=queue:30s:256M"
    )]
    WhenNone(String),
    /// Not a way to queue.
    #[error(
        "queue cannot be `{0}`: it is fail, forever or a time, with a size behind them where wanted, as in queue=2m:256M"
    )]
    Queue(String),
    /// A time that only a single path has.
    #[error(
        "replacement_timeout is for a single path: over several nothing waits for a lost one, and queue= says how long I/O waits when \
         none is left"
    )]
    ReplacementTimeout,
    /// Not a time to settle.
    #[error("settle cannot be `{0}`: it is a time of at most 1h, as in settle=10s")]
    Settle(String),
    /// Not a way to go on without proof.
    #[error("in unproven: {0}")]
    Unproven(String),
    /// Not a reservation key.
    #[error(
        "`{0}` is not a reservation key: it has 1 to 16 hexadecimal digits and not 0, as in key=0x123abc"
    )]
    Key(String),
    /// Not a time to register a key.
    #[error("in register: {0}")]
    Register(String),
    /// A time to register a key, and none.
    #[error("`register` says when the reservation key is registered, and there is none: add key=0x…")]
    NoKey,
    /// Not weights.
    #[error(
        "`{0}` are no weights: they are whole numbers from 0 to 100, one for each lane, as in weight=1,10"
    )]
    Weight(String),
    /// Something is said twice.
    #[error("`{0}` is given twice")]
    Twice(&'static str),
    /// Too many of something.
    #[error("`{0}` is given more than {NAMES_MAX} times")]
    TooMany(&'static str),
}

/// An unknown key may have been meant for several paths.
fn more(error: &UrlError) -> String {
    match error {
        UrlError::Key(_) => format!("; for several paths {KEYS}"),
        _ => String::new(),
    }
}

impl Address {
    /// Reads an address, the secret files it names, and the environment.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let (rest, query) = text.split_once('?').unwrap_or((text, ""));
        let mut draft = Draft::default();
        let (mut others, mut several) = (Vec::new(), false);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let ours = draft.take(key, value)?;
            several |= ours && key != "from";
            // What the other parser refuses, it refuses with the text as it was.
            if !ours {
                others.push(pair);
            }
        }
        if !several && draft.from.len() <= 1 {
            return Ok(Self::One(IscsiUrl::parse(text)?));
        }
        let query = others.join("&");
        let base =
            IscsiUrl::parse(&if query.is_empty() { rest.to_owned() } else { format!("{rest}?{query}") })?;
        if base.replacement_timeout.is_some() {
            return Err(AddressError::ReplacementTimeout);
        }
        if draft.register.is_some() && draft.key.is_none() {
            return Err(AddressError::NoKey);
        }
        Ok(Self::Several(MultipathUrl {
            base,
            portals: draft.portals,
            from: draft.from,
            lanes: draft.lanes,
            plan: draft.plan,
            policy: draft.policy,
            failback: draft.failback,
            when_none: draft.when_none,
            settle: draft.settle,
            unproven: draft.unproven,
            key: draft.key,
            register: draft.register,
            weights: draft.weights.unwrap_or_default(),
        }))
    }
}

impl MultipathUrl {
    /// The disk behind one path of many: as the same address with `plan` would say it.
    pub fn of_one(base: IscsiUrl) -> Self {
        let from = base.from.into_iter().collect();
        Self {
            base,
            portals: Vec::new(),
            from,
            lanes: Vec::new(),
            plan: None,
            policy: None,
            failback: None,
            when_none: None,
            settle: None,
            unproven: None,
            key: None,
            register: None,
            weights: Vec::new(),
        }
    }

    /// The target's name at a portal, where it is not that of the address. Names have no upper case of their own (RFC
    /// 7143 §4.2.7.1).
    pub(crate) fn own_name(&self, portal: &PortalName) -> Option<String> {
        let ours = self.base.target.as_deref().unwrap_or_default();
        portal.target.clone().filter(|name| !name.eq_ignore_ascii_case(ours))
    }

    /// The address of one lane, for the initiator.
    pub(crate) fn lane(
        &self,
        from: Option<IpAddr>,
        portal: std::net::SocketAddr,
        target: Option<&str>,
    ) -> IscsiUrl {
        let host = match portal {
            std::net::SocketAddr::V6(v6) if v6.scope_id() != 0 => format!("{}%{}", v6.ip(), v6.scope_id()),
            _ => portal.ip().to_string(),
        };
        let target = target.map(str::to_owned).or_else(|| self.base.target.clone());
        IscsiUrl { host, port: portal.port(), from, target, ..self.base.clone() }
    }
}

impl fmt::Display for MultipathUrl {
    /// The address without secrets and keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.base.fmt(f)
    }
}

/// Keys as they were read.
#[derive(Default)]
struct Draft {
    portals: Vec<PortalName>,
    from: Vec<IpAddr>,
    lanes: Vec<LaneName>,
    plan: Option<PlanKind>,
    policy: Option<Policy>,
    failback: Option<Failback>,
    when_none: Option<WhenNone>,
    settle: Option<Duration>,
    unproven: Option<Unproven>,
    key: Option<u64>,
    register: Option<Registering>,
    weights: Option<Vec<u32>>,
}

impl Draft {
    /// Takes a key, if it is one of several paths.
    fn take(&mut self, key: &str, value: &str) -> Result<bool, AddressError> {
        let decoded = percent_decode_str(value).decode_utf8_lossy();
        let value = decoded.as_ref();
        match key {
            "portal" => push(&mut self.portals, portal("portal", value)?, "portal")?,
            "from" => {
                let bare = value.trim_start_matches('[').trim_end_matches(']');
                let ip = bare.parse().map_err(|_| UrlError::From(value.to_owned()))?;
                push(&mut self.from, ip, "from")?;
            }
            "lane" => push(&mut self.lanes, lane(value)?, "lane")?,
            "plan" => once(&mut self.plan, value.parse()?, "plan")?,
            "policy" => {
                let policy =
                    value.parse::<Policy>().map_err(|error| AddressError::Policy(error.to_string()))?;
                once(&mut self.policy, policy, "policy")?;
            }
            "failback" => {
                let failback =
                    value.parse::<Failback>().map_err(|error| AddressError::Failback(error.to_string()))?;
                once(&mut self.failback, failback, "failback")?;
            }
            "when_none" => once(&mut self.when_none, when_none(value)?, "when_none")?,
            "queue" => once(&mut self.when_none, queue(value)?, "queue")?,
            "settle" => once(&mut self.settle, settle(value)?, "settle")?,
            "unproven" => {
                let unproven =
                    value.parse::<Unproven>().map_err(|error| AddressError::Unproven(error.to_string()))?;
                once(&mut self.unproven, unproven, "unproven")?;
            }
            "key" => once(&mut self.key, reservation_key(value)?, "key")?,
            "register" => {
                let when = value.parse::<Registering>();
                let when = when.map_err(|error| AddressError::Register(error.to_string()))?;
                once(&mut self.register, when, "register")?;
            }
            "weight" => once(&mut self.weights, weights(value)?, "weight")?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn push<T>(list: &mut Vec<T>, value: T, key: &'static str) -> Result<(), AddressError> {
    if list.len() == NAMES_MAX {
        return Err(AddressError::TooMany(key));
    }
    list.push(value);
    Ok(())
}

fn once<T>(place: &mut Option<T>, value: T, key: &'static str) -> Result<(), AddressError> {
    if place.replace(value).is_some() { Err(AddressError::Twice(key)) } else { Ok(()) }
}

/// `host[:port][,target]`
pub(crate) fn portal(key: &'static str, value: &str) -> Result<PortalName, AddressError> {
    let refused = |source| {
        // Behind a percent sign there may be the secret of someone who put a whole address here.
        let shown = value.split('%').next().unwrap_or_default().to_owned();
        AddressError::Portal { key, value: shown, source }
    };
    let (place, name) = value.split_once(',').map_or((value, None), |(place, name)| (place, Some(name)));
    let (host, port) = IscsiUrl::parse_portal(place.trim()).map_err(refused)?;
    let target = name.map(|name| IscsiUrl::parse_name(name.trim())).transpose().map_err(refused)?;
    Ok(PortalName { host, port, target })
}

fn lane(value: &str) -> Result<LaneName, AddressError> {
    let wrong = || AddressError::Lane(value.to_owned());
    let (lane, options) = split_options(value, &["weight", "reserve"]);
    let (from, to) = lane.split_once('>').ok_or_else(wrong)?;
    let bare = from.trim().trim_start_matches('[').trim_end_matches(']');
    let (mut own_weight, mut reserve) = (None, false);
    for option in options {
        match option {
            ("weight", number) => own_weight = Some(weight(number).ok_or_else(wrong)?),
            (_, "") => reserve = true,
            _ => return Err(wrong()),
        }
    }
    Ok(LaneName {
        from: bare.parse().map_err(|_| wrong())?,
        portal: portal("lane", to.trim())?,
        weight: own_weight,
        reserve,
    })
}

fn when_none(value: &str) -> Result<WhenNone, AddressError> {
    let wrong = || AddressError::WhenNone(value.to_owned());
    let (word, rest) = value.split_once(':').unwrap_or((value, ""));
    match (word, rest) {
        ("fail", "") => Ok(WhenNone::Fail),
        ("queue", rest) => time_and_size(rest).ok_or_else(wrong),
        _ => Err(wrong()),
    }
}

fn queue(value: &str) -> Result<WhenNone, AddressError> {
    let queue = match value {
        "fail" => Some(WhenNone::Fail),
        _ => time_and_size(value).filter(|_| !value.is_empty()),
    };
    queue.ok_or_else(|| AddressError::Queue(value.to_owned()))
}

/// A queue of `[TIME][:SIZE]`.
fn time_and_size(text: &str) -> Option<WhenNone> {
    let (time, size) = text.split_once(':').unwrap_or((text, ""));
    let WhenNone::Queue { time: usual_time, bytes: usual_bytes } = WhenNone::default() else { return None };
    let time = match time {
        "" => usual_time,
        "forever" => QUEUE_FOREVER,
        time => parse_duration(time).ok()?.min(QUEUE_FOREVER),
    };
    let bytes = if size.is_empty() { usual_bytes } else { parse_size(size).ok()? };
    Some(WhenNone::Queue { time, bytes })
}

fn settle(value: &str) -> Result<Duration, AddressError> {
    let time = parse_duration(value).ok().filter(|time| *time <= SETTLE_MAX);
    time.ok_or_else(|| AddressError::Settle(value.to_owned()))
}

fn reservation_key(value: &str) -> Result<u64, AddressError> {
    let digits = value.strip_prefix("0x").unwrap_or(value);
    let key = (digits.len() <= 16).then(|| u64::from_str_radix(digits, 16).ok()).flatten();
    key.filter(|key| *key != 0).ok_or_else(|| AddressError::Key(value.to_owned()))
}

/// As Linux's `service-time` takes them.
fn weight(text: &str) -> Option<u32> {
    text.trim().parse().ok().filter(|weight| *weight <= 100)
}

fn weights(value: &str) -> Result<Vec<u32>, AddressError> {
    let all: Option<Vec<u32>> = value.split(',').take(NAMES_MAX + 1).map(weight).collect();
    all.filter(|all| all.len() <= NAMES_MAX).ok_or_else(|| AddressError::Weight(value.to_owned()))
}

#[cfg(test)]
mod tests;
