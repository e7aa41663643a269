//! `lunway serve`.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use lunway_block::size::HumanSize;
use lunway_target::{
    Config, ConfigError, DeviceName, Flags, OpenedDevice, OpeningDevice, Server, StartError, TargetSummary,
};
use serde_json::json;

use crate::failure::Failure;
use crate::interrupt::Requests;
use crate::{device, supervisor, terminal};

/// How long initiators have to log out when the server ends.
const GRACE: Duration = Duration::from_secs(5);

/// Serve devices over iSCSI until Ctrl-C or SIGTERM.
///
/// Everything can be said in a TOML file, or with flags, or both: then the flags' target is one more, and --listen and
/// --cores take the place of the file's.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lunway serve --lun 0=ram:1G
  lunway serve --listen 192.0.2.10:3260 --chap host-1:host-1.secret --lun 0=disk.img --lun 1=ram:4G,sector=4096
  lunway serve -c lunway.toml")]
pub(crate) struct Serve {
    /// Read this TOML file
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Listen here; port 0 lets the system choose [default: 0.0.0.0:3260]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Vec<String>,
    /// Name of the target [default: iqn.2026-11.io.lunway: and this host's name]
    #[arg(long, value_name = "NAME")]
    iqn: Option<String>,
    /// Let in only who proves (CHAP) to be this user; the file holds the secret
    #[arg(long, value_name = "USER:SECRETFILE")]
    chap: Vec<String>,
    /// Prove to initiators who we are, if they ask
    #[arg(long, value_name = "USER:SECRETFILE")]
    mutual_chap: Option<String>,
    /// Serve this device under this number
    #[arg(
        long,
        value_name = "ID=DEVICE[,sector=4096][,physical-sector=4096][,read-only][,removable][,serial=S]"
    )]
    lun: Vec<String>,
    /// Serve with this many cores [default: all]
    #[arg(long, value_name = "N")]
    cores: Option<usize>,
    /// Print what is served as one line of JSON
    #[arg(long)]
    json: bool,
}

impl Serve {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let json = self.json;
        let config = self.config()?;
        device::run(async {
            let mut requests = Requests::new().context("cannot wait for signals")?;
            let server = start(config).await?;
            match announce(&server, json) {
                // Nobody listens any more: that is no reason not to serve.
                Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
                announced => announced?,
            }
            supervisor::ready(&status(&server));
            requests.next().await;
            supervisor::stopping();
            tokio::select! {
                ended = server.shutdown(GRACE) => ended.map_err(Failure::failed)?,
                // Asked twice: it is in a hurry.
                () = requests.next() => return Err(Failure::failed(anyhow::anyhow!(
                    "stopped before all initiators had logged out and all devices were flushed"
                ))),
            }
            Ok(())
        })
    }

    fn config(self) -> Result<Config, Failure> {
        let config = match &self.config {
            Some(path) => Config::from_file(path).map_err(config_failure)?,
            None => Config::default(),
        };
        let flags = Flags {
            listen: self.listen,
            iqn: self.iqn,
            chap: self.chap,
            mutual_chap: self.mutual_chap,
            luns: self.lun,
            cores: self.cores,
        };
        config.with_flags(&flags).map_err(config_failure)
    }
}

/// Starts a server on the devices that the configuration names.
pub(crate) async fn start(config: Config) -> Result<Server, Failure> {
    Server::start(config, Arc::new(open)).await.map_err(|error| match error {
        StartError::Config(error) => config_failure(error),
        error => Failure::failed(error),
    })
}

fn config_failure(error: ConfigError) -> Failure {
    match error {
        ConfigError::Read { .. } => Failure::failed(error),
        error => Failure::Usage(error.to_string()),
    }
}

fn open(name: DeviceName, options: lunway_target::OpenOptions) -> OpeningDevice {
    Box::pin(async move {
        let options = lunway_device::OpenOptions {
            sector: options.sector,
            read_only: options.read_only,
            ..lunway_device::OpenOptions::default()
        };
        let opened = lunway_device::open(name.spec(), &options).await.map_err(|error| error.to_string())?;
        Ok(OpenedDevice { device: opened.device.clone(), close: Some(Box::pin(opened.close())) })
    })
}

/// One line, for `systemctl status`.
fn status(server: &Server) -> String {
    let targets = server.targets();
    let luns: usize = targets.iter().map(|target| target.luns.len()).sum();
    format!("serving {luns} LUN(s) of {} target(s) on {} portal(s)", targets.len(), server.addresses().len())
}

fn announce(server: &Server, json: bool) -> Result<(), Failure> {
    let targets = server.targets();
    if json {
        let listening: Vec<_> = server.addresses().iter().map(ToString::to_string).collect();
        let targets: Vec<_> = targets.iter().map(target_json).collect();
        return terminal::print_json(&json!({ "listening": listening, "targets": targets }));
    }
    let mut lines: Vec<_> =
        server.addresses().iter().map(|address| format!("listening on {address}")).collect();
    for target in &targets {
        let chap = if target.authenticated { ", CHAP required" } else { "" };
        lines.push(format!("target {}{chap}", target.name));
        for lun in &target.luns {
            let read_only = if lun.read_only { ", read-only" } else { "" };
            let size = HumanSize(lun.size);
            lines.push(format!(
                "  lun {}: {}, {size}, sectors of {}{read_only}",
                lun.id, lun.device, lun.sector
            ));
        }
    }
    terminal::print(&lines.join("\n"))
}

fn target_json(target: &TargetSummary) -> serde_json::Value {
    let luns: Vec<_> = target
        .luns
        .iter()
        .map(|lun| {
            json!({
                "id": lun.id, "device": lun.device, "size": lun.size, "sector": lun.sector, "read_only": lun.read_only,
            })
        })
        .collect();
    json!({ "name": target.name, "alias": target.alias, "authenticated": target.authenticated, "luns": luns })
}
