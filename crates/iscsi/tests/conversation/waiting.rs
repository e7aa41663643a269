//! Commands that the target's driver lets wait although a device could have them.

use lunway_iscsi::negotiation::Parameters;
use lunway_iscsi::pdu::{TaskManagementCode, TaskManagementResult};
use lunway_iscsi::target::{TargetConnectionConfig, TargetEvent};

use crate::wire::*;

const DATA: usize = 15_000;

/// Announces commands before their data is asked for; the budget has room for one.
fn announcing() -> Pair {
    let parameters = Parameters { immediate_data: false, initial_r2t: true, ..Parameters::default() };
    let configure = |config: &mut TargetConnectionConfig| config.data_out_budget = 20_000;
    let mut pair =
        Setup { initiator: parameters.clone(), target: parameters, configure, ..Setup::default() }.log_in();
    pair.target.announce(true);
    pair.submit(write(1, 0, &[1; DATA]));
    pair.submit(write(2, 20_000, &[2; DATA]));
    pair.run();
    pair
}

fn tokens(pair: &Pair) -> Vec<u64> {
    pair.completed.iter().map(|completed| completed.token).collect()
}

#[test]
fn a_command_whose_data_is_not_asked_for_yet_keeps_no_memory_from_others() {
    let mut pair = announcing();
    assert_eq!((pair.announced.len(), tokens(&pair)), (2, vec![]));
    let [first, second] = [pair.announced[0], pair.announced[1]];
    pair.hold = true;
    pair.target.ask_for_data(second, true);
    pair.run();
    let command = pair.held.pop().expect("its data is here");
    assert!(command.task == second && command.passed);
    pair.execute(command);
    pair.hold = false;
    pair.run();
    assert_eq!(tokens(&pair), [2]);
    pair.target.ask_for_data(first, false);
    // Twice is once.
    pair.target.ask_for_data(first, false);
    pair.run();
    assert_eq!(tokens(&pair), [2, 1]);
    assert!(pair.disk[..DATA].iter().all(|byte| *byte == 1));
    assert!(pair.disk[20_000..20_000 + DATA].iter().all(|byte| *byte == 2));
}

#[test]
fn a_command_whose_data_was_never_asked_for_is_aborted_and_forgotten() {
    let mut pair = announcing();
    let [first, second] = [pair.announced[0], pair.announced[1]];
    pair.initiator.manage_task(9, TaskManagementCode::ABORT_TASK, [0; 8], Some(1));
    pair.run();
    assert_eq!(pair.managed, [(9, TaskManagementResult::COMPLETE)]);
    assert!(!pair.target.has_task(first) && pair.target.has_task(second));
    pair.target.ask_for_data(first, true);
    pair.target.ask_for_data(second, true);
    pair.run();
    assert_eq!(tokens(&pair), [2]);
}

#[test]
fn commands_that_are_put_back_come_again_in_their_order_before_those_that_have_not_come_yet() {
    let mut pair = Setup::default().log_in();
    pair.hold = true;
    (1..=2).for_each(|token| pair.submit(read(token, 0, 100)));
    pair.run();
    pair.submit(read(3, 0, 100));
    let mut slices = Vec::new();
    pair.initiator.gather(&mut slices, 1000);
    let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
    pair.initiator.sent(bytes.len());
    let [mut space, _] = pair.target.receive_space();
    space[..bytes.len()].copy_from_slice(&bytes);
    pair.target.received(bytes.len());
    let tasks: Vec<_> = pair.held.iter().map(|command| command.task).collect();
    pair.held.drain(..).for_each(|command| pair.target.put_back(command));
    let mut came = Vec::new();
    while let Some(TargetEvent::Command(command)) = pair.target.poll_event() {
        came.push((command.task, command.passed));
    }
    assert_eq!(came[..2], [(tasks[0], true), (tasks[1], true)]);
    assert!(came.len() == 3 && !came[2].1);
}

#[test]
fn a_command_that_is_set_aside_leaves_its_place_in_the_window_to_another() {
    const WINDOW: usize = 3;
    let configure = |config: &mut TargetConnectionConfig| config.command_window = 3;
    let mut pair = Setup { configure, ..Setup::default() }.log_in();
    pair.hold = true;
    let mut token = 0;
    let fill = |pair: &mut Pair, token: &mut u64| {
        while pair.initiator.can_submit() {
            *token += 1;
            pair.submit(read(*token, 0, 100));
            pair.run();
        }
    };
    fill(&mut pair, &mut token);
    assert_eq!(pair.held.len(), WINDOW);
    for at in 0..WINDOW {
        pair.target.set_aside(pair.held[at].task);
        // Twice is once.
        pair.target.set_aside(pair.held[at].task);
    }
    pair.target.tell_aside();
    pair.run();
    fill(&mut pair, &mut token);
    assert_eq!(pair.held.len(), 2 * WINDOW);
    (0..2 * WINDOW).for_each(|at| pair.target.set_aside(pair.held[at].task));
    pair.target.tell_aside();
    pair.run();
    assert!(!pair.initiator.can_submit(), "no more than a window of them is set aside");
    // One ends as it is, one aborted.
    let [first, second] = [pair.held.remove(0), pair.held.remove(0)];
    pair.execute(first);
    pair.initiator.manage_task(99, TaskManagementCode::ABORT_TASK, [0; 8], Some(2));
    pair.run();
    pair.execute(second);
    assert!(!pair.initiator.can_submit(), "they had no place to give back");
    pair.target.set_aside(pair.held[WINDOW - 1].task);
    pair.target.tell_aside();
    pair.run();
    fill(&mut pair, &mut token);
    let held = std::mem::take(&mut pair.held);
    held.into_iter().for_each(|command| pair.execute(command));
    pair.run();
    let count = tokens(&pair).len();
    assert_eq!(count as u64 + 1, token, "all but the aborted one are answered");
    fill(&mut pair, &mut token);
    assert_eq!(pair.held.len(), WINDOW, "the window is as it was");
}

#[test]
fn a_write_is_set_aside_only_where_there_is_room_for_what_may_come_unasked_in_its_place() {
    type Configure = fn(&mut TargetConnectionConfig);
    let narrow: Configure = |config| {
        (config.command_window, config.data_out_max, config.data_out_budget) = (1, 20_000, 20_000);
    };
    let wide: Configure = |config| {
        (config.command_window, config.data_out_max, config.data_out_budget) = (1, 20_000, 40_000);
    };
    for (configure, is_set_aside) in [(narrow, false), (wide, true)] {
        let mut pair = Setup { configure, ..Setup::default() }.log_in();
        pair.hold = true;
        pair.submit(write(1, 0, &[1; 9000]));
        pair.run();
        pair.target.set_aside(pair.held[0].task);
        pair.target.tell_aside();
        pair.run();
        assert_eq!(pair.initiator.can_submit(), is_set_aside);
    }
}
