//! Jobs beside a model of what is owed, through random years: restarts and kills at any moment, runs of any length,
//! both changes of summer time, clocks that jump.
//!
//! `LUNWAY_SCHEDULE_SEEDS=10000` passes more of them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use jiff::civil::DateTime;
use jiff::{Timestamp, ToSpan};
use lunway_schedule::{
    ATTEMPTS_MAX, CLOCK_BACK_MAX, Cause, Job, Moment, Plan, Record, TimeOfDay, TimeZone, Timetable, Weekday,
    When,
};

const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
/// Ten years.
const DECADE: i64 = 3652 * DAY;
/// 2026-03-10 and 2026-10-10, UTC: before both changes of summer time, in both halves of the world.
const BEGINS: [i64; 2] = [1_773_100_800_000, 1_791_590_400_000];
const BEGIN: i64 = BEGINS[0];

/// xorshift64, of which any sequence will do.
struct Random(u64);

impl Random {
    fn below(&mut self, end: i64) -> i64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as i64 % end
    }

    fn one_in(&mut self, count: i64) -> bool {
        self.below(count) == 0
    }
}

fn seeds() -> u64 {
    std::env::var("LUNWAY_SCHEDULE_SEEDS").map_or(40, |text| text.parse().unwrap())
}

/// Berlin; Lord Howe Island, whose summer is half an hour; one without summer.
fn zone(random: &mut Random) -> TimeZone {
    let rules = ["CET-1CEST,M3.5.0,M10.5.0/3", "<+1030>-10:30<+11>-11,M10.1.0,M4.1.0", "<-03>3"];
    TimeZone::posix(rules[random.below(3) as usize]).unwrap()
}

const WEEK: [Weekday; 7] =
    [Weekday::Mon, Weekday::Tue, Weekday::Wed, Weekday::Thu, Weekday::Fri, Weekday::Sat, Weekday::Sun];

fn plan(random: &mut Random) -> Plan {
    let when = if random.one_in(2) {
        When::Every(Duration::from_secs(600 * (1 + random.below(100)) as u64))
    } else {
        // Most of them where clocks are changed.
        let time = |random: &mut Random| {
            let hour = if random.one_in(3) { random.below(24) } else { 1 + random.below(3) };
            format!("{hour}:{:02}", random.below(60)).parse::<TimeOfDay>().unwrap()
        };
        let times = (0..=random.below(3)).map(|_| time(random)).collect();
        let days = WEEK.iter().filter(|_| random.one_in(2)).copied().collect();
        When::At { times, days }
    };
    let delay = Duration::from_secs(random.below(2) as u64 * random.below(5400) as u64);
    Plan { when, delay, catch_up: !random.one_in(3), retries: 0, retry_after: Duration::ZERO }
}

/// Due times of a plan, found by looking at the clock on the wall each minute.
fn due_times(plan: &Plan, zone: &TimeZone, begin: i64, days: i64) -> BTreeSet<i64> {
    let When::At { times, days: wanted } = &plan.when else { return BTreeSet::new() };
    let times: Vec<String> = times.iter().map(ToString::to_string).collect();
    let civil = |at: i64| Timestamp::from_millisecond(at).unwrap().to_zoned(zone.clone()).datetime();
    let mut due = BTreeSet::new();
    let mut seen = HashSet::<DateTime>::new();
    let mut before = civil(begin - 2 * DAY - MINUTE);
    for at in ((begin - 2 * DAY)..(begin + (days + 2) * DAY)).step_by(MINUTE as usize) {
        let now = civil(at);
        // What the clock shows, and what it has skipped.
        let mut shown = before.checked_add(1.minutes()).unwrap();
        let mut later = 0;
        while shown <= now {
            let hour_and_minute = (shown.hour(), shown.minute());
            let is_time = times.iter().any(|time| parts(time) == hour_and_minute);
            let day = WEEK[shown.weekday().to_monday_zero_offset() as usize];
            if is_time && (wanted.is_empty() || wanted.contains(&day)) && seen.insert(shown) {
                due.insert(at + if shown < now { later } else { 0 } + plan.delay.as_millis() as i64);
            }
            later += MINUTE;
            shown = shown.checked_add(1.minutes()).unwrap();
        }
        before = now;
    }
    due
}

/// Hours and minutes of `HH:MM`.
fn parts(time: &str) -> (i8, i8) {
    let (hour, minute) = time.split_once(':').unwrap();
    (hour.parse().unwrap(), minute.parse().unwrap())
}

/// What is owed: one run since a moment, or none.
struct Model {
    owed_from: Option<i64>,
    next_interval: Option<i64>,
}

#[test]
fn each_due_time_has_one_run_or_all_that_passed_have_one_through_restarts_kills_and_summer_time() {
    const DAYS: i64 = 40;
    let mut total = 0;
    for seed in 1..=seeds() {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (plan, zone) = (plan(&mut random), zone(&mut random));
        let begin = BEGINS[random.below(2) as usize];
        let due = due_times(&plan, &zone, begin, DAYS);
        let delay = plan.delay.as_millis() as i64;
        let interval = match &plan.when {
            When::Every(interval) => Some(interval.as_millis() as i64),
            When::At { .. } => None,
        };
        let tick = 5 * MINUTE;
        let at = |at: i64| Moment { wall_ms: at, steady_ms: at - begin + 5 };
        let mut record: Option<Record> = None;
        let mut model = Model { owed_from: None, next_interval: interval.map(|_| begin + delay) };
        let mut table = Some(Timetable::new(1));
        table.as_mut().unwrap().set("job", plan.clone(), vec![], None, at(begin), &zone);
        record.get_or_insert(table.as_ref().unwrap().job("job").unwrap().record());
        let (mut ends, mut attempts) = (None::<i64>, 0);
        for now in ((begin + tick)..(begin + DAYS * DAY)).step_by(tick as usize) {
            let context = || format!("seed {seed}, {plan:?}, {}", Timestamp::from_millisecond(now).unwrap());
            // What has become due in this minute, whether the process runs or not.
            let passed = due.range((now - tick + 1)..=now).next().copied();
            let interval_due = model.next_interval.filter(|due| *due <= now);
            match passed.or(interval_due) {
                Some(due) if table.is_some() || plan.catch_up => {
                    model.owed_from = model.owed_from.or(Some(due));
                    if ends.is_none() || interval.is_none() {
                        model.next_interval = model.next_interval.filter(|due| *due > now);
                    }
                }
                Some(_) => {
                    // Missed for good; intervals go on in their rhythm.
                    if let (Some(next), Some(interval)) = (&mut model.next_interval, interval) {
                        while *next <= now {
                            *next += interval;
                        }
                    }
                }
                None => {}
            }
            if let Some(running) = &mut table {
                if ends.is_some_and(|end| end <= now) {
                    record = running.end("job", false, at(now));
                    (ends, attempts) = (None, 0);
                }
                if let Some(start) = running.start(at(now), &zone) {
                    assert!(model.owed_from.is_some(), "{}: nothing is owed, {:?}", context(), start.cause);
                    total += 1;
                    attempts = start.record.attempts;
                    assert!(attempts <= ATTEMPTS_MAX, "{}", context());
                    record = Some(start.record);
                    model.owed_from = None;
                    model.next_interval = interval.map(|interval| now + interval);
                    let long = if random.one_in(8) { 3 * DAY } else { HOUR };
                    ends = Some(now + random.below(long));
                } else if ends.is_none()
                    && let Some(since) = model.owed_from
                {
                    assert!(since > now - tick, "{}: owed since {}", context(), now - since);
                }
                // Killed.
                if random.one_in(800) || (ends.is_some() && random.one_in(40)) {
                    if ends.is_some() && plan.catch_up && attempts < ATTEMPTS_MAX {
                        model.owed_from = Some(now);
                    }
                    (table, ends) = (None, None);
                }
            } else if random.one_in(100) {
                if !plan.catch_up {
                    model.owed_from = None;
                    if let (Some(next), Some(interval)) = (&mut model.next_interval, interval) {
                        while *next <= now {
                            *next += interval;
                        }
                    }
                }
                if model.owed_from.is_some() {
                    model.owed_from = Some(now + delay);
                }
                let mut new = Timetable::new(1);
                new.set("job", plan.clone(), vec![], record.as_ref(), at(now), &zone);
                table = Some(new);
            }
        }
    }
    assert!(total as u64 > 20 * seeds(), "{total} runs");
}

#[test]
fn a_clock_that_jumps_by_years_makes_no_storm_and_no_silence() {
    for seed in 1..=seeds() {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let zone = zone(&mut random);
        let is_interval = random.one_in(2);
        let when = match is_interval {
            true => When::Every(Duration::from_secs(86_400)),
            false => When::At { times: vec!["02:30".parse().unwrap()], days: vec![] },
        };
        let plan = Plan { when, ..nightly() };
        let (mut offset, mut boot) = (0, BEGIN);
        let now_at = |at: i64, offset: i64, boot: i64| Moment { wall_ms: at + offset, steady_ms: at - boot };
        let new = |record: Option<&Record>, now: Moment| {
            let mut table = Timetable::new(1);
            table.set("job", plan.clone(), vec![], record, now, &zone);
            table
        };
        let mut table = new(None, now_at(BEGIN, 0, boot));
        let mut record = table.job("job").unwrap().record();
        let (mut runs, mut disturbances, mut last, mut calm_since) = (0, 0, BEGIN, BEGIN);
        for now in (BEGIN..(BEGIN + 100 * DAY)).step_by((10 * MINUTE) as usize) {
            if random.one_in(500) {
                let small = random.below(2 * CLOCK_BACK_MAX.as_millis() as i64) - HOUR;
                let jump = [DECADE, -DECADE, small, random.below(2 * DAY) - DAY][random.below(4) as usize];
                offset += jump;
                disturbances += 1;
                calm_since = now;
            }
            if random.one_in(700) {
                // The machine as well, whose steady clock begins anew.
                boot = now - random.below(HOUR);
                table = new(Some(&record), now_at(now, offset, boot));
                disturbances += 1;
                calm_since = now;
            }
            if let Some(start) = table.start(now_at(now, offset, boot), &zone) {
                runs += 1;
                last = now;
                assert!(matches!(start.cause, Cause::Due | Cause::Missed), "{start:?}");
                record = table.end("job", false, now_at(now, offset, boot)).unwrap();
            }
            // A day, a changed clock's hour, and the time by which small steps back are overlooked.
            let silence = now - last.max(calm_since);
            assert!(silence <= DAY + 3 * HOUR, "seed {seed}: silent for {} h", silence / HOUR);
        }
        assert!(runs <= 101 + disturbances, "seed {seed}: {runs} runs, {disturbances} disturbances");
        assert!(runs >= 50, "seed {seed}: {runs} runs");
    }
}

fn nightly() -> Plan {
    let when = When::At { times: vec!["02:00".parse().unwrap()], days: vec![] };
    Plan { when, delay: Duration::ZERO, catch_up: true, retries: 0, retry_after: Duration::ZERO }
}

fn moment(wall_ms: i64, steady_ms: i64) -> Moment {
    Moment { wall_ms, steady_ms }
}

#[test]
fn a_clock_put_back_by_an_hour_over_a_due_time_does_not_repeat_its_run() {
    for (back, runs) in [(HOUR - MINUTE, 1), (3 * HOUR, 2)] {
        let mut table = Timetable::new(1);
        table.set("a", nightly(), vec![], None, moment(BEGIN + HOUR, 0), &TimeZone::UTC);
        let mut count = 0;
        for minute in 0..24 * 60 {
            let steady = minute * MINUTE;
            let wall = BEGIN + HOUR + steady - if minute > 70 { back } else { 0 };
            if table.start(moment(wall, steady), &TimeZone::UTC).is_some() {
                count += 1;
                table.end("a", false, moment(wall, steady));
            }
        }
        assert_eq!(count, runs, "back by {back}");
    }
}

#[test]
fn runs_that_share_something_take_turns_and_the_one_that_has_waited_longest_is_next() {
    let zone = TimeZone::UTC;
    let now = moment(BEGIN, 0);
    let uses = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let every = |seconds| Plan { when: When::Every(Duration::from_secs(seconds)), ..nightly() };
    let mut table = Timetable::new(2);
    table.set("a", every(60), uses(&["lun 0", "/x"]), None, now, &zone);
    table.set("b", every(60), uses(&["lun 0", "/y"]), None, now, &zone);
    table.set("c", every(60), uses(&["lun 1", "/z"]), None, now, &zone);
    table.set("d", every(60), uses(&["lun 2", "/w"]), None, now, &zone);
    let start =
        |table: &mut Timetable, ms| table.start(moment(BEGIN + ms, ms), &zone).map(|start| start.name);
    assert_eq!(start(&mut table, 1).as_deref(), Some("a"));
    assert_eq!(start(&mut table, 1).as_deref(), Some("c"), "b shares a LUN with a");
    assert_eq!(start(&mut table, 1), None, "two at once");
    table.end("c", false, now);
    assert_eq!(start(&mut table, 2).as_deref(), Some("d"));
    assert_eq!(table.ask("a", moment(BEGIN + 3, 3)), Some(false), "under way");
    assert_eq!(table.ask("e", moment(BEGIN + 3, 3)), None);
    table.end("a", false, now);
    // A is asked for again, and b has waited longer.
    assert_eq!(table.ask("a", moment(BEGIN + 4, 4)), Some(true));
    assert_eq!(start(&mut table, 5).as_deref(), Some("b"));
    assert_eq!(start(&mut table, 5), None);
    // One that goes comes to its end, and what it uses stays taken until then.
    table.keep(&HashSet::from(["a"]));
    assert!(table.job("b").is_none());
    assert_eq!(start(&mut table, 6), None);
    assert_eq!(table.end("b", false, now), None);
    let begun = table.start(moment(BEGIN + 7, 7), &zone).unwrap();
    assert_eq!((begun.name.as_str(), begun.cause), ("a", Cause::Asked));
    assert_eq!(table.wake_in(moment(BEGIN + 8, 8), &zone), None);
    table.end("a", false, now);
    let left = table.wake_in(moment(BEGIN + 8, 8), &zone);
    assert_eq!(left, Some(Duration::from_millis(60_000 - 1)));
}

#[test]
fn another_plan_counts_from_now() {
    let zone = TimeZone::UTC;
    let noon = moment(BEGIN + 12 * HOUR, 0);
    let mut job = Job::new(nightly(), None, noon, &zone);
    let mut changed = nightly();
    changed.when = When::At { times: vec!["11:00".parse().unwrap()], days: vec![] };
    job.change(changed, moment(BEGIN + 13 * HOUR, HOUR));
    assert_eq!(job.next_in(moment(BEGIN + 13 * HOUR, HOUR), &zone), Some(22 * HOUR));
    // An interval that has never begun begins at once, and a shorter one counts from the last run.
    let every = |hours: u64| Plan { when: When::Every(Duration::from_secs(hours * 3600)), ..nightly() };
    job.change(every(6), moment(BEGIN + 14 * HOUR, 2 * HOUR));
    assert_eq!(job.next_in(moment(BEGIN + 14 * HOUR, 2 * HOUR), &zone), Some(0));
    job.begin(moment(BEGIN + 14 * HOUR, 2 * HOUR));
    job.end(false, moment(BEGIN + 14 * HOUR, 2 * HOUR));
    job.change(every(2), moment(BEGIN + 15 * HOUR, 3 * HOUR));
    assert_eq!(job.next_in(moment(BEGIN + 15 * HOUR, 3 * HOUR), &zone), Some(HOUR));
}

/// The clock of a machine is ten years ahead at one start, and right afterwards: 20 hours apart, each for 4 hours.
#[test]
fn a_record_of_a_clock_that_was_ahead_costs_one_run_and_no_later_one() {
    let whens = [
        When::Every(Duration::from_secs(86_400)),
        When::At { times: vec!["02:30".parse().unwrap()], days: vec![] },
    ];
    for (when, catch_up) in whens.iter().flat_map(|when| [(when.clone(), true), (when.clone(), false)]) {
        // The first right start ends before the run that is owed begins.
        let plan = Plan { when, catch_up, delay: Duration::from_secs(1800), ..nightly() };
        let mut record = None;
        let mut runs = Vec::new();
        for start in 0..40 {
            let (begin, ahead) = (BEGIN + start * 20 * HOUR, if start == 0 { DECADE } else { 0 });
            let at = |minute: i64| moment(begin + ahead + minute * MINUTE, 5 + minute * MINUTE);
            let mut table = Timetable::new(1);
            table.set("job", plan.clone(), vec![], record.as_ref(), at(0), &TimeZone::UTC);
            if record.is_none_or(|record: Record| record.is_of_the_future(at(0))) {
                record = Some(table.job("job").unwrap().record());
                assert!(!record.unwrap().is_of_the_future(at(0)));
            }
            let length = if start == 1 { 10 } else { 4 * 60 };
            for minute in (0..=length).step_by(10) {
                if let Some(begun) = table.start(at(minute), &TimeZone::UTC) {
                    assert_eq!(begun.record.attempts, 1);
                    runs.push((start, begun.cause));
                    record = table.end("job", false, at(minute));
                }
            }
        }
        runs.retain(|(start, _)| *start > 0);
        let gaps = runs.windows(2).map(|pair| pair[1].0 - pair[0].0);
        if catch_up {
            assert_eq!(runs[0], (2, Cause::Missed), "{plan:?}");
            assert!(gaps.max().unwrap() <= 2 && runs.len() <= 36, "{plan:?}: {runs:?}");
        } else {
            // When it is on at the due time.
            assert!(runs.iter().all(|(_, cause)| *cause == Cause::Due), "{plan:?}: {runs:?}");
            assert!(runs[0].0 <= 7 && gaps.max().unwrap() <= 7, "{plan:?}: {runs:?}");
        }
    }
}

#[test]
fn a_clock_that_goes_back_while_the_process_runs_leaves_no_record_of_the_future() {
    for when in [When::Every(Duration::from_secs(86_400)), nightly().when] {
        let mut table = Timetable::new(1);
        let plan = Plan { when: when.clone(), ..nightly() };
        table.set("a", plan, vec![], None, moment(BEGIN + DECADE, 0), &TimeZone::UTC);
        assert_eq!(table.ask("a", moment(BEGIN + DECADE, 0)), Some(true));
        table.start(moment(BEGIN + DECADE, 0), &TimeZone::UTC).unwrap();
        table.end("a", false, moment(BEGIN + DECADE + MINUTE, MINUTE));
        let later = moment(BEGIN + HOUR, HOUR);
        assert!(table.job("a").unwrap().record().is_of_the_future(later));
        table.mind_clock(later);
        let record = table.job("a").unwrap().record();
        assert_eq!(
            record,
            Record { covered_ms: BEGIN + HOUR, begun_ms: Some(BEGIN), attempts: 0, retried: 0 },
            "{when:?}"
        );
        // The same, whether the process goes on or begins again.
        let again = Job::new(Plan { when: when.clone(), ..nightly() }, Some(&record), later, &TimeZone::UTC);
        let left = table.job("a").unwrap().next_in(later, &TimeZone::UTC);
        assert_eq!((again.next_in(later, &TimeZone::UTC), again.record()), (left, record), "{when:?}");
    }
}

/// Two runs after one that failed, each ten minutes after the end of that.
fn retried() -> Plan {
    Plan { retries: 2, retry_after: Duration::from_secs(600), ..nightly() }
}

#[test]
fn a_run_that_fails_is_made_again_so_many_times_until_one_succeeds_or_the_next_is_due() {
    for seed in 1..=seeds() {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let retries = random.below(4) as u32;
        // Some of them so late that the next due time comes first.
        let retry_after = [600, 3600, 12 * 3600][random.below(3) as usize];
        let plan = Plan { retries, retry_after: Duration::from_secs(retry_after), ..nightly() };
        let at = |now: i64| moment(now, now - BEGIN);
        let new = |record: Option<&Record>, now: i64| {
            let mut table = Timetable::new(1);
            table.set("job", plan.clone(), vec![], record, at(now), &TimeZone::UTC);
            table
        };
        let mut table = new(None, BEGIN);
        let mut record = table.job("job").unwrap().record();
        // Runs since the last due time that had one, when the last of them failed, and whether it was a long time ago.
        let (mut made, mut failed_at, mut is_away) = (0, None::<i64>, 0);
        for now in (BEGIN..(BEGIN + 60 * DAY)).step_by((5 * MINUTE) as usize) {
            if is_away > 0 {
                is_away -= 1;
                if is_away == 0 {
                    table = new(Some(&record), now);
                    failed_at = failed_at.map(|_| now);
                }
                continue;
            }
            if random.one_in(600) {
                is_away = 1 + random.below(60);
            }
            let foreseen = table.job("job").unwrap().next_in(at(now), &TimeZone::UTC).unwrap();
            let Some(start) = table.start(at(now), &TimeZone::UTC) else {
                assert!(foreseen > 0, "seed {seed}");
                let owed = failed_at.filter(|_| made <= retries);
                assert!(
                    owed.is_none_or(|since| now - since < retry_after as i64 * 1000),
                    "seed {seed}: forgotten"
                );
                continue;
            };
            assert_eq!(foreseen, 0, "seed {seed}");
            match start.cause {
                Cause::Failed => {
                    let since = failed_at.unwrap_or_else(|| panic!("seed {seed}: nothing has failed"));
                    assert_eq!(now - since, retry_after as i64 * 1000, "seed {seed}");
                    made += 1;
                    assert!(made <= 1 + retries, "seed {seed}: {made} runs");
                }
                Cause::Due | Cause::Missed => made = 1,
                other => panic!("seed {seed}: {other:?}"),
            }
            let has_failed = !random.one_in(3);
            failed_at = has_failed.then_some(now);
            record = table.end("job", has_failed, at(now)).unwrap();
        }
    }
}

#[test]
fn a_run_that_somebody_asked_for_is_not_made_again() {
    let zone = TimeZone::UTC;
    let mut job = Job::new(retried(), None, moment(BEGIN + 3 * HOUR, 0), &zone);
    let now = moment(BEGIN + 4 * HOUR, HOUR);
    assert!(job.ask(now));
    job.begin(now);
    job.end(true, now);
    assert_eq!(job.next_in(now, &zone), Some(22 * HOUR));
}

#[test]
fn what_failed_is_made_again_after_a_restart_also_where_runs_that_are_missed_are_not_made_up_for() {
    let zone = TimeZone::UTC;
    let mut job = Job::new(nightly(), None, moment(BEGIN, 0), &zone);
    job.change(retried(), moment(BEGIN, 0));
    let now = moment(BEGIN + 10 * HOUR, 10 * HOUR);
    job.begin(now);
    job.end(true, now);
    let record = job.record();
    let never = Plan { catch_up: false, ..retried() };
    for plan in [retried(), never.clone()] {
        let again = Job::new(plan, Some(&record), moment(BEGIN + 11 * HOUR, 5), &zone);
        assert_eq!(again.next_in(moment(BEGIN + 11 * HOUR, 5), &zone), Some(10 * MINUTE));
        assert_eq!(
            (again.retries_left(), again.retry_in(moment(BEGIN + 11 * HOUR, 5))),
            (2, Some(10 * MINUTE))
        );
    }
    // The next due time has passed, and with it the run that would have been made again.
    let later = moment(BEGIN + 27 * HOUR, 5);
    let again = Job::new(never, Some(&record), later, &zone);
    assert_eq!((again.next_in(later, &zone), again.retry_in(later)), (Some(23 * HOUR), None));
}

#[test]
fn a_run_that_fails_tells_how_often_it_is_still_made_again() {
    let zone = TimeZone::UTC;
    let mut job = Job::new(retried(), None, moment(BEGIN, 0), &zone);
    assert_eq!((job.retries_left(), job.retry_in(moment(BEGIN, 0))), (0, None), "nothing has failed");
    let mut now = BEGIN + 2 * HOUR;
    for (attempt, left) in [(1, 2), (2, 1), (3, 0)] {
        let at = moment(now, now - BEGIN);
        job.begin(at);
        assert_eq!((job.attempt(), job.retries_left(), job.retry_in(at)), (attempt, left, None));
        job.end(true, at);
        let next = (left > 0).then_some(10 * MINUTE);
        assert_eq!((job.retries_left(), job.retry_in(at)), (left, next), "after attempt {attempt}");
        now += 10 * MINUTE;
    }
    // One that somebody asked for is not made again; where it takes the place of one that is, it is.
    let at = moment(now, now - BEGIN);
    assert!(job.ask(at));
    job.begin(at);
    assert_eq!((job.attempt(), job.retries_left()), (1, 0));
}

#[test]
fn a_run_made_again_that_takes_the_process_with_it_does_not_do_so_for_ever() {
    let zone = TimeZone::UTC;
    let mut job = Job::new(retried(), None, moment(BEGIN, 0), &zone);
    job.begin(moment(BEGIN + 3 * HOUR, 3 * HOUR));
    job.end(true, moment(BEGIN + 3 * HOUR, 3 * HOUR));
    let (mut record, mut runs) = (job.record(), 0);
    for minute in 0..22 * 60 {
        let now = moment(BEGIN + 3 * HOUR + minute * MINUTE, 5);
        let mut table = Timetable::new(1);
        table.set("job", retried(), vec![], Some(&record), now, &zone);
        let later = moment(now.wall_ms + 15 * MINUTE, 5 + 15 * MINUTE);
        if let Some(start) = table.start(later, &zone) {
            runs += 1;
            record = start.record;
        }
    }
    assert_eq!(runs, ATTEMPTS_MAX);
}

#[test]
fn delays_are_the_same_each_time_and_spread_over_names() {
    let hour = Duration::from_secs(3600);
    let all: Vec<_> = (0..1000).map(|name| Plan::delay_within(hour, &format!("disk-{name}"))).collect();
    assert_eq!(all[7], Plan::delay_within(hour, "disk-7"));
    for quarter in 0..4 {
        let span = (hour * quarter / 4)..(hour * (quarter + 1) / 4);
        let count = all.iter().filter(|delay| span.contains(delay)).count();
        assert!((190..310).contains(&count), "{count} in quarter {quarter}");
    }
    assert_eq!(Plan::delay_within(Duration::ZERO, "x"), Duration::ZERO);
}
