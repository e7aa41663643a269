//! Comparisons of devices whose difference is known, on a simulated clock.

use std::convert::Infallible;

use lunway_bench::Cancel;
use lunway_bench::compare::{Arm, Comparison, Plan, Row, Run, Verdict};
use lunway_report::Better;

use crate::machine::{Device, Machine, ORDINARY, tide};

const REPEATS: u64 = 200;

fn row(name: &str) -> Row {
    Row { name: name.into(), unit: "IOPS".into(), better: Better::Higher }
}

fn plan(seed: u64) -> Plan {
    Plan::new(vec![row("read 4K")], vec!["A".into(), "B".into()], seed)
}

/// Carries `plan` out where `figure` says what a run gives.
fn carry_out(plan: &Plan, mut figure: impl FnMut(Run) -> f64) -> Comparison {
    plan.check().unwrap();
    let measured = async {
        plan.run(&mut async |run| Ok::<f64, Infallible>(figure(run)), &mut |_| {}, &Cancel::new()).await
    };
    futures_util::FutureExt::now_or_never(measured).expect("nothing waits on a simulated clock").unwrap()
}

/// Control and candidate on a machine with tides.
fn compare(seed: u64, control: Device, candidate: Device) -> Comparison {
    let machine = Machine::new(seed, tide);
    carry_out(&plan(seed), |run| match run.arm {
        Arm::Candidate(1) => machine.run(candidate),
        _ => machine.run(control),
    })
}

#[test]
fn a_device_does_not_differ_from_itself_in_19_of_20_repeats() {
    let (mut even, mut wrong, mut trusted) = (0, 0, 0);
    for seed in 1..=REPEATS {
        let comparison = compare(seed, ORDINARY, ORDINARY);
        even += comparison.count(Verdict::NoMeaningfulDifference) as u64;
        wrong += (comparison.count(Verdict::Faster) + comparison.count(Verdict::Slower)) as u64;
        trusted += u64::from(comparison.trust.ok());
    }
    assert!(even >= REPEATS * 19 / 20, "{even} of {REPEATS}");
    assert_eq!(wrong, 0);
    assert!(trusted >= REPEATS * 9 / 10, "{trusted} of {REPEATS} trusted");
}

#[test]
fn three_per_cent_more_service_time_is_slower_with_the_interval_around_the_truth() {
    // The median of log ratios is what is estimated; service times 3 % longer are 1/1.03 of the I/Os.
    let truth = 100.0 / 1.03 - 100.0;
    let (mut slower, mut around) = (0, 0);
    for seed in 1..=REPEATS {
        let comparison = compare(seed, ORDINARY, ORDINARY.slower_by(3.0));
        let contrast = &comparison.contrasts[0];
        let (low, high) = contrast.interval_pct.unwrap();
        slower += u64::from(contrast.verdict == Verdict::Slower);
        around += u64::from(low <= truth && truth <= high);
    }
    assert!(slower >= REPEATS * 19 / 20, "{slower} of {REPEATS}");
    assert!(around >= REPEATS * 19 / 20, "{around} of {REPEATS}");
}

#[test]
fn no_difference_is_told_that_the_control_has_with_itself() {
    // The control's second run scatters by more than the candidate lies below its first; as often up as down.
    let machine = Machine::new(17, |_| 1.0);
    let comparison = carry_out(&Plan { warm_up: 0, ..plan(17) }, |run| {
        let block = f64::from(run.block.unwrap_or(0));
        let wobble = if block % 2.0 == 0.0 { block + 1.0 } else { -block };
        let figure = match run.arm {
            Arm::Candidate(1) => 950.0,
            Arm::Candidate(_) => 1000.0,
            Arm::ControlAgain => 1000.0 * (0.01 * wobble).exp(),
        };
        figure * (0.001 * machine.normal()).exp()
    });
    let [contrast] = &comparison.contrasts[..] else { panic!("one row") };
    let (low, high) = comparison.again[0].interval_pct.unwrap();
    assert!(low < -6.0 && high > 0.0, "{low} {high}");
    assert!(contrast.p_adjusted < 0.01 && contrast.interval_pct.unwrap().1 < -4.0, "{contrast:?}");
    assert_eq!((contrast.verdict, contrast.pairs), (Verdict::CannotTell, 30), "it goes on to the last round");
    assert!(contrast.more_pairs.is_some_and(|more| more > 1), "{contrast:?}");
}

#[test]
fn looking_three_times_does_not_make_errors_likelier_than_they_may_be() {
    // The truth lies on the margin, where nothing is ever decided rightly and every look tempts. Normal noise, so that
    // 4,000 are quick.
    let (mut outside, repeats) = (0, 4000);
    let plan = |seed| Plan { warm_up: 0, ..plan(seed) };
    for seed in 1..=repeats {
        let machine = Machine::new(seed, |_| 1.0);
        let comparison = carry_out(&plan(seed), |run| {
            let truth = if run.arm == Arm::Candidate(1) { 1.015 } else { 1.0 };
            1000.0 * truth * (0.01 * machine.normal()).exp()
        });
        let (low, high) = comparison.contrasts[0].interval_pct.unwrap();
        outside += u64::from(!(low <= 1.5 && 1.5 <= high));
    }
    assert!(outside <= at_most_5_percent(repeats), "{outside} of {repeats}");
}

#[test]
fn faster_is_faster_and_for_response_times_less_is_better() {
    let machine = Machine::new(3, tide);
    let time = Row { name: "response".into(), unit: "ms".into(), better: Better::Lower };
    let plan = Plan::new(vec![row("read 4K"), time], vec!["A".into(), "B".into()], 3);
    let comparison = carry_out(&plan, |run| {
        let device = if run.arm == Arm::Candidate(1) { ORDINARY.slower_by(-6.0) } else { ORDINARY };
        let iops = machine.run(device);
        if run.row == 0 { iops } else { 1e3 / iops }
    });
    let [iops, response] = &comparison.contrasts[..] else { panic!("two rows") };
    assert_eq!((iops.verdict, response.verdict), (Verdict::Faster, Verdict::Faster));
    assert!((5.0..8.0).contains(&iops.diff_pct) && (-7.5..-4.5).contains(&response.diff_pct));
}

#[test]
fn too_much_noise_cannot_tell_and_says_how_many_more_pairs_would() {
    let noisy = Device { run_scatter: 0.06, ..ORDINARY };
    let comparison = compare(5, noisy, noisy);
    let contrast = &comparison.contrasts[0];
    assert_eq!((contrast.verdict, contrast.pairs), (Verdict::CannotTell, 30));
    let more = contrast.more_pairs.unwrap();
    assert!((30..3000).contains(&more), "{more}");
    assert!(
        comparison.trust.notes.iter().any(|note| note.starts_with("The smallest difference")),
        "{comparison:?}"
    );

    // As many as it asked for (and a quarter more, since it reckons with its luck) do tell.
    let machine = Machine::new(5, tide);
    let longer = Plan { pairs: (contrast.pairs + more) * 5 / 4, rounds: 1, ..plan(5) };
    let longer = carry_out(&longer, |_| machine.run(noisy));
    assert_eq!(longer.contrasts[0].verdict, Verdict::NoMeaningfulDifference, "{more}");
}

#[test]
fn a_difference_on_the_margin_is_not_promised_a_number_of_pairs() {
    let plan = plan(1);
    let comparison = carry_out(&plan, |run| {
        // Each distance from the truth comes once on either side of it.
        let block = f64::from(run.block.unwrap_or(0));
        let wobble = if block % 2.0 == 0.0 { block + 1.0 } else { -block };
        if run.arm == Arm::Candidate(1) { 1015.0 * (0.001 * wobble).exp() } else { 1000.0 }
    });
    assert_eq!(comparison.contrasts[0].verdict, Verdict::CannotTell);
    assert_eq!(comparison.contrasts[0].more_pairs, None);
}

#[test]
fn a_machine_that_drifts_by_a_third_is_not_trusted_but_pairs_see_through_it() {
    let machine = Machine::new(7, |seconds| 1.0 + seconds / 100.0);
    let comparison = carry_out(&plan(7), |run| match run.arm {
        Arm::Candidate(1) => machine.run(ORDINARY.slower_by(8.0)),
        _ => machine.run(ORDINARY),
    });
    assert_eq!(comparison.contrasts[0].verdict, Verdict::Slower);
    assert!(reason(&comparison, "The machine drifted"), "{:?}", comparison.trust);
}

#[test]
fn a_machine_that_is_cold_at_first_is_named() {
    let machine = Machine::new(9, |seconds| if seconds < 12.0 { 1.3 } else { 1.0 });
    let comparison = carry_out(&Plan { rounds: 1, pairs: 20, ..plan(9) }, |_| machine.run(ORDINARY));
    assert!(reason(&comparison, "The machine was not warm"), "{:?}", comparison.trust);
}

#[test]
fn a_machine_that_changes_half_way_is_named() {
    let machine = Machine::new(9, |seconds| if seconds < 33.0 { 1.0 } else { 1.2 });
    let comparison = carry_out(&Plan { rounds: 1, pairs: 20, ..plan(9) }, |_| machine.run(ORDINARY));
    assert!(reason(&comparison, "The control of “read 4K” changed"), "{:?}", comparison.trust);
}

#[test]
fn a_control_that_differs_from_itself_spoils_the_report() {
    let machine = Machine::new(11, tide);
    let comparison = carry_out(&plan(11), |run| match run.arm {
        Arm::ControlAgain => machine.run(ORDINARY.slower_by(5.0)),
        _ => machine.run(ORDINARY),
    });
    assert!(reason(&comparison, "The control differs from itself"), "{:?}", comparison.trust);
}

#[test]
fn runs_without_a_figure_are_left_out_and_named() {
    let machine = Machine::new(13, tide);
    let comparison = carry_out(&plan(13), |run| {
        let figure = machine.run(ORDINARY);
        if run.block == Some(4) && run.arm == Arm::Candidate(1) { 0.0 } else { figure }
    });
    assert_eq!(comparison.contrasts[0].pairs % 10, 9);
    assert!(reason(&comparison, "1 runs gave no figure"), "{:?}", comparison.trust);
}

#[test]
fn of_ten_rows_without_a_difference_none_is_called_one() {
    let rows: Vec<Row> = (0..10).map(|index| row(&format!("row {index}"))).collect();
    let mut wrong = 0;
    for seed in 1..=200 {
        let machine = Machine::new(seed, |_| 1.0);
        let plan = Plan {
            warm_up: 0,
            margin_percent: 0.01,
            ..Plan::new(rows.clone(), vec!["A".into(), "B".into()], seed)
        };
        // With next to no margin, Holm alone stands between noise and a verdict.
        let comparison = carry_out(&plan, |_| 1000.0 * (0.02 * machine.normal()).exp());
        wrong += u64::from(comparison.count(Verdict::Faster) + comparison.count(Verdict::Slower) > 0);
    }
    assert!(wrong <= at_most_5_percent(200), "{wrong} of 200 tables");
}

#[test]
fn several_candidates_are_each_held_against_the_control() {
    let machine = Machine::new(17, tide);
    let arms = ["control", "same", "slower"].map(String::from).to_vec();
    let comparison = carry_out(&Plan::new(vec![row("read 4K")], arms, 17), |run| match run.arm {
        Arm::Candidate(2) => machine.run(ORDINARY.slower_by(10.0)),
        _ => machine.run(ORDINARY),
    });
    let verdicts: Vec<Verdict> = comparison.contrasts.iter().map(|contrast| contrast.verdict).collect();
    assert_eq!(verdicts, [Verdict::NoMeaningfulDifference, Verdict::Slower]);
}

#[test]
fn json_has_the_names_that_scripts_hold_on_to() {
    let comparison = compare(1, ORDINARY, ORDINARY.slower_by(3.0));
    let json = comparison.to_json();
    let row = &json["rows"][0];
    assert_eq!((row["name"].as_str(), row["verdict"].as_str()), (Some("read 4K"), Some("slower")));
    let number = |name: &str| row[name].as_f64().unwrap();
    assert!(number("ci_low_pct") <= number("diff_pct") && number("diff_pct") <= number("ci_high_pct"));
    assert!(number("a") > number("b"));
    assert_eq!(json["aa"][0]["name"], "read 4K");
    assert_eq!(json["trust"]["ok"], comparison.trust.ok());
    assert!(json["trust"]["reasons"].is_array());
}

/// What an error of 5 % is seen as in so many repeats, with three standard errors to spare.
fn at_most_5_percent(repeats: u64) -> u64 {
    let expected = 0.05 * repeats as f64;
    (expected + 3.0 * (0.95 * expected).sqrt()) as u64
}

fn reason(comparison: &Comparison, begins: &str) -> bool {
    comparison.trust.reasons.iter().any(|reason| reason.starts_with(begins))
}
