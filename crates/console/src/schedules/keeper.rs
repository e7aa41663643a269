//! The thread that begins runs and hears of their ends.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Weak;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lunway_schedule::{Cause, Job, Moment, Plan, Start, TimeZone, Timetable, wall_clock};
use lunway_target::{BackupConfig, Config, Server};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::oneshot;

use super::kept::{Kept, Known, NewestPoint};
use super::run::{self, Processes};
use super::{Asked, Expected, MakeBackupCommands, RunPoint, RunResult, STOP_TIME, Schedules, Status};

/// Runs at once: as many as keep the two ends of one link busy, each with memory of its own. Others wait.
const AT_ONCE: usize = 4;
/// Longest time between looks at the clock, which may have jumped.
const LOOK: Duration = Duration::from_secs(20);

/// What the thread is told.
pub(super) enum Message {
    /// The configuration may have changed.
    Look,
    /// Somebody wants a run.
    Ask(String, oneshot::Sender<Asked>),
    /// A run of this configuration has made its point, and goes on.
    Made(Box<BackupConfig>, RunPoint),
    /// A run has ended.
    Ended(String, RunResult),
    /// The daemon ends; dropped when no run is under way any more.
    Stop(oneshot::Sender<()>),
}

/// The one place that decides about runs.
pub(super) struct Keeper {
    schedules: Schedules,
    server: Weak<Server>,
    socket: Option<PathBuf>,
    make: MakeBackupCommands,
    sender: Sender<Message>,
    timetable: Timetable,
    kept: Kept,
    configs: BTreeMap<String, BackupConfig>,
    generation: Option<u64>,
    /// Runs under way, and when they began, seconds since 1970.
    running: BTreeMap<String, i64>,
    processes: Processes,
}

/// Both clocks.
pub(super) fn now() -> Moment {
    let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    let wall_ms = match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(time) => millis(time),
        Err(before) => -millis(before.duration()),
    };
    let steady = clock_gettime(ClockId::Boottime);
    Moment { wall_ms, steady_ms: steady.tv_sec.saturating_mul(1000) + steady.tv_nsec / 1_000_000 }
}

impl Keeper {
    pub(super) fn new(
        schedules: Schedules,
        server: Weak<Server>,
        socket: Option<PathBuf>,
        make: MakeBackupCommands,
        sender: Sender<Message>,
    ) -> Self {
        Self {
            schedules,
            server,
            socket,
            make,
            sender,
            timetable: Timetable::new(AT_ONCE),
            kept: Kept::load(None),
            configs: BTreeMap::new(),
            generation: None,
            running: BTreeMap::new(),
            processes: Processes::default(),
        }
    }

    pub(super) fn run(mut self, messages: &Receiver<Message>) {
        let folder = self.server.upgrade().and_then(|server| server.state_folder());
        self.kept = Kept::load(folder.as_deref());
        for (name, run) in self.kept.interrupted() {
            let began = wall_clock(run.begun, &TimeZone::system());
            tracing::warn!(backup = name, "the backup that began at {began} ended with its daemon");
        }
        let mut replies = Vec::new();
        loop {
            self.read_configuration();
            self.mind_clock();
            let zone = TimeZone::system();
            while let Some(start) = self.timetable.start(now(), &zone) {
                self.begin(start);
            }
            self.publish(&zone);
            for (reply, asked) in replies.drain(..) {
                // The one who asked may be gone.
                let _ = oneshot::Sender::send(reply, asked);
            }
            let wait = self.timetable.wake_in(now(), &zone).map_or(LOOK, |wait| wait.min(LOOK));
            // Without schedules there is nothing to look at the clock for.
            let message = match self.configs.is_empty() {
                true => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => messages.recv_timeout(wait),
            };
            match message {
                Ok(Message::Look) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Message::Ask(name, reply)) => {
                    let asked = match self.timetable.ask(&name, now()) {
                        None => Asked::Unknown,
                        Some(false) => Asked::UnderWay,
                        Some(true) => Asked::Taken,
                    };
                    // When it can be seen.
                    replies.push((reply, asked));
                }
                Ok(Message::Made(config, point)) => self.made(&config, point),
                Ok(Message::Ended(name, result)) => self.ended(&name, result),
                Ok(Message::Stop(done)) => {
                    self.stop(messages);
                    drop(done);
                    return;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn read_configuration(&mut self) {
        let Some(server) = self.server.upgrade() else { return };
        let (generation, config) = server.configuration();
        drop(server);
        if self.generation == Some(generation) {
            return;
        }
        self.generation = Some(generation);
        let (now, zone) = (now(), TimeZone::system());
        let names: HashSet<&str> = config.backups.iter().map(|backup| backup.name.as_str()).collect();
        self.timetable.keep(&names);
        self.configs = config.backups.iter().map(|backup| (backup.name.clone(), backup.clone())).collect();
        for backup in &config.backups {
            let uses = vec![backup.source.to_string(), backup.destination.display().to_string()];
            let known = self.kept.get(&backup.name).cloned();
            let record = known.as_ref().map(|known| &known.record);
            self.timetable.set(&backup.name, plan(&config, backup), uses, record, now, &zone);
            let known = match (known, self.timetable.job(&backup.name).map(Job::record)) {
                // Due times count from now on, also if the daemon does not run then.
                (None, Some(record)) => Known::new(record, now),
                (Some(known), _) if known.known_since.is_none() => {
                    Known { known_since: Some(now.wall_ms / 1000), ..known }
                }
                _ => continue,
            };
            self.keep(&backup.name, known);
        }
    }

    /// Takes what is on record of times that have not come for now: the clock was ahead, and is put right, which is
    /// seen at a start or while the daemon runs. It is recorded: else each start would count from its own moment, and
    /// a daemon that starts often would make no backup.
    fn mind_clock(&mut self) {
        let now = now();
        self.timetable.mind_clock(now);
        for begun in self.running.values_mut().filter(|begun| now.is_long_before(**begun * 1000)) {
            *begun = now.wall_ms / 1000;
        }
        let put_right = |name: &String| {
            let known = self.kept.get(name).filter(|known| known.is_of_the_future(now))?;
            Some((name.clone(), known.clone().until(now, self.timetable.job(name)?.record())))
        };
        let known: Vec<_> = self.configs.keys().filter_map(put_right).collect();
        if known.is_empty() {
            return;
        }
        let names: Vec<_> = known.iter().map(|(name, _)| name.as_str()).collect();
        tracing::warn!(
            "the clock was ahead when backups were recorded, or is behind now: what is on record of later than {} \
             counts as now: {}",
            wall_clock(now.wall_ms / 1000, &TimeZone::system()),
            names.join(", ")
        );
        let configs = &self.configs;
        self.kept.keep_all(known, |name| configs.contains_key(name));
    }

    fn keep(&mut self, name: &str, known: Known) {
        let configs = &self.configs;
        self.kept.keep(name, known, |name| configs.contains_key(name));
    }

    /// Begins a run that may begin.
    fn begin(&mut self, start: Start) {
        let Start { name, cause, record } = start;
        let Some(config) = self.configs.get(&name).cloned() else { return };
        let before = self.kept.get(&name).cloned();
        let mut known = before.unwrap_or_else(|| Known::new(record, now()));
        known.record = record;
        // Each other cause is another due time, which has a point of its own.
        let is_again = matches!(cause, Cause::Failed | Cause::Interrupted);
        if let Some(newest) = &mut known.newest {
            newest.is_to_be_pruned &= is_again;
        }
        known.due = known.due.filter(|_| is_again).or_else(name_of_due_time);
        let due = known.due.clone();
        let newest = known.newest.clone();
        let made = newest.as_ref().and_then(|newest| newest.of_due_time(&config));
        let expected = match newest.is_some_and(|newest| newest.destination == config.destination) {
            true => Expected::Points,
            false => Expected::Nothing,
        };
        self.keep(&name, known);
        let begun = now().wall_ms / 1000;
        self.running.insert(name.clone(), begun);
        let job = self.timetable.job(&name);
        let (attempt, retries_left) = job.map_or((1, 0), |job| (job.attempt(), job.retries_left()));
        let (source, destination) = (&config.source, config.destination.display());
        match &made {
            None => {
                tracing::info!(backup = name, cause = ?cause, "a backup of {source} to {destination} begins");
            }
            Some(point) => tracing::info!(
                backup = name,
                cause = ?cause,
                "point {} of {source} is made: what is left is the prune of {destination}",
                point.point
            ),
        }
        let commands =
            self.socket.as_deref().map(|socket| (self.make)(&config, socket, expected, due.as_deref()));
        let (sender, processes, name_of_run) = (self.sender.clone(), self.processes.clone(), name.clone());
        let run = move || {
            let result = match commands {
                Some(commands) => run::run(&config, commands, made, &processes, |point| {
                    // The thread that hears it may have ended.
                    let _ = sender.send(Message::Made(Box::new(config.clone()), point.clone()));
                }),
                None => RunResult {
                    error: Some(
                        "the daemon is not managed on a Unix socket, which a backup needs".to_owned(),
                    ),
                    ..RunResult::default()
                },
            };
            let result = RunResult { begun, cause: Some(cause), attempt, ..result };
            if result.error.is_some() && processes.are_ending() {
                tracing::info!(
                    backup = config.name,
                    "the backup was ended with the daemon, and is made after its start"
                );
            } else {
                log(&config, &result);
                run::tell(&config, &result, retries_left, &processes);
            }
            // The thread that hears it may have ended.
            let _ = sender.send(Message::Ended(name_of_run, result));
        };
        // The process that it starts ends when this thread does: the thread lasts as long.
        if let Err(error) = thread::Builder::new().name("lunway-backup".to_owned()).spawn(run) {
            let error = Some(format!("no thread can be started for it: {error}"));
            let result = RunResult { begun, cause: Some(cause), attempt, error, ..RunResult::default() };
            self.ended(&name, result);
        }
    }

    /// Keeps that the due time has its point, before what follows may fail or be interrupted.
    fn made(&mut self, config: &BackupConfig, point: RunPoint) {
        let Some(mut known) = self.kept.get(&config.name).cloned() else { return };
        known.newest = Some(NewestPoint {
            source: config.source.clone(),
            destination: config.destination.clone(),
            point,
            made: now().wall_ms / 1000,
            is_to_be_pruned: true,
        });
        self.keep(&config.name, known);
    }

    fn ended(&mut self, name: &str, result: RunResult) {
        // A clock that went back since it began is put right there.
        let begun = self.running.remove(name).unwrap_or(result.begun);
        let result = RunResult { begun, ..result };
        let Some(record) = self.timetable.end(name, result.error.is_some(), now()) else { return };
        let before = self.kept.get(name);
        let last_success = before.and_then(|known| known.last_success);
        let mut newest = before.and_then(|known| known.newest.clone());
        let due = before.and_then(|known| known.due.clone());
        let known_since = before.and_then(|known| known.known_since);
        let last_success = newest.as_ref().map(|newest| newest.made).or(last_success);
        if let Some(newest) = &mut newest {
            newest.is_to_be_pruned &= result.error.is_some();
        }
        self.keep(name, Known { record, last: Some(result), last_success, newest, due, known_since });
    }

    /// What is known, for others.
    fn publish(&self, zone: &TimeZone) {
        let now = now();
        let status = |name: &String| {
            let known = self.kept.get(name);
            let job = self.timetable.job(name);
            let at = |left: i64| now.wall_ms.saturating_add(left) / 1000;
            let status = Status {
                next: job.and_then(|job| job.next_in(now, zone)).map(at),
                retries_left: job.map_or(0, Job::retries_left),
                next_attempt: job.and_then(|job| job.retry_in(now)).map(at),
                running_since: self.running.get(name).copied(),
                last: known.and_then(|known| known.last.clone()),
                interrupted: known.filter(|_| !self.running.contains_key(name)).and_then(Known::interrupted),
                last_success: known.and_then(|known| known.last_success),
                known_since: known.and_then(|known| known.known_since),
            };
            (name.clone(), status)
        };
        self.schedules.board().statuses = self.configs.keys().map(status).collect();
    }

    /// Ends the runs under way. What was kept of them says that they have begun: they are made after the next start.
    fn stop(&mut self, messages: &Receiver<Message>) {
        self.processes.end();
        let until = Instant::now() + STOP_TIME;
        while !self.running.is_empty() {
            match messages.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Message::Ended(name, result)) if result.error.is_none() => self.ended(&name, result),
                Ok(Message::Ended(name, _)) => drop(self.running.remove(&name)),
                Ok(Message::Made(config, point)) => self.made(&config, point),
                Ok(_) => {}
                Err(_) => {
                    for name in self.running.keys() {
                        tracing::warn!(
                            backup = name,
                            "the backup has not ended: it waits for its share, and ends when that answers"
                        );
                    }
                    break;
                }
            }
        }
    }
}

/// A name that no other due time has, 32 hexadecimal digits; `None`: the kernel has no random numbers.
fn name_of_due_time() -> Option<String> {
    let mut number = [0; 16];
    getrandom::fill(&mut number).ok()?;
    Some(format!("{:032x}", u128::from_le_bytes(number)))
}

/// When a backup is due, on this machine.
fn plan(config: &Config, backup: &BackupConfig) -> Plan {
    let machine = config
        .machine_id
        .clone()
        .or_else(lunway_machine::machine_id)
        .unwrap_or_else(lunway_machine::host_name);
    let delay =
        backup.jitter.map(|jitter| Plan::delay_within(jitter, &format!("{machine}\n{}", backup.name)));
    let (retries, retry_after) = backup.retries();
    Plan {
        when: backup.when(),
        delay: delay.unwrap_or_default(),
        catch_up: backup.catch_up,
        retries,
        retry_after,
    }
}

fn log(config: &BackupConfig, result: &RunResult) {
    let seconds = result.took_ms as f64 / 1000.0;
    match (&result.error, &result.point) {
        (None, Some(point)) => tracing::info!(
            backup = config.name,
            point = point.point,
            kind = point.kind,
            sent_bytes = point.sent_bytes,
            seconds,
            "the backup has succeeded"
        ),
        (error, _) => tracing::error!(
            backup = config.name,
            seconds,
            "the backup has failed: {}",
            error.as_deref().unwrap_or("it made no point")
        ),
    }
}
