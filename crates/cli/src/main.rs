//! lunway.
fn main() {}
