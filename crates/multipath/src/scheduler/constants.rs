//! The constants of the policy `adaptive`, in one table.
//!
//! Bytes, nanoseconds and bytes per nanosecond, unless the name ends otherwise. What fixes each is said with it: a
//! shape of network of `tests/shapes.rs`, a property of disks and wires, or the sweep.

// Requests and pieces.

/// Size from which on a request loads a wire: it goes over the team's lanes and tells of their rates.
pub(super) const LOADING: u64 = 32 << 10;
/// Size from which on a request is divided where that helps.
pub(super) const DIVIDED_MIN: u64 = 256 << 10;
/// Least size of a piece of a divided request.
pub(super) const PIECE_MIN: u64 = 64 << 10;
/// Least part of its time that dividing a request must save.
pub(super) const DIVIDING_GAIN: f64 = 0.03;
/// A lane will soon be idle if its backlog, times this, is shorter than the request would take on the best lane.
pub(super) const IDLE_SOON: f64 = 4.0;

// Choice of one lane.

/// Weight of a lane's own queue beside the longest queue on its way.
pub(super) const OWN_QUEUE_WEIGHT: f64 = 0.125;
/// Expected duration of an operation in flight that is late: the time by which it is late, times this, from now on.
pub(super) const LATE: f64 = 2.0;
/// A slower idle lane relieves a queue only if it ends at most this many times later.
pub(super) const RELIEF_SLOWER_MAX: f64 = 16.0;
/// Data in flight that keep a lane busy: its bandwidth-delay product times this, and the next request.
pub(super) const BUSY_MARGIN: f64 = 1.25;
/// Period over which a queue must have stood: once at least, twice at most.
pub(super) const STANDING_PERIOD: u64 = 8_000_000;

// Team.

/// Two lanes are alike if the worse adds more than this part of what the better adds.
pub(super) const ALIKE: f64 = 0.88;
/// Least part of its rate that its ports must leave to a member.
pub(super) const MEMBER_PART_MIN: f64 = 0.4;
/// Rate that an unproven lane is expected to reach, times what it has shown.
pub(super) const UNPROVEN_PROMISE: f64 = 1.25;

// Latency.

/// Greatest request that tells of latency alone.
pub(super) const SMALL_MAX: u64 = 16 << 10;
/// Greatest request that tells of latency and rate together; the least is [`LOADING`].
pub(super) const MIDDLE_MAX: u64 = 512 << 10;
/// Latencies are believed up to the base times this, and [`BASE_CLIP_SLACK`].
pub(super) const BASE_CLIP: f64 = 4.0;
/// Added to what is believed of a latency.
pub(super) const BASE_CLIP_SLACK: f64 = 20_000.0;
/// Part of a lower latency that the base takes over.
pub(super) const BASE_FALL_GAIN: f64 = 0.125;
/// Part of a higher latency that the base takes over.
pub(super) const BASE_RISE_GAIN: f64 = 0.0625;
/// A request alone on its lane that is this many times faster than the base says shows that the lane has recovered.
pub(super) const RECOVERED: f64 = 1.25;
/// Times of requests alone on their lane are believed up to their mean times this.
pub(super) const LIGHT_CLIP: f64 = 2.0;
/// Part of each of them that the mean takes over.
pub(super) const LIGHT_GAIN: f64 = 0.25;

// Rate of a lane.

/// Rate of a lane of which nothing is known: one gigabit per second.
pub(super) const UNKNOWN_RATE: f64 = 0.125;
/// Bytes over which a busy lane is measured at least.
pub(super) const WINDOW_BYTES: u64 = 256 << 10;
/// Time over which a busy lane is measured at least.
pub(super) const WINDOW_TIME: u64 = 4_000_000;
/// Pieces that make a round even if more were in flight together.
pub(super) const ROUND_IOS: u64 = 8;
/// A round that takes this many times as long as expected, and [`HICCUP`], ends the window.
pub(super) const ROUND_LATE: f64 = 2.0;
/// Bytes that a window needs to tell of a rate.
pub(super) const MEASURED_MIN: u64 = 64 << 10;
/// Least part of a window in which data moved, as one in so many.
pub(super) const MOVING_PART: f64 = 2.0;
/// Longest time lost that a hiccup explains.
pub(super) const HICCUP: f64 = 8e6;
/// Gain of a window that began in the middle of a queue and ended with it: parts of it had been sent before.
pub(super) const RAN_DRY_GAIN: f64 = 1.0 / 16.0;
/// Gain of an unproven lane's windows.
pub(super) const UNPROVEN_GAIN: f64 = 0.5;
/// Gain of a window like those before.
pub(super) const STEADY_GAIN: f64 = 0.125;
/// A rate of this many times the known one is much faster.
pub(super) const MUCH_FASTER: f64 = 1.25;
/// Gain of such a window.
pub(super) const MUCH_FASTER_GAIN: f64 = 0.5;
/// A rate of this part of the known one is much slower.
pub(super) const MUCH_SLOWER: f64 = 0.7;
/// Gain of such a window if a hiccup may explain it.
pub(super) const MUCH_SLOWER_GAIN: f64 = 0.25;
/// A lane was alone on its ports if others placed at most one part in so many of its bytes there.
pub(super) const ALONE_PART: u64 = 16;
/// A port had room if it moved less than this part of its rate.
pub(super) const PORT_ROOM: f64 = 0.85;
/// Plans are made anew when a rate has changed by one part in so many.
pub(super) const REPLAN_PART: f64 = 16.0;

// Rate of a port.

/// Bytes over which a busy port is measured at least.
pub(super) const PORT_WINDOW_BYTES: u64 = 1 << 20;
/// Time over which a busy port is measured at least.
pub(super) const PORT_WINDOW_TIME: u64 = 8_000_000;
/// Requests over which a busy port is measured at least: those of several lanes end in lumps.
pub(super) const PORT_WINDOW_IOS: u64 = 8;
/// Bytes that a port's window needs to tell of a rate.
pub(super) const PORT_MEASURED_MIN: u64 = 256 << 10;
/// One lane's part of a window above which it tells of that lane: quarters.
pub(super) const PORT_LANE_QUARTERS: u64 = 3;
/// A request was held up if it took this many times as long as its lane takes alone.
pub(super) const HELD_UP: f64 = 1.2;
/// A port is congested if of its bytes more than one in so many were held up.
pub(super) const CONGESTED_PART: u64 = 2;
/// A port is free if of its bytes fewer than one in so many were held up.
pub(super) const FREE_PART: u64 = 8;
/// Gain of a port's window.
pub(super) const PORT_GAIN: f64 = 0.25;
/// A free port that carries this part of its rate may carry more.
pub(super) const PORT_USED: f64 = 0.9;
/// What it is taken to carry then, times its rate.
pub(super) const PORT_GROWTH: f64 = 1.05;

// Trust of a lane that is new or has returned.

/// Bytes that it may have in flight at first.
pub(super) const ALLOWANCE_FIRST: u64 = 128 << 10;
/// Allowance at which it is proven.
pub(super) const ALLOWANCE_LAST: u64 = 4 << 20;
/// A piece arrived in time if it took at most this many times what was expected, and [`HICCUP`].
pub(super) const IN_TIME: f64 = 4.0;

// Trials of a lane that has shown nothing for long.

/// Shortest silence after which a lane is tried.
pub(super) const SILENCE_MIN: u64 = 500_000_000;
/// Longest silence after which a lane is tried.
pub(super) const SILENCE_MAX: u64 = 10_000_000_000;
/// A trial may cost one part in so many of the time.
pub(super) const TRIAL_PART: f64 = 100.0;
/// Pieces that go elsewhere between two trials.
pub(super) const TRIAL_REST: u64 = 16;
/// Greatest whole request that is a trial.
pub(super) const TRIAL_SIZE_MAX: u64 = 128 << 10;
/// Pause before the next look for a lane that is due and has something in flight.
pub(super) const LOOK_AGAIN: u64 = SILENCE_MIN / 8;

// Trials of a lane behind a port that seems full.

/// Requests of the lane that decide a trial.
pub(super) const PORT_TRIAL_OWN_IOS: u32 = 4;
/// Requests of all lanes that decide a trial.
pub(super) const PORT_TRIAL_IOS: u32 = 16;
/// Time that decides a trial.
pub(super) const PORT_TRIAL_TIME: u64 = 16_000_000;
/// Time after which a trial ends undecided.
pub(super) const PORT_TRIAL_TIME_MAX: u64 = 4_000_000_000;
/// Least part of the bytes that the lane must have brought, as one in so many.
pub(super) const PORT_TRIAL_PART: u64 = 8;
/// Part of what the lane brought by which the port must have carried more.
pub(super) const PORT_TRIAL_MORE: f64 = 0.25;
/// Shortest pause after a trial that found nothing.
pub(super) const PORT_PATIENCE_MIN: u64 = 5_000_000_000;
/// Longest pause after a trial that found nothing.
pub(super) const PORT_PATIENCE_MAX: u64 = 80_000_000_000;
/// Factor by which the pause grows.
pub(super) const PORT_PATIENCE_GROWTH: u64 = 4;

// Display.

/// Period over which lanes' shares are counted, and the one before.
pub(super) const SHARE_PERIOD: u64 = 1_000_000_000;
