//! Window × MTU × streams × direction, and round trips: everything about a wire in one go.

use std::fmt;
use std::time::Duration;

use crate::client::{Client, Path};
use crate::measure::{Direction, Throughput};
use crate::round_trips::{RoundTrips, Shape};
use crate::socket::Window;
use crate::{NetError, StopFlag, theory};

/// Measurements of [`matrix`]: every combination of the first four, then the round trips.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Windows.
    pub windows: Vec<Window>,
    /// MTUs; `None` is the path's own.
    pub mtus: Vec<Option<u32>>,
    /// Streams at once.
    pub streams: Vec<u32>,
    /// Directions.
    pub directions: Vec<Direction>,
    /// Shapes and how many are in flight.
    pub round_trips: Vec<(Shape, u32)>,
    /// Duration of each measurement.
    pub time: Duration,
}

impl Default for Plan {
    /// Small and large windows, one and four streams, reads and writes of 4 KiB one by one and 32 at a time: 48
    /// seconds.
    fn default() -> Self {
        Self {
            windows: vec![
                Window::Bytes(64 << 10),
                Window::Bytes(128 << 10),
                Window::Bytes(512 << 10),
                Window::Auto,
            ],
            mtus: vec![None],
            streams: vec![1, 4],
            directions: vec![Direction::Send, Direction::Receive],
            round_trips: vec![
                (Shape::read(4096), 1),
                (Shape::read(4096), 32),
                (Shape::write(4096), 1),
                (Shape::write(4096), 32),
            ],
            time: Duration::from_secs(2),
        }
    }
}

impl Plan {
    /// Measurements to be made.
    pub fn count(&self) -> usize {
        let cells = self.windows.len() * self.mtus.len() * self.streams.len() * self.directions.len();
        cells + self.round_trips.len()
    }
}

/// The MTU of a [`Cell`], and how it came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mtu {
    /// The path's own: packets are as long as the cards on the way are set to.
    Path(u32),
    /// Packets were kept as short as this by limiting segments (`TCP_MAXSEG`); the cards could take longer ones. What
    /// this cannot show is what a card does with frames of that length.
    Emulated(u32),
}

impl Mtu {
    /// Bytes.
    pub fn bytes(self) -> u32 {
        match self {
            Self::Path(bytes) | Self::Emulated(bytes) => bytes,
        }
    }

    /// Returns the way in which a path of `path` bytes can show `wanted`; `None` if `wanted` is longer.
    fn on(path: u32, wanted: Option<u32>) -> Option<Self> {
        match wanted {
            None => Some(Self::Path(path)),
            Some(wanted) if wanted == path => Some(Self::Path(path)),
            Some(wanted) if wanted < path => Some(Self::Emulated(wanted)),
            Some(_) => None,
        }
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(bytes) => write!(f, "{bytes}"),
            Self::Emulated(bytes) => write!(f, "{bytes} (emulated)"),
        }
    }
}

/// One measurement of the matrix.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Of the packets.
    pub mtu: Mtu,
    /// Result of the measurement.
    pub measured: Throughput,
}

impl Cell {
    /// Payload bits per second that a link of `link` bits per second carries at best with these packets.
    pub fn theory(&self, link: f64) -> f64 {
        let timestamps = self.measured.senders().next().is_none_or(|end| end.tcp.timestamps);
        theory::goodput(self.mtu.bytes(), link, timestamps)
    }
}

/// Results of a [`Plan`], as far as it was measured.
#[derive(Debug)]
pub struct Matrix {
    /// The way to the responder.
    pub path: Path,
    /// In the order of measuring.
    pub cells: Vec<Cell>,
    /// In the order of the plan.
    pub round_trips: Vec<RoundTrips>,
    /// MTUs asked for that the path does not carry: only setting its cards can show those.
    pub mtus_beyond: Vec<u32>,
    /// Error that ended it early, other than a requested stop.
    pub failure: Option<NetError>,
    /// All of it was measured.
    pub complete: bool,
}

/// The measurement that begins.
#[derive(Clone, Debug)]
pub struct Step {
    /// Of [`count`](Self::count), from 0.
    pub index: usize,
    /// Measurements in all.
    pub count: usize,
    /// Name of the measurement, in a few words.
    pub name: String,
}

/// Measures everything in the plan, calling `progress` before each. An error after the first measurement ends it, and
/// is in the result beside what was measured until then; so does `stop`.
pub fn matrix(
    client: &Client,
    plan: &Plan,
    stop: &StopFlag,
    progress: &mut dyn FnMut(&Step),
) -> Result<Matrix, NetError> {
    let client = client.clone().with_stop(stop.clone());
    let path = client.path().clone();
    let mut mtus = Vec::new();
    let mut mtus_beyond = Vec::new();
    for &wanted in &plan.mtus {
        match (Mtu::on(path.mtu, wanted), wanted) {
            (Some(mtu), _) if !mtus.contains(&mtu) => mtus.push(mtu),
            (None, Some(beyond)) => mtus_beyond.push(beyond),
            _ => {}
        }
    }
    let cells = plan.windows.len() * mtus.len() * plan.streams.len() * plan.directions.len();
    let count = cells + plan.round_trips.len();
    let mut result = Matrix {
        path,
        cells: Vec::new(),
        round_trips: Vec::new(),
        mtus_beyond,
        failure: None,
        complete: false,
    };
    let measured = result.fill(&client, plan, &mtus, stop, &mut |index, name| {
        progress(&Step { index, count, name });
    });
    match measured {
        Ok(()) => {
            let measured = result.cells.len() + result.round_trips.len();
            result.complete = !stop.is_stopped() && measured == count;
        }
        Err(NetError::Stopped) => {}
        Err(error) if result.cells.is_empty() && result.round_trips.is_empty() => return Err(error),
        Err(error) => result.failure = Some(error),
    }
    Ok(result)
}

impl Matrix {
    fn fill(
        &mut self,
        client: &Client,
        plan: &Plan,
        mtus: &[Mtu],
        stop: &StopFlag,
        begin: &mut dyn FnMut(usize, String),
    ) -> Result<(), NetError> {
        let mut index = 0;
        for &streams in &plan.streams {
            for &mtu in mtus {
                for &window in &plan.windows {
                    let limit = match mtu {
                        Mtu::Path(_) => None,
                        Mtu::Emulated(bytes) => Some(bytes),
                    };
                    let client = client.clone().with_window(window).with_mtu(limit);
                    for &direction in &plan.directions {
                        if stop.is_stopped() {
                            return Ok(());
                        }
                        begin(index, format!("{direction} window {window} MTU {} ×{streams}", mtu.bytes()));
                        index += 1;
                        let measured = client.throughput(direction, streams, plan.time)?;
                        self.cells.push(Cell { mtu, measured });
                    }
                }
            }
        }
        for &(shape, depth) in &plan.round_trips {
            if stop.is_stopped() {
                return Ok(());
            }
            begin(index, format!("{shape} depth {depth}"));
            index += 1;
            self.round_trips.push(client.round_trips(shape, depth, plan.time)?);
        }
        Ok(())
    }

    /// The fastest cell of a direction, of those that `wanted` lets through.
    pub fn best(&self, direction: Direction, wanted: impl Fn(&Cell) -> bool) -> Option<&Cell> {
        let cells = self.cells.iter().filter(|cell| cell.measured.direction == direction && wanted(cell));
        cells.max_by(|a, b| a.measured.bits_per_second().total_cmp(&b.measured.bits_per_second()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mtu_is_the_paths_own_emulated_or_beyond_it() {
        assert_eq!(Mtu::on(1500, None), Some(Mtu::Path(1500)));
        assert_eq!(Mtu::on(1500, Some(1500)), Some(Mtu::Path(1500)));
        assert_eq!(Mtu::on(9000, Some(1500)), Some(Mtu::Emulated(1500)));
        assert_eq!(Mtu::on(1500, Some(9000)), None);
    }

    #[test]
    fn the_plan_that_is_made_without_wishes_takes_less_than_a_minute() {
        let plan = Plan::default();
        assert!(plan.time * u32::try_from(plan.count()).unwrap() < Duration::from_secs(60));
    }
}
