use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Lanes, of which those in `reserves` are reserves, and the time.
struct World {
    health: Health,
    now: Duration,
    epochs: Vec<u64>,
}

impl World {
    fn new(reserves: &[bool], failback: Failback) -> Self {
        let health = Health::new(reserves.iter().copied(), Flap::default(), failback);
        let mut world = Self { health, now: SECOND, epochs: vec![0; reserves.len()] };
        (0..reserves.len()).for_each(|lane| world.up(lane));
        world
    }

    fn tell(&mut self, lane: LaneId, event: &LaneEvent) {
        self.health.happened(lane, event, self.now);
    }

    fn up(&mut self, lane: LaneId) {
        self.epochs[lane] += 1;
        let epoch = self.epochs[lane];
        self.tell(lane, &LaneEvent::Up { epoch });
    }

    fn lose(&mut self, lane: LaneId) {
        let event = LaneEvent::Lost { epoch: self.epochs[lane], why: "the cable was pulled".to_owned() };
        self.tell(lane, &event);
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.health.next_tick().filter(|&at| at <= end) {
            self.now = at;
            self.health.tick(at);
        }
        self.now = end;
    }

    fn states(&self) -> Vec<LaneState> {
        (0..self.epochs.len()).map(|lane| self.health.state(lane, self.now)).collect()
    }

    fn uses(&self) -> Vec<Use> {
        (0..self.epochs.len()).map(|lane| self.health.use_of(lane)).collect()
    }
}

use LaneState::{Closed, Disabled, Down, HeldBack, Suspect, Up};
use Use::{Active, Out, Reserve};

#[test]
fn lanes_are_used_as_soon_as_they_are_first_there() {
    let world = World::new(&[false, false, true], Failback::Manual);
    assert_eq!(world.uses(), [Active, Active, Reserve]);
}

/// Loses a lane once more than is forgiven.
fn flap(world: &mut World, lane: LaneId) {
    world.lose(lane);
    world.up(lane);
    world.lose(lane);
}

#[test]
fn a_lane_that_was_lost_once_is_used_as_soon_as_it_is_back() {
    let mut world = World::new(&[false, false], Failback::Immediate);
    world.lose(0);
    assert_eq!(world.states(), [Down, Up]);
    world.wait(10 * SECOND);
    world.up(0);
    assert_eq!(world.states(), [Up, Up]);
}

#[test]
fn a_lane_that_was_lost_twice_is_used_once_it_has_proved_itself() {
    let mut world = World::new(&[false, false], Failback::Immediate);
    flap(&mut world, 0);
    assert_eq!(world.states(), [Down, Up]);
    world.wait(10 * SECOND);
    world.up(0);
    assert_eq!(world.states(), [HeldBack { left: Some(SECOND) }, Up]);
    world.wait(SECOND / 2);
    assert_eq!(world.uses(), [Out, Active]);
    world.wait(SECOND / 2);
    assert_eq!(world.states(), [Up, Up]);
}

#[test]
fn a_lane_that_comes_and_goes_is_held_back_ever_longer() {
    let mut world = World::new(&[false, false], Failback::Immediate);
    let mut left = Vec::new();
    for _ in 0..9 {
        world.lose(0);
        world.wait(SECOND);
        world.up(0);
        left.push(match world.states()[0] {
            HeldBack { left: Some(time) } => time.as_secs(),
            Up => 0,
            ref other => panic!("{other:?}"),
        });
        world.wait(SECOND / 2);
    }
    assert_eq!(left, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
    world.wait(60 * SECOND);
    assert_eq!(world.states()[0], Up);
    world.wait(300 * SECOND);
    world.lose(0);
    world.up(0);
    assert_eq!(world.states()[0], Up, "five minutes of health are forgetting");
}

#[test]
fn a_lane_that_is_held_back_is_used_at_once_when_no_other_is_left() {
    let mut world = World::new(&[false, false], Failback::Immediate);
    flap(&mut world, 0);
    world.wait(10 * SECOND);
    world.up(0);
    assert_eq!(world.uses(), [Out, Active]);
    world.lose(1);
    assert_eq!(world.uses(), [Active, Out]);
    assert_eq!(world.states(), [Up, Down]);
}

#[test]
fn a_lane_that_is_held_back_is_used_when_the_others_are_suspect() {
    let mut world = World::new(&[false, false], Failback::Immediate);
    flap(&mut world, 0);
    world.up(0);
    assert_eq!(world.uses(), [Out, Active]);
    world.tell(1, &LaneEvent::Silent);
    assert_eq!(world.states(), [Up, Suspect]);
}

#[test]
fn a_lane_that_is_back_first_after_all_were_lost_is_used_at_once() {
    let mut world = World::new(&[false, false], Failback::Immediate);
    for lane in 0..2 {
        world.lose(lane);
        world.up(lane);
    }
    world.lose(0);
    world.lose(1);
    world.wait(5 * SECOND);
    world.up(1);
    assert_eq!(world.uses(), [Out, Active]);
    world.up(0);
    assert_eq!(world.uses(), [Active, Active], "the storage was restarted: no lane is to blame");
}

#[test]
fn the_way_back_from_a_reserve_is_taken_when_failback_says() {
    for (failback, waits) in
        [(Failback::Immediate, Some(1)), (Failback::After(30 * SECOND), Some(30)), (Failback::Manual, None)]
    {
        let mut world = World::new(&[false, true], failback);
        flap(&mut world, 0);
        assert_eq!(world.uses(), [Out, Reserve]);
        world.wait(10 * SECOND);
        world.up(0);
        let left = waits.map(Duration::from_secs);
        assert_eq!(world.states()[0], HeldBack { left }, "{failback:?}");
        world.wait(left.unwrap_or(1000 * SECOND));
        assert_eq!(world.uses()[0], if waits.is_some() { Active } else { Out }, "{failback:?}");
        world.health.fail_back(world.now);
        assert_eq!(world.uses()[0], Active, "{failback:?}");
    }
}

#[test]
fn the_way_back_to_a_lane_like_the_others_does_not_wait_for_failback() {
    let mut world = World::new(&[false, false], Failback::Manual);
    world.lose(0);
    world.wait(SECOND);
    world.up(0);
    world.wait(SECOND);
    assert_eq!(world.uses(), [Active, Active]);
}

#[test]
fn the_preferred_lane_and_the_optimized_lane_are_failed_back_to() {
    let mut world = World::new(&[false, false], Failback::Manual);
    world.health.set_preferred(Some(1));
    world.lose(1);
    world.up(1);
    assert_eq!(world.states()[1], HeldBack { left: None });

    let mut world = World::new(&[false, false], Failback::Manual);
    world.tell(1, &LaneEvent::Access(AluaState::NonOptimized));
    world.lose(0);
    world.up(0);
    assert_eq!(world.states()[0], HeldBack { left: None });
}

#[test]
fn what_is_not_active_carries_nothing() {
    let mut world = World::new(&[false, false], Failback::Immediate);
    for access in [AluaState::Standby, AluaState::Unavailable] {
        world.tell(0, &LaneEvent::Access(access));
        assert_eq!(world.uses(), [Out, Active]);
        world.tell(0, &LaneEvent::Access(AluaState::NonOptimized));
        assert_eq!(world.uses(), [Active, Active], "which of them is the scheduler's choice");
    }
}

#[test]
fn a_lane_that_is_silent_is_suspect_until_it_is_heard() {
    let mut world = World::new(&[false, false], Failback::Immediate);
    world.tell(0, &LaneEvent::Silent);
    assert_eq!(world.states(), [Suspect, Up]);
    assert!(world.health.is_suspect(0));
    world.tell(0, &LaneEvent::Heard);
    assert_eq!(world.states(), [Up, Up]);
}

#[test]
fn a_complaint_is_forgotten_after_a_second() {
    let mut world = World::new(&[false, false], Failback::Immediate);
    world.health.complain(0, "no answer within 30 s", world.now);
    assert_eq!(world.states(), [Suspect, Up]);
    world.wait(SECOND);
    assert_eq!(world.states(), [Up, Up]);
}

#[test]
fn a_lane_can_be_switched_off_and_on() {
    let mut world = World::new(&[false, false], Failback::Immediate);
    world.health.set_disabled(0, true, world.now);
    assert_eq!((world.states()[0].clone(), world.uses()), (Disabled, vec![Out, Active]));
    world.lose(0);
    world.up(0);
    assert_eq!(world.states()[0], Disabled);
    world.health.set_disabled(0, false, world.now);
    assert_eq!(world.uses(), [Active, Active]);
}

#[test]
fn what_is_closed_stays_closed() {
    let mut world = World::new(&[false, false], Failback::Immediate);
    world.tell(0, &LaneEvent::Closed { why: "another disk answers there".to_owned() });
    world.up(0);
    assert_eq!(world.states()[0], Closed);
    let (at, said) = world.health.last_event(0).unwrap();
    assert_eq!((at, said.as_str()), (SECOND, "closed: another disk answers there"));
}

#[test]
fn a_session_is_settled_when_it_is_said_or_when_the_next_is_up() {
    let mut world = World::new(&[false], Failback::Immediate);
    world.lose(0);
    assert!(!world.health.is_settled(0, 1));
    world.tell(0, &LaneEvent::Settled { epoch: 1 });
    assert!(world.health.is_settled(0, 1) && !world.health.is_settled(0, 2));
    world.up(0);
    world.lose(0);
    world.up(0);
    assert!(world.health.is_settled(0, 2) && !world.health.is_settled(0, 3));
}

#[test]
fn what_was_settled_without_proof_is_shown_until_the_lane_is_up_again() {
    let mut world = World::new(&[false], Failback::Immediate);
    let said = |world: &World| world.health.last_event(0).unwrap().1;
    world.lose(0);
    let lost = said(&world);
    world.health.presume_dead(0, 1);
    world.tell(0, &LaneEvent::Settled { epoch: 1 });
    assert_eq!(said(&world), format!("{lost}; nothing has proved its session dead, a barrier settled it"));
    world.tell(0, &LaneEvent::Lost { epoch: 1, why: "no route to host".to_owned() });
    assert_eq!(
        said(&world),
        "lost: no route to host; nothing has proved its session dead, a barrier settled it"
    );
    world.up(0);
    assert_eq!(said(&world), "connected again");
    world.lose(0);
    assert_eq!(said(&world), lost, "that is the next session");

    world.health.presume_dead(0, 2);
    world.tell(0, &LaneEvent::Settled { epoch: 2 });
    assert_ne!(said(&world), lost);
    world.tell(0, &LaneEvent::Settled { epoch: 2 });
    assert_eq!(said(&world), lost, "the proof came after all");
}

#[test]
fn news_that_come_twice_or_late_are_no_news() {
    let mut world = World::new(&[false, false], Failback::Immediate);
    world.lose(0);
    assert_eq!(world.health.happened(0, &LaneEvent::Up { epoch: 1 }, world.now), None, "it is lost already");
    world.up(0);
    let late = LaneEvent::Lost { epoch: 1, why: "late".to_owned() };
    assert_eq!(world.health.happened(0, &late, world.now), None);
    assert!(world.health.is_up(0));
    assert_eq!(world.health.happened(0, &LaneEvent::Up { epoch: 2 }, world.now), None, "told twice");
    assert_eq!(world.health.happened(0, &LaneEvent::Heard, world.now), None);
}

#[test]
fn why_a_lane_is_still_not_there_is_told_when_it_changes() {
    let mut health = Health::new([false].into_iter(), Flap::default(), Failback::Immediate);
    let lost = |why: &str| LaneEvent::Lost { epoch: 0, why: why.to_owned() };
    let mut tell = |why| health.happened(0, &lost(why), SECOND);
    assert_eq!(tell("connection refused").as_deref(), Some("no connection: connection refused"));
    assert_eq!(tell("connection refused"), None);
    assert_eq!(tell("no route to host").as_deref(), Some("no connection: no route to host"));
}
