//! Backups that the daemon begins by the clock.
//!
//! | file | room of |
//! |---|---|
//! | `mod.rs` | [`Schedules`]: what others see and ask |
//! | `keeper.rs` | the thread that begins runs and hears of their ends |
//! | `kept.rs` | what survives a restart, in the state directory |
//! | `run.rs` | one run: its processes, its result, what follows |

mod keeper;
mod kept;
mod run;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lunway_schedule::{Cause, is_overdue};
use lunway_target::{BackupConfig, Server};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use self::keeper::{Keeper, Message};

/// Time that runs under way have to end by themselves when the daemon ends: one whose share answers notes what it has
/// sent. One that hangs is left to the kernel, which has its signal.
const STOP_TIME: Duration = Duration::from_secs(5);

/// Commands of a run, in words that only the command line knows.
pub struct BackupCommands {
    /// Makes the point, and prints what it did as JSON.
    pub run: Command,
    /// Removes points that are not kept; `None`: all are.
    pub prune: Option<Command>,
}

/// What a destination is known to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// It may be empty.
    Nothing,
    /// A point: this schedule has made one there.
    Points,
}

/// Makes the commands of a run, for a daemon that is managed on this socket. The last argument is the name of the due
/// time: of one that is made again for the same due time it is the same.
pub type MakeBackupCommands =
    Arc<dyn Fn(&BackupConfig, &Path, Expected, Option<&str>) -> BackupCommands + Send + Sync>;

/// Result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct RunResult {
    /// When it began, seconds since 1970.
    pub(crate) begun: i64,
    /// How long it took, milliseconds.
    pub(crate) took_ms: u64,
    /// Why it was made: `due`; `missed`, while the daemon did not run; `interrupted`, by the end of the daemon;
    /// `failed`, the run before it; `asked`.
    #[schemars(with = "String")]
    pub(crate) cause: Option<Cause>,
    /// Which attempt at its due time it was, from 1; 0: it is not known.
    pub(crate) attempt: u32,
    /// What went wrong, in a sentence; null: nothing.
    pub(crate) error: Option<String>,
    /// What it made; null: no point.
    pub(crate) point: Option<RunPoint>,
    /// What it told beside its result: points that are gone, a repository that is not remembered.
    pub(crate) notes: Vec<String>,
}

/// Run that ended with the daemon, which was stopped or killed, before it had come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct InterruptedRun {
    /// When it began, seconds since 1970.
    pub(crate) begun: i64,
    /// How often it was begun, and ended with the daemon each time.
    pub(crate) times: u32,
}

/// Point that a run made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct RunPoint {
    /// Its name in the destination.
    pub(crate) point: String,
    /// `full` or `increment`.
    pub(crate) kind: String,
    /// Why it is that.
    pub(crate) why: String,
    /// Bytes that differed.
    pub(crate) changed_bytes: u64,
    /// Bytes that were read.
    pub(crate) read_bytes: u64,
    /// Bytes that were sent.
    pub(crate) sent_bytes: u64,
    /// Bytes that the point takes.
    pub(crate) stored_bytes: u64,
}

/// What is known of a schedule.
#[derive(Clone, Debug, Default)]
pub(crate) struct Status {
    /// When the next run begins, if nothing is in its way, seconds since 1970; in the past: it waits for another one.
    pub(crate) next: Option<i64>,
    /// When the run under way began.
    pub(crate) running_since: Option<i64>,
    pub(crate) last: Option<RunResult>,
    /// The run that ended with the daemon and was not made again since.
    pub(crate) interrupted: Option<InterruptedRun>,
    /// When the last run ended that made a point.
    pub(crate) last_success: Option<i64>,
    /// When the schedule was seen first.
    pub(crate) known_since: Option<i64>,
    /// How often a run that fails is still made again.
    pub(crate) retries_left: u32,
    /// When the one that has failed is made again.
    pub(crate) next_attempt: Option<i64>,
}

impl Status {
    /// A point is missing now.
    pub(crate) fn is_overdue(&self, backup: &BackupConfig) -> bool {
        let now = keeper::now().wall_ms / 1000;
        let interval = backup.when().longest_gap();
        self.known_since.is_some_and(|since| is_overdue(self.last_success, since, interval, now))
    }
}

/// Answer to somebody who wants a run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// It begins as soon as nothing is in its way.
    Taken,
    UnderWay,
    Unknown,
}

/// The schedules of a daemon, as others see them. Clones are the same.
///
/// All decisions are made on one thread of its own, which begins with [`begin`](Self::begin) and waits for no share:
/// each run is a thread that waits for a process.
#[derive(Clone, Default)]
pub(crate) struct Schedules {
    board: Arc<Mutex<Board>>,
}

#[derive(Default)]
struct Board {
    statuses: BTreeMap<String, Status>,
    keeper: Option<Sender<Message>>,
}

impl Schedules {
    fn board(&self) -> MutexGuard<'_, Board> {
        // Each change of it is one assignment.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to make backups of a server that is managed on this socket.
    pub(crate) fn begin(
        &self,
        server: Weak<Server>,
        socket: Option<PathBuf>,
        make: MakeBackupCommands,
    ) -> std::io::Result<()> {
        let (sender, messages) = mpsc::channel();
        self.board().keeper = Some(sender.clone());
        let keeper = Keeper::new(self.clone(), server, socket, make, sender);
        std::thread::Builder::new()
            .name("lunway-schedule".to_owned())
            .spawn(move || keeper.run(&messages))
            .map(drop)
    }

    fn tell(&self, message: Message) -> bool {
        self.board().keeper.as_ref().is_some_and(|keeper| keeper.send(message).is_ok())
    }

    /// The configuration may have changed.
    pub(crate) fn look(&self) {
        self.tell(Message::Look);
    }

    /// Somebody wants a run now.
    pub(crate) async fn ask(&self, name: &str) -> Asked {
        let (reply, answer) = oneshot::channel();
        match self.tell(Message::Ask(name.to_owned(), reply)) {
            true => answer.await.unwrap_or(Asked::Unknown),
            false => Asked::Unknown,
        }
    }

    /// What is known of a schedule.
    pub(crate) fn status(&self, name: &str) -> Status {
        self.board().statuses.get(name).cloned().unwrap_or_default()
    }

    /// Begins no run any longer, and ends those under way.
    pub(crate) async fn stop(&self) {
        let (reply, ended) = oneshot::channel();
        if self.tell(Message::Stop(reply)) {
            // Its thread may wait for the disk of the state directory.
            let _ = tokio::time::timeout(STOP_TIME + Duration::from_secs(1), ended).await;
        }
    }
}
