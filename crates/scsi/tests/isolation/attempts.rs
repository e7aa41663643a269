//! What the nexus that tries sends: for each operation CDBs and parameter lists that would do harm if they were carried
//! out.

use lunway_scsi::operations::Operation;

use crate::device::{COPIED, FILL, SECTOR};
use crate::world::{OWNER_KEY, OWNERS_COPY, World, copy, move_to, reserve_out, send, transport_id};

pub(crate) type Attempt = (Vec<u8>, Vec<u8>);

/// Other than what blocks hold at first.
const OTHER: u8 = 0xA5;

fn zeroes(operation: &Operation) -> Vec<u8> {
    let mut cdb = vec![0; operation.usage.len()];
    cdb[0] = operation.opcode;
    cdb[1] = operation.service_action.unwrap_or(0);
    cdb
}

/// Sets the field where CDBs of this length have their number of blocks, or the like.
fn count(mut cdb: Vec<u8>, value: u16) -> Vec<u8> {
    let [high, low] = value.to_be_bytes();
    match cdb.len() {
        6 => cdb[4] = low,
        10 => [cdb[7], cdb[8]] = [high, low],
        12 => [cdb[8], cdb[9]] = [high, low],
        _ => [cdb[12], cdb[13]] = [high, low],
    }
    cdb
}

fn with(mut cdb: Vec<u8>, byte: usize, bits: u8) -> Vec<u8> {
    cdb[byte] |= bits;
    cdb
}

/// A mode parameter list: a page as it is, with bits of one byte turned over.
fn mode_list(world: &World, page: u8, byte: usize, bits: u8, long: bool) -> Vec<u8> {
    let sense = send(&world.owner, 0, &[0x5A, 0x08, page, 0, 0, 0, 0, 0, 64, 0], &[]);
    let mut page = sense.expect("MODE SENSE never waits").data_in[8..].to_vec();
    page[0] &= 0x3F;
    page[byte] ^= bits;
    [vec![0; if long { 8 } else { 4 }], page].concat()
}

fn mode_select(operation: &Operation, world: &World) -> Vec<Attempt> {
    let long = operation.usage.len() == 10;
    let mut attempts = Vec::new();
    // SWP and D_SENSE of the control page, WCE of the caching page.
    for (page, byte, bits) in [(0x0A, 4, 0x08), (0x0A, 2, 0x04), (0x08, 2, 0x04)] {
        let list = mode_list(world, page, byte, bits, long);
        for save in [0, 1] {
            let cdb = with(count(zeroes(operation), list.len() as u16), 1, 0x10 | save);
            attempts.push((cdb, list.clone()));
        }
    }
    attempts
}

fn persistent_reserve_out(operation: &Operation) -> Vec<Attempt> {
    let action = operation.service_action.unwrap_or(0);
    if action == 7 {
        return vec![move_to("stranger", 9, 0x01), move_to("stranger", 9, 0x03)];
    }
    let mut attempts = Vec::new();
    for kind in [1, 3, 5, 8] {
        for (key, argument) in [(0, 9), (OWNER_KEY, 9), (OWNER_KEY, OWNER_KEY), (9, OWNER_KEY), (0, 0)] {
            // Without flags, with APTPL, for all target ports.
            for flags in [0x00, 0x01, 0x04] {
                attempts.push(reserve_out(action, kind, key, argument, flags));
            }
        }
    }
    // For somebody else.
    let id = transport_id("stranger");
    for argument in [9, 0] {
        let (mut cdb, mut list) = reserve_out(action, 0, 0, argument, 0x08);
        list.extend((id.len() as u32).to_be_bytes());
        list.extend(&id);
        cdb[8] = list.len() as u8;
        attempts.push((cdb, list));
    }
    // Its own registration, at last.
    attempts.push(reserve_out(action, 0, OWNER_KEY, 0, 0x00));
    attempts
}

fn copies(world: &World) -> Vec<Attempt> {
    let [first, second] = &world.units;
    [(first, first), (first, second), (second, first)]
        .map(|(from, to)| copy(OWNERS_COPY, (&**from, COPIED), (&**to, 0)))
        .to_vec()
}

fn target_port_groups(operation: &Operation) -> Vec<Attempt> {
    let state = |state: u8, tag: u8| {
        let list = vec![0, 0, 0, 0, state, 0, 0, tag];
        (count(zeroes(operation), list.len() as u16), list)
    };
    vec![state(1, 1), state(2, 2), state(3, 2), state(3, 1)]
}

fn unmap(operation: &Operation) -> Vec<Attempt> {
    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
    list.extend(0u64.to_be_bytes());
    list.extend(256u32.to_be_bytes());
    list.extend([0; 4]);
    vec![(count(zeroes(operation), list.len() as u16), list)]
}

/// What would succeed for the owner, or come near to it.
fn effective(operation: &Operation, world: &World) -> Vec<Attempt> {
    let block = vec![OTHER; SECTOR];
    let one = || count(zeroes(operation), 1);
    match operation.name.split(':').next().unwrap_or_default() {
        name if name.starts_with("WRITE SAME") || name.starts_with("WRITE AND VERIFY") => {
            vec![(one(), block.clone()), (with(one(), 1, 0x08), block)]
        }
        name if name.starts_with("WRITE") || name.starts_with("ORWRITE") => vec![(one(), block)],
        name if name.starts_with("VERIFY") => vec![(one(), Vec::new()), (with(one(), 1, 0x02), block)],
        "COMPARE AND WRITE" => vec![(one(), [vec![FILL; SECTOR], block].concat())],
        "UNMAP" => unmap(operation),
        "FORMAT UNIT" => vec![(zeroes(operation), Vec::new())],
        "SANITIZE" if operation.service_action == Some(1) => {
            vec![(count(zeroes(operation), 5), vec![1, 0, 0, 1, OTHER])]
        }
        "SANITIZE" => vec![(zeroes(operation), Vec::new())],
        "MODE SELECT (6)" | "MODE SELECT (10)" => mode_select(operation, world),
        "START STOP UNIT" => {
            let bits = [0x01, 0x00, 0x10, 0x11, 0x03, 0x02];
            bits.map(|bits| (with(zeroes(operation), 4, bits), Vec::new())).to_vec()
        }
        "PREVENT ALLOW MEDIUM REMOVAL" => {
            [0, 3, 2, 1].map(|bits| (with(zeroes(operation), 4, bits), Vec::new())).to_vec()
        }
        "SEND DIAGNOSTIC" => vec![(with(zeroes(operation), 1, 0x04), Vec::new())],
        "PERSISTENT RESERVE OUT" => persistent_reserve_out(operation),
        "EXTENDED COPY (LID1)" => copies(world),
        "SET TARGET PORT GROUPS" => target_port_groups(operation),
        name if name.starts_with("RECEIVE COPY") => {
            let cdb = with(count(zeroes(operation), 256), 2, OWNERS_COPY);
            vec![(cdb, Vec::new())]
        }
        _ => vec![(one(), Vec::new()), (count(zeroes(operation), 255), Vec::new())],
    }
}

/// All attempts with an operation, the most harmful last.
pub(crate) fn of(operation: &Operation, world: &World) -> Vec<Attempt> {
    let mut attempts = vec![
        (zeroes(operation), Vec::new()),
        (zeroes(operation), vec![0; 8 * SECTOR]),
        // Every bit that is evaluated; and one that is not.
        (operation.usage.to_vec(), vec![0xFF; 8 * SECTOR]),
        (vec![0xFF; operation.usage.len()], vec![0xFF; SECTOR]),
    ];
    attempts[3].0[0] = operation.opcode;
    attempts.extend(effective(operation, world));
    attempts
}
