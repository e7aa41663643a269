//! The wire's limit on this machine: `cargo run --release -p lunway-bench --example wire -- read 4096 32 3`.
//!
//! Arguments: `read` or `write`, bytes per request, requests in flight, seconds. Prints requests per second.

use std::process::ExitCode;
use std::time::Duration;

use lunway_bench::Cancel;
use lunway_bench::wire::{self, Shape};

fn measure() -> Option<f64> {
    let mut arguments = std::env::args().skip(1);
    let direction = arguments.next()?;
    let bytes: u32 = arguments.next()?.parse().ok()?;
    let depth: u32 = arguments.next()?.parse().ok()?;
    let seconds: f64 = arguments.next()?.parse().ok()?;
    let shape = match direction.as_str() {
        "read" => Shape::Read(bytes),
        "write" => Shape::Write(bytes),
        _ => return None,
    };
    let outcome = wire::measure(shape, depth, Duration::try_from_secs_f64(seconds).ok()?, &Cancel::new());
    match outcome {
        Ok(outcome) => Some(outcome.read.iops() + outcome.write.iops()),
        Err(error) => {
            eprintln!("wire: {error}");
            None
        }
    }
}

fn main() -> ExitCode {
    match measure() {
        Some(iops) => {
            println!("{iops:.0}");
            ExitCode::SUCCESS
        }
        None => {
            eprintln!("usage: wire read|write BYTES DEPTH SECONDS");
            ExitCode::from(2)
        }
    }
}
