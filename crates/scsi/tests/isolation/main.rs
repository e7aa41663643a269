//! Isolation: what each operation and each task management function changes for other nexuses, and for whom it does.
//!
//! For each row of the device server's tables, attempts are sent to a target by a nexus that may write, one that may
//! not, and ones that see another logical unit only; the owner of the units compares what it can observe before and
//! after. What is expected is transcribed in `expectations.rs`; an operation that is not there fails.

mod attempts;
mod device;
mod expectations;
mod page;
mod snapshot;
mod world;

use std::collections::BTreeSet;

use lunway_scsi::operations::{OPERATIONS, Operation};
use lunway_scsi::{
    FUNCTIONS, Lun, ManagementFunction, Scope, TaskManagementFunction, TaskManagementServiceResponse,
};

use crate::expectations::Row;
use crate::snapshot::{Snapshot, aspect};
use crate::world::{Situation, Who, World};

type Changes = BTreeSet<&'static str>;

/// Where commands go: both units, a number that is free, another address of unit 0, the well-known logical unit.
fn addresses() -> [Lun; 5] {
    [Lun::new(0), Lun::new(1), Lun::new(5), Lun([0x40, 0, 0, 0, 0, 0, 0, 0]), Lun::REPORT_LUNS]
}

/// What a nexus changes in one situation, which takes all attempts one after the other.
fn changes_in(who: Who, situation: Situation, operation: &Operation) -> (Changes, String) {
    let mut world = World::new(who, situation, true);
    let before = Snapshot::take(&mut world, who.spared());
    for (cdb, data) in attempts::of(operation, &world) {
        for lun in addresses() {
            world.attempt(lun, &cdb, &data);
        }
    }
    for (cdb, data) in attempts::of(operation, &world) {
        for lun in addresses() {
            world.attempt_ordered(lun, &cdb, &data);
        }
    }
    let after = Snapshot::take(&mut world, who.spared());
    let (mut changes, mut details) = before.changes(&after);
    if !world.release() {
        changes.insert(aspect::COMMANDS);
        details.push_str("  the owner's commands do not come to a good end\n");
    }
    (changes, details)
}

/// What a nexus that may write changes: each attempt in a world of its own, so that none hides another.
fn changes_of_writer(situation: Situation, operation: &Operation) -> Changes {
    let count = attempts::of(operation, &World::new(Who::Writer, situation, false)).len();
    let mut changes = Changes::new();
    for index in 0..count {
        let mut world = World::new(Who::Writer, situation, false);
        let before = Snapshot::take(&mut world, Who::Writer.spared());
        let (cdb, data) = attempts::of(operation, &world).swap_remove(index);
        world.attempt(Lun::new(0), &cdb, &data);
        let after = Snapshot::take(&mut world, Who::Writer.spared());
        changes.extend(before.changes(&after).0);
    }
    changes
}

fn words(text: &'static str) -> Changes {
    text.split_whitespace().collect()
}

fn row(table: &[Row], name: &str) -> Row {
    let found = table.iter().find(|row| row.0 == name);
    *found.unwrap_or_else(|| panic!("{name} is not in the table: write down who may change what by it"))
}

/// Collects what differs from the table, so that one run shows all of it.
#[derive(Default)]
struct Differences(String);

impl Differences {
    fn compare(&mut self, what: &str, expected: &'static str, found: &Changes, details: &str) {
        if words(expected) != *found {
            self.0.push_str(&format!("{what}: expected {expected:?}, changed {found:?}\n{details}"));
        }
    }

    fn none(self) {
        assert!(self.0.is_empty(), "\n{}", self.0);
    }
}

#[test]
fn every_operation_and_function_is_in_the_table_once() {
    for (table, names) in [
        (expectations::OPERATIONS, OPERATIONS.iter().map(|row| row.name).collect::<Vec<_>>()),
        (expectations::FUNCTIONS, FUNCTIONS.iter().map(|row| row.name).collect()),
    ] {
        let listed: Vec<&str> = table.iter().map(|row| row.0).collect();
        assert_eq!(listed, names);
    }
}

#[test]
fn a_nexus_that_may_write_changes_what_the_table_says() {
    let mut differences = Differences::default();
    for operation in OPERATIONS {
        let (name, expected, ..) = row(expectations::OPERATIONS, operation.name);
        let found = Situation::ALL
            .into_iter()
            .flat_map(|situation| changes_of_writer(situation, operation))
            .collect();
        differences.compare(name, expected, &found, "");
    }
    differences.none();
}

fn compare_all(who: Who, expected: fn(Row) -> &'static str) {
    let mut differences = Differences::default();
    for operation in OPERATIONS {
        let row = row(expectations::OPERATIONS, operation.name);
        let (mut found, mut details) = (Changes::new(), String::new());
        for situation in Situation::ALL {
            let (changes, text) = changes_in(who, situation, operation);
            if !changes.is_empty() {
                details.push_str(&format!(" {situation:?}:\n{text}"));
            }
            found.extend(changes);
        }
        differences.compare(&format!("{who:?}: {}", row.0), expected(row), &found, &details);
    }
    differences.none();
}

#[test]
fn a_nexus_that_may_not_write_changes_nothing_but_its_own_registration() {
    compare_all(Who::Reader, |row| row.2);
    // What it does not see is still less its own.
    compare_all(Who::MaskedReader, |row| row.2);
}

#[test]
fn a_nexus_that_does_not_see_a_unit_changes_nothing_of_it() {
    compare_all(Who::Masked, |row| row.3);
}

/// What a function comes to for the owner, the transport's part included.
fn changes_by_function(who: Who, situation: Situation, row: &ManagementFunction) -> (Changes, String) {
    let mut world = World::new(who, situation, true);
    let before = Snapshot::take(&mut world, who.spared());
    let mut dropped = Changes::new();
    for lun in addresses() {
        let outcome = world.intruder.task_management(lun.0, row.function);
        let hits = match outcome.abort {
            Scope::Nothing | Scope::Task | Scope::NexusUnit { .. } => false,
            Scope::Unit { lun, .. } => who.spared().contains(&lun),
            Scope::Target => true,
        };
        let complete = outcome.response == TaskManagementServiceResponse::FunctionComplete;
        if hits && complete {
            dropped.insert(aspect::COMMANDS);
        }
    }
    let after = Snapshot::take(&mut world, who.spared());
    let (mut changes, details) = before.changes(&after);
    changes.extend(dropped);
    world.release();
    (changes, details)
}

#[test]
fn task_management_functions_hurt_others_only_where_the_table_says() {
    let mut differences = Differences::default();
    for function in FUNCTIONS {
        let row = row(expectations::FUNCTIONS, function.name);
        for (who, expected) in
            [(Who::Writer, row.1), (Who::Reader, row.2), (Who::Masked, row.3), (Who::MaskedReader, row.3)]
        {
            let (mut found, mut details) = (Changes::new(), String::new());
            for situation in Situation::ALL {
                let (changes, text) = changes_by_function(who, situation, function);
                found.extend(changes);
                details.push_str(&text);
            }
            differences.compare(&format!("{who:?}: {}", row.0), expected, &found, &details);
        }
    }
    differences.none();
}

#[test]
fn a_function_that_is_not_in_the_table_is_not_supported() {
    let world = World::new(Who::Writer, Situation::Quiet, false);
    let outcome = world.intruder.task_management(Lun::new(0).0, TaskManagementFunction::ClearAca);
    assert_eq!(outcome.response, TaskManagementServiceResponse::NotSupported);
}
