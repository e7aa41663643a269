//! `lunway net`.

mod arguments;
mod json;
mod page;
mod serve;
mod text;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand, ValueEnum};
use lunway_block::duration::parse_duration;
use lunway_net::{
    Client, Direction, Loopback, Matrix, NetError, Plan, Shape, StopFlag, Window, matrix, protocol,
};
use lunway_report::{data, html};

use self::arguments::{block, count, link, mtu, shape, window};
use crate::failure::Failure;
use crate::output::Files;
use crate::{interrupt, progress};

/// Measure the network, before blaming the storage.
///
/// The other machine runs `lunway net serve`. Without a host it measures the network stack of this machine, between
/// two threads.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  lunway net serve --listen 192.0.2.10   # on the storage server
  lunway net 192.0.2.10                  # on the client
  lunway net 192.0.2.10 --link 1Gbit --html-file wire.html
  lunway net 192.0.2.10 --window 16K,64K,512K,auto --mtu 1500,9000 --streams 1
  lunway net 192.0.2.10 --block 4K,64K --depth 1,8,32
  lunway net                             # this machine alone"
)]
pub(crate) struct Net {
    #[command(subcommand)]
    command: Option<NetCommand>,
    /// Where `lunway net serve` runs [default: this machine, between two threads; default port 3262]
    #[arg(value_name = "HOST[:PORT]")]
    host: Option<String>,
    /// TCP windows: sizes, or auto for the choice of the kernels
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64K,128K,512K,auto", value_parser = window)]
    window: Vec<Window>,
    /// MTUs: path, or bytes. Values below the path's MTU are emulated by shorter segments
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "path", value_parser = mtu)]
    mtu: Vec<arguments::Mtu>,
    /// Number of parallel connections
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,4", value_parser = count)]
    streams: Vec<u32>,
    /// Direction of the data
    #[arg(long, value_enum, default_value_t = Ways::Both, value_name = "WAY")]
    direction: Ways,
    /// Sizes of storage round trips (reads and writes); 0 for none
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "4K", value_parser = block)]
    block: Vec<u32>,
    /// Other round trips: bytes out and bytes back, such as 64:1K
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = shape)]
    shape: Vec<Shape>,
    /// Requests in flight
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,32", value_parser = count)]
    depth: Vec<u32>,
    /// Duration of each measurement
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    time: Duration,
    /// Time at the start that the second figure leaves out (slow start) [default: a quarter]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    omit: Option<Duration>,
    /// Nominal rate of the slowest link (1Gbit, 100Mbit), to compare results with theory
    #[arg(long, value_name = "RATE", value_parser = link)]
    link: Option<f64>,
    /// Connect from this local address
    #[arg(long, value_name = "ADDRESS")]
    from: Option<IpAddr>,
    #[command(flatten)]
    files: Files,
}

#[derive(Debug, Subcommand)]
enum NetCommand {
    Serve(serve::Serve),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Ways {
    /// From here to the host, like a storage write
    Send,
    /// From the host to here, like a storage read
    Receive,
    /// One after the other
    Both,
}

impl Ways {
    fn directions(self) -> Vec<Direction> {
        match self {
            Self::Send => vec![Direction::Send],
            Self::Receive => vec![Direction::Receive],
            Self::Both => vec![Direction::Send, Direction::Receive],
        }
    }
}

/// Measurement, and the way in which it is judged.
struct Measured {
    /// Far end, for people.
    subject: String,
    matrix: Matrix,
    omit: Duration,
    /// Bits per second on the wire, if the user said.
    link: Option<f64>,
}

impl Net {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.command {
            Some(NetCommand::Serve(serve)) => serve.run(),
            None => self.measure(),
        }
    }

    fn measure(self) -> Result<(), Failure> {
        self.files.check(&[])?;
        let stop = StopFlag::new();
        let asked = stop.clone();
        interrupt::on_request(move || asked.stop());
        let (client, loopback) = match &self.host {
            Some(host) => (connect(host, self.from)?, None),
            None => {
                let own = Loopback::start(self.from.unwrap_or(Ipv4Addr::LOCALHOST.into())).map_err(failed)?;
                let client = Client::connect(own.address(), self.from, Window::Auto).map_err(failed)?;
                (client, Some(own))
            }
        };
        let subject = match (&self.host, loopback.is_some()) {
            (Some(host), _) if client.peer().to_string() == *host => host.clone(),
            (Some(host), _) => format!("{host} ({})", client.peer()),
            (None, _) => "this machine, between two threads".to_owned(),
        };
        let plan = self.plan();
        let bar = progress::fraction();
        let matrix = matrix(&client, &plan, &stop, &mut |step| {
            progress::set_fraction(&bar, step.index as f64 / step.count as f64);
            bar.set_prefix(format!("{}/{}", step.index + 1, step.count));
            let left = plan.time * u32::try_from(step.count - step.index).unwrap_or(u32::MAX);
            bar.set_message(format!("{}  {}", step.name, progress::left(left)));
        });
        bar.finish_and_clear();
        let omit = self.omit.unwrap_or(plan.time / 4);
        let measured = Measured { subject, matrix: matrix.map_err(failed)?, omit, link: self.link };
        self.show(&measured)?;
        match measured.matrix {
            Matrix { failure: Some(error), .. } => {
                Err(Failure::failed(anyhow!("ended early: {error}; the figures cover the completed part")))
            }
            Matrix { complete: false, .. } if stop.is_stopped() => {
                Err(Failure::failed(anyhow!("interrupted: the figures cover the completed part")))
            }
            _ => Ok(()),
        }
    }

    fn plan(&self) -> Plan {
        let blocks = self.block.iter().filter(|&&block| block > 0);
        let shapes = blocks.flat_map(|&block| [Shape::read(block), Shape::write(block)]);
        let shapes = shapes.chain(self.shape.iter().copied());
        Plan {
            windows: self.window.clone(),
            mtus: self.mtu.iter().map(|mtu| mtu.0).collect(),
            streams: self.streams.clone(),
            directions: self.direction.directions(),
            round_trips: shapes
                .flat_map(|shape| self.depth.iter().map(move |&depth| (shape, depth)))
                .collect(),
            time: self.time,
        }
    }

    fn show(&self, measured: &Measured) -> Result<(), Failure> {
        let document = page::document(measured);
        self.files.write(|| text::text(measured), || data(&document), || html(&document))
    }
}

/// A client of the responder at `host`, which may have several addresses.
pub(crate) fn connect(host: &str, from: Option<IpAddr>) -> anyhow::Result<Client> {
    let mut last = None;
    for address in resolve(host)? {
        match Client::connect(address, from, Window::Auto) {
            Ok(client) => return Ok(client),
            Err(error) => last = Some(error),
        }
    }
    Err(last.map_or_else(|| anyhow!("{host} has no address"), Into::into))
}

/// The addresses of `HOST[:PORT]`.
fn resolve(host: &str) -> anyhow::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, protocol::PORT)]);
    }
    let addresses = match host.rsplit_once(':') {
        Some(_) => host.to_socket_addrs(),
        None => (host, protocol::PORT).to_socket_addrs(),
    };
    Ok(addresses.with_context(|| format!("cannot find the address of {host}"))?.collect())
}

fn failed(error: NetError) -> Failure {
    match error {
        NetError::Unreasonable(message) => Failure::Usage(message),
        error => Failure::failed(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_taken_with_and_without_a_port() {
        let one = |host: &str| resolve(host).unwrap()[0].to_string();
        assert_eq!(one("192.0.2.1"), "192.0.2.1:3262");
        assert_eq!(one("192.0.2.1:99"), "192.0.2.1:99");
        assert_eq!(one("2001:db8::1"), "[2001:db8::1]:3262");
        assert_eq!(one("[2001:db8::1]"), "[2001:db8::1]:3262");
        assert_eq!(one("[2001:db8::1]:99"), "[2001:db8::1]:99");
        assert!(resolve("host.invalid:port").is_err());
    }
}
