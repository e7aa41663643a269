//! Ten thousand logical units: a start takes time for each of them, not for each of each other.

use std::fmt::Write;
use std::time::{Duration, Instant};

use lunway_target::{Config, Server};

use crate::support::*;

const LUNS: usize = 10_000;
/// On a machine that is busy with other tests. What took time for each pair took minutes.
const START_TIME: Duration = Duration::from_secs(20);

/// A configuration with so many targets, and logical units in each.
fn config(targets: usize, luns: usize) -> Config {
    let mut text = "listen = [\"127.0.0.1:0\"]\ncores = 2\n".to_owned();
    for target in 0..targets {
        writeln!(text, "[[target]]\nname = \"{TARGET}-{target}\"\nopen = true").unwrap();
        for lun in 0..luns {
            writeln!(text, "[[target.lun]]\nid = {lun}\ndevice = \"ram:1M\"").unwrap();
        }
    }
    Config::from_toml(&text, "test.toml").unwrap()
}

#[test]
fn ten_thousand_logical_units_start_in_seconds_in_one_target_or_in_many() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (targets, luns) in [(1, LUNS), (1000, LUNS / 1000), (LUNS, 1)] {
        let config = config(targets, luns);
        let begun = Instant::now();
        let slow = Slow::new();
        let server = runtime.block_on(Server::start_what_can_be_opened(config, opener(&slow))).unwrap();
        let took = begun.elapsed();
        println!("{targets} targets with {luns} logical units each: {took:?}");
        let served: usize = server.targets().iter().map(|target| target.luns.len()).sum();
        assert_eq!(served, LUNS);
        assert!(took < START_TIME, "{targets} targets with {luns} logical units each: {took:?}");
        runtime.block_on(server.shutdown(Duration::ZERO)).unwrap();
    }
}
