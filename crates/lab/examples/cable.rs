//! What a cable of one machine carries: each direction against theory, and the round trip.
//!
//! ```sh
//! cargo run --release -p lunway-lab --example cable -- 'rate = "1Gbit"' 'mtu = 9000' 'burst = "64K"'
//! ```
//!
//! Arguments are lines of a `[[cable]]`. The constants of `topology` were chosen with it.

use std::ops::ControlFlow;
use std::process::ExitCode;

use lunway_lab::{CpuWatch, Network, Sandbox, Side, Topology};
use lunway_net::{Client, Loopback, Shape, Window};

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Side::Outside(code) = Sandbox::enter(&arguments)? {
        return Ok(code.into());
    }
    let lines = arguments.join("\n");
    let topology: Topology = toml::from_str(&format!(
        "[[host]]\nname = 'a'\n[[host]]\nname = 'b'\n[[cable]]\nname = 'cable'\nends = ['a.eth0', 'b.eth0']\n{lines}"
    ))?;
    let network = Network::build(&topology)?;
    println!("congestion control {}", network.congestion_control());
    let watch = CpuWatch::start();
    match network.calibrate(&mut |_| ControlFlow::Continue(())) {
        Ok(calibrations) => {
            for one in calibrations {
                let expected = one.expected_mb_s.unwrap_or(one.measured_mb_s);
                println!(
                    "{} to {}: {:.2} MB/s of {expected:.2} ({:+.2} %), corrected by {:+.2} %",
                    one.from,
                    one.to,
                    one.measured_mb_s,
                    (one.measured_mb_s / expected - 1.0) * 100.0,
                    (one.correction - 1.0) * 100.0
                );
            }
        }
        Err(error) => println!("{error}"),
    }
    println!("{}", watch.stop());

    let (a, b) = (network.host("a")?, network.host("b")?);
    let there = b.address("eth0")?;
    let responder = b.run(|| Loopback::start(there))??;
    let trips = a.run(|| {
        let client = Client::connect(responder.address(), None, Window::Auto)?;
        client.round_trips(Shape::read(4096), 1, std::time::Duration::from_secs(2))
    })??;
    let us = |percentile| trips.latency.value_at_percentile(percentile) as f64 / 1000.0;
    println!(
        "48 bytes out, 48 + 4096 back: p50 {:.1} µs, p99 {:.1} µs, p99.9 {:.1} µs",
        us(50.0),
        us(99.0),
        us(99.9)
    );
    Ok(ExitCode::SUCCESS)
}
