//! `lunway serve`.

mod asker;
mod backups;
mod check;
mod files;
mod flags;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use lunway_block::size::HumanSize;
use lunway_console::{ConfigSource, Console, Endpoint, ListenError, RunningDaemon, Sockets};
use lunway_target::{
    ApiConfig, BackEndError, Config, ConfigError, DeviceName, LunSummary, OpenDevice, OpenedDevice,
    OpeningDevice, PassingError, Server, StartError, TargetSummary, Warning,
};
use serde::Serialize;
use serde_json::json;

use self::flags::Flags;
use crate::failure::Failure;
use crate::interrupt::{Reloads, Requests};
use crate::other_writer::OtherWriter;
use crate::protection::Protection;
use crate::tail::Tail;
use crate::{device, supervisor, terminal};

/// Time in which initiators have to log out when the server ends.
const GRACE: Duration = Duration::from_secs(5);
/// Time in which devices that are being opened when it is asked to end have to answer, so that they are closed in
/// order: as long as initiators have.
const OPENING: Duration = Duration::from_secs(5);

/// Serve devices over iSCSI until Ctrl-C or SIGTERM.
///
/// Targets come from a TOML file, from flags, or from both: flags then add one target, and --listen and --cores
/// override the file.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway serve --lun 0=ram:1G
  lunway serve --listen 192.0.2.10:3260 --chap host-1:host-1.secret \\
      --lun 0=disk.img --lun 1=ram:4G,sector=4096
  lunway serve -c lunway.toml --check        # errors and warnings only
  lunway serve -c lunway.toml
  # Save changes that lunway lun, lunway target … make later:
  lunway serve --lun 0=ram:1G --save lunway.toml")]
pub(crate) struct Serve {
    /// Read the configuration from this TOML file
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Listen on this address; port 0 lets the system choose [default: 0.0.0.0:3260]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Vec<String>,
    /// Name of the target [default: iqn.2026-11.io.lunway: followed by the host name]
    #[arg(long, value_name = "NAME")]
    iqn: Option<String>,
    /// Allow only initiators that authenticate (CHAP) as this user; the file holds the secret
    #[arg(long, value_name = "USER:SECRETFILE")]
    chap: Vec<String>,
    /// Authenticate as this user to initiators that ask for it (mutual CHAP)
    #[arg(long, value_name = "USER:SECRETFILE")]
    mutual_chap: Option<String>,
    /// Confirm that every initiator may log in (with --chap: every one that authenticates). Flags always make an open
    /// target; this silences the warning at the start
    #[arg(long)]
    open: bool,
    /// Serve this device as this LUN; may be repeated. Options: sector=4096, physical-sector=4096, read-only,
    /// removable, serial=TEXT
    #[arg(long, value_name = "ID=DEVICE[,OPTION…]")]
    lun: Vec<String>,
    /// Number of cores that serve connections [default: all]
    #[arg(long, value_name = "N")]
    cores: Option<usize>,
    /// Save the configuration, and later changes to it, to this new file
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    save: Option<PathBuf>,
    /// Replace the file of --save if it exists; only a configuration is replaced
    #[arg(long, requires = "save")]
    force: bool,
    /// Unix socket of the management interface [default: from the configuration, else /run/lunway/lunway.sock, or
    /// $XDG_RUNTIME_DIR/lunway.sock if not root, unless in use]
    #[arg(long, value_name = "PATH", env = "LUNWAY_SOCKET", alias = "api-socket")]
    socket: Option<PathBuf>,
    /// Offer no management interface; SIGHUP still reloads the configuration
    #[arg(long)]
    no_api: bool,
    /// Check the configuration, its secret files, that the files of its LUNs exist, and that its backups have their
    /// LUN, destination and key; serve nothing
    #[arg(long, conflicts_with = "save")]
    check: bool,
    /// Look at files whose names are read as JSON; a --check starts this, as a share may hang
    #[arg(long, hide = true)]
    look_at_files: bool,
    /// Print what is served as one line of JSON
    #[arg(long)]
    json: bool,
}

impl Serve {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if self.look_at_files {
            return files::answer();
        }
        let json = self.json;
        if self.no_api && self.socket.is_some() && std::env::var_os("LUNWAY_SOCKET").is_none() {
            return Err(Failure::Usage(
                "--no-api and --socket contradict each other: give one of them".to_owned(),
            ));
        }
        // Who types a device is there to mend it; a file is served at a boot, where one disk must not stop the others.
        let may_lack_devices = self.config.is_some() && self.lun.is_empty();
        let flags = Flags {
            listen: self.listen,
            iqn: self.iqn,
            chap: self.chap,
            mutual_chap: self.mutual_chap,
            luns: self.lun,
            open: self.open,
            cores: self.cores,
        };
        let overrides = flags.overrides().map_err(config_failure)?;
        let read = match &self.save {
            Some(file) => ConfigSource::saving_to(file, overrides, self.force),
            None => ConfigSource::read(self.config.as_deref(), overrides),
        };
        let (source, config) = read.map_err(config_failure)?;
        if self.check {
            let file = self.config.as_ref().map(|file| file.display().to_string());
            return check::check(&config, file.as_deref(), json);
        }
        // The flags' target is the last one.
        let meant = self.open.then(|| config.targets.last().and_then(Warning::of_access)).flatten();
        if let Some(protection) = Protection::of_target(&config) {
            protection.apply();
        }
        device::run_server(async {
            let mut requests = Requests::of_daemon().context("cannot wait for signals")?;
            let mut reloads = Reloads::new().context("cannot wait for signals")?;
            // Before anything is touched: another daemon may have it.
            let (sockets, unmanaged) = match self.no_api {
                true => (Sockets::none(), Some("--no-api".to_owned())),
                false => sockets(self.socket.as_deref(), config.api.as_ref())?,
            };
            let open: OpenDevice = Arc::new(open);
            let starting = async move {
                match may_lack_devices {
                    true => Server::start_what_can_be_opened(config, open).await,
                    false => Server::start(config, open).await,
                }
            };
            let server = match start_or_end(starting, &mut requests).await {
                Begun::Started(started) => Arc::new(started.map_err(start_failure)?),
                Begun::AskedToEnd(Some(started)) => {
                    let server = started.map_err(start_failure)?;
                    return server.shutdown(GRACE).await.map_err(Failure::failed);
                }
                Begun::AskedToEnd(None) => {
                    tracing::warn!("ended before all devices were open; nothing was served");
                    return Ok(());
                }
            };
            if let Some(file) = &self.save {
                source.save(&server.config()).map_err(config_failure)?;
                server.saved_to(file);
            }
            server.log_warnings(meant.as_ref());
            let managed = sockets.path().map(Path::to_owned);
            let console = Console::start(sockets, Arc::clone(&server), source).map_err(Failure::failed)?;
            if managed.is_none() && !server.config().backups.is_empty() {
                tracing::warn!(
                    "no [[backup]] can be made: a backup needs the daemon's Unix socket, and it has none"
                );
            }
            console
                .begin_backups(backups::commands(server.config().state_dir.clone()))
                .context("starting the thread of backups")?;
            let registered = RunningDaemon::register(managed.as_deref(), console.file().as_deref());
            if let Err(error) = &registered {
                tracing::info!(
                    "commands will not name this daemon where several run: it cannot be recorded: {error}"
                );
            }
            let targets = server.targets();
            let told = Announcement { targets: &targets, managed: managed.as_deref(), unmanaged, json };
            match announce(&server, &console, &told) {
                // The reader is gone: that is no reason not to serve.
                Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
                announced => announced?,
            }
            supervisor::ready(&status(&server, &targets));
            // Of thousands of logical units, megabytes.
            drop(targets);
            loop {
                tokio::select! {
                    () = requests.next() => break,
                    () = reloads.next() => {}
                }
                // A device that it opens may take its time.
                tokio::select! {
                    () = requests.next() => break,
                    () = reload(&console, &server) => {}
                }
            }
            tracing::info!("asked to stop: asking initiators to log out");
            supervisor::stopping("asking initiators to log out");
            let end = async {
                // A change under way comes to its end first.
                console.stop().await;
                let server = Arc::into_inner(server).context("the server is still in use")?;
                server.shutdown(GRACE).await.map_err(Failure::failed)
            };
            tokio::select! {
                ended = end => ended,
                // Asked twice: it is in a hurry.
                () = requests.next() => Err(Failure::failed(anyhow!(
                    "stopped before all initiators had logged out and all devices were flushed"
                ))),
            }
        })
    }
}

/// End of a start.
enum Begun<T> {
    Started(T),
    /// It was asked to end. What has started has to be ended; `None`: a device did not answer for [`OPENING`], or until
    /// it was asked again.
    AskedToEnd(Option<T>),
}

async fn start_or_end<T>(starting: impl Future<Output = T>, requests: &mut Requests) -> Begun<T> {
    tokio::pin!(starting);
    tokio::select! {
        started = &mut starting => return Begun::Started(started),
        () = requests.next() => {}
    }
    const WAITING: &str = "waiting for the devices that are being opened";
    tracing::info!("asked to stop: {WAITING}");
    supervisor::stopping(WAITING);
    Begun::AskedToEnd(tokio::select! {
        started = &mut starting => Some(started),
        () = requests.next() => None,
        () = tokio::time::sleep(OPENING) => None,
    })
}

/// The sockets of the API. Where none was named, the usual one is taken if it can be had: a second daemon on the
/// same machine, or one that may not write there, serves all the same.
///
/// Beside them why there is no Unix socket, if that is so.
fn sockets(socket: Option<&Path>, config: Option<&ApiConfig>) -> Result<(Sockets, Option<String>), Failure> {
    let asked = socket.is_some() || config.is_some_and(|config| config.socket.is_some());
    let usual = (!asked).then(Endpoint::default_socket);
    match Sockets::bind(socket.or(usual.as_deref()), config) {
        Err(error @ (ListenError::Taken(_) | ListenError::Unix { .. })) if !asked => {
            let sockets = Sockets::bind(None, config).map_err(Failure::failed)?;
            Ok((sockets, Some(taken(&error))))
        }
        Err(error @ ListenError::Taken(_)) => Err(Failure::failed(anyhow!("{}", taken(&error)))),
        bound => bound.map(|sockets| (sockets, None)).map_err(Failure::failed),
    }
}

/// Remedy where a socket cannot be bound.
fn taken(error: &ListenError) -> String {
    match error {
        ListenError::Taken(_) => format!("{error}, or name another one with --socket"),
        other => other.to_string(),
    }
}

async fn reload(console: &Console, server: &Server) {
    supervisor::reloading();
    match console.reload().await {
        Ok(applied) => {
            tracing::info!(generation = applied.generation, changes = applied.changes.len(), "reloaded");
        }
        Err(refusal) => {
            // A signal allows nothing: the command has an option for each parameter.
            let allow = |parameter: String| {
                format!("; `lunway reload --{}` allows that", parameter.replace('_', "-"))
            };
            let remedy = refusal.parameter.map(allow).unwrap_or_default();
            tracing::error!("not reloaded, everything is as it was: {}{remedy}", refusal.error);
        }
    }
    supervisor::ready(&status(server, &server.targets()));
}

/// Starts a server on the devices that the configuration names.
pub(crate) async fn start(config: Config) -> Result<Server, Failure> {
    Server::start(config, Arc::new(open)).await.map_err(start_failure)
}

fn start_failure(error: StartError) -> Failure {
    match error {
        StartError::Config(error) => config_failure(error),
        error => Failure::failed(error),
    }
}

/// A configuration that cannot be read or saved has failed, one that cannot be meant is wrong usage.
pub(crate) fn config_failure(error: ConfigError) -> Failure {
    match error {
        ConfigError::Read { .. } | ConfigError::Save { .. } => Failure::failed(error),
        ConfigError::NoTargets { .. } => Failure::Usage(format!("{error}, or a flag such as --lun 0=ram:1G")),
        ConfigError::Exists { .. } => {
            Failure::failed(anyhow!("{error}; serve it with -c, name another file, or --force to replace it"))
        }
        error => Failure::Usage(error.to_string()),
    }
}

fn open(name: DeviceName, options: lunway_target::LunOpenOptions) -> OpeningDevice {
    Box::pin(async move {
        let options = lunway_device::OpenOptions {
            sector: options.sector,
            read_only: options.read_only,
            without_tail: options.without_tail,
            renew: true,
            ..lunway_device::OpenOptions::default()
        };
        let opened = lunway_device::open(name.spec(), &options).await.map_err(|error| {
            let may_pass = error.may_pass();
            let error = BackEndError::from(error);
            if may_pass { PassingError(error).into() } else { error }
        })?;
        if let Some(tail) = Tail::of(name.spec(), opened.device.geometry().size) {
            tracing::warn!("{tail} and is not served: lengthen the file, as with truncate -s %4096");
        }
        if opened.device.geometry().read_only {
            let spec = name.spec().clone();
            // A panic there is logged as such.
            let _ = tokio::task::spawn_blocking(move || OtherWriter::warn_of(&spec)).await;
        }
        Ok(OpenedDevice { device: opened.device.clone(), close: Some(Box::pin(opened.close_or_log())) })
    })
}

/// One line, for `systemctl status`.
fn status(server: &Server, targets: &[TargetSummary]) -> String {
    let luns = targets.iter().flat_map(|target| &target.luns).filter(|lun| lun.offline.is_none()).count();
    let [luns, targets, portals] =
        [(luns, "LUN"), (targets.len(), "target"), (server.addresses().len(), "portal")]
            .map(|(count, what)| terminal::counted(count, what));
    format!("serving {luns} of {targets} on {portals}")
}

/// Announcement of a server that has begun.
struct Announcement<'a> {
    targets: &'a [TargetSummary],
    /// The Unix socket that it is managed on.
    managed: Option<&'a Path>,
    /// Reason why it is managed on none.
    unmanaged: Option<String>,
    json: bool,
}

fn announce(server: &Server, console: &Console, told: &Announcement<'_>) -> Result<(), Failure> {
    let Announcement { targets, managed, ref unmanaged, json } = *told;
    if json {
        let listening: Vec<_> = server.addresses().iter().map(ToString::to_string).collect();
        let targets: Vec<_> = targets.iter().map(AnnouncedTarget::of).collect();
        let listen = console.tcp_address().map(|address| address.to_string());
        let api = json!({ "socket": managed, "not_managed": unmanaged, "listen": listen });
        return terminal::print_json(&Announced { api, listening, targets });
    }
    let mut lines: Vec<_> =
        server.addresses().iter().map(|address| format!("listening on {address}")).collect();
    for target in targets {
        let chap = if target.authenticated { ", CHAP required" } else { "" };
        lines.push(format!("target {}{chap}", target.name));
        for lun in &target.luns {
            if let Some(why) = &lun.offline {
                lines.push(format!("  lun {}: {}, offline: {why}", lun.id, lun.device));
                continue;
            }
            let read_only = if lun.read_only { ", read-only" } else { "" };
            let size = HumanSize(lun.size);
            lines.push(format!(
                "  lun {}: {}, {size}, sectors of {}{read_only}",
                lun.id, lun.device, lun.sector
            ));
        }
    }
    if let Some(socket) = managed {
        lines.push(format!("managed on {}", socket.display()));
    }
    if let Some(address) = console.tcp_address() {
        lines.push(format!("managed on http://{address}"));
    }
    if let Some(why) = unmanaged {
        lines.push(format!("not managed: {why}"));
    }
    terminal::print(&lines.join("\n"))
}

/// What is announced as JSON: written as it is, without a tree of values for each of thousands of logical units.
#[derive(Serialize)]
struct Announced<'a> {
    api: serde_json::Value,
    listening: Vec<String>,
    targets: Vec<AnnouncedTarget<'a>>,
}

#[derive(Serialize)]
struct AnnouncedTarget<'a> {
    alias: Option<&'a str>,
    authenticated: bool,
    luns: Vec<AnnouncedLun<'a>>,
    name: &'a str,
    open: bool,
}

#[derive(Serialize)]
struct AnnouncedLun<'a> {
    device: &'a str,
    id: u16,
    offline: Option<&'a str>,
    read_only: bool,
    sector: u32,
    size: u64,
}

impl<'a> AnnouncedTarget<'a> {
    fn of(target: &'a TargetSummary) -> Self {
        let announced = |lun: &'a LunSummary| AnnouncedLun {
            device: &lun.device,
            id: lun.id,
            offline: lun.offline.as_deref(),
            read_only: lun.read_only,
            sector: lun.sector,
            size: lun.size,
        };
        Self {
            alias: target.alias.as_deref(),
            authenticated: target.authenticated,
            luns: target.luns.iter().map(announced).collect(),
            name: &target.name,
            open: target.open,
        }
    }
}
