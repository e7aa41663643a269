//! Checks of a set-up: rules as data, the facts that they judge, and verdicts with their reasons.
//!
//! ```text
//!   gather (reads this machine) ─┐
//!   a running target's answers ──┼─► Facts ─► diagnose ─► Diagnosis: verdict, what, where, why, do, undo
//!   a file of facts ─────────────┘            (RULES)
//! ```
//!
//! Facts are plain data that can be written to a file, and rules are pure functions of them: a set-up is judged the
//! same here and elsewhere, now and later. A fact that could not be read has the reason instead, and a rule that needs
//! it says "unknown".
//!
//! | part | is |
//! |---|---|
//! | [`Facts`], `facts/` | what is known of a machine, a target, a disk's lanes |
//! | [`gather`], `gather/` | reads the facts of this machine, or of a copied tree of its files; changes nothing |
//! | [`merge`] | both ends of the same sessions, of several machines' facts |
//! | [`Looks`] | earlier looks at a target, which the growth of its stores is measured from |
//! | [`NeighbourLooks`] | earlier looks at neighbours, by which an address that moves is found |
//! | [`Rule`], [`RULES`], `rules/` | the rules by their groups |
//! | [`diagnose`] | all rules on some facts |
//! | [`Verdict`], [`Diagnosis`] | what comes out |
//! | [`probe`] | packets that measure a lane, and what the kernel counted on its connections |
//! | [`owners`] | who answers for an address: ARP requests |
//! | [`book`] | the pages of the documentation, made of the rules |
//!
//! Does not know the command line, how a finding is shown, or how a target is asked: its answers are handed in.

mod arp;
pub mod book;
pub mod facts;
mod gather;
mod looks;
mod merge;
mod neighbour_looks;
pub mod probe;
mod rules;
mod seen;
mod verdict;

pub use arp::owners;
pub use facts::Facts;
pub use gather::{Machine, destinations, gather, stores};
pub use looks::{Looks, compare_looks};
pub use merge::merge;
pub use neighbour_looks::NeighbourLooks;
pub use rules::{Group, RULES, Rule, diagnose, rule};
pub use seen::Seen;
pub use verdict::{Diagnosis, Verdict};
