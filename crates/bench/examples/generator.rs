//! What the load generator costs by itself, for `script/bench`: I/Os per second and core from a device that does
//! nothing.
//!
//! ```text
//! generator [SECONDS]
//! ```

use std::time::Duration;

fn main() -> Result<(), lunway_bench::BenchError> {
    let seconds = std::env::args().nth(1).and_then(|seconds| seconds.parse().ok()).unwrap_or(1);
    let cost = lunway_bench::generator_cost(Duration::from_secs(seconds))?;
    println!("{:.0}", cost.iops_per_core);
    Ok(())
}
