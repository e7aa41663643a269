//! `lunway demo`.

mod act;
mod backups;
mod lanes;
mod proxies;
mod volumes;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::Args;
use lunway_bench::report;
use lunway_bench::{Cancel, End, Outcome, profile, random_seed};
use lunway_block::size::HumanSize;
use lunway_block::{BlockDevice, Buf, Durability, SharedBuf};
use lunway_copy::{Before, Skipped, Transfer};
use lunway_device::{OpenOptions, Opened};
use lunway_report::{Document, Fact, html};
use lunway_target::{Config, IscsiName, LunConfig, Server, TargetConfig};

use self::act::Act;
use self::volumes::Volumes;
use super::bench::{environment, judge, result_text, run_profile};
use super::serve;

const NAME: &str = "iqn.2026-11.io.lunway:demo";
use crate::failure::Failure;
use crate::report_file::ReportFile;
use crate::{device, interrupt, progress, terminal};

/// Size of each logical unit.
const LUN_SIZE: u64 = IMAGE_SIZE;
/// Size of the disk that is copied, bytes: a stretch of random data at the start of each part, zeroes in the rest.
const IMAGE_SIZE: u64 = 256 << 20;
const PART: u64 = 16 << 20;
const DATA_IN_PART: u64 = 6 << 20;
/// Per row: ten rows and their preparation stay well under a minute, and still show what counts.
const ROW: Duration = Duration::from_millis(1500);
const ROW_RAMP: Duration = Duration::from_millis(200);
/// Part of the disk that is measured.
const MEASURED: u64 = LUN_SIZE;

const FILE_NAME: &str = "lunway-demo.html";

/// Show everything once on this machine, in under a minute: serve, copy, measure, survive a pulled cable, back up.
///
/// Needs neither root nor preparation and touches no disk: the volumes are in memory (or in temporary files, with
/// --vhdx), and the only file that stays is the report. The second part builds a network of two cables from
/// namespaces; where the kernel or a container does not allow that, proxies take the place of the cables. The third
/// part backs a disk up, destroys it, and restores it, in temporary files.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Write the report to this file [default: lunway-demo.html in the current directory, or in the temporary
    /// directory]
    #[arg(long, value_name = "FILE", visible_alias = "html")]
    html_file: Option<PathBuf>,
    /// Replace a file that is not a lunway report
    #[arg(long)]
    force: bool,
    /// Put the volumes into VHDX files in the temporary directory, which are removed at the end
    #[arg(long)]
    vhdx: bool,
    /// Run the second part only: two lanes, and a cable that is pulled during a write
    #[arg(long)]
    lanes: bool,
    /// The side of the second act that is in the sandbox: leaves what it has seen there
    #[arg(long, value_name = "FILE", hide = true)]
    second_act: Option<PathBuf>,
    /// Have no namespaces, as where they are forbidden
    #[arg(long, hide = true)]
    no_namespaces: bool,
}

impl Demo {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if let Some(file) = &self.second_act {
            return lanes::inside(file);
        }
        let path = self.place()?;
        let cancel = interrupt::watch();
        let volumes = Volumes::new(self.vhdx)?;
        let subject = format!("{} over two lanes of iSCSI, on one machine", volumes.kind());
        let mut document = Document::new("lab", "lunway demo", &subject);
        document.environment = lunway_report::environment();
        document.environment.push(crate::command::doctor::of_place());
        let mut outcomes = Vec::new();
        if !self.lanes {
            (document, outcomes) = first_act(&volumes, &cancel)?;
        }
        // What was measured until an interrupt is shown all the same.
        let act = match cancel.is_cancelled() {
            true => None,
            false => Some(lanes::show(&volumes, &cancel, !self.no_namespaces)?),
        };
        document.sections.extend(act.as_ref().map(Act::section));
        let backed_up = match self.lanes || cancel.is_cancelled() {
            true => Ok(()),
            false => backups::show(&cancel).map(|section| document.sections.push(section)),
        };
        ReportFile::new(&path, self.force).write(&html(&document))?;
        terminal::print(&format!(
            "\n{}\n  The report, with charts: {}",
            terminal::heading("Report"),
            path.display()
        ))?;
        judge(&outcomes)?;
        backed_up?;
        match act.is_none_or(|act| act.is_good()) {
            true => Ok(()),
            false => Err(Failure::failed(anyhow!("not all that was written over two lanes is there"))),
        }
    }

    /// The file of the report, which can be written now.
    fn place(&self) -> Result<PathBuf, Failure> {
        let check = |path: &Path| ReportFile::new(path, self.force).check(&[]);
        if let Some(path) = &self.html_file {
            check(path)?;
            return Ok(path.clone());
        }
        let here = Path::new(FILE_NAME);
        if check(here).is_ok() {
            return Ok(std::path::absolute(here).unwrap_or_else(|_| here.to_owned()));
        }
        // Where the current directory cannot be written, temporary files can be. Another user's report may be there.
        let (there, own) = (FILE_NAME.to_owned(), format!("{}-{FILE_NAME}", std::process::id()));
        let mut places = [there, own].map(|name| std::env::temp_dir().join(name)).into_iter();
        let can_be = places.find(|path| check(path).is_ok());
        can_be.ok_or_else(|| {
            let folder = std::env::temp_dir();
            Failure::failed(anyhow!(
                "no report can be written here, nor in {}: --html-file names another place",
                folder.display()
            ))
        })
    }
}

/// Serve, reach, copy, measure: the page, and what was measured.
fn first_act(volumes: &Volumes, cancel: &Cancel) -> Result<(Document, Vec<Outcome>), Failure> {
    let (outcomes, notes, facts) = device::run(async {
        let server = Demonstration::start(volumes).await?;
        let result = server.show(cancel).await;
        server.stop().await?;
        result
    })?;
    let subject = format!("{} over iSCSI, and one over two lanes, on one machine", volumes.kind());
    let mut document = report::document("lunway demo", &subject, &outcomes);
    document.notes = notes;
    document.environment = facts;
    Ok((document, outcomes))
}

/// Outcome of a demonstration: results, notes on them, facts about the place.
type Shown = (Vec<Outcome>, Vec<String>, Vec<Fact>);

/// An open target on a port of the kernel's choice that only this machine reaches.
fn on_loopback(name: &str, luns: Vec<LunConfig>) -> Result<Config, Failure> {
    let name = IscsiName::parse(name).map_err(Failure::failed)?;
    let target = TargetConfig { open: true, luns, ..TargetConfig::new(name) };
    let listen = vec!["127.0.0.1:0".parse().map_err(Failure::failed)?];
    Ok(Config { listen, targets: vec![target], ..Config::default() })
}

/// A server on threads of its own, and where it is.
struct Demonstration {
    server: Server,
    address: String,
}

impl Demonstration {
    async fn start(volumes: &Volumes) -> Result<Self, Failure> {
        let units = vec![volumes.unit(0, LUN_SIZE, 512)?, volumes.unit(1, LUN_SIZE, 4096)?];
        let config = on_loopback(NAME, units)?;
        let server = serve::start(config).await?;
        let address = server.addresses().first().map(ToString::to_string).unwrap_or_default();
        terminal::print(&format!(
            "{}\n  target {NAME} at {address}\n  lun 0: {}, sectors of 512 bytes\n  lun 1: {}, sectors of 4096 bytes",
            terminal::heading(&format!("Serve: two volumes, each {}, over iSCSI", volumes.kind())),
            HumanSize(LUN_SIZE),
            HumanSize(LUN_SIZE),
        ))?;
        Ok(Self { server, address })
    }

    async fn stop(self) -> Result<(), Failure> {
        self.server.shutdown(Duration::from_secs(2)).await.map_err(Failure::failed)
    }

    async fn open(&self, lun: u16) -> Result<Opened, Failure> {
        let url = format!("iscsi://{}/{NAME}/{lun}", self.address);
        device::open(&device::parse(&url)?, &OpenOptions::default()).await
    }

    async fn show(&self, cancel: &Cancel) -> Result<Shown, Failure> {
        self.copy(cancel).await?;
        self.measure(cancel).await
    }

    /// Random data and zeroes to one volume, from there to the other, and everything compared.
    async fn copy(&self, cancel: &Cancel) -> Result<(), Failure> {
        terminal::print(&format!(
            "\n{}",
            terminal::heading("Reach and copy: log in, write random data and zeroes, compare every byte")
        ))?;
        let image =
            device::open(&device::parse(&format!("ram:{IMAGE_SIZE}"))?, &OpenOptions::default()).await?;
        fill(&*image.device).await?;
        let (first, second) = (self.open(0).await?, self.open(1).await?);
        let result = async {
            copy_one("image to lun 0", &*image.device, &*first.device, cancel).await?;
            copy_one("lun 0 to lun 1", &*first.device, &*second.device, cancel).await
        }
        .await;
        first.close_or_log().await;
        second.close_or_log().await;
        result
    }

    async fn measure(&self, cancel: &Cancel) -> Result<Shown, Failure> {
        let opened = self.open(0).await?;
        let options = profile::Options {
            duration: ROW,
            ramp: ROW_RAMP,
            region: MEASURED,
            destroy: true,
            seed: random_seed(),
            ..profile::Options::default()
        };
        let profile = profile::anvil(&opened.device.geometry(), &options);
        terminal::print(&format!(
            "\n{}",
            terminal::heading(&format!(
                "Measure: profile anvil on lun 0, about {} s",
                profile.duration().as_secs() + 2
            ))
        ))?;
        let facts = environment(&*opened.device);
        let outcomes = run_profile(&profile, &opened.device, cancel).await;
        opened.close_or_log().await;
        let outcomes = outcomes?;
        if outcomes.iter().all(|outcome| outcome.end == End::Cancelled) {
            return Err(Failure::failed(anyhow!("interrupted before there was anything to show")));
        }
        let mut notes = profile.notes;
        notes.push("Target and initiator run on the same cores: a network between them would cost more, their sharing less.".to_owned());
        terminal::print(&indented(&result_text(&outcomes, &notes)))?;
        Ok((outcomes, notes, facts))
    }
}

async fn copy_one(
    what: &str,
    source: &dyn BlockDevice,
    destination: &dyn BlockDevice,
    cancel: &Cancel,
) -> Result<(), Failure> {
    let transfer = Transfer {
        source,
        destination,
        before: Before::Unknown,
        skipped: &Skipped::default(),
        is_cancelled: &|| cancel.is_cancelled(),
    };
    let bar = progress::bytes("copying", IMAGE_SIZE);
    let start = Instant::now();
    let copied = transfer.copy(&mut |done| bar.set_position(done)).await;
    let elapsed = start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    let copied = copied.context("copying failed")?;
    let bar = progress::bytes("comparing", IMAGE_SIZE);
    let compared = transfer.compare(&mut |done| bar.set_position(done)).await;
    bar.finish_and_clear();
    let compared = compared.context("comparing failed")?;
    if cancel.is_cancelled() {
        return Err(Failure::failed(anyhow!("interrupted")));
    }
    if let Some(offset) = compared.differs_at {
        return Err(Failure::failed(anyhow!("the copy differs from its source, first at offset {offset}")));
    }
    terminal::print(&format!(
        "  {what}: {} of which {} data, {:.0} MB/s, all equal",
        HumanSize(copied.done),
        HumanSize(copied.written),
        copied.done as f64 / elapsed.max(1e-9) / 1e6
    ))
}

fn indented(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(|line| format!("  {line}")).collect();
    lines.join("\n")
}

/// Random bytes, so many. `state` is not zero.
fn noise(len: usize, state: &mut u64) -> SharedBuf {
    let mut buf = Buf::for_overwrite(len);
    for chunk in buf.chunks_exact_mut(8) {
        // xorshift64: only has to be no pattern.
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        chunk.copy_from_slice(&state.to_le_bytes());
    }
    buf.freeze()
}

/// Random bytes at the start of each part; the rest stays zero.
async fn fill(device: &dyn BlockDevice) -> Result<(), Failure> {
    let mut state = random_seed() | 1;
    let mut at = 0;
    while at < IMAGE_SIZE {
        let data = noise(DATA_IN_PART as usize, &mut state);
        device.write(at, data, Durability::Volatile).await.context("cannot make an image")?;
        at += PART;
    }
    Ok(())
}
