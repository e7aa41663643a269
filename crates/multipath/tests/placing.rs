//! What holds of every placement, whatever comes.

use std::time::Duration;

use lunway_block::Geometry;
use lunway_multipath::{
    AluaState, Boundaries, Direction, LaneShape, Piece, Pieces, Policy, Port, Request, Scheduler, Use,
};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Place { direction: Direction, offset: u64, len: u64, divisible: bool, cut: Boundaries },
    Finish { which: usize, ok: bool },
    Use { lane: usize, usage: Use },
    Access { lane: usize, access: AluaState },
    Suspect { lane: usize, suspect: bool },
    Policy(Policy),
    Wait(Duration),
}

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        5 => Just(Policy::Adaptive),
        1 => (0_usize..8).prop_map(|lane| Policy::Failover { preferred: Some(lane) }),
        8 => proptest::sample::select(&Policy::ALL[..]),
    ]
}

fn request() -> impl Strategy<Value = Step> {
    let direction = prop_oneof![Just(Direction::Read), Just(Direction::Write), Just(Direction::Other)];
    let len = prop_oneof![
        Just(0_u64),
        (1_u64..256).prop_map(|n| n * 512),
        (1_u64..64).prop_map(|n| n << 18),
        1_u64..1 << 33
    ];
    let step = prop_oneof![Just(1_u32), Just(512), Just(4096), Just(1 << 20), Just(12_345), Just(0)];
    let first = prop_oneof![3 => Just(0_u32), 1 => Just(3584), 1 => 0_u32..1 << 20];
    // Requests begin at sectors, not at the places where they may be cut.
    let offset = (0_u64..1 << 31).prop_map(|sector| sector * 512);
    (direction, offset, len, any::<bool>(), step, first).prop_map(
        |(direction, offset, len, divisible, step, first)| Step::Place {
            direction,
            offset,
            len,
            divisible,
            cut: Boundaries { step, first },
        },
    )
}

fn step(lanes: usize) -> impl Strategy<Value = Step> {
    let usage = prop_oneof![4 => Just(Use::Active), 1 => Just(Use::Reserve), 2 => Just(Use::Out)];
    let access = prop_oneof![
        3 => Just(AluaState::Optimized),
        2 => Just(AluaState::NonOptimized),
        1 => Just(AluaState::Standby),
        1 => Just(AluaState::Unavailable)
    ];
    prop_oneof![
        10 => request(),
        9 => (any::<usize>(), prop::bool::weighted(0.9)).prop_map(|(which, ok)| Step::Finish { which, ok }),
        2 => (0..lanes, usage).prop_map(|(lane, usage)| Step::Use { lane, usage }),
        1 => (0..lanes, access).prop_map(|(lane, access)| Step::Access { lane, access }),
        1 => (0..lanes, any::<bool>()).prop_map(|(lane, suspect)| Step::Suspect { lane, suspect }),
        1 => policy().prop_map(Step::Policy),
        5 => (0_u64..40_000_000).prop_map(|ns| Step::Wait(Duration::from_nanos(ns))),
    ]
}

fn shapes(ports: &[(u32, u32, u32, bool)]) -> Vec<LaneShape> {
    let shape = |(i, &(near, far, weight, reserve)): (usize, &(u32, u32, u32, bool))| LaneShape {
        name: format!("lane {i}"),
        near: Port(near),
        far: Port(far),
        weight,
        reserve,
        rate_hint: [None, Some(0), Some(1_250_000_000)][weight as usize % 3],
    };
    ports.iter().enumerate().map(shape).collect()
}

/// Requests with lanes of any state, and everything that happens to lanes meanwhile.
fn story() -> impl Strategy<Value = (Vec<LaneShape>, Policy, Vec<Step>)> {
    prop::collection::vec((0_u32..4, 0_u32..3, 0_u32..120, prop::bool::weighted(0.2)), 1..=10).prop_flat_map(
        |ports| {
            let lanes = ports.len();
            (Just(shapes(&ports)), policy(), prop::collection::vec(step(lanes), 1..120))
        },
    )
}

/// Checks what was placed against what was asked.
fn check_cover(pieces: &[Piece], request: &Request) {
    let Request { direction, offset, len, divisible, cut, .. } = *request;
    assert_eq!(pieces.iter().map(|piece| piece.len).sum::<u64>(), len);
    assert!(pieces.iter().all(|piece| piece.direction == direction));
    if pieces.len() > 1 {
        assert!(divisible && pieces.iter().all(|piece| piece.len > 0), "{pieces:?}");
    }
    // Every piece begins and ends at a boundary of the disk, but for the request's own begin and end.
    let mut at = offset;
    for piece in pieces.iter().take(pieces.len().saturating_sub(1)) {
        at += piece.len;
        let behind = at.checked_sub(cut.first.into());
        assert_eq!(
            behind.map(|behind| behind % u64::from(cut.step.max(1))),
            Some(0),
            "{request:?}: {pieces:?}"
        );
    }
}

proptest! {
    #[test]
    fn pieces_cover_the_request_in_order_on_usable_lanes_and_all_accounts_end_at_zero(
        (lanes, policy, steps) in story()
    ) {
        let mut scheduler = Scheduler::new(&lanes, policy);
        let mut states = vec![(Use::Out, AluaState::Optimized, false); lanes.len()];
        let mut now = Duration::ZERO;
        let mut in_flight: Vec<Piece> = Vec::new();
        let mut pieces = Pieces::new();
        for step in steps {
            match step {
                Step::Place { direction, offset, len, divisible, cut } => {
                    let usable = |lane: usize| states[lane].0 != Use::Out && states[lane].1.is_active();
                    let request = Request { direction, offset, len, divisible, block: 512, cut };
                    let placed = scheduler.place(&request, now, &mut pieces);
                    prop_assert_eq!(placed.is_ok(), (0..lanes.len()).any(usable));
                    if placed.is_err() {
                        prop_assert!(pieces.is_empty());
                        continue;
                    }
                    check_cover(&pieces, &request);
                    let sound = (0..lanes.len()).any(|lane| usable(lane) && !states[lane].2);
                    for piece in pieces.iter() {
                        prop_assert!(usable(piece.lane), "{:?} is out", piece);
                        prop_assert!(!(states[piece.lane].2 && sound), "{:?} is suspect", piece);
                    }
                    in_flight.extend_from_slice(&pieces);
                }
                Step::Finish { which, ok } => {
                    if !in_flight.is_empty() {
                        let piece = in_flight.swap_remove(which % in_flight.len());
                        scheduler.finished(&piece, now, ok);
                    }
                }
                Step::Use { lane, usage } => {
                    scheduler.set_use(lane, usage, now);
                    states[lane].0 = usage;
                }
                Step::Access { lane, access } => {
                    scheduler.set_access(lane, access);
                    states[lane].1 = access;
                }
                Step::Suspect { lane, suspect } => {
                    scheduler.set_suspect(lane, suspect);
                    states[lane].2 = suspect;
                }
                Step::Policy(policy) => {
                    scheduler.set_policy(policy);
                    prop_assert_eq!(scheduler.policy(), policy);
                }
                Step::Wait(time) => now += time,
            }
            for lane in 0..lanes.len() {
                let on_lane = || in_flight.iter().filter(|piece| piece.lane == lane);
                let figures = scheduler.figures(lane);
                prop_assert_eq!(figures.in_flight as usize, on_lane().count());
                prop_assert_eq!(figures.in_flight_bytes, on_lane().map(|piece| piece.len).sum::<u64>());
                prop_assert!((0.0..=1.0).contains(&figures.share));
            }
        }
        for piece in in_flight.drain(..) {
            scheduler.finished(&piece, now, true);
        }
        for lane in 0..lanes.len() {
            let figures = scheduler.figures(lane);
            prop_assert_eq!((figures.in_flight, figures.in_flight_bytes), (0, 0));
        }
    }

    #[test]
    fn one_usable_lane_gets_every_request_whole(policy in policy(), lane in 0_usize..4, steps in prop::collection::vec(request(), 1..40)) {
        let mut scheduler = Scheduler::new(&shapes(&[(0, 0, 1, false), (0, 1, 2, false), (1, 0, 3, true), (1, 1, 4, false)]), policy);
        scheduler.set_use(lane, Use::Active, Duration::ZERO);
        let mut pieces = Pieces::new();
        for step in steps {
            let Step::Place { direction, offset, len, divisible, cut } = step else { continue };
            let request = Request { direction, offset, len, divisible, block: 512, cut };
            scheduler.place(&request, Duration::ZERO, &mut pieces).unwrap();
            prop_assert_eq!(pieces.iter().map(|piece| (piece.lane, piece.len)).collect::<Vec<_>>(), vec![(lane, len)]);
        }
    }
}

#[test]
fn reserves_carry_nothing_while_an_active_lane_is_left() {
    for name in Policy::NAMES {
        let mut scheduler = Scheduler::new(
            &shapes(&[(0, 0, 1, true), (1, 1, 1, false), (2, 2, 1, false)]),
            name.parse().unwrap(),
        );
        scheduler.set_use(0, Use::Active, Duration::ZERO);
        scheduler.set_use(1, Use::Active, Duration::ZERO);
        scheduler.set_use(2, Use::Reserve, Duration::ZERO);
        let lanes_of = |scheduler: &mut Scheduler| {
            let mut lanes = Vec::new();
            for i in 0..20 {
                let mut pieces = Pieces::new();
                let request = Request {
                    direction: Direction::Read,
                    offset: i << 22,
                    len: 4 << 20,
                    divisible: true,
                    block: 512,
                    cut: Boundaries::every(512),
                };
                scheduler.place(&request, Duration::from_millis(i), &mut pieces).unwrap();
                lanes.extend(pieces.iter().map(|piece| piece.lane));
            }
            lanes.sort_unstable();
            lanes.dedup();
            lanes
        };
        assert_eq!(lanes_of(&mut scheduler), [1], "{name}");
        scheduler.set_use(1, Use::Out, Duration::ZERO);
        let lanes = lanes_of(&mut scheduler);
        assert!(!lanes.is_empty() && !lanes.contains(&1), "{name}: {lanes:?}");
    }
}

#[test]
fn on_a_disk_with_little_to_do_a_far_lane_is_tried_seldom() {
    let mut scheduler = Scheduler::new(&shapes(&[(0, 0, 1, false), (1, 1, 1, false)]), Policy::Adaptive);
    scheduler.set_use(0, Use::Active, Duration::ZERO);
    scheduler.set_use(1, Use::Active, Duration::ZERO);
    let (mut pieces, mut far) = (Pieces::new(), 0);
    for second in 0..200_u64 {
        let now = Duration::from_secs(second);
        let request = Request {
            direction: Direction::Read,
            offset: second << 20,
            len: 4096,
            divisible: true,
            block: 4096,
            cut: Boundaries::every(4096),
        };
        scheduler.place(&request, now, &mut pieces).unwrap();
        let piece = *pieces.iter().next().unwrap();
        // The far one comes first in the list.
        let took = if piece.lane == 0 { 20_000 } else { 200 };
        scheduler.finished(&piece, now + Duration::from_micros(took), true);
        far += u32::from(piece.lane == 0);
    }
    assert!((2..=16).contains(&far), "{far} of 200");
}

#[test]
fn without_a_lane_nothing_is_placed() {
    let mut scheduler = Scheduler::new(&shapes(&[(0, 0, 1, false)]), Policy::Adaptive);
    let request = Request {
        direction: Direction::Write,
        offset: 0,
        len: 4096,
        divisible: true,
        block: 512,
        cut: Boundaries::every(512),
    };
    assert!(scheduler.place(&request, Duration::ZERO, &mut Pieces::new()).is_err());
    assert!(
        Scheduler::new(&[], Policy::RoundRobin).place(&request, Duration::ZERO, &mut Pieces::new()).is_err()
    );
    scheduler.set_use(0, Use::Active, Duration::ZERO);
    scheduler.set_access(0, AluaState::Standby);
    assert!(scheduler.place(&request, Duration::ZERO, &mut Pieces::new()).is_err());
    assert_eq!(scheduler.figures(0).in_flight, 0);
}

#[test]
fn a_new_lane_and_one_that_returns_begin_with_128_kib_and_double() {
    let mut scheduler = Scheduler::new(&shapes(&[(0, 0, 1, false), (1, 1, 1, false)]), Policy::Adaptive);
    scheduler.set_use(0, Use::Active, Duration::ZERO);
    let mut now = Duration::ZERO;
    // Reads 4 MiB and says what the second lane had of it. Every lane takes 100 µs and 8 ns for each byte.
    let mut read = |scheduler: &mut Scheduler| {
        let mut pieces = Pieces::new();
        let request = Request {
            direction: Direction::Read,
            offset: 0,
            len: 4 << 20,
            divisible: true,
            block: 4096,
            cut: Boundaries::every(4096),
        };
        scheduler.place(&request, now, &mut pieces).unwrap();
        let end = |piece: &Piece| piece.placed_at + Duration::from_nanos(100_000 + piece.len * 8);
        let mut pieces = pieces.to_vec();
        pieces.sort_by_key(end);
        for piece in &pieces {
            now = end(piece);
            scheduler.finished(piece, now, true);
        }
        pieces.iter().find(|piece| piece.lane == 1).map_or(0, |piece| piece.len >> 10)
    };
    (0..5).for_each(|_| assert_eq!(read(&mut scheduler), 0));
    for _ in 0..2 {
        scheduler.set_use(1, Use::Active, Duration::ZERO);
        assert_eq!([(); 4].map(|()| read(&mut scheduler)), [128, 256, 512, 1024]);
        let later: Vec<_> = (0..20).map(|_| read(&mut scheduler)).collect();
        assert!((1990..=2110).contains(later.last().unwrap()), "{later:?}");
        scheduler.set_use(1, Use::Out, Duration::ZERO);
        (0..5).for_each(|_| assert_eq!(read(&mut scheduler), 0));
    }
}

/// A disk of two lanes, the first of them far away, after some reads and writes over both. Gives the time.
fn a_far_lane_and_a_near_one(scheduler: &mut Scheduler) -> Duration {
    scheduler.set_use(0, Use::Active, Duration::ZERO);
    scheduler.set_use(1, Use::Active, Duration::ZERO);
    let mut now = Duration::ZERO;
    for n in 0..100_u64 {
        let direction = if n % 2 == 0 { Direction::Read } else { Direction::Write };
        now = answer(scheduler, direction, 4096, now).1;
    }
    now
}

/// Places a request alone, and answers it: over the first lane after 20 ms, over the second one after 0.3 ms.
fn answer(scheduler: &mut Scheduler, direction: Direction, len: u64, now: Duration) -> (usize, Duration) {
    let mut pieces = Pieces::new();
    let request =
        Request { direction, offset: 0, len, divisible: true, block: 4096, cut: Boundaries::every(4096) };
    scheduler.place(&request, now, &mut pieces).expect("two lanes are up");
    let piece = pieces[0];
    let end = now + Duration::from_micros(if piece.lane == 0 { 20_000 } else { 300 });
    scheduler.finished(&piece, end, true);
    (piece.lane, end)
}

#[test]
fn a_flush_is_never_a_trial_of_a_lane_and_takes_the_one_that_writes_are_quick_on() {
    let mut scheduler = Scheduler::new(&shapes(&[(0, 0, 1, false), (1, 1, 1, false)]), Policy::Adaptive);
    let mut now = a_far_lane_and_a_near_one(&mut scheduler);
    // Reads rest: what is known of the far lane gets old.
    for n in 0..200 {
        now += Duration::from_millis(100);
        let lane;
        (lane, now) = answer(&mut scheduler, Direction::Other, 0, now);
        assert_eq!(lane, 1, "flush {n}");
        if n % 4 == 0 {
            now = answer(&mut scheduler, Direction::Write, 4096, now).1;
        }
    }
}

#[test]
fn a_flush_takes_no_lane_that_has_just_returned_and_shown_nothing() {
    let mut scheduler = Scheduler::new(&shapes(&[(0, 0, 1, false), (1, 1, 1, false)]), Policy::Adaptive);
    let mut now = a_far_lane_and_a_near_one(&mut scheduler);
    scheduler.set_use(0, Use::Out, now);
    scheduler.set_use(0, Use::Active, now);
    for _ in 0..20 {
        let lane;
        (lane, now) = answer(&mut scheduler, Direction::Other, 0, now);
        assert_eq!(lane, 1);
    }
}

#[test]
fn a_disk_is_cut_at_its_granularity_or_physical_blocks_and_never_within_4_kib() {
    let plain = Geometry::plain(1 << 30);
    assert_eq!(Boundaries::of(&plain), Boundaries::every(4096), "512 bytes throughout");
    let physical = Geometry { physical_sector: 16384, ..plain };
    assert_eq!(Boundaries::of(&physical), Boundaries::every(16384));
    let told = |transfer_granularity| Geometry { transfer_granularity, ..physical };
    assert_eq!(Boundaries::of(&told(65536)), Boundaries::every(65536));
    for strange in [512, 16384 + 512, 65535 * 512] {
        assert_eq!(Boundaries::of(&told(strange)), Boundaries::every(16384), "{strange}");
    }
    let shifted = Geometry { physical_sector: 4096, first_aligned: 7 * 512, ..plain };
    assert_eq!(Boundaries::of(&shifted), Boundaries { step: 4096, first: 3584 });
}
