//! Carries out I/O on each path of the program, for callgrind, which counts the instructions (`tests/budgets.rs`).
//!
//! Wall time is noise on a machine that others use, and instructions are not. Counted are the protocol cores, the
//! device server, the layers and the devices, in user space: neither the kernel nor the runtime, whose share is
//! different in each run.
//!
//! ```text
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='instructions::counted*' \
//!     --dump-after='instructions::end_of_path*' target/debug/instructions
//! ```
//!
//! leaves a dump for each path, in the order in which this program prints their names and how many operations each has.

#![expect(clippy::unwrap_used, reason = "a tool for tests: what cannot be made here is an error of the tool")]

mod conversation;
mod devices;

use conversation::{Direction, Shape, Side};

/// Operations that are counted. Enough that what happens once in a while (an acknowledgement, a buffer for the pool)
/// counts as often as it does.
const COUNTED: u32 = 512;
/// The same for large transfers, where each moves a mebibyte.
const COUNTED_LARGE: u32 = 8;

/// Does what callgrind counts, in a function that it finds by name.
#[inline(never)]
pub(crate) fn counted(work: &mut dyn FnMut()) {
    work();
}

/// After this function callgrind writes down what it has counted since the last time.
#[inline(never)]
fn end_of_path(name: &str, operations: u32) {
    println!("{operations}\t{name}");
}

fn main() {
    let small = |direction, digests| Shape { direction, bytes: 4096, depth: 32, digests };
    let large = |direction| Shape { direction, bytes: 1 << 20, depth: 4, digests: false };
    for side in [Side::Target, Side::Initiator] {
        for (shape, operations) in [
            (small(Direction::Read, false), COUNTED),
            (small(Direction::Write, false), COUNTED),
            (small(Direction::Read, true), COUNTED),
            (small(Direction::Write, true), COUNTED),
            (large(Direction::Read), COUNTED_LARGE),
            (large(Direction::Write), COUNTED_LARGE),
        ] {
            conversation::carry_out(side, shape, operations);
            end_of_path(&format!("{side}, {shape}"), operations);
        }
    }
    for (name, path) in devices::PATHS {
        path(COUNTED);
        end_of_path(name, COUNTED);
    }
}
