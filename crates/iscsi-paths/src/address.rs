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
mod tests {
    use super::*;

    const BASE: &str = "iscsi://192.0.2.10/iqn.2026-11.com.example:disk/0";

    fn several(query: &str) -> MultipathUrl {
        match Address::parse(&format!("{BASE}?{query}")).unwrap() {
            Address::Several(url) => url,
            Address::One(url) => panic!("{query} is one path: {url}"),
        }
    }

    fn refused(query: &str) -> String {
        Address::parse(&format!("{BASE}?{query}")).unwrap_err().to_string()
    }

    fn named(host: &str, port: u16, target: Option<&str>) -> PortalName {
        PortalName { host: host.to_owned(), port, target: target.map(str::to_owned) }
    }

    #[test]
    fn a_portal_may_have_the_disk_under_another_name() {
        let url = several(
            "portal=192.0.2.11,iqn.x:b&portal=[2001:db8::1]:99,iqn.x:c&portal=192.0.2.12,iqn.2026-11.com.example:DISK\
             &portal=192.0.2.13",
        );
        let names: Vec<_> = url.portals.iter().map(|portal| url.own_name(portal)).collect();
        assert_eq!(url.portals[0], named("192.0.2.11", 3260, Some("iqn.x:b")));
        assert_eq!(names, [Some("iqn.x:b".to_owned()), Some("iqn.x:c".to_owned()), None, None]);
        let lanes = several("lane=192.0.2.20>192.0.2.11:9,iqn.x:b,reserve").lanes;
        assert_eq!((&lanes[0].portal, lanes[0].reserve), (&named("192.0.2.11", 9, Some("iqn.x:b")), true));
        let address = url.lane(None, "192.0.2.11:3260".parse().unwrap(), Some("iqn.x:b"));
        assert_eq!(address.to_string(), "iscsi://192.0.2.11:3260/iqn.x:b/0");
        assert!(refused("portal=192.0.2.11,node-b").contains("`node-b` is not an iSCSI name"));
    }

    #[test]
    fn one_portal_and_none_of_the_keys_is_one_path() {
        for query in ["", "?from=192.0.2.20", "?header_digest=crc32c&from=192.0.2.20"] {
            let text = format!("{BASE}{query}");
            assert_eq!(Address::parse(&text), Ok(Address::One(IscsiUrl::parse(&text).unwrap())), "{query}");
        }
    }

    #[test]
    fn any_of_the_keys_makes_it_several_paths() {
        for query in [
            "portal=192.0.2.11",
            "from=192.0.2.20&from=192.0.2.21",
            "lane=192.0.2.20>192.0.2.10",
            "plan=mesh",
            "policy=round-robin",
            "failback=manual",
            "when_none=fail",
            "queue=forever",
            "key=0x1",
            "weight=1",
        ] {
            assert_eq!(several(query).base, IscsiUrl::parse(BASE).unwrap(), "{query}");
        }
    }

    #[test]
    fn a_whole_address_comes_apart() {
        let url = several(
            "portal=192.0.2.11:3261&data_digest=crc32c&portal=[2001:db8::1]&from=192.0.2.20&from=%5B2001:db8::2%5D\
             &plan=redundant&policy=least-queue-depth&failback=10s&when_none=queue:5s:16M&settle=2s&unproven=fail\
             &key=0xBEEF&register=again&weight=1,10",
        );
        assert!(url.base.data_digest && url.base.from.is_none());
        assert_eq!(url.portals, [named("192.0.2.11", 3261, None), named("2001:db8::1", 3260, None)]);
        let from: Vec<IpAddr> = vec!["192.0.2.20".parse().unwrap(), "2001:db8::2".parse().unwrap()];
        assert_eq!((url.from, url.plan), (from, Some(PlanKind::Redundant)));
        assert_eq!(url.policy, Some(Policy::LeastQueueDepth));
        assert_eq!(url.failback, Some(Failback::After(Duration::from_secs(10))));
        assert_eq!(url.when_none, Some(WhenNone::Queue { time: Duration::from_secs(5), bytes: 16 << 20 }));
        assert_eq!((url.settle, url.unproven), (Some(Duration::from_secs(2)), Some(Unproven::Fail)));
        assert_eq!((url.key, url.register), (Some(0xBEEF), Some(Registering::Again)));
        assert_eq!(url.weights, [1, 10]);
        let lanes =
            several("lane=192.0.2.20%3E192.0.2.10&lane=[2001:db8::2]>[2001:db8::1]:9,reserve,weight=7").lanes;
        let lane = |from: &str, host: &str, port, weight, reserve| LaneName {
            from: from.parse().unwrap(),
            portal: named(host, port, None),
            weight,
            reserve,
        };
        assert_eq!(lanes[0], lane("192.0.2.20", "192.0.2.10", 3260, None, false));
        assert_eq!(lanes[1], lane("2001:db8::2", "2001:db8::1", 9, Some(7), true));
    }

    #[test]
    fn a_lane_has_the_secrets_and_keys_of_the_whole() {
        let text = format!("{}?portal=192.0.2.11&header_digest=crc32c", BASE.replace("//", "//u%hunter2@"));
        let Ok(Address::Several(url)) = Address::parse(&text) else { panic!() };
        let lane = url.lane(Some("192.0.2.20".parse().unwrap()), "192.0.2.11:3260".parse().unwrap(), None);
        assert_eq!((lane.portal().as_str(), lane.header_digest), ("192.0.2.11:3260", true));
        assert!(lane.account.is_some() && lane.lun == Some(0));
        assert!(!format!("{url:?} {url}").contains("hunter2"));
    }

    #[test]
    fn a_queue_is_a_time_or_for_ever_or_none() {
        let mib = 1 << 20;
        for (text, time, bytes) in [
            ("queue=2m", Duration::from_secs(120), 256 * mib),
            ("queue=2m:1M", Duration::from_secs(120), mib),
            ("queue=forever", QUEUE_FOREVER, 256 * mib),
            ("queue=forever:8M", QUEUE_FOREVER, 8 * mib),
            ("when_none=queue:forever:8M", QUEUE_FOREVER, 8 * mib),
        ] {
            assert_eq!(several(text).when_none, Some(WhenNone::Queue { time, bytes }), "{text}");
        }
        assert_eq!(several("queue=fail").when_none, Some(WhenNone::Fail));
        let timers = several("plan=mesh&command_timeout=5s").base.command_timeout;
        assert_eq!(timers, Some(Duration::from_secs(5)), "for each lane");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (query, part) in [
            ("portal=", "in `portal=`"),
            ("portal=a:b:c", "in `portal=a:b:c`"),
            ("from=here&from=there", "`here` is not a local IP address"),
            ("lane=192.0.2.20", "`192.0.2.20` is no lane"),
            ("lane=x>192.0.2.10", "is no lane"),
            ("lane=192.0.2.20>192.0.2.10,weight=101", "is no lane"),
            ("lane=192.0.2.20>192.0.2.10,reserve=no", "is no lane"),
            ("plan=best", "`best` is not a plan; plans are paired"),
            ("policy=fair", "fair"),
            ("policy=adaptive&policy=adaptive", "`policy` is given twice"),
            ("failback=soon", "in failback: "),
            ("when_none=wait", "when_none cannot be `wait`"),
            ("when_none=queue:x", "queue:30s:256M"),
            ("when_none=fail:3", "when_none cannot be"),
            ("queue=", "queue cannot be ``"),
            ("queue=ever", "queue=2m:256M"),
            ("queue=fail&when_none=fail", "is given twice"),
            ("queue=1m&replacement_timeout=5s", "replacement_timeout is for a single path"),
            ("plan=mesh&command_timeout=0s", "command_timeout cannot be `0s`"),
            ("settle=long", "settle cannot be `long`"),
            ("settle=2h", "at most 1h"),
            ("settle=1s&settle=2s", "`settle` is given twice"),
            ("unproven=hope", r#"in unproven: "hope" is none of resend, fail"#),
            ("register=first", "add key=0x…"),
            ("key=1&register=now", r#"in register: "now" is none of first, again, present"#),
            ("key=0", "is not a reservation key"),
            ("key=0x11112222333344445", "is not a reservation key"),
            ("weight=1,many", "are no weights"),
            ("polcy=adaptive", "for several paths portal, from"),
            ("plan=mesh&polcy=adaptive", "for several paths portal, from"),
        ] {
            let said = refused(query);
            assert!(said.contains(part), "{query}: {said}");
        }
        assert!(refused(&"portal=h&".repeat(65)).contains("more than 64"));
    }

    #[test]
    fn no_error_shows_a_secret() {
        for query in ["plan=mesh&target_user=t&target_password=hunter2", "plan=mesh&x=hunter2", "plan=hm"] {
            let text = format!("{}?{query}", BASE.replace("//", "//u%hunter2@"));
            let error = Address::parse(&text).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
