//! What lies on a disk, as far as its bytes say: pure parsers, without I/O, runtimes or clocks.
//!
//! [`partition`] has partition tables (GPT, MBR), and what becomes of them when a disk changes its size.

pub mod partition;
