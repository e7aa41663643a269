//! Bare TCP over a network that runs.

use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use lunway_bench::{Cancel, RwMode};
use lunway_net::{Client, Direction, NetError, Responder, StopFlag, Throughput};

use crate::cpu::{CpuUse, CpuWatch};
use crate::experiment::measure::pace::Pace;
use crate::experiment::measure::run_error::RunError;
use crate::experiment::plan::run::{Run, Window, Wire};
use crate::network::Network;
use crate::topology::Topology;

/// Polling interval of a measurement.
const STEP: Duration = Duration::from_millis(100);

/// The network of a run with another MTU and delay. The delay is that of the first cable alone.
pub(crate) fn shaped(topology: &Topology, run: &Run, mtu: u32, delay: Duration) -> Topology {
    let mut topology = topology.clone();
    for cable in &mut topology.cables {
        cable.mtu = mtu;
        if cable.name == run.paths[0].leaves {
            cable.delay = (!delay.is_zero()).then_some(delay);
        }
    }
    topology
}

/// A responder on the run's target host, until it is dropped.
pub(crate) struct Answering<'a> {
    network: &'a Network,
    run: &'a Run,
    peer: SocketAddr,
    stop: StopFlag,
}

/// Raw measurement of a cell.
pub(crate) struct WireFigures {
    pub(crate) throughput: Throughput,
    pub(crate) cpu: CpuUse,
}

impl<'a> Answering<'a> {
    pub(crate) fn start(network: &'a Network, run: &'a Run) -> Result<Self, RunError> {
        let failed = |source: NetError| RunError::Net { test: run.test.clone(), source };
        let host = network.host(&run.target)?;
        let address = host.address(network.topology().card(&run.paths[0].enters, &run.target))?;
        let listener = host.run(|| TcpListener::bind((address, 0)))?.map_err(|error| failed(error.into()))?;
        let peer = listener.local_addr().map_err(|error| failed(error.into()))?;
        let stop = StopFlag::new();
        let asked = stop.clone();
        // It ends when it is asked to, or with the sandbox.
        host.start(move || Responder::serve(listener, &asked))?;
        Ok(Self { network, run, peer, stop })
    }

    /// Measures one window in one direction.
    pub(crate) fn measure(
        &self,
        wire: &Wire,
        window: &Window,
        access: RwMode,
        cancel: &Cancel,
        pace: &mut Pace<'_>,
    ) -> Result<WireFigures, RunError> {
        let run = self.run;
        let host = self.network.host(&run.from)?;
        let from = host.address(self.network.topology().card(&run.paths[0].leaves, &run.from))?;
        let window = window.bytes.map_or(lunway_net::Window::Auto, lunway_net::Window::Bytes);
        let direction = if access.writes() { Direction::Send } else { Direction::Receive };
        let stop = StopFlag::new();
        let (peer, streams, time, asked) = (self.peer, wire.streams, wire.time, stop.clone());
        let watch = CpuWatch::start();
        let measuring = host.start(move || {
            let client = Client::connect(peer, Some(from), window)?.with_stop(asked);
            client.throughput(direction, streams, time)
        })?;
        while !measuring.is_finished() {
            if cancel.is_cancelled() {
                stop.stop();
            }
            pace.tell(None);
            thread::sleep(STEP);
        }
        let cpu = watch.stop();
        let failed = |source: NetError| RunError::Net { test: run.test.clone(), source };
        let measured = measuring.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let throughput = measured.map_err(RunError::Start)?.map_err(failed)?;
        Ok(WireFigures { throughput, cpu })
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.stop.stop();
    }
}
