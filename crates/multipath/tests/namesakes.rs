//! The policies of other systems against the table of their choices, which is the one in the documentation.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use lunway_block::size::parse_size;
use lunway_multipath::{
    AluaState, Boundaries, Direction, LaneShape, Piece, Pieces, Policy, Port, Request, Scheduler, Use,
};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/policies.md");

fn lane(name: &str) -> usize {
    usize::from(name.as_bytes()[0] - b'A')
}

/// Plays one table: the first line is the policy and the lanes, each other line a request with its lane, or an event.
fn play(table: &str) {
    let mut lines = table.lines();
    let mut head = lines.next().unwrap().split("; ");
    let (mut policy, mut lanes, mut weights) = (head.next().unwrap().split(' '), 0, Vec::new());
    for field in head {
        match field.split_once(' ').unwrap() {
            ("lanes", names) => lanes = names.split(' ').count(),
            ("weights", all) => weights = all.split(' ').map(|weight| weight.parse().unwrap()).collect(),
            other => panic!("{other:?}"),
        }
    }
    weights.resize(lanes, 1);
    let shape = |(i, &weight): (usize, &u32)| LaneShape {
        name: String::new(),
        near: Port(i as u32),
        far: Port(i as u32),
        weight,
        reserve: false,
        rate_hint: None,
    };
    let shapes: Vec<_> = weights.iter().enumerate().map(shape).collect();
    let policy = match (policy.next().unwrap().parse().unwrap(), policy.next()) {
        (Policy::Failover { .. }, Some(name)) => Policy::Failover { preferred: Some(lane(name)) },
        (policy, None) => policy,
        other => panic!("{other:?}"),
    };
    let mut scheduler = Scheduler::new(&shapes, policy);
    for lane in 0..lanes {
        scheduler.set_use(lane, Use::Active, Duration::ZERO);
    }
    let mut placed: Vec<Piece> = Vec::new();
    for line in lines {
        let line = line.split('#').next().unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        let (what, expected) = match words.iter().position(|&word| word == "->") {
            Some(arrow) => (&words[..arrow], Some(lane(words[arrow + 1]))),
            None => (&words[..], None),
        };
        let request = |direction, offset: &str, len: &str| {
            let (offset, len) = (parse_size(offset).unwrap(), parse_size(len).unwrap());
            Request { direction, offset, len, divisible: true, block: 512, cut: Boundaries::every(512) }
        };
        let request = match what {
            ["read", offset, len] => request(Direction::Read, offset, len),
            ["write", offset, len] => request(Direction::Write, offset, len),
            ["flush"] => request(Direction::Other, "0", "0"),
            ["done", number] => {
                let piece = placed[number.parse::<usize>().unwrap() - 1];
                scheduler.finished(&piece, Duration::ZERO, true);
                continue;
            }
            ["out", name] => {
                scheduler.set_use(lane(name), Use::Out, Duration::ZERO);
                continue;
            }
            ["back", name] => {
                scheduler.set_use(lane(name), Use::Active, Duration::ZERO);
                continue;
            }
            ["non-optimized", name] => {
                scheduler.set_access(lane(name), AluaState::NonOptimized);
                continue;
            }
            other => panic!("{other:?}"),
        };
        let mut pieces = Pieces::new();
        scheduler.place(&request, Duration::ZERO, &mut pieces).unwrap();
        assert_eq!(pieces.len(), 1, "{policy}: {line}");
        assert_eq!(Some(pieces[0].lane), expected, "{policy}: {line}");
        placed.push(pieces[0]);
    }
}

#[test]
fn each_policy_makes_the_choices_of_its_namesake_that_are_written_in_the_documentation() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let tables: Vec<_> =
        page.split("```choices\n").skip(1).map(|rest| rest.split("\n```").next().unwrap()).collect();
    for name in Policy::NAMES.iter().filter(|&&name| name != "adaptive") {
        let of =
            |table: &&str| table.starts_with(&format!("{name};")) || table.starts_with(&format!("{name} "));
        assert!(tables.iter().any(of), "{name} has no table");
    }
    tables.into_iter().for_each(play);
}

#[test]
fn a_change_of_policy_finds_the_account_of_what_is_in_flight() {
    let shapes: Vec<_> = (0..2)
        .map(|i| LaneShape {
            name: String::new(),
            near: Port(i),
            far: Port(i),
            weight: 1,
            reserve: false,
            rate_hint: None,
        })
        .collect();
    let mut scheduler = Scheduler::new(&shapes, Policy::Failover { preferred: None });
    for lane in 0..2 {
        scheduler.set_use(lane, Use::Active, Duration::ZERO);
    }
    let read = Request {
        direction: Direction::Read,
        offset: 0,
        len: 65536,
        divisible: true,
        block: 512,
        cut: Boundaries::every(512),
    };
    let place = |scheduler: &mut Scheduler| {
        let mut pieces = Pieces::new();
        scheduler.place(&read, Duration::ZERO, &mut pieces).unwrap();
        pieces[0]
    };
    let first: Vec<_> = (0..3).map(|_| place(&mut scheduler)).collect();
    scheduler.set_policy(Policy::LeastQueueDepth);
    // Three on the first lane from before: the second catches up.
    let then: Vec<_> = (0..5).map(|_| place(&mut scheduler).lane).collect();
    assert_eq!(then, [1, 1, 1, 0, 1]);
    scheduler.set_policy(Policy::ServiceTime);
    first.iter().for_each(|piece| scheduler.finished(piece, Duration::ZERO, true));
    assert_eq!(place(&mut scheduler).lane, 0);
    assert_eq!((scheduler.figures(0).in_flight, scheduler.figures(1).in_flight), (2, 4));
}
