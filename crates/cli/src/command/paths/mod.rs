//! `lunway paths`.

mod lanes;
pub(crate) mod live;
mod trial;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use clap::Args;
use lunway_block::size::HumanSize;
use lunway_block::spec::DeviceSpec;
use lunway_block::{BlockDevice, BlockError, Buf, Finding};
use lunway_device::OpenOptions;
use lunway_initiator::IscsiUrl;
use lunway_iscsi_paths::{Address, IscsiMultipath, LaneName, MultipathUrl, PortalName};
use lunway_multipath::plan::{Plan, PlanKind};
use lunway_multipath::{Boundaries, Policy};
use serde_json::{Value, json};

use self::lanes::Lanes;
use crate::awaited::ways;
use crate::failure::Failure;
use crate::interrupt::Requests;
use crate::screen::Screen;
use crate::{device, terminal};

/// Small reads at the beginning, for each lane.
const READS: usize = 4;

/// Time after which no further one of these reads is made.
const MEASURING_TIME: Duration = Duration::from_secs(5);

/// Time after which a read that is not answered is mentioned.
const MENTIONED_AFTER: Duration = Duration::from_secs(2);

/// Seconds between two drawings.
const PERIOD: Duration = Duration::from_secs(1);

/// Show the paths to a disk: how they were chosen, warnings about that choice, and their state.
///
/// A lane is one path with its own session, from a local address to a portal. --plan and --policy show the effect of
/// another choice, without opening lanes.
#[derive(Debug, Args)]
#[command(after_help = "\
Ctrl-C ends --watch. `lunway doctor DEVICE --probe` checks and measures paths.

Examples:
  lunway paths \\
      'iscsi://10.0.1.10/iqn.2026-11.com.example:disks/0?portal=10.0.2.10'
  lunway paths san/paths.toml --watch
  lunway paths iscsi://192.0.2.10/iqn.2026-11.com.example:disks/0 --plan mesh
  lunway paths san/paths.toml --policy round-robin --json")]
pub(crate) struct Paths {
    /// The disk: an iscsi:// address, or a paths.toml
    #[arg(value_name = "DEVICE")]
    device: String,
    /// Show the lanes of another plan without opening them: paired, balanced, mesh, redundant
    #[arg(long, value_name = "PLAN", value_parser = str::parse::<PlanKind>)]
    plan: Option<PlanKind>,
    /// Show where another policy would send I/O, without sending any
    #[arg(long, value_name = "POLICY", value_parser = str::parse::<Policy>)]
    policy: Option<Policy>,
    /// Update the table every second
    #[arg(long, conflicts_with_all = ["plan", "policy"])]
    watch: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Paths {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let spec = device::parse(&self.device)?;
        let trial = self.plan.is_some() || self.policy.is_some();
        let url = if trial { address(&spec)? } else { opened(&spec)? };
        device::run(async { if trial { self.trial(url).await } else { self.show(&spec, &url).await } })
    }

    /// Shows the plan of the lanes that would be opened.
    async fn trial(&self, mut url: MultipathUrl) -> Result<(), Failure> {
        if let Some(kind) = self.plan {
            if kind != PlanKind::Explicit {
                url.lanes.clear();
            }
            url.plan = Some(kind);
        }
        let policy = self.policy.or(url.policy).unwrap_or(Policy::Adaptive);
        let options = OpenOptions::default().iscsi;
        let plan = IscsiMultipath::plan_for(&url, &options).await.map_err(Failure::failed)?;
        let first = trial::first_lanes(&plan, policy);
        if self.json {
            let mut document = plan_document(&url.to_string(), &plan, policy);
            document["lanes"] = trial::document(&plan);
            document["first_lanes"] = json!(first);
            return terminal::print_json(&document);
        }
        let blocks = [
            head(&url.to_string(), &plan, policy, None),
            trial::table(&plan),
            trial::sentence(&first),
            warnings(&plan, &self.device),
        ];
        print_blocks(&blocks)
    }

    /// Opens the lanes, and shows their state.
    async fn show(&self, spec: &DeviceSpec, url: &MultipathUrl) -> Result<(), Failure> {
        let multipath = IscsiMultipath::open(url, &OpenOptions::default().iscsi)
            .await
            .map_err(|error| Failure::failed(anyhow::anyhow!("cannot open {spec}: {error}")))?;
        let read = exercise(spec, &multipath).await;
        let outcome = self.watch(spec, &multipath).await;
        multipath.close().await;
        outcome?;
        // Who watches has seen what came of it since.
        match read {
            Err(error) if !self.watch => {
                Err(Failure::failed(anyhow::anyhow!("{spec} cannot be read: {error}")))
            }
            _ => Ok(()),
        }
    }

    async fn watch(&self, spec: &DeviceSpec, multipath: &IscsiMultipath) -> Result<(), Failure> {
        let mut requests = Requests::new().map_err(Failure::failed)?;
        let screen = (self.watch && !self.json).then(Screen::enter).flatten();
        let mut lanes = Lanes::new(multipath);
        loop {
            lanes.look(multipath);
            let (name, plan) = (spec.to_string(), multipath.plan());
            let policy = multipath.device().policy();
            let geometry = multipath.device().geometry();
            if self.json {
                let mut document = plan_document(&name, plan, policy);
                document["size"] = json!(geometry.size);
                document["sector"] = json!(geometry.logical_sector);
                let Boundaries { step, first } = Boundaries::of(&geometry);
                document["cut"] = json!({ "every": step, "from": first });
                document["lanes"] = lanes.document(plan);
                terminal::print_json(&document)?;
            } else {
                let cut = match Boundaries::of(&geometry) {
                    Boundaries { step: 0..=4096, first: 0 } => String::new(),
                    Boundaries { step, first: 0 } => {
                        format!(", cut at multiples of {}", HumanSize(step.into()))
                    }
                    Boundaries { step, first } => {
                        format!(", cut at {first} bytes and every {} behind", HumanSize(step.into()))
                    }
                };
                let (size, sector) = (HumanSize(geometry.size), geometry.logical_sector);
                let shape = format!("{size}, sectors of {sector} bytes{cut}");
                let blocks = [
                    head(&name, plan, policy, Some(shape)),
                    lanes.state_table(),
                    single_sentence(spec),
                    warnings(plan, &self.device),
                ];
                match &screen {
                    Some(screen) => screen.draw(&joined(&blocks)),
                    None => print_blocks(&blocks)?,
                }
            }
            if !self.watch {
                return Ok(());
            }
            tokio::select! {
                () = tokio::time::sleep(PERIOD) => {}
                () = requests.next() => return Ok(()),
            }
        }
    }
}

/// A few small reads, one at a time, so that there is a latency to be seen. The first that fails ends them: it has gone
/// over each lane that could take it, and the next one would wait as long.
async fn exercise(spec: &DeviceSpec, multipath: &IscsiMultipath) -> Result<(), BlockError> {
    let device = multipath.device();
    let sector = device.geometry().logical_sector;
    let begun = Instant::now();
    for _ in 0..READS * multipath.plan().lanes.len() {
        let mut read = device.read(0, Buf::zeroed(sector as usize)).into_future();
        let read = match tokio::time::timeout(MENTIONED_AFTER, &mut read).await {
            Ok(read) => read,
            Err(_) => {
                terminal::say(&format!(
                    "waiting for {spec}, which has not answered a read{}",
                    ways(&**device)
                ));
                read.await
            }
        };
        read?;
        if begun.elapsed() > MEASURING_TIME {
            break;
        }
    }
    Ok(())
}

/// The address of a disk with the paths that every command uses: where it names a single one, that one.
fn opened(spec: &DeviceSpec) -> Result<MultipathUrl, Failure> {
    let url = address(spec)?;
    match spec.leaf() {
        DeviceSpec::Iscsi { url: text }
            if matches!(Address::parse(text.expose_secret()), Ok(Address::One(_))) =>
        {
            Ok(single(&url).unwrap_or(url))
        }
        _ => Ok(url),
    }
}

/// The one lane that a session without a plan is: to the address that the name stands for, from the one that the kernel
/// chooses for it. `None`: there is no way there, which opening it says.
fn single(url: &MultipathUrl) -> Option<MultipathUrl> {
    let IscsiUrl { host, port, from, .. } = &url.base;
    let lane = |portal: SocketAddr| {
        let local: IpAddr =
            if portal.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        // Connecting a datagram socket sends nothing: it asks for the route.
        let socket = UdpSocket::bind((from.unwrap_or(local), 0)).ok()?;
        socket.connect(portal).ok()?;
        let name = PortalName { host: portal.ip().to_string(), port: portal.port(), target: None };
        Some(LaneName { from: socket.local_addr().ok()?.ip(), portal: name, weight: None, reserve: false })
    };
    let lane = (host.as_str(), *port).to_socket_addrs().ok()?.find_map(lane)?;
    Some(MultipathUrl { lanes: vec![lane], from: Vec::new(), plan: Some(PlanKind::Explicit), ..url.clone() })
}

/// Remark that a disk is reached over one path, and how it would be over several.
fn single_sentence(spec: &DeviceSpec) -> String {
    match spec.leaf() {
        DeviceSpec::Iscsi { url } if matches!(Address::parse(url.expose_secret()), Ok(Address::One(_))) => {
            "One path, as the address names one portal and no plan: every command uses this one. ?plan=balanced takes all portals of the \
             target, and --plan shows what would be."
                .to_owned()
        }
        _ => String::new(),
    }
}

/// The address of a disk that has paths. One that names a single path is taken as one of several, for trials.
pub(crate) fn address(spec: &DeviceSpec) -> Result<MultipathUrl, Failure> {
    match spec.leaf() {
        DeviceSpec::Iscsi { url } => match Address::parse(url.expose_secret()) {
            Ok(Address::Several(url)) => Ok(url),
            Ok(Address::One(url)) => Ok(MultipathUrl::of_one(url)),
            Err(error) => Err(Failure::Usage(error.to_string())),
        },
        DeviceSpec::Paths { path } => MultipathUrl::from_file(path).map_err(device::paths_file_failure),
        other => {
            Err(Failure::Usage(format!("{other} has no paths: an iscsi:// address or a paths.toml has them")))
        }
    }
}

fn head(device: &str, plan: &Plan, policy: Policy, disk: Option<String>) -> String {
    let mut lines = vec![terminal::heading(&terminal::clean(device))];
    let active = plan.active();
    let reserve = plan.lanes.len() - active;
    let lanes = if active == 1 { "1 lane".to_owned() } else { format!("{active} lanes") };
    let count = match reserve {
        0 => lanes,
        _ => format!("{lanes}, {reserve} more in reserve"),
    };
    let disk = disk.map(|disk| ("disk", disk));
    let facts = [("plan", format!("{}: {count}", plan.kind)), ("policy", policy.to_string())];
    lines.push(terminal::columns(disk.into_iter().chain(facts)));
    lines.extend(plan.reasons.iter().map(|reason| format!("  {}", terminal::clean(reason))));
    lines.join("\n")
}

/// Warnings about a plan, and where more is told of them.
fn warnings(plan: &Plan, device: &str) -> String {
    if plan.warnings.is_empty() {
        return String::new();
    }
    let lines = plan
        .warnings
        .iter()
        .map(|warning| format!("  {}: {}", warning.id, terminal::clean(&warning.to_string())));
    let more = format!("  What each costs, and its fix: lunway doctor {}", terminal::clean(&quoted(device)));
    let heading = std::iter::once(terminal::heading("Warnings"));
    heading.chain(lines).chain(std::iter::once(more)).collect::<Vec<_>>().join("\n")
}

/// An argument as a shell takes it: an address has characters that mean something there.
fn quoted(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/.:_-=%@,+".contains(c);
    if argument.chars().all(plain) {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', "'\\''"))
    }
}

fn joined(blocks: &[String]) -> String {
    let blocks: Vec<_> = blocks.iter().filter(|block| !block.is_empty()).map(String::as_str).collect();
    blocks.join("\n\n")
}

fn print_blocks(blocks: &[String]) -> Result<(), Failure> {
    terminal::print(&joined(blocks))
}

fn plan_document(device: &str, plan: &Plan, policy: Policy) -> Value {
    let warnings: Vec<_> = plan.warnings.iter().map(finding_document).collect();
    json!({
        "device": device,
        "plan": plan.kind.to_string(),
        "reasons": plan.reasons,
        "warnings": warnings,
        "policy": policy.to_string(),
    })
}

/// A finding about a plan; `rule` is its number in the list of rules of thumb, `text` all of it in one sentence.
fn finding_document(finding: &Finding) -> Value {
    let rule: Option<u8> = finding.id.strip_prefix("rule-").and_then(|number| number.parse().ok());
    json!({
        "id": finding.id,
        "severity": finding.severity.to_string(),
        "what": finding.what,
        "where": finding.place,
        "why": finding.why,
        "do": finding.remedy,
        "rule": rule,
        "text": finding.to_string(),
    })
}
