//! The wire's limit on this machine, for `script/bench`.
//!
//! ```text
//! wire read|write BYTES DEPTH SECONDS       requests per second, that many in flight
//! wire stream read|write BYTES SECONDS      one stream without requests, in units of BYTES per second
//! ```

use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::time::Duration;

use lunway_net::{Client, Direction, Loopback, NetError, Shape, Window};

enum Plan {
    RoundTrips { shape: Shape, depth: u32, duration: Duration },
    Stream { direction: Direction, bytes: u32, duration: Duration },
}

fn plan() -> Option<Plan> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let seconds = |text: &str| Duration::try_from_secs_f64(text.parse().ok()?).ok();
    match *arguments.as_slice() {
        ["stream", direction, bytes, duration] => {
            let direction = match direction {
                "read" => Direction::Receive,
                "write" => Direction::Send,
                _ => return None,
            };
            Some(Plan::Stream { direction, bytes: bytes.parse().ok()?, duration: seconds(duration)? })
        }
        [direction, bytes, depth, duration] => {
            let bytes = bytes.parse().ok()?;
            let shape = match direction {
                "read" => Shape::read(bytes),
                "write" => Shape::write(bytes),
                _ => return None,
            };
            Some(Plan::RoundTrips { shape, depth: depth.parse().ok()?, duration: seconds(duration)? })
        }
        _ => None,
    }
}

fn measure(plan: &Plan) -> Result<f64, NetError> {
    let responder = Loopback::start(Ipv4Addr::LOCALHOST.into())?;
    let client = Client::connect(responder.address(), None, Window::Auto)?;
    Ok(match *plan {
        Plan::RoundTrips { shape, depth, duration } => {
            client.round_trips(shape, depth, duration)?.per_second()
        }
        Plan::Stream { direction, bytes, duration } => {
            client.throughput(direction, 1, duration)?.bits_per_second() / 8.0 / f64::from(bytes)
        }
    })
}

fn main() -> ExitCode {
    let Some(plan) = plan() else {
        eprintln!("usage: wire [stream] read|write BYTES [DEPTH] SECONDS");
        return ExitCode::from(2);
    };
    match measure(&plan) {
        Ok(per_second) => {
            println!("{per_second:.0}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("wire: {error}");
            ExitCode::FAILURE
        }
    }
}
