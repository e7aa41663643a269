//! The daemon is killed in the middle of changes, again and again: what it comes back with is what was before the
//! change that was under way, or after it, and nothing else.
//!
//! 40 kills; `LUNWAY_KILLS=500` makes more.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/daemon.rs"]
mod daemon;
#[path = "support/initiator.rs"]
mod initiator;
mod support;

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use daemon::Daemon;
use initiator::Initiator;
use lunway_console::{Client, ClientError, Endpoint, Method};
use lunway_iscsi::initiator::Completed;
use lunway_target::Config;
use serde_json::{Value, json};
use support::IQN;

/// Longest time from the first change to the kill. A change takes about a millisecond.
const LIFE_US_MAX: u64 = 40_000;
/// How many times as long a life may be on a busy machine.
const SLOW_MAX: u64 = 64;

/// Two states of which a thing must be in one: that which was last known, and that which was being made.
#[derive(Debug)]
struct Either<T> {
    known: T,
    making: Option<T>,
}

impl<T: PartialEq + std::fmt::Debug> Either<T> {
    fn made(&mut self) {
        if let Some(made) = self.making.take() {
            self.known = made;
        }
    }

    /// After a kill. Says whether it was the new one.
    fn settle(&mut self, found: T, what: &str) -> bool {
        let new = self.making.as_ref() == Some(&found);
        assert!(new || self.known == found, "{what} is {found:?}, neither of {self:?}");
        self.known = found;
        self.making = None;
        new
    }
}

/// Numbers as good as random, the same in each run but for the timing.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn read_config(path: &Path) -> Config {
    Config::from_file(path).unwrap()
}

/// Another configuration: what an administrator does in a day.
fn next_request(random: &mut Random, config: &Config) -> (Method, String, Value, Config) {
    let mut next = config.clone();
    let target = &mut next.targets[0];
    let lun = 1 + random.below(4) as u16;
    let path = format!("/v1/targets/{IQN}");
    match random.below(4) {
        0 => {
            let alias = format!("number {}", random.below(1000));
            target.alias = Some(alias.clone());
            (Method::PUT, path, json!({ "alias": alias }), next)
        }
        1 if target.lun(lun).is_some() => {
            target.luns.retain(|old| old.id != lun);
            (Method::DELETE, format!("{path}/luns/{lun}?force=true"), Value::Null, next)
        }
        1 => {
            target.luns.push(lunway_target::LunConfig::new(lun, "ram:1M".parse().unwrap()));
            (Method::PUT, format!("{path}/luns/{lun}"), json!({ "device": "ram:1M" }), next)
        }
        2 => {
            next.limits.poll = Duration::from_micros(random.below(100));
            (Method::PUT, "/v1/config".to_owned(), serde_json::to_value(&next).unwrap(), next)
        }
        _ => {
            let name = format!("iqn.2026-11.com.example:{}", random.below(3));
            let path = format!("/v1/targets/{name}");
            match next.targets.iter().position(|target| target.name.as_str() == name) {
                Some(at) => {
                    next.targets.remove(at);
                    (Method::DELETE, path, Value::Null, next)
                }
                None => {
                    next.targets.push(lunway_target::TargetConfig::new(
                        lunway_target::IscsiName::parse(&name).unwrap(),
                    ));
                    (Method::PUT, path, json!({}), next)
                }
            }
        }
    }
}

/// Changes the configuration until the daemon is gone.
fn manage(socket: PathBuf, mut random: Random, mut state: Either<Config>) -> (Either<Config>, u32) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = Client::new(Endpoint::Unix(socket));
    let mut made = 0;
    loop {
        let (method, path, body, next) = next_request(&mut random, &state.known);
        state.making = Some(next);
        let body = (!body.is_null()).then_some(&body);
        match runtime.block_on(client.call(method, &path, body)) {
            Ok(answer) => assert!(answer["persisted"] == true, "{answer}"),
            Err(
                ClientError::Refused { status: 503, .. }
                | ClientError::Connect { .. }
                | ClientError::NoAnswer { .. }
                | ClientError::Killed { .. },
            ) => {
                return (state, made);
            }
            Err(error) => panic!("{path}: {error}"),
        }
        state.made();
        made += 1;
    }
}

/// Key of the only registrant, and type of its reservation; 0 for none.
type Reserved = (u64, u8);

/// Registers and reserves with APTPL until the daemon is gone.
fn reserve(
    mut initiator: Initiator,
    mut random: Random,
    mut state: Either<Reserved>,
) -> (Either<Reserved>, u32) {
    const APTPL: u8 = 1;
    let mut made = 0;
    loop {
        let (key, kind) = state.known;
        let new_key = 1 + random.below(u64::MAX - 1);
        // REGISTER AND IGNORE EXISTING KEY; RESERVE; RELEASE; CLEAR; REGISTER of key 0, which unregisters.
        let (action, type_byte, argument, next) = match (random.below(4), key, kind) {
            (0 | 1, ..) | (_, 0, _) => (0x06, 0, new_key, (new_key, kind)),
            (2, _, 0) => (0x01, 1, 0, (key, 1)),
            (2, ..) => (0x02, kind, 0, (key, 0)),
            (_, _, 0) => (0x03, 0, 0, (0, 0)),
            (..) => (0x00, 0, 0, (0, 0)),
        };
        state.making = Some(next);
        let mut list = [0; 24];
        list[..8].copy_from_slice(&key.to_be_bytes());
        list[8..16].copy_from_slice(&argument.to_be_bytes());
        list[20] = if matches!(action, 0x00 | 0x06) { APTPL } else { 0 };
        let cdb = [0x5F, action, type_byte, 0, 0, 0, 0, 0, 24, 0];
        match execute(&mut initiator, &cdb, &list, 0) {
            Ok(completed) => assert_eq!(completed.status, 0, "{action:#x}: {:?}", completed.sense),
            Err(_) => return (state, made),
        }
        state.made();
        made += 1;
    }
}

/// Carries out a command on LUN 0 after the unit attentions that come first: LUNs come and go all the time.
fn execute(initiator: &mut Initiator, cdb: &[u8], data_out: &[u8], data_in: usize) -> io::Result<Completed> {
    loop {
        let completed = initiator.execute(0, cdb, data_out, data_in)?;
        let attention = completed.status == 2 && completed.sense.get(2).is_some_and(|byte| byte & 0xF == 6);
        if !attention {
            return Ok(completed);
        }
    }
}

/// What the daemon says of its reservations, by READ FULL STATUS.
fn read_reserved(initiator: &mut Initiator) -> Reserved {
    let completed = execute(initiator, &[0x5E, 0x03, 0, 0, 0, 0, 0, 4, 0, 0], &[], 1024).unwrap();
    assert_eq!(completed.status, 0, "{:?}", completed.sense);
    let data = &completed.data_in;
    let length = u32::from_be_bytes(data[4..8].try_into().unwrap());
    if length == 0 {
        return (0, 0);
    }
    let descriptor = &data[8..];
    let own = 24 + u32::from_be_bytes(descriptor[20..24].try_into().unwrap());
    assert_eq!(length, own, "there is one registrant at most");
    let kind = if descriptor[12] & 1 != 0 { descriptor[13] & 0xF } else { 0 };
    (u64::from_be_bytes(descriptor[..8].try_into().unwrap()), kind)
}

/// A session that has taken the unit attentions of a new nexus.
fn log_in(address: &str) -> Initiator {
    let mut initiator = Initiator::log_in(address, IQN).unwrap();
    assert_eq!(execute(&mut initiator, &[0; 6], &[], 0).unwrap().status, 0, "the logical unit is ready");
    initiator
}

#[test]
fn after_a_kill_at_any_moment_configuration_and_reservations_are_those_before_or_after_a_change() {
    let kills = env::var("LUNWAY_KILLS").map_or(40, |count| count.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lunway.toml");
    let state_dir = folder.path().join("state");
    fs::create_dir(&state_dir).unwrap();
    let text = format!(
        "# kept over every kill\nlisten = [\"127.0.0.1:0\"]\ncores = 1\nstate_dir = {state_dir:?}\n\n\
         [[target]]\nname = \"{IQN}\"\nopen = true\n[[target.lun]]\nid = 0\ndevice = \"ram:1M\"\n"
    );
    fs::write(&file, text).unwrap();
    let mut config = Either { known: read_config(&file), making: None };
    let mut reserved = Either { known: (0, 0), making: None };
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut slow = 1;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut changes, mut reservations, mut new_configs, mut new_reservations) = (0, 0, 0, 0);
    for round in 0..=kills {
        let daemon = Daemon::start(folder.path());
        // What the file says, what is served, and one of the two valid states: all the same.
        let socket = folder.path().join("api.sock");
        let served = runtime.block_on(Client::new(Endpoint::Unix(socket.clone())).get("/v1/config")).unwrap();
        let mut served: Config = serde_json::from_value(served["config"].clone()).unwrap();
        let found = read_config(&file);
        served.origin.clone_from(&found.origin);
        assert_eq!(served, found, "round {round}");
        new_configs += u32::from(config.settle(found, &format!("round {round}: the configuration")));
        let mut initiator = log_in(&daemon.address);
        let found = read_reserved(&mut initiator);
        new_reservations += u32::from(reserved.settle(found, &format!("round {round}: the reservation")));
        if round == kills {
            daemon.kill();
            break;
        }
        // On a busy machine fewer changes fit into a life: each is longer than the one before until they do.
        slow = if changes.min(reservations) > round + 1 { 1 } else { (2 * slow).min(SLOW_MAX) };
        let life = Duration::from_micros(slow * random.below(LIFE_US_MAX));
        let seeds = (Random(random.below(u64::MAX) | 1), Random(random.below(u64::MAX) | 1));
        let managing = thread::spawn(move || manage(socket, seeds.0, config));
        let reserving = thread::spawn(move || reserve(initiator, seeds.1, reserved));
        thread::sleep(life);
        daemon.kill();
        let (made_config, made_changes) = managing.join().unwrap();
        let (made_reserved, made_reservations) = reserving.join().unwrap();
        (config, reserved) = (made_config, made_reserved);
        changes += made_changes;
        reservations += made_reservations;
    }
    assert!(fs::read_to_string(&file).unwrap().starts_with("# kept over every kill\n"));
    println!(
        "{kills} kills among {changes} changes of the configuration and {reservations} of reservations; \
         {new_configs} and {new_reservations} times the change under way had been made"
    );
    // A slow machine makes one change between two kills, or none.
    assert!(changes > kills / 2 && reservations > kills, "kills came among changes");
}
