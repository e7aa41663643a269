//! `lunway top DEVICE`: what goes over the paths to a disk.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::Duration;

use lunway_block::{BlockDevice, Buf};
use lunway_device::OpenOptions;
use lunway_iscsi_paths::IscsiMultipath;
use serde_json::json;

use super::lanes::Lanes;
use super::opened;
use crate::failure::Failure;
use crate::interrupt::Requests;
use crate::screen::redrawn;
use crate::{device, terminal};

/// Length of a read of the load, and number of reads in flight. Long enough to be split over lanes.
const LOAD_LEN: u64 = 1 << 20;
const LOAD_DEPTH: usize = 4;

/// Display of a disk's lanes.
pub(crate) struct Live {
    pub(crate) device: String,
    pub(crate) interval: Duration,
    pub(crate) once: bool,
    pub(crate) json: bool,
    /// Reads all the while, so that there is something to be seen.
    pub(crate) load: bool,
}

impl Live {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let spec = device::parse(&self.device)?;
        let url = opened(&spec)?;
        device::run(async {
            let multipath = IscsiMultipath::open(&url, &OpenOptions::default().iscsi)
                .await
                .map_err(|error| Failure::failed(anyhow::anyhow!("cannot open {spec}: {error}")))?;
            let loads: Vec<_> = (0..if self.load { LOAD_DEPTH } else { 0 })
                .map(|n| tokio::spawn(load(multipath.device().clone(), n as u64)))
                .collect();
            let outcome = self.watch(&spec.to_string(), &multipath).await;
            loads.iter().for_each(tokio::task::JoinHandle::abort);
            multipath.close().await;
            outcome
        })
    }

    async fn watch(&self, name: &str, multipath: &IscsiMultipath) -> Result<(), Failure> {
        let mut requests = Requests::new().map_err(Failure::failed)?;
        let mut lanes = Lanes::new(multipath);
        loop {
            tokio::select! {
                () = tokio::time::sleep(self.interval) => {}
                () = requests.next() => return Ok(()),
            }
            lanes.look(multipath);
            let (plan, policy) = (multipath.plan(), multipath.device().policy());
            if self.json {
                terminal::print_json(&json!({
                    "device": name, "plan": plan.kind.to_string(), "policy": policy.to_string(),
                    "lanes": lanes.document(plan),
                }))?;
            } else {
                let title = format!("{}, {} plan, policy {policy}", terminal::clean(name), plan.kind);
                let text = format!("{}\n\n{}", terminal::heading(&title), lanes.rate_table());
                let live = !self.once && io::stdout().is_terminal();
                terminal::print(&if live { redrawn(&text) } else { text })?;
            }
            if self.once {
                return Ok(());
            }
        }
    }
}

/// Reads every `LOAD_DEPTH`th piece from the `first` on, round and round. An error is seen in the lanes' counts; it
/// waits a little, so that a dead disk is not asked as fast as it can refuse.
async fn load(device: Arc<impl BlockDevice>, first: u64) {
    let mut n = first;
    loop {
        let pieces = device.geometry().size / LOAD_LEN;
        if pieces == 0 {
            return;
        }
        let offset = n % pieces * LOAD_LEN;
        let read = device.read(offset, Buf::for_overwrite(LOAD_LEN as usize));
        if read.into_future().await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        n += LOAD_DEPTH as u64;
        // What is answered at once must not keep others from their turn.
        tokio::task::yield_now().await;
    }
}
