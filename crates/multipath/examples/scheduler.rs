//! What the scheduler costs for each operation, for `script/bench`: nanoseconds of a `place` and of a `finished`, by
//! lanes and size.
//!
//! ```text
//! scheduler [MILLISECONDS]
//! ```

use std::time::{Duration, Instant};

use lunway_multipath::{
    Boundaries, Direction, LaneShape, NoLane, Piece, Pieces, Policy, Port, Request, Scheduler, Use,
};

/// Requests that are in flight together. The clock is read twice for so many calls, so that it does not count.
const DEPTH: u64 = 64;
/// What the lanes are: 1 GB/s each, 50 µs.
const NANOSECONDS_PER_BYTE: u64 = 1;
const LATENCY: Duration = Duration::from_micros(50);

fn main() -> Result<(), NoLane> {
    let milliseconds = std::env::args().nth(1).and_then(|time| time.parse().ok()).unwrap_or(200);
    println!("scheduler, nanoseconds of one place + one finished, {DEPTH} in flight");
    println!("{:>9} {:>13} {:>13} {:>13} {:>13}", "", "1 lane", "2 lanes", "4 lanes", "8 lanes");
    for len in [4_u64 << 10, 64 << 10, 1 << 20] {
        print!("{:>5} KiB", len >> 10);
        for lanes in [1, 2, 4, 8] {
            let (place, finished) = measure(lanes, len, Duration::from_millis(milliseconds))?;
            print!(" {:>13}", format!("{place:.0} + {finished:.0}"));
        }
        println!();
    }
    Ok(())
}

/// Nanoseconds of one call each.
fn measure(lanes: u32, len: u64, time: Duration) -> Result<(f64, f64), NoLane> {
    let shape = |port| LaneShape {
        name: String::new(),
        near: Port(port),
        far: Port(port),
        weight: 1,
        reserve: false,
        rate_hint: None,
    };
    let mut scheduler = Scheduler::new(&(0..lanes).map(shape).collect::<Vec<_>>(), Policy::Adaptive);
    for lane in 0..lanes as usize {
        scheduler.set_use(lane, Use::Active, Duration::ZERO);
    }
    let mut free_at = vec![Duration::ZERO; lanes as usize];
    let mut in_flight: Vec<(Duration, Piece)> = Vec::with_capacity(DEPTH as usize * Pieces::MOST);
    let mut pieces = Pieces::new();
    let (mut placing, mut finishing) = (Duration::ZERO, Duration::ZERO);
    let (mut placed, mut finished) = (0, 0);
    let (mut now, mut offset) = (Duration::ZERO, 0);
    while placing + finishing < time {
        let before = Instant::now();
        for _ in 0..DEPTH {
            let request = Request {
                direction: Direction::Read,
                offset,
                len,
                divisible: true,
                block: 4096,
                cut: Boundaries::every(4096),
            };
            scheduler.place(&request, now, &mut pieces)?;
            in_flight.extend(pieces.iter().map(|piece| (Duration::ZERO, *piece)));
            offset += len;
        }
        placing += before.elapsed();
        for (end, piece) in &mut in_flight {
            let free = &mut free_at[piece.lane];
            *free = (*free).max(now + LATENCY) + Duration::from_nanos(piece.len * NANOSECONDS_PER_BYTE);
            *end = *free;
        }
        in_flight.sort_by_key(|(end, _)| *end);
        let before = Instant::now();
        for (end, piece) in &in_flight {
            scheduler.finished(piece, *end, true);
        }
        finishing += before.elapsed();
        (placed, finished) = (placed + DEPTH, finished + in_flight.len());
        now = in_flight.last().map_or(now, |(end, _)| *end);
        in_flight.clear();
    }
    let each = |time: Duration, calls: f64| time.as_nanos() as f64 / calls;
    Ok((each(placing, placed as f64), each(finishing, finished as f64)))
}
