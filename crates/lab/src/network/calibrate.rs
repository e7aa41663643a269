//! Calibration: verifies that cables carry their rates.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::ControlFlow;
use std::time::Duration;

use lunway_net::{Client, Direction, Loopback, Window};

use crate::cpu::{CpuUse, CpuWatch};
use crate::error::LabError;
use crate::namespace::Namespace;
use crate::rate::Rate;
use crate::tool::Tool;
use crate::topology::End;

use super::{LiveCable, Network, plan, set};

/// Duration of one direction's measurement, without its warm-up.
const TIME: Duration = Duration::from_secs(1);
/// Warm-up that is left out, while TCP finds its window.
const WARM_UP: Duration = Duration::from_millis(300);
/// TCP's window, as time at the cable's rate: it fills the queue at the cable's end several times. The kernel's own
/// choice would take seconds to drain from a slow cable when the measurement is over.
const WINDOW_TIME: Duration = Duration::from_millis(20);
/// The smallest window.
const WINDOW_MIN: u32 = 256 << 10;
/// Tolerance of a cable's rate.
const TOLERANCE: f64 = 0.02;
/// Deviation below which no correction is made: the difference between two measurements of the same cable.
const CLOSE: f64 = 0.004;
/// Maximum number of measurements of a direction.
const ATTEMPTS: usize = 6;
/// Maximum number of further measurements where the hypervisor took part of the processor.
const DISTURBED_ATTEMPTS: usize = 12;
/// Number of deviating measurements that make a correction.
const MEASUREMENTS: usize = 2;
/// Range of a correction: where more is needed, something else is wrong.
const CORRECTION: std::ops::RangeInclusive<f64> = 0.97..=1.03;
/// Share of the carried rate that is proposed where the processor cannot carry the full rate: the rest must be left for
/// what is measured.
const HONEST: f64 = 0.9;

/// Calibration of one direction of a cable. Rates are payload, 10⁶ bytes per second; the requested rate is on the wire.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// The cable.
    pub cable: String,
    /// End that sent the data.
    pub from: End,
    /// End that received the data.
    pub to: End,
    /// The cable's rate; none where it has none, and nothing is expected of it.
    pub asked_mb_s: Option<f64>,
    /// Theoretical TCP throughput of a cable of this rate and MTU.
    pub expected_mb_s: Option<f64>,
    /// Measured throughput.
    pub measured_mb_s: f64,
    /// Correction of the shaper, as a multiple of the rate, so that the actual rate is as configured.
    pub correction: f64,
}

/// A cable that does not carry its rate.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "cable `{cable}` carried {measured_mb_s:.1} of {expected_mb_s:.1} MB/s from {from} to {to} ({busy}): \
     a rate of {carried} instead of {asked} can be expected to hold here"
)]
pub struct Shortfall {
    /// The cable.
    pub cable: String,
    /// End that sent the data.
    pub from: End,
    /// End that received the data.
    pub to: End,
    /// The rate.
    pub asked: Rate,
    /// The payload that belongs to it, 10⁶ bytes per second.
    pub expected_mb_s: f64,
    /// Measured throughput.
    pub measured_mb_s: f64,
    /// The rate that this machine can be expected to carry, with something left for what is to be measured.
    pub carried: Rate,
    /// CPU usage of the machine.
    pub busy: CpuUse,
}

impl Shortfall {
    /// Returns the factor to give to [`Topology::scaled`](crate::Topology::scaled) for a network that this machine can
    /// be expected to carry.
    pub fn scale(&self) -> f64 {
        self.carried.bits_per_second() as f64 / self.asked.bits_per_second() as f64
    }
}

/// Progress of a calibration.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibrating<'a> {
    /// Directions done.
    pub done: usize,
    /// Directions in all.
    pub of: usize,
    /// The cable that is next.
    pub cable: &'a str,
}

impl Network {
    /// Measures every cable, each direction alone, with one TCP stream, and corrects its shaper until what comes
    /// through is within 2 % of theory. Takes a second or two for a direction. Delay and loss are taken out meanwhile.
    ///
    /// `progress` is called before each measurement, and can end it all.
    ///
    /// # Errors
    ///
    /// [`LabError::Calibration`], which says what was reached, and what this machine could carry;
    /// [`LabError::Interrupted`].
    pub fn calibrate(
        &self,
        progress: &mut dyn FnMut(Calibrating<'_>) -> ControlFlow<()>,
    ) -> Result<Vec<Calibration>, LabError> {
        self.calibrate_for(TIME, progress)
    }

    /// The same with another time for a measurement: where all is quick, and 2 % are what matters, a fraction of a
    /// second will do.
    ///
    /// # Errors
    ///
    /// As [`calibrate`](Self::calibrate).
    pub fn calibrate_for(
        &self,
        time: Duration,
        progress: &mut dyn FnMut(Calibrating<'_>) -> ControlFlow<()>,
    ) -> Result<Vec<Calibration>, LabError> {
        let mut done = Vec::new();
        let of = 2 * self.cables().len();
        for cable in self.cables() {
            cable.without_delay_and_loss(|| {
                let bench = Bench::new(self, cable, time)?;
                for direction in 0..2 {
                    let calibrating = Calibrating { done: done.len(), of, cable: cable.name() };
                    done.push(bench.calibrate(direction, &mut || progress(calibrating.clone()))?);
                }
                Ok(())
            })?;
        }
        Ok(done)
    }
}

/// A cable and what is at its ends to measure it: the host, or a probe that is plugged into the switch for it.
struct Bench<'a> {
    cable: &'a LiveCable,
    time: Duration,
    ends: [Namespace; 2],
    addresses: [IpAddr; 2],
    _probes: Vec<Probe>,
}

/// Something at a switch that is there only to measure.
struct Probe {
    fabric: Namespace,
    port: String,
}

impl Drop for Probe {
    fn drop(&mut self) {
        // With the network it goes in any case.
        let _ = Tool::Ip.batch(&self.fabric, "the fabric", &[format!("link del {}", self.port)]);
    }
}

impl<'a> Bench<'a> {
    fn new(network: &'a Network, cable: &'a LiveCable, time: Duration) -> Result<Self, LabError> {
        let mut probes = Vec::new();
        let mut ends = Vec::new();
        for (number, end) in cable.description().ends.iter().enumerate() {
            ends.push(match end {
                End::Card { host, card } => {
                    let host = network.host(host)?;
                    (host.namespace().clone(), host.address(card)?)
                }
                End::Switch(switch) => {
                    let (namespace, address, probe) = Self::probe(network, cable, number, switch)?;
                    probes.push(probe);
                    (namespace, address)
                }
            });
        }
        let [a, b] = <[_; 2]>::try_from(ends).map_err(|_| LabError::Outside)?;
        Ok(Self { cable, time, ends: [a.0, b.0], addresses: [a.1, b.1], _probes: probes })
    }

    fn probe(
        network: &Network,
        cable: &LiveCable,
        number: usize,
        switch: &str,
    ) -> Result<(Namespace, IpAddr, Probe), LabError> {
        let refused = |source| LabError::Kernel { doing: "make a probe".into(), source };
        let namespace = Namespace::new().map_err(refused)?;
        for (name, value) in plan::SETTINGS {
            set(&namespace, name, value)?;
        }
        set(&namespace, "net/ipv4/tcp_congestion_control", network.congestion_control())?;
        let fabric = cable.fabric().clone();
        let mtu = cable.description().mtu;
        let port = format!("probe.{number}");
        let line =
            format!("link add probe mtu {mtu} type veth peer name {port} mtu {mtu} netns /proc/self/fd/0");
        Tool::Ip.across(&namespace, "a probe", &line, fabric.descriptor().map_err(refused)?)?;
        let probe = Probe { fabric: fabric.clone(), port };
        let up = format!("link set {} master {switch} gso_max_segs 1 up", probe.port);
        Tool::Ip.batch(&fabric, "the fabric", &[up])?;
        // Where only switches are, there is no subnet yet.
        let known = network.topology().subnet(switch);
        let address = Ipv4Addr::new(10, 77, known.unwrap_or(0), 250 + u8::try_from(number).unwrap_or(0));
        let lines =
            ["link set probe gso_max_segs 1 up".to_owned(), format!("addr add {address}/24 dev probe")];
        Tool::Ip.batch(&namespace, "a probe", &lines)?;
        Ok((namespace, address.into(), probe))
    }

    /// Measures and corrects what leaves end `direction`.
    fn calibrate(
        &self,
        direction: usize,
        next: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Calibration, LabError> {
        let description = self.cable.description();
        let rate = self.cable.rate();
        let expected = rate.map(|rate| description.payload_bytes_per_second(rate));
        let mut best: Option<(f64, f64)> = None;
        let mut busy = None;
        // The most that came with the present correction: what others do on the machine takes from it and adds nothing.
        let mut reached = 0.0_f64;
        let (mut attempt, mut disturbed) = (0, 0);
        while attempt < ATTEMPTS {
            if next().is_break() {
                return Err(LabError::Interrupted);
            }
            let correction = self.cable.correction(direction);
            let watch = CpuWatch::start();
            let measured = self.measure(direction)?;
            let used = watch.stop();
            let Some(expected) = expected else {
                best = Some((measured, 1.0));
                break;
            };
            let off = |measured: f64| (measured / expected - 1.0).abs();
            let again = used.is_disturbed() && off(measured) > CLOSE && disturbed < DISTURBED_ATTEMPTS;
            if best.is_none_or(|(best, _)| off(measured) < off(best)) {
                best = Some((measured, correction));
                busy = Some(used);
            }
            reached = reached.max(measured);
            if off(measured) <= CLOSE {
                break;
            }
            if again {
                disturbed += 1;
                continue;
            }
            attempt += 1;
            if attempt % MEASUREMENTS == 0 {
                let better = correction * expected / reached;
                self.cable.correct(direction, better.clamp(*CORRECTION.start(), *CORRECTION.end()))?;
                reached = 0.0;
            }
        }
        let (measured, correction) = best.unwrap_or_default();
        if let (Some(rate), Some(expected)) = (rate, expected) {
            if (measured / expected - 1.0).abs() > TOLERANCE {
                return Err(Box::new(Shortfall {
                    cable: self.cable.name().to_owned(),
                    from: description.ends[direction].clone(),
                    to: description.ends[1 - direction].clone(),
                    asked: rate,
                    expected_mb_s: expected / 1e6,
                    measured_mb_s: measured / 1e6,
                    carried: rate.times((measured / expected).min(1.0) * HONEST).rounded_down(),
                    busy: busy.unwrap_or_default(),
                })
                .into());
            }
            self.cable.correct(direction, correction)?;
        }
        Ok(Calibration {
            cable: self.cable.name().to_owned(),
            from: description.ends[direction].clone(),
            to: description.ends[1 - direction].clone(),
            asked_mb_s: rate.map(|rate| rate.bytes_per_second() / 1e6),
            expected_mb_s: expected.map(|expected| expected / 1e6),
            measured_mb_s: measured / 1e6,
            correction,
        })
    }

    /// Payload bytes per second from end `direction` to the other.
    fn measure(&self, direction: usize) -> Result<f64, LabError> {
        let kernel =
            |source| LabError::Kernel { doing: format!("measure cable {}", self.cable.name()), source };
        let failed = |source| LabError::Measurement { cable: self.cable.name().to_owned(), source };
        let [from, to] = [direction, 1 - direction];
        let there = self.addresses[to];
        let window = self.cable.rate().map_or(Window::Auto, |rate| {
            Window::Bytes(WINDOW_MIN.max((rate.bytes_per_second() * WINDOW_TIME.as_secs_f64()) as u32))
        });
        let responder = self.ends[to].run(|| Loopback::start(there)).map_err(kernel)?.map_err(failed)?;
        let here = self.addresses[from];
        let peer = responder.address();
        let throughput = self.ends[from]
            .run(|| {
                let client = Client::connect(peer, Some(here), window)?;
                client.throughput(Direction::Send, 1, WARM_UP + self.time)
            })
            .map_err(kernel)?
            .map_err(failed)?;
        let bits = throughput.bits_per_second_after(WARM_UP).unwrap_or(throughput.bits_per_second());
        Ok(bits / 8.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cable_that_does_not_reach_its_rate_says_what_it_reached_and_what_would_do() {
        let error = Shortfall {
            cable: "lane1".into(),
            from: "server.eth0".parse().unwrap(),
            to: "storage.eth0".parse().unwrap(),
            asked: Rate::new(1_000_000_000),
            expected_mb_s: 117.68,
            measured_mb_s: 58.84,
            carried: Rate::new(450_000_000),
            busy: CpuUse::default(),
        };
        let sentence = error.to_string();
        for part in ["`lane1`", "58.8 of 117.7 MB/s", "from server.eth0 to storage.eth0", "450Mbit"] {
            assert!(sentence.contains(part), "{sentence}");
        }
        assert_eq!(error.scale(), 0.45);
    }
}
