//! Constants of the policy `adaptive`, in one table.
//!
//! Units are bytes, nanoseconds, bytes per nanosecond, and plain factors. Each constant says what fixes it: a property
//! of networks and disks, a shape of network, or else the sweep.
//!
//! # The sweep
//!
//! Each constant alone was halved and doubled, and one that is near 1 brought half as near and twice as far, in the
//! simulated network of `tests/shapes.rs`, which is deterministic. A figure is the geometric mean of `adaptive` against
//! the best other policy over the 900 combinations; with the values as they stand here it is 1.1008, the worst
//! combination 0.601. A worst one below 0.59 is told too, and a test that fails, in short: **best** (as good as the
//! best other policy on every shape), **fat port** (a port that carries more than any of its lanes), **lumps** (writes
//! that end in lumps, in a mesh), **mesh** (as fast as its ports 1:1), **slow** (a lane that becomes slow is left and
//! found again); **seldom** and **start** of `tests/placing.rs` (a far lane is tried seldom; a new lane begins with 128
//! KiB and doubles). Repeat one by changing the constant:
//!
//! ```text
//! cargo test --release -p lunway-multipath --test shapes --test placing -- --include-ignored --nocapture
//! ```
//!
//! A figure within 0.001 of 1.1008 on both sides says that the simulation does not fix the value. A better one is no
//! reason to change it: rules that won in the simulation have cost full meshes 1.6 % of their reads on real links.

// Requests and pieces.

/// Size from which on a request loads a wire: it goes over the team's lanes and tells of their rates. A quarter of a
/// millisecond at 1 Gb/s: more than a storage network's round trip of 0.1 ms, so that the wire and not the latency
/// decides how long it takes. Sweep: 16 KiB: 1.1018; 64 KiB: 1.1008.
pub(super) const LOADING: u64 = 32 << 10;
/// Size from which on a request is divided where that helps. Two milliseconds at 1 Gb/s, thirty times what a target
/// takes for one more command. Sweep: 128 KiB: 1.1008; 512 KiB: 1.0844.
pub(super) const DIVIDED_MIN: u64 = 256 << 10;
/// Least size of a piece of a divided request. Half a millisecond at 1 Gb/s: the latency and the target's time for the
/// command are a quarter of it at most. Sweep: 32 KiB: 1.1018, fails **lumps**; 128 KiB: 1.0803, worst 0.58.
pub(super) const PIECE_MIN: u64 = 64 << 10;
/// Least part of its time that dividing a request must save. The 60 µs that a target takes for one more command, of the
/// 2 ms of [`DIVIDED_MIN`]. Sweep: 0.015: 1.1008; 0.06: 1.1007, fails **slow**.
pub(super) const DIVIDING_GAIN: f64 = 0.03;
/// A lane will soon be idle if its backlog, times this, is shorter than the request would take on the best lane.
/// Requests are divided for depth 1; at depth 4 and more whole requests keep all lanes busy. Sweep: 2: 1.1050, worst
/// 0.59, fails **lumps**; 8: 1.1003.
pub(super) const IDLE_SOON: f64 = 4.0;

// Choice of one lane.

/// Weight of a lane's own queue beside the longest queue on its path. Breaks ties behind a full port, and must not
/// outweigh the noise of 10 % in the queues themselves. Sweep: 0.0625: 1.1005; 0.25: 1.1011.
pub(super) const OWN_QUEUE_WEIGHT: f64 = 0.125;
/// Factor of the time by which a lane is late: what it is expected to lose from now on. Something that is late by a
/// time will take as long again, on average, if nothing else is known. Sweep: 1: 1.1003, fails **lumps**; 4: 1.1003,
/// fails **lumps**.
pub(super) const LATE: f64 = 2.0;
/// A slower idle lane relieves a queue only if it ends at most this many times later. The shape "1 Gb/s and 100 Mb/s"
/// needs more than its 10. Sweep: 8: 1.1001, fails **best**; 32: 1.1007, fails **best**.
pub(super) const RELIEF_SLOWER_MAX: f64 = 16.0;
/// Data in flight that keep a lane busy: its bandwidth-delay product times this, and the next request. A rate and a
/// latency that are each 10 % too low make 0.81 of it. Sweep: 1.125: 1.1007; 1.5: 1.1005.
pub(super) const BUSY_MARGIN: f64 = 1.25;
/// Period over which a queue must have stood: once at least, twice at most. As long as [`HICCUP`]: a queue behind a
/// hiccup drains and is none to relieve. Sweep: 4 ms: 1.1007; 16 ms: 1.1010.
pub(super) const STANDING_PERIOD: u64 = 8_000_000;

// Team.

/// Two lanes are alike if the worse adds more than this part of what the better adds. More than the noise of 10 %: a
/// team that changes bursts into full ports over cold connections, 95.9 instead of 98.9 MB/s in a full mesh of real
/// links. Sweep: 0.94: 1.1002; 0.76: 1.1007.
pub(super) const ALIKE: f64 = 0.88;
/// Least part of its rate that its ports must leave to a member. Below a half, so that two lanes that share a port
/// evenly stay members in spite of the noise. Sweep: 0.2: 1.1012; 0.8: 1.0981.
pub(super) const MEMBER_PART_MIN: f64 = 0.4;
/// Rate that an unproven lane is expected to reach, times what it has shown. Of the 1.3 ms that [`ALLOWANCE_FIRST`]
/// takes at 1 Gb/s with a latency of 0.25 ms, 1.05 ms are transfer. Sweep: 1.125: 1.1010; 1.5: 1.1002.
pub(super) const UNPROVEN_PROMISE: f64 = 1.25;

// Latency of a lane.

/// Greatest request that tells of latency alone. At 1 Gb/s its transfer is 0.13 ms, as long as the latency. Sweep: 8
/// KiB: 1.0841, worst 0.51; 32 KiB: 1.1008.
pub(super) const SMALL_MAX: u64 = 16 << 10;
/// Greatest request that tells of latency and rate together; the least is [`LOADING`]. Of 4 ms at 1 Gb/s the noise of
/// 10 % is more than the latency that is sought. Sweep: 256 KiB: 1.0994; 1 MiB: 1.1008.
pub(super) const MIDDLE_MAX: u64 = 512 << 10;
/// Latencies are believed up to the base times this, and [`BASE_CLIP_SLACK`]. A hiccup moves a base of 0.2 ms by a
/// fifth at most. Sweep: 2: 1.0997; 8: 1.1004, fails **best**.
pub(super) const BASE_CLIP: f64 = 4.0;
/// Slack of [`BASE_CLIP`], for a base of nothing. As long as a target on the same machine takes. Sweep: 10 µs: 1.1003;
/// 40 µs: 1.1006.
pub(super) const BASE_CLIP_SLACK: f64 = 20_000.0;
/// Part of a lower latency that the base takes over. Twice the gain of a higher one: nothing is faster than the base,
/// many things are slower. Sweep: 0.0625: 1.1008, fails **best**; 0.25: 1.1008.
pub(super) const BASE_FALL_GAIN: f64 = 0.125;
/// Part of a higher latency that the base takes over. A lasting change is learnt within some twenty requests. Sweep:
/// 0.0312: 1.0998; 0.125: 1.1003, fails **best**.
pub(super) const BASE_RISE_GAIN: f64 = 0.0625;
/// A request alone on its lane that is this many times faster than expected shows that the lane has recovered. Two
/// durations that are each off by 10 % differ by 1.22. Sweep: 1.125: 1.1002, fails **slow**; 1.5: 1.1010.
pub(super) const RECOVERED: f64 = 1.25;
/// Times of requests alone on their lane are believed up to their mean times this. A hiccup counts as one request that
/// took twice its time. Sweep: 1: 1.0991; 4: 1.1003.
pub(super) const LIGHT_CLIP: f64 = 2.0;
/// Part of each of them that the mean takes over. A mean of some four. Sweep: 0.125: 1.1010; 0.5: 1.0996, worst 0.58.
pub(super) const LIGHT_GAIN: f64 = 0.25;

// Rate of a lane.

/// Rate of a lane of which nothing is known. One gigabit per second, the commonest port of a storage network; the
/// card's own claim goes before. Sweep: 0.0625: 1.0958, fails **best** and **lumps**; 0.25: 1.0920, worst 0.53, fails
/// **best** and **lumps**.
pub(super) const UNKNOWN_RATE: f64 = 0.125;
/// Bytes over which a busy lane is measured at least. Sixteen chunks of the simulated wire, each off by 10 % at most,
/// together by 1.4 %. Sweep: 128 KiB: 1.1009; 512 KiB: 1.1005.
pub(super) const WINDOW_BYTES: u64 = 256 << 10;
/// Time over which a busy lane is measured at least. Twice a hiccup of the simulated target. Sweep: 2 ms: 1.1005; 8 ms:
/// 1.1002.
pub(super) const WINDOW_TIME: u64 = 4_000_000;
/// Pieces that make a round even if more were in flight together. Twice the writes whose data a target fetches side by
/// side in the test **lumps**. Sweep: 4: 1.1017; 16: 1.0988.
pub(super) const ROUND_IOS: u64 = 8;
/// A round that takes this many times as long as expected, and [`HICCUP`], ends the window. The lane has lost half of
/// its rate. Sweep: 1: 1.1008, fails **lumps**; 4: 1.1009.
pub(super) const ROUND_LATE: f64 = 2.0;
/// Bytes that a window needs to tell of a rate. As [`PIECE_MIN`]: a probe must tell. Sweep: 32 KiB: 1.1008; 128 KiB:
/// 1.0954, worst 0.55.
pub(super) const MEASURED_MIN: u64 = 64 << 10;
/// Least part of a window in which data moved, as one in so many. With more latency than transfer in a window its rate
/// is the error of the latency. Sweep: 1: 1.0994, fails **lumps** and **slow**; 4: 1.1005.
pub(super) const MOVING_PART: f64 = 2.0;
/// Longest time lost that a hiccup explains. Four hiccups of the simulated target of 2 ms. Sweep: 4 ms: 1.1009; 16 ms:
/// 1.1011, fails **lumps**.
pub(super) const HICCUP: f64 = 8e6;
/// Gain of a window that began in the middle of a queue and ended with it. Parts of what arrived in it had been sent
/// before. Sweep: 0.0312: 1.1004, fails **fat port**; 0.125: 1.1005.
pub(super) const RAN_DRY_GAIN: f64 = 1.0 / 16.0;
/// Gain of an unproven lane's windows. They double with its allowance, so that each says as much as all before. Sweep:
/// 0.25: 1.1018, fails **lumps**; 1: 1.1001.
pub(super) const UNPROVEN_GAIN: f64 = 0.5;
/// Gain of a window like those before. A mean of some eight windows. Sweep: 0.0625: 1.1008, fails **lumps**; 0.25:
/// 1.1006.
pub(super) const STEADY_GAIN: f64 = 0.125;
/// A rate of this many times the known one is much faster. Two windows that are each off by 10 % differ by 1.22. Sweep:
/// 1.125: 1.1004; 1.5: 1.1006.
pub(super) const MUCH_FASTER: f64 = 1.25;
/// Gain of such a window. A lane that has recovered is known after three. Sweep: 0.25: 1.1006; 1: 1.1010.
pub(super) const MUCH_FASTER_GAIN: f64 = 0.5;
/// A rate below this part of the known one is much slower. A hiccup of 2 ms in a window of [`WINDOW_TIME`] shows 0.67.
/// Sweep: 0.85: 1.1012; 0.4: 1.1011.
pub(super) const MUCH_SLOWER: f64 = 0.7;
/// Gain of such a window if a hiccup may explain it. One hiccup of 2 ms lowers the rate by a twelfth. Sweep: 0.125:
/// 1.1007; 0.5: 1.1008.
pub(super) const MUCH_SLOWER_GAIN: f64 = 0.25;
/// A lane was alone on its ports if others placed at most one part in so many of its bytes there. Less than the noise
/// of its rate. Sweep: 8: 1.1003; 32: 1.1009.
pub(super) const ALONE_PART: u64 = 16;
/// A port had room if it moved less than this part of its rate. Its rate is known within 10 %. Sweep: 0.925: 1.1010;
/// 0.7: 1.0974.
pub(super) const PORT_ROOM: f64 = 0.85;
/// Plans are made anew when a rate has changed by one part in so many. Less than the difference of lanes that are not
/// [`ALIKE`]. Sweep: 8: 1.0996; 32: 1.0999.
pub(super) const REPLAN_PART: f64 = 16.0;

// Rate of a port.

/// Bytes over which a busy port is measured at least. Four lanes' windows. Sweep: 512 KiB: 1.1009; 2 MiB: 1.1009.
pub(super) const PORT_WINDOW_BYTES: u64 = 1 << 20;
/// Time over which a busy port is measured at least. Twice a lane's window, since several lanes' requests end in lumps.
/// Sweep: 4 ms: 1.1006; 16 ms: 1.1009.
pub(super) const PORT_WINDOW_TIME: u64 = 8_000_000;
/// Requests over which a busy port is measured at least. As [`ROUND_IOS`]. Sweep: 4: 1.1008; 16: 1.1005.
pub(super) const PORT_WINDOW_IOS: u64 = 8;
/// Bytes that a port's window needs to tell of a rate. A quarter of [`PORT_WINDOW_BYTES`]. Sweep: 128 KiB: 1.1008; 512
/// KiB: 1.0998.
pub(super) const PORT_MEASURED_MIN: u64 = 256 << 10;
/// Quarters of a window above which one lane's bytes tell of that lane, not of the port. With two lanes the lesser must
/// have brought a quarter. Sweep: 2: 1.1007; 4: 1.1003, fails **mesh**.
pub(super) const PORT_LANE_QUARTERS: u64 = 3;
/// A request was held up if it took this many times as long as its lane takes alone. Twice the noise of 10 %. Sweep:
/// 1.1: 1.0963, fails **fat port**; 1.4: 1.1017, fails **lumps**.
pub(super) const HELD_UP: f64 = 1.2;
/// A port is congested if of its bytes more than one in so many were held up. Most requests waited. Sweep: 1: 1.1010;
/// 4: 1.0994.
pub(super) const CONGESTED_PART: u64 = 2;
/// A port is free if of its bytes fewer than one in so many were held up. Noise alone holds some up. Sweep: 4: 1.1009;
/// 16: 1.0994.
pub(super) const FREE_PART: u64 = 8;
/// Gain of a port's window. It follows four windows. Sweep: 0.125: 1.1009, fails **lumps**; 0.5: 1.1007.
pub(super) const PORT_GAIN: f64 = 0.25;
/// A free port that carries this part of its rate may carry more. The noise of a rate is 10 %. Sweep: 0.95: 1.0999;
/// 0.8: 1.1017.
pub(super) const PORT_USED: f64 = 0.9;
/// Factor on its rate that it is then taken to carry. Half of the noise. Sweep: 1.025: 1.1004; 1.1: 1.1007.
pub(super) const PORT_GROWTH: f64 = 1.05;

// Trust of a lane that is new or has returned.

/// Bytes that it may have in flight at first. 1 ms at 1 Gb/s, 10 ms at 100 Mb/s: a lane that turns out to be slow holds
/// nothing up for long. Sweep: 64 KiB: 1.1019, fails **start**; 256 KiB: 1.1009, fails **start**.
pub(super) const ALLOWANCE_FIRST: u64 = 128 << 10;
/// Allowance at which it is proven. More than a connection of 10 Gb/s and 3 ms has in flight; five doublings. Sweep: 2
/// MiB: 1.1012; 8 MiB: 1.0984, fails **lumps**.
pub(super) const ALLOWANCE_LAST: u64 = 4 << 20;
/// A piece arrived in time if it took at most this many times what was expected, and [`HICCUP`]. A lane of unknown rate
/// is expected to carry what the best one does; four times slower is still worth its part. Sweep: 2: 1.1009; 8: 1.1008,
/// fails **lumps**.
pub(super) const IN_TIME: f64 = 4.0;

// Trials of a lane that has shown nothing for long.

/// Shortest silence after which a lane is tried. A recovery is found within a second (the test **slow**). Sweep: 250
/// ms: 1.1005; 1 s: 1.1006, worst 0.59.
pub(super) const SILENCE_MIN: u64 = 500_000_000;
/// Longest silence after which a lane is tried. A trial may cost 0.1 s then ([`TRIAL_PART`]); a lane that is farther is
/// due no later. Sweep: 5 s: 1.1008; 20 s: 1.1008.
pub(super) const SILENCE_MAX: u64 = 10_000_000_000;
/// A trial may cost one part in so many of the time. 1 %: half of what `adaptive` may lose against the best other
/// policy in `tests/shapes.rs`. Sweep: 50: 1.1005; 200: 1.1011.
pub(super) const TRIAL_PART: f64 = 100.0;
/// Pieces that go elsewhere between two trials. On a disk with little to do each request would be a trial after
/// [`SILENCE_MAX`] (the test **seldom**). Sweep: 8: 1.1008, fails **seldom**; 32: 1.1008.
pub(super) const TRIAL_REST: u64 = 16;
/// Greatest whole request that is a trial. As [`ALLOWANCE_FIRST`]: the lane may be as slow as a new one. Sweep: 64 KiB:
/// 1.1008; 256 KiB: 1.1008.
pub(super) const TRIAL_SIZE_MAX: u64 = 128 << 10;
/// Pause before the next look for a lane that is due and has something in flight. Small beside [`SILENCE_MIN`], long
/// beside a request. Sweep: 31.25 ms: 1.1007; 125 ms: 1.1006.
pub(super) const LOOK_AGAIN: u64 = SILENCE_MIN / 8;

// Trials of a lane behind a port that seems full.

/// Requests of the lane that decide a trial. Their mean varies by 3 %. Sweep: 2: 1.1009; 8: 1.1006.
pub(super) const PORT_TRIAL_OWN_IOS: u32 = 4;
/// Requests of all lanes that decide a trial. Two rounds ([`ROUND_IOS`]): they end in lumps, which must not be taken
/// for more. Sweep: 8: 1.1003, fails **lumps**; 32: 1.0987, fails **best** and **lumps**.
pub(super) const PORT_TRIAL_IOS: u32 = 16;
/// Time that decides a trial. Two windows of a port. Sweep: 8 ms: 1.1008; 32 ms: 1.1002.
pub(super) const PORT_TRIAL_TIME: u64 = 16_000_000;
/// Time after which a trial ends in any case. Less than [`PORT_PATIENCE_MIN`]: a lane that gets hardly anything must
/// not keep others from their trial. Sweep: 2 s: 1.1007; 8 s: 1.1008.
pub(super) const PORT_TRIAL_TIME_MAX: u64 = 4_000_000_000;
/// Least part of the bytes that the lane must have brought, as one in so many. More than the noise of the rest. Sweep:
/// 4: 1.1004, fails **best**; 16: 1.1008.
pub(super) const PORT_TRIAL_PART: u64 = 8;
/// Part of what the lane brought by which the port must have carried more. A full port carries nothing more; noise is
/// 10 %. Sweep: 0.125: 1.1017, fails **lumps**; 0.5: 1.0981, worst 0.52.
pub(super) const PORT_TRIAL_MORE: f64 = 0.25;
/// Shortest pause after a trial that found nothing. The 16 ms of a trial are 0.3 % of it. Sweep: 2.5 s: 1.1008; 10 s:
/// 1.1008.
pub(super) const PORT_PATIENCE_MIN: u64 = 5_000_000_000;
/// Longest pause after a trial that found nothing. The 16 ms of a trial are 0.02 % of it; a port that was made faster
/// is used within that time. Sweep: 40 s: 1.1008; 160 s: 1.1008.
pub(super) const PORT_PATIENCE_MAX: u64 = 80_000_000_000;
/// Factor by which the pause grows. The longest is reached by the third trial. Sweep: 2: 1.1008; 8: 1.1008.
pub(super) const PORT_PATIENCE_GROWTH: u64 = 4;

// Display.

/// Period over which lanes' shares are counted, and the one before. People look once a second.
pub(super) const SHARE_PERIOD: u64 = 1_000_000_000;
