//! The wire's limit on this machine: `cargo run --release -p lunway-net --example wire -- read 4096 32 3`.
//!
//! Arguments: `read` or `write`, bytes per request, requests in flight, seconds. Prints requests per second.

use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::time::Duration;

use lunway_net::{Client, Loopback, NetError, Shape, Window};

struct Plan {
    shape: Shape,
    depth: u32,
    duration: Duration,
}

fn plan() -> Option<Plan> {
    let mut arguments = std::env::args().skip(1);
    let direction = arguments.next()?;
    let bytes: u32 = arguments.next()?.parse().ok()?;
    let depth: u32 = arguments.next()?.parse().ok()?;
    let seconds: f64 = arguments.next()?.parse().ok()?;
    let shape = match direction.as_str() {
        "read" => Shape::read(bytes),
        "write" => Shape::write(bytes),
        _ => return None,
    };
    Some(Plan { shape, depth, duration: Duration::try_from_secs_f64(seconds).ok()? })
}

fn measure(plan: &Plan) -> Result<f64, NetError> {
    let responder = Loopback::start(Ipv4Addr::LOCALHOST.into())?;
    let client = Client::connect(responder.address(), None, Window::Auto)?;
    Ok(client.round_trips(plan.shape, plan.depth, plan.duration)?.per_second())
}

fn main() -> ExitCode {
    let Some(plan) = plan() else {
        eprintln!("usage: wire read|write BYTES DEPTH SECONDS");
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
