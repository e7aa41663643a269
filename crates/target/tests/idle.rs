//! What a daemon costs when nothing happens: alone in its process, because it measures the process's CPU time.

#[path = "daemon/support.rs"]
#[expect(dead_code, reason = "the daemon's other tests use the rest")]
mod support;

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use support::{Daemon, pattern};

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).expect("below a second"))
}

#[test]
fn sessions_that_were_busy_use_no_cpu_once_they_are_idle() {
    let daemon = Daemon::start("[limits]\npoll = \"50us\"");
    let mut sessions: Vec<_> = (0..4).map(|isid| daemon.log_in_as(isid).ready()).collect();
    for session in &mut sessions {
        let data = pattern(8, 1);
        for _ in 0..200 {
            session.write(0, 0, &data);
        }
    }
    std::thread::sleep(Duration::from_millis(20));
    let before = cpu_time();
    std::thread::sleep(Duration::from_millis(500));
    let used = cpu_time() - before;
    assert!(used < Duration::from_millis(10), "half a second of silence cost {used:?} of CPU time");
}
