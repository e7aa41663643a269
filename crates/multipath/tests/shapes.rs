//! What each policy makes of each shape of network, on a simulated one whose truth is known.
//!
//! `cargo test -p lunway-multipath --test shapes -- --nocapture` prints the table.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod network;

use lunway_multipath::Policy;
use network::{GIGABIT, MILLI, Outcome, Shape, Work, run};

const FULL_MESH: [(usize, usize); 8] = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)];
const PARTIAL_MESH: [(usize, usize); 4] = [(0, 0), (1, 1), (2, 0), (3, 1)];

fn adaptive(shape: &Shape, work: Work) -> Outcome {
    run(shape, Policy::Adaptive, work)
}

/// Sequential 4 MiB, one at a time.
fn stream(reads: u64) -> Work {
    Work::new(4 << 20, 1, reads)
}

/// Random 4 KiB, one at a time.
fn access(reads: u64) -> Work {
    Work::new(4 << 10, 1, reads)
}

/// Prints a row and fails if the figure is too low.
fn at_least(what: &str, figure: f64, least: f64) {
    println!("{what:<70} {figure:6.3}  at least {least}");
    assert!(figure >= least, "{what}: {figure:.3} < {least}");
}

fn unequal() -> Shape {
    Shape::paired(&[GIGABIT, GIGABIT / 10.0])
}

fn asymmetric() -> Shape {
    let mut shape = Shape::paired(&[GIGABIT; 2]);
    shape.wires[1].round_trip = 5 * MILLI;
    shape
}

/// Local ports of one gigabit, all to one of ten.
fn fat(near: &[f64]) -> Shape {
    let pairs: Vec<_> = (0..near.len()).map(|i| (i, 0)).collect();
    let mut shape = Shape::mesh(near.len(), 1, &pairs);
    shape.near = near.to_vec();
    shape.far[0] = 10.0 * GIGABIT;
    shape
}

#[test]
fn one_stream_at_depth_one_fills_two_equal_lanes_and_four() {
    for reads in [100, 0] {
        let one = adaptive(&Shape::paired(&[GIGABIT]), stream(reads)).rate;
        for (lanes, least) in [(2, 1.9), (4, 3.7)] {
            let rate = adaptive(&Shape::paired(&vec![GIGABIT; lanes]), stream(reads)).rate;
            at_least(&format!("{lanes} equal lanes, {reads} % reads, against one"), rate / one, least);
        }
    }
}

#[test]
fn a_mesh_is_as_fast_as_its_ports_one_to_one() {
    for reads in [100, 0] {
        let paired = adaptive(&Shape::paired(&[GIGABIT; 2]), stream(reads)).rate;
        for (name, pairs) in [("full", &FULL_MESH[..]), ("partial", &PARTIAL_MESH[..])] {
            let rate = adaptive(&Shape::mesh(4, 2, pairs), stream(reads)).rate;
            at_least(&format!("{name} mesh 4 x 2, {reads} % reads, against 1:1"), rate / paired, 0.97);
        }
    }
}

#[test]
fn writes_that_end_in_lumps_are_not_taken_for_lanes_that_change() {
    for abreast in [2, 4] {
        let lumps = |shape: Shape| Shape { abreast, ..shape };
        let mesh = adaptive(&lumps(Shape::mesh(4, 2, &FULL_MESH)), Work::new(1 << 20, 8, 0));
        let paired = adaptive(&lumps(Shape::paired(&[GIGABIT; 2])), Work::new(1 << 20, 8, 0));
        at_least(&format!("full mesh, {abreast} writes abreast, against 1:1"), mesh.rate / paired.rate, 0.99);
        let mut bytes = mesh.bytes;
        bytes.sort_unstable();
        // Who wanders collides: on real links that costs more than here, where nothing is dropped.
        let two = bytes[6..].iter().sum::<u64>() as f64 / bytes.iter().sum::<u64>() as f64;
        at_least(&format!("full mesh, {abreast} writes abreast, part of the two best lanes"), two, 0.97);
    }
}

#[test]
fn lanes_that_share_a_port_in_part_are_found_by_what_they_leave_to_each_other() {
    // Of (0,0) (0,1) (1,0) the first is in the way of both others.
    let zigzag = Shape::mesh(2, 2, &[(0, 0), (0, 1), (1, 0)]);
    let paired = adaptive(&Shape::paired(&[GIGABIT; 2]), stream(100)).rate;
    at_least("zigzag 2 x 2, against 1:1", adaptive(&zigzag, stream(100)).rate / paired, 0.97);
}

#[test]
fn a_port_that_carries_more_than_any_of_its_lanes_is_found_out() {
    let rate = adaptive(&fat(&[GIGABIT; 4]), stream(100)).rate;
    at_least("four ports to one of ten gigabits, against the sum", rate / (4.0 * GIGABIT), 0.83);
    let rate = adaptive(&fat(&[GIGABIT, GIGABIT / 10.0]), stream(100)).rate;
    at_least("the same, 1 Gb/s and 100 Mb/s, against the sum", rate / (1.1 * GIGABIT), 0.9);
}

#[test]
fn unequal_lanes_add_up_for_a_stream_and_the_better_one_alone_answers_small_requests() {
    for reads in [100, 0] {
        for rates in [[GIGABIT, GIGABIT / 10.0], [GIGABIT / 10.0, GIGABIT]] {
            let shape = Shape::paired(&rates);
            let alone = |rate: f64, work| adaptive(&Shape::paired(&[rate]), work);
            let sum = alone(rates[0], stream(reads)).rate + alone(rates[1], stream(reads)).rate;
            at_least(
                "1 Gb/s and 100 Mb/s, against the sum",
                adaptive(&shape, stream(reads)).rate / sum,
                0.95,
            );
            let latency = alone(GIGABIT, access(reads)).latency / adaptive(&shape, access(reads)).latency;
            at_least("latency of the better lane alone / of both", latency, 1.0 / 1.05);
        }
    }
}

#[test]
fn a_lane_that_becomes_slow_is_left_and_found_again_when_it_recovers() {
    for (size, depth) in [(4 << 20, 1), (1 << 20, 8), (64 << 10, 8)] {
        let mut shape = Shape::paired(&[GIGABIT; 2]);
        shape.changes = vec![(1_000 * MILLI, 1, GIGABIT / 20.0), (3_000 * MILLI, 1, GIGABIT)];
        let mut work = Work::new(size, depth, 100);
        work.time = 5_200 * MILLI;
        let outcome = adaptive(&shape, work);
        // Milliseconds from and to, in gigabits per second.
        let rate = |from: usize, to: usize| {
            outcome.series[from / 10..to / 10].iter().sum::<u64>() as f64
                / ((to - from) as f64 / 1e3)
                / GIGABIT
        };
        let what = |when: &str| format!("{} KiB depth {depth}, {when}", size >> 10);
        at_least(&what("both good"), rate(600, 1_000), 1.85);
        at_least(&what("a quarter of a second after one became slow"), rate(1_250, 2_000), 0.95);
        at_least(&what("later"), rate(2_000, 3_000), 0.98);
        at_least(&what("a second after its recovery"), rate(4_000, 5_900), 1.85);
    }
}

#[test]
fn a_request_that_waited_for_a_slow_lane_leaves_the_good_one_its_part() {
    // What has just begun when it happens takes two thirds of a second: by then the good lane has shown nothing for
    // long, too.
    let rate = GIGABIT / 4.0;
    for later in 0..8 {
        let mut shape = Shape::paired(&[rate; 2]);
        shape.changes = vec![((2_000 + 10 * later) * MILLI, 1, rate / 10.0)];
        let mut work = Work::new(4 << 20, 1, 100);
        work.time = 5_200 * MILLI;
        let outcome = adaptive(&shape, work);
        let moved: u64 = outcome.series[320..520].iter().sum();
        at_least("of what is left of both, a second after it", moved as f64 / 2.0 / (1.1 * rate), 0.9);
    }
}

/// By name, those that `adaptive` is measured on.
fn shapes() -> Vec<(&'static str, Shape)> {
    vec![
        ("two equal", Shape::paired(&[GIGABIT; 2])),
        ("four equal", Shape::paired(&[GIGABIT; 4])),
        ("full mesh 4 x 2", Shape::mesh(4, 2, &FULL_MESH)),
        ("partial mesh 4 x 2", Shape::mesh(4, 2, &PARTIAL_MESH)),
        ("1 Gb/s and 100 Mb/s", unequal()),
        ("0.1 ms and 5 ms", asymmetric()),
        ("four to a fat port", fat(&[GIGABIT; 4])),
    ]
}

/// Rate of the best other policy, and which that is.
fn best_other(shape: &Shape, work: Work) -> (f64, &'static str) {
    let others = Policy::NAMES.iter().filter(|&&policy| policy != "adaptive");
    let rates = others.map(|&policy| (run(shape, policy.parse().unwrap(), work).rate, policy));
    rates.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
}

#[test]
fn adaptive_is_as_good_as_the_best_other_policy_on_every_shape() {
    let shapes = shapes();
    let works = [
        (4 << 10, 1, 100),
        (4 << 10, 32, 100),
        (64 << 10, 4, 0),
        (64 << 10, 32, 100),
        (1 << 20, 4, 100),
        (1 << 20, 8, 50),
        (4 << 20, 1, 0),
        (4 << 20, 4, 100),
        (4 << 20, 8, 50),
    ];
    println!(
        "{:<20} {:>6} {:>5} {:>6} {:>9} {:>9} {:>6}  best other",
        "shape", "KiB", "depth", "reads", "MB/s", "other", "ratio"
    );
    let mut bad = Vec::new();
    for (name, shape) in &shapes {
        for (size, depth, reads) in works {
            // With one small request to each lane nobody ever waits at the fat port for long enough to show that it has
            // room for the last lane.
            if *name == "four to a fat port" && (size, depth) == (64 << 10, 4) {
                continue;
            }
            let work = Work::new(size, depth, reads);
            let rate = adaptive(shape, work).rate;
            let (other, policy) = best_other(shape, work);
            let ratio = rate / other;
            let row = format!(
                "{name:<20} {:>6} {depth:>5} {reads:>5}% {:>9.1} {:>9.1} {ratio:>6.3}  {policy}",
                size >> 10,
                rate / 1e6,
                other / 1e6
            );
            println!("{row}");
            if ratio < 0.98 {
                bad.push(row);
            }
        }
    }
    assert!(bad.is_empty(), "less than 0.98 of the best other policy:\n{}", bad.join("\n"));
}

#[test]
#[ignore = "a minute; docs/src/policies.md quotes what it prints"]
fn where_adaptive_is_not_the_best() {
    let mut far = Shape::paired(&[GIGABIT; 2]);
    far.wires[1].round_trip = 20 * MILLI;
    let mut shapes = shapes();
    shapes.extend([
        ("0.1 ms and 20 ms", far),
        ("two to a fat port", fat(&[GIGABIT; 2])),
        ("1 and 0.1 to a fat port", fat(&[GIGABIT, GIGABIT / 10.0])),
    ]);
    let (mut rows, mut logarithms) = (Vec::new(), 0.0);
    let mut count = 0;
    for (name, shape) in &shapes {
        for kib in [4, 16, 64, 256, 1024, 4096] {
            for depth in [1, 2, 4, 8, 32] {
                for reads in [100, 0, 50] {
                    let work = Work::new(kib << 10, depth, reads);
                    let (other, policy) = best_other(shape, work);
                    let ratio = adaptive(shape, work).rate / other;
                    logarithms += ratio.ln();
                    count += 1;
                    if ratio < 0.98 {
                        let row = format!("{name:<24} {kib:>4} KiB depth {depth:<2} {reads:>3}% reads");
                        rows.push((ratio, format!("{row}  {ratio:.2}  {policy}")));
                    }
                }
            }
        }
    }
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    rows.iter().for_each(|(_, row)| println!("{row}"));
    let mean = f64::exp(logarithms / f64::from(count));
    let worst = rows[0].0;
    println!("below 0.98 in {} of {count}; geometric mean {mean:.5}, worst {worst:.4}", rows.len());
    // Runs repeat to the last digit: a change of the policy that lowers these has to say why.
    assert!(mean >= 1.1008, "geometric mean {mean:.5}");
    assert!(worst >= 0.6012, "{}", rows[0].1);
}
