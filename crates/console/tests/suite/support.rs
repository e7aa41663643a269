//! A daemon with memory behind it, and its API.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lunway_block::spec::DeviceSpec;
use lunway_block::{BlockDevice, BlockError, Compaction, Io, Layer};
use lunway_console::{
    BackupCommands, Client, ClientError, ConfigSource, Console, Endpoint, MakeBackupCommands, Method, Sockets,
};
use lunway_memory::RamDisk;
use lunway_target::{ApiConfig, Config, OpenDevice, Overrides, Server};
use serde_json::Value;

pub(crate) const TARGET: &str = "iqn.2026-11.com.example:a";
pub(crate) const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// What every daemon here begins with.
pub(crate) const FILE: &str = "\
# ours
listen = [\"127.0.0.1:0\"]
cores = 1

[[target]]
name = \"iqn.2026-11.com.example:a\"   # do not rename
open = true

[[target.lun]]
id = 0
device = \"ram:1M\"   # zero
";

pub(crate) struct Daemon {
    pub(crate) client: Client,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) server: Arc<Server>,
    pub(crate) console: Console,
}

/// A disk in whose file nothing is left to compact.
struct Dense(RamDisk);

impl Layer for Dense {
    fn inner(&self) -> &dyn BlockDevice {
        &self.0
    }

    fn compact(&self, _: Arc<Compaction>) -> Io<Result<(), BlockError>> {
        Io::ok(())
    }
}

/// Opens `ram:` only, and takes memory for VHDX files and for the areas of snapshots.
fn open() -> OpenDevice {
    Arc::new(|name, _| {
        Box::pin(async move {
            match name.spec() {
                DeviceSpec::Ram { size } => {
                    let disk = RamDisk::new(*size, 512).map_err(|error| error.to_string())?;
                    let device: Arc<dyn BlockDevice> = Arc::new(disk);
                    Ok(device.into())
                }
                DeviceSpec::Vhdx { .. } => {
                    let disk = RamDisk::new(1 << 20, 512).map_err(|error| error.to_string())?;
                    let device: Arc<dyn BlockDevice> = Arc::new(Dense(disk));
                    Ok(device.into())
                }
                DeviceSpec::File { path, .. } if path.extension().is_some_and(|kind| kind == "area") => {
                    let disk =
                        RamDisk::new(path.metadata()?.len(), 512).map_err(|error| error.to_string())?;
                    let device: Arc<dyn BlockDevice> = Arc::new(disk);
                    Ok(device.into())
                }
                _ => Err("there is no such device here".into()),
            }
        })
    })
}

impl Daemon {
    pub(crate) async fn start() -> Self {
        Self::start_on(FILE).await
    }

    pub(crate) async fn start_on(file: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lunway.toml");
        fs::write(&path, file).unwrap();
        let (source, config) = ConfigSource::read(Some(&path), Overrides::default()).unwrap();
        Self::start_from(folder, source, config).await
    }

    pub(crate) async fn start_from(folder: tempfile::TempDir, source: ConfigSource, config: Config) -> Self {
        let token_file = folder.path().join("token");
        fs::write(&token_file, TOKEN).unwrap();
        let socket = folder.path().join("api.sock");
        let api = ApiConfig {
            socket: Some(socket.clone()),
            listen: Some("127.0.0.1:0".parse().unwrap()),
            token_file: Some(token_file),
        };
        let sockets = Sockets::bind(None, Some(&api)).unwrap();
        let server = Arc::new(Server::start(config, open()).await.unwrap());
        let console = Console::start(sockets, Arc::clone(&server), source).unwrap();
        Self { client: Client::new(Endpoint::Unix(socket)), folder, server, console }
    }

    /// Begins to make backups by the clock: `sh` runs this instead of `lunway backup run`, with the name of the due
    /// time as `$DUE`.
    pub(crate) fn begin_backups(&self, script: &str) {
        self.begin_pruned_backups(script, None);
    }

    /// The same; `sh` runs the other script instead of `lunway backup prune`.
    pub(crate) fn begin_pruned_backups(&self, script: &str, prune: Option<&str>) {
        let (script, prune) = (script.to_owned(), prune.map(str::to_owned));
        let sh = |script: &str| {
            let mut command = std::process::Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let make: MakeBackupCommands = Arc::new(move |_, _, _, due| {
            let (mut run, prune) = (sh(&script), prune.as_deref().map(sh));
            run.envs(due.map(|due| ("DUE", due)));
            BackupCommands { run, prune }
        });
        self.console.begin_backups(make).unwrap();
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("lunway.toml")
    }

    pub(crate) fn text(&self) -> String {
        fs::read_to_string(self.path()).unwrap()
    }

    pub(crate) fn tcp(&self) -> Endpoint {
        let address = self.console.tcp_address().unwrap();
        Endpoint::tcp(&format!("http://{address}"), &self.folder.path().join("token")).unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        self.client.get(path).await.unwrap()
    }

    pub(crate) async fn call(&self, method: Method, path: &str, body: Value) -> Result<Value, (u16, String)> {
        match self.client.call(method, path, (!body.is_null()).then_some(&body)).await {
            Ok(answer) => Ok(answer),
            Err(ClientError::Refused { status, sentence, .. }) => Err((status, sentence)),
            Err(error) => panic!("{path}: {error}"),
        }
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Result<Value, (u16, String)> {
        self.call(Method::PUT, path, body).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<Value, (u16, String)> {
        self.call(Method::DELETE, path, Value::Null).await
    }

    /// Stops as a daemon does.
    pub(crate) async fn stop(self) {
        self.console.stop().await;
        let server = Arc::into_inner(self.server).expect("nobody else has it");
        server.shutdown(Duration::ZERO).await.unwrap();
    }
}

/// The lines of a plan.
pub(crate) fn lines(answer: &Value) -> Vec<&str> {
    answer["changes"].as_array().unwrap().iter().map(|change| change["text"].as_str().unwrap()).collect()
}
