//! The engine beside an array of bytes, power cuts, hostile files, and programs we did not write.

mod completion;
mod crash;
mod crash_log;
mod deep;
mod edit;
mod foreign;
mod hostile;
mod model;
mod online;
mod pack;
mod parents;
mod repair;
mod support;
mod threads;
mod truncated;
