//! Reservations: SPC-4 tables 65 and 66, SBC-4 table 13, and what SPC-2 and SBC say of RESERVE.

use lunway_scsi::{Nexus, ReservationType, Status};

use crate::commands::{Rig, Tweak, assert_complete, cdb_of, hear_all, operation, send};

/// Columns of the standards' tables, in their order: a write exclusive, an exclusive access reservation of another
/// nexus; a registered nexus under one that registrants share; an unregistered one under write exclusive and exclusive
/// access of that kind. Then, from SPC-2 table 9 and the commands' own standards: RESERVE of another nexus. `A`
/// allowed, `C` conflict.
type Row = (&'static str, Tweak, &'static str);

const START: Tweak = Some((4, 0x01));
const STOP: Tweak = Some((4, 0x00));
const POWER: Tweak = Some((4, 0x11));
const ALLOW: Tweak = Some((4, 0x00));
const PREVENT: Tweak = Some((4, 0x01));

/// SPC-4 table 65, then SBC-4 table 13. PERSISTENT RESERVE OUT is in [`SERVICE_ACTIONS`]; RESERVE and RELEASE follow
/// rules of their own, see the last test.
#[rustfmt::skip]
const COMMANDS: &[Row] = &[
    ("EXTENDED COPY (LID1)",                       None, "CCACC C"),
    ("INQUIRY",                                    None, "AAAAA A"),
    ("MODE SELECT (6)",                            None, "CCACC C"),
    ("MODE SELECT (10)",                           None, "CCACC C"),
    ("MODE SENSE (6)",                             None, "ACAAC C"),
    ("MODE SENSE (10)",                            None, "ACAAC C"),
    ("PERSISTENT RESERVE IN: READ KEYS",           None, "AAAAA C"),
    ("PERSISTENT RESERVE IN: READ RESERVATION",    None, "AAAAA C"),
    ("PERSISTENT RESERVE IN: REPORT CAPABILITIES", None, "AAAAA C"),
    ("PERSISTENT RESERVE IN: READ FULL STATUS",    None, "AAAAA C"),
    ("RECEIVE COPY DATA (LID1)",                   None, "AAAAA C"),
    ("RECEIVE COPY OPERATING PARAMETERS",          None, "AAAAA C"),
    ("RECEIVE COPY FAILURE DETAILS (LID1)",        None, "AAAAA C"),
    ("RECEIVE COPY STATUS (LID1)",                 None, "AAAAA C"),
    ("REPORT LUNS",                                None, "AAAAA A"),
    ("REPORT SUPPORTED OPERATION CODES",           None, "ACAAC C"),
    ("REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS", None, "ACAAC C"),
    ("REPORT TARGET PORT GROUPS",                  None, "AAAAA A"),
    ("REQUEST SENSE",                              None, "AAAAA A"),
    ("LOG SENSE",                                  None, "AAAAA A"),
    ("RECEIVE DIAGNOSTIC RESULTS",                 None, "ACAAC C"),
    ("SEND DIAGNOSTIC",                            None, "CCACC C"),
    ("SET TARGET PORT GROUPS",                     None, "CCACC C"),
    ("TEST UNIT READY",                            None, "AAAAA C"),

    ("COMPARE AND WRITE",                          None, "CCACC C"),
    ("FORMAT UNIT",                                None, "CCACC C"),
    ("GET LBA STATUS (16)",                        None, "ACAAC C"),
    ("ORWRITE (16)",                               None, "CCACC C"),
    ("PRE-FETCH (10)",                             None, "ACAAC C"),
    ("PRE-FETCH (16)",                             None, "ACAAC C"),
    ("PREVENT ALLOW MEDIUM REMOVAL",              ALLOW, "AAAAA A"),
    ("PREVENT ALLOW MEDIUM REMOVAL",            PREVENT, "CCACC C"),
    ("READ (6)",                                   None, "ACAAC C"),
    ("READ (10)",                                  None, "ACAAC C"),
    ("READ (12)",                                  None, "ACAAC C"),
    ("READ (16)",                                  None, "ACAAC C"),
    ("READ CAPACITY (10)",                         None, "AAAAA A"),
    ("READ CAPACITY (16)",                         None, "AAAAA A"),
    ("READ DEFECT DATA (10)",                      None, "ACAAC C"),
    ("READ DEFECT DATA (12)",                      None, "ACAAC C"),
    ("SANITIZE: OVERWRITE",                        None, "CCACC C"),
    ("SANITIZE: BLOCK ERASE",                      None, "CCACC C"),
    ("SANITIZE: EXIT FAILURE MODE",                None, "CCACC C"),
    ("START STOP UNIT",                           START, "AAAAA A"),
    ("START STOP UNIT",                            STOP, "CCACC C"),
    ("START STOP UNIT",                           POWER, "CCACC C"),
    ("SYNCHRONIZE CACHE (10)",                     None, "CCACC C"),
    ("SYNCHRONIZE CACHE (16)",                     None, "CCACC C"),
    ("UNMAP",                                      None, "CCACC C"),
    ("VERIFY (10)",                                None, "ACAAC C"),
    ("VERIFY (12)",                                None, "ACAAC C"),
    ("VERIFY (16)",                                None, "ACAAC C"),
    ("WRITE (6)",                                  None, "CCACC C"),
    ("WRITE (10)",                                 None, "CCACC C"),
    ("WRITE (12)",                                 None, "CCACC C"),
    ("WRITE (16)",                                 None, "CCACC C"),
    ("WRITE AND VERIFY (10)",                      None, "CCACC C"),
    ("WRITE AND VERIFY (12)",                      None, "CCACC C"),
    ("WRITE AND VERIFY (16)",                      None, "CCACC C"),
    ("WRITE ATOMIC (16)",                          None, "CCACC C"),
    ("WRITE SAME (10)",                            None, "CCACC C"),
    ("WRITE SAME (16)",                            None, "CCACC C"),
];

/// SPC-4 table 66: a reservation of another nexus; from a registered nexus, from one that is not.
#[rustfmt::skip]
const SERVICE_ACTIONS: &[(&str, &str)] = &[
    ("PERSISTENT RESERVE OUT: CLEAR",                            "AC"),
    ("PERSISTENT RESERVE OUT: PREEMPT",                          "AC"),
    ("PERSISTENT RESERVE OUT: PREEMPT AND ABORT",                "AC"),
    ("PERSISTENT RESERVE OUT: REGISTER",                         "AA"),
    ("PERSISTENT RESERVE OUT: REGISTER AND IGNORE EXISTING KEY", "AA"),
    ("PERSISTENT RESERVE OUT: REGISTER AND MOVE",                "CC"),
    ("PERSISTENT RESERVE OUT: RELEASE",                          "AC"),
    ("PERSISTENT RESERVE OUT: RESERVE",                          "CC"),
];

const SPC_2: [&str; 4] = ["RESERVE (6)", "RESERVE (10)", "RELEASE (6)", "RELEASE (10)"];

use ReservationType as Type;

const TYPES: [Type; 6] = [
    Type::WriteExclusive,
    Type::ExclusiveAccess,
    Type::WriteExclusiveRegistrantsOnly,
    Type::ExclusiveAccessRegistrantsOnly,
    Type::WriteExclusiveAllRegistrants,
    Type::ExclusiveAccessAllRegistrants,
];

const HOLDER_KEY: u64 = 1;
const REGISTRANT_KEY: u64 = 2;

fn reserve_out(action: u8, kind: u8, key: u64, argument: u64) -> (Vec<u8>, Vec<u8>) {
    let mut list = [key.to_be_bytes(), argument.to_be_bytes()].concat();
    list.resize(24, 0);
    (vec![0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0], list)
}

fn reserve_out_good(nexus: &Nexus, action: u8, kind: u8, key: u64, argument: u64) {
    let (cdb, list) = reserve_out(action, kind, key, argument);
    assert_eq!(send(nexus, &cdb, &list).status, Status::GOOD);
}

/// A unit with a reservation, its holder, a registrant and a stranger.
struct Reserved {
    _rig: Rig,
    nexuses: [std::sync::Arc<Nexus>; 3],
}

const HOLDER: usize = 0;
const REGISTRANT: usize = 1;
const STRANGER: usize = 2;

fn reserved(kind: Type) -> Reserved {
    let rig = Rig::new();
    let nexuses = ["holder", "registrant", "stranger"].map(|name| rig.login(name, 1));
    reserve_out_good(&nexuses[HOLDER], 0, 0, 0, HOLDER_KEY);
    reserve_out_good(&nexuses[REGISTRANT], 0, 0, 0, REGISTRANT_KEY);
    reserve_out_good(&nexuses[HOLDER], 1, kind.code(), HOLDER_KEY, 0);
    nexuses.iter().for_each(|nexus| hear_all(nexus));
    Reserved { _rig: rig, nexuses }
}

/// What the row says of who sends under a reservation.
fn expected(row: &str, kind: Type, who: usize) -> char {
    let column = match (kind, who) {
        (_, HOLDER) => return 'A',
        (Type::WriteExclusive, _) => 0,
        (Type::ExclusiveAccess, _) => 1,
        (_, REGISTRANT) => 2,
        (Type::WriteExclusiveRegistrantsOnly | Type::WriteExclusiveAllRegistrants, _) => 3,
        (Type::ExclusiveAccessRegistrantsOnly | Type::ExclusiveAccessAllRegistrants, _) => 4,
    };
    row.chars().nth(column).expect("five columns")
}

fn answer(status: Status) -> char {
    if status == Status::RESERVATION_CONFLICT { 'C' } else { 'A' }
}

#[test]
fn every_operation_is_in_the_tables() {
    let rows = COMMANDS.iter().map(|row| row.0).chain(SERVICE_ACTIONS.iter().map(|row| row.0)).chain(SPC_2);
    assert_complete("standard's tables of reservations", rows);
}

#[test]
fn commands_pass_persistent_reservations_as_the_tables_say() {
    for kind in TYPES {
        for &(name, tweak, row) in COMMANDS {
            for who in [HOLDER, REGISTRANT, STRANGER] {
                let reserved = reserved(kind);
                let response = send(&reserved.nexuses[who], &cdb_of(operation(name), tweak), &[]);
                let expected = expected(row, kind, who);
                assert_eq!(answer(response.status), expected, "{name} {tweak:?}, {kind:?}, {who}");
            }
        }
    }
}

#[test]
fn service_actions_pass_persistent_reservations_as_the_table_says() {
    for kind in TYPES {
        for &(name, row) in SERVICE_ACTIONS {
            for (who, key) in [(REGISTRANT, REGISTRANT_KEY), (STRANGER, 0)] {
                let holds = who == REGISTRANT
                    && matches!(
                        kind,
                        Type::WriteExclusiveAllRegistrants | Type::ExclusiveAccessAllRegistrants
                    );
                let reserved = reserved(kind);
                let action = operation(name).service_action.unwrap();
                let (cdb, list) = reserve_out(action, kind.code(), key, HOLDER_KEY);
                let response = send(&reserved.nexuses[who], &cdb, &list);
                let expected = match row.chars().nth(who - 1).unwrap() {
                    // A registrant is a holder then: it may repeat RESERVE (5.13.9). What all hold cannot be moved
                    // (5.13.8).
                    'C' if holds && name.ends_with(": RESERVE") => 'A',
                    expected => expected,
                };
                assert_eq!(answer(response.status), expected, "{name}, {kind:?}, {who}");
            }
        }
    }
}

#[test]
fn reserve_of_another_nexus_refuses_what_spc_2_says() {
    for &(name, tweak, row) in COMMANDS {
        let rig = Rig::new();
        let (one, other) = (rig.login("one", 1), rig.login("other", 2));
        assert_eq!(send(&one, &cdb_of(operation("RESERVE (6)"), None), &[]).status, Status::GOOD);
        let cdb = cdb_of(operation(name), tweak);
        let expected = row.chars().last().unwrap();
        assert_eq!(answer(send(&other, &cdb, &[]).status), expected, "{name} {tweak:?}");
        // PERSISTENT RESERVE conflicts whoever reserved (SPC-2 5.5.1); nothing else does for the one who did.
        let own = if name.starts_with("PERSISTENT") { 'C' } else { 'A' };
        assert_eq!(answer(send(&one, &cdb, &[]).status), own, "{name} {tweak:?}");
    }
    for &(name, _) in SERVICE_ACTIONS {
        let rig = Rig::new();
        let (one, other) = (rig.login("one", 1), rig.login("other", 2));
        send(&one, &cdb_of(operation("RESERVE (10)"), None), &[]);
        let (cdb, list) = reserve_out(operation(name).service_action.unwrap(), 1, 0, 5);
        for nexus in [&one, &other] {
            assert_eq!(send(nexus, &cdb, &list).status, Status::RESERVATION_CONFLICT, "{name}");
        }
    }
}

/// SPC-4 5.13.3 and SPC-2 5.5.1.
#[test]
fn reserve_and_release_meet_persistent_reservations_as_the_standards_say() {
    for kind in TYPES {
        let shared = !matches!(kind, Type::WriteExclusive | Type::ExclusiveAccess);
        for name in SPC_2 {
            for (who, expected) in
                [(HOLDER, 'A'), (REGISTRANT, if shared { 'A' } else { 'C' }), (STRANGER, 'C')]
            {
                let reserved = reserved(kind);
                let cdb = cdb_of(operation(name), None);
                let status = send(&reserved.nexuses[who], &cdb, &[]).status;
                assert_eq!(answer(status), expected, "{name}, {kind:?}, {who}");
            }
        }
    }
}
