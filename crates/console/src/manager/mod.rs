//! Changes of a running daemon.
//!
//! | file | room of |
//! |---|---|
//! | `mod.rs` | [`Manager`]: the order of changes, and changes of the configuration |
//! | `lun.rs` | changes of one logical unit: its size, a snapshot, a compaction, its reservations |

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lunway_block::Permit;
use lunway_target::{ChangeError, ChangeOptions, Config, Load, Persist, Served, Server, StartError};
use tokio::sync::{RwLock, watch};

use crate::answer::{Applied, Health, Line};
use crate::backing::NewFile;
use crate::error::{ApiError, refused};
use crate::export::Exports;
use crate::extract::Ask;
use crate::schedules::Schedules;
use crate::source::{ConfigSource, Known};

mod lun;

pub(crate) use lun::Orders;

/// The daemon as its managers see it: the server, where its configuration is kept, and the order of changes.
///
/// A change that has begun is carried to its end, whatever becomes of the connection that asked for it. One that has
/// not begun when that is gone is never made.
#[derive(Clone)]
pub(crate) struct Manager {
    pub(crate) server: Arc<Server>,
    pub(crate) source: Arc<ConfigSource>,
    pub(crate) started: Instant,
    pub(crate) exports: Arc<Exports>,
    pub(crate) schedules: Schedules,
    /// Held for reading by every change under way.
    under_way: Arc<RwLock<()>>,
    ending: Arc<watch::Sender<Ending>>,
}

/// Stage of the daemon's shutdown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Ending {
    #[default]
    No,
    /// No change begins any longer.
    Begun,
    /// No change is waited for any longer.
    Now,
}

/// The requester of a change, as the change sees it.
#[derive(Clone)]
pub(crate) struct Caller {
    /// Withdrawn when it is gone.
    permit: Permit,
    /// Has no sender any more when it is gone.
    waits: watch::Receiver<()>,
}

impl Caller {
    /// Does work that is given up with its caller.
    async fn unless_gone<T>(
        &mut self,
        work: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        tokio::select! {
            done = work => done,
            // Nothing is ever sent.
            _ = self.waits.changed() => Err(refused(ChangeError::GivenUp)),
        }
    }
}

/// A wait for a change, with which the leave to begin it ends.
struct Waiting {
    permit: Permit,
    _waits: watch::Sender<()>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.permit.withdraw();
    }
}

/// Time limit for changes under way when the daemon ends. A change that takes longer is waiting for a disk that does
/// not answer: it has been completed by then, or is not made.
const END_TIME: Duration = Duration::from_secs(2);

/// Maximum wait for the file of a LUN that was not added to be removed again.
const REMOVAL_TIME: Duration = Duration::from_secs(2);

impl Manager {
    pub(crate) fn new(server: Arc<Server>, source: ConfigSource) -> Self {
        Self {
            server,
            source: Arc::new(source),
            started: Instant::now(),
            exports: Arc::default(),
            schedules: Schedules::default(),
            under_way: Arc::default(),
            ending: Arc::default(),
        }
    }

    /// The configuration that is served, and its generation.
    pub(crate) fn configuration(&self) -> (u64, Arc<Config>) {
        self.server.configuration()
    }

    pub(crate) fn health(&self) -> Health {
        Health {
            status: "ok".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            generation: self.server.generation(),
            warnings: self.server.warnings(),
        }
    }

    /// An error while the daemon ends.
    pub(crate) fn ready(&self) -> Result<(), ApiError> {
        match *self.ending.borrow() {
            Ending::No => Ok(()),
            Ending::Begun | Ending::Now => Err(refused(ChangeError::ShuttingDown)),
        }
    }

    /// No change begins any longer; returns when those under way have ended, which have [`END_TIME`] for that.
    pub(crate) async fn end(&self) {
        self.ending.send_replace(Ending::Begun);
        let ended = tokio::time::timeout(END_TIME, self.under_way.write()).await.is_ok();
        if !ended {
            self.ending.send_replace(Ending::Now);
            drop(self.under_way.write().await);
        }
    }

    /// The same with what tells it whether its caller still waits.
    async fn carried<T: Send + 'static, W: Future<Output = Result<T, ApiError>> + Send + 'static>(
        &self,
        work: impl FnOnce(Caller) -> W,
    ) -> Result<T, ApiError> {
        let (sender, waits) = watch::channel(());
        let permit = Permit::default();
        let waiting = Waiting { permit: permit.clone(), _waits: sender };
        let carried = self.to_its_end(work(Caller { permit, waits })).await;
        drop(waiting);
        carried
    }

    /// Carries a change to its end: a client that goes away takes only its answer with it.
    pub(crate) async fn to_its_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
    ) -> Result<T, ApiError> {
        let this = self.clone();
        let carried = tokio::spawn(async move {
            let _under_way = this.under_way.read().await;
            this.ready()?;
            let mut ending = this.ending.subscribe();
            tokio::select! {
                done = work => done,
                _ = ending.wait_for(|ending| *ending == Ending::Now) => Err(refused(ChangeError::ShuttingDown)),
            }
        });
        carried
            .await
            .unwrap_or_else(|error| Err(ApiError::internal(format!("the change broke off: {error}"))))
    }

    /// Serves what `edit` makes of the configuration, and keeps it.
    pub(crate) async fn change(
        &self,
        ask: Ask,
        edit: impl FnMut(&mut Config) -> Result<(), ApiError> + Send + 'static,
    ) -> Result<Applied, ApiError> {
        self.change_with(ask, None, ChangeOptions::default(), edit).await
    }

    /// The same with a new file, of so many bytes, behind a device: it stays only if the change is made.
    pub(crate) async fn change_with(
        &self,
        ask: Ask,
        make: Option<(PathBuf, u64)>,
        options: ChangeOptions<'static>,
        edit: impl FnMut(&mut Config) -> Result<(), ApiError> + Send + 'static,
    ) -> Result<Applied, ApiError> {
        let this = self.clone();
        self.carried(move |caller| async move {
            // A file system may take its time: not on the thread that answers.
            let made =
                make.map(|(path, size)| tokio::task::spawn_blocking(move || NewFile::create(&path, size)));
            let made = match made {
                Some(made) => Some(made.await.map_err(|error| ApiError::internal(error.to_string()))??),
                None => None,
            };
            let made = Arc::new(made);
            let kept = Arc::clone(&made);
            let keep_file: Served = Arc::new(move |_| kept.iter().for_each(NewFile::keep));
            let keep = ChangeOptions {
                permit: caller.permit,
                persist: Some(this.persist()),
                served: Some(keep_file),
                ..options
            };
            let applied = this.apply(ask, edit, keep).await;
            // One that does not stay is removed, which may take its time as well.
            let removed = tokio::task::spawn_blocking(move || drop(made));
            let _ = tokio::time::timeout(REMOVAL_TIME, removed).await;
            applied
        })
        .await
    }

    /// Writes to the file of the configuration.
    fn persist(&self) -> Persist {
        let source = Arc::clone(&self.source);
        Arc::new(move |config, permit| source.persist(config, permit))
    }

    /// Serves what the file says now; without a file what is served already, with secrets read again.
    pub(crate) async fn reload(&self, ask: Ask) -> Result<Applied, ApiError> {
        let this = self.clone();
        self.carried(move |caller| async move {
            let known = Arc::new(Mutex::new(Known::default()));
            // When it is this change's turn, so that no other writes to the file between. Without a file there is
            // nothing to read but secrets: what was changed since the start stays.
            let load = this.source.file().is_some().then(|| {
                let (source, known) = (Arc::clone(&this.source), Arc::clone(&known));
                let load: Load = Arc::new(move || {
                    let (config, read) = source.load()?.into_parts();
                    *locked(&known) = read;
                    Ok(source.located(config))
                });
                load
            });
            let source = Arc::clone(&this.source);
            let took: Served = Arc::new(move |_| {
                if source.file().is_some() {
                    source.took(std::mem::take(&mut *locked(&known)));
                }
            });
            let source = Arc::clone(&this.source);
            let after: Served = Arc::new(move |served| keep_formats(&source, served));
            let options = ChangeOptions {
                permit: caller.permit,
                load,
                served: Some(took),
                after: Some(after),
                fixed_later: true,
                ..ChangeOptions::default()
            };
            let mut applied = this.apply(ask, |_| Ok(()), options).await?;
            if !ask.dry_run {
                this.server.log_warnings(None);
            }
            // It came from there.
            applied.persisted = this.source.file().is_some();
            Ok(applied)
        })
        .await
    }

    /// Keeps in the file what its devices were opened as, also those that will be opened later.
    pub(crate) fn keep_all_formats(&self) {
        let source = Arc::clone(&self.source);
        self.server.keep_formats_with(Arc::new(move |config| keep_formats(&source, config)));
        self.keep_formats(&self.server.config());
    }

    /// Keeps in the file what its devices were opened as.
    pub(crate) fn keep_formats(&self, served: &Config) {
        keep_formats(&self.source, served);
    }

    async fn apply(
        &self,
        ask: Ask,
        mut edit: impl FnMut(&mut Config) -> Result<(), ApiError> + Send,
        keep: ChangeOptions<'_>,
    ) -> Result<Applied, ApiError> {
        let (mut no, mut kept) = (None, false);
        let source = &self.source;
        // What is not written to the file was read from it: its errors name it.
        let is_asked = keep.persist.is_some();
        let options = ChangeOptions {
            dry_run: ask.dry_run,
            generation: ask.generation,
            shrink: ask.shrink,
            end_snapshots: ask.end_snapshots,
            force: ask.force,
            ..keep
        };
        let edit = |config: &mut Config| {
            let old = config.clone();
            let edited = edit(config);
            *config = source.located(config.clone());
            kept = source.keeps(&old, config);
            edited.map_err(|error| {
                no = Some(error);
                ChangeError::Refused
            })
        };
        match self.server.change(edit, options).await {
            Ok(changed) => {
                self.schedules.look();
                Ok(Applied {
                    generation: changed.generation,
                    dry_run: ask.dry_run,
                    persisted: kept && !ask.dry_run,
                    changes: changed.changes.iter().map(Line::from).collect(),
                    effects: changed.effects,
                })
            }
            Err(ChangeError::Unfit(StartError::Config(error))) if is_asked => {
                Err(no.unwrap_or_else(|| refused(error.of_change().into())))
            }
            Err(error) => Err(no.unwrap_or_else(|| refused(error))),
        }
    }
}

fn keep_formats(source: &ConfigSource, served: &Config) {
    if let Err(error) = source.keep_formats(served) {
        tracing::warn!(
            "cannot write into the configuration file that its devices are raw: {error}; write device = \"raw:…\" there, else a \
                 LUN whose initiator writes what looks like an image or an archive is refused at the next start"
        );
    }
}

/// Locks what was read; nothing can panic while it is locked.
fn locked(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}
