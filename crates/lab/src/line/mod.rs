//! Delay and loss.

mod random;
mod tap;

use std::collections::VecDeque;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::topology::Loss;

use random::Random;
pub(crate) use tap::Tap;

/// The most bytes that are under way in one direction: a gigabit for half a second. More are dropped, as a line with
/// too small a buffer does.
const UNDER_WAY_MAX: usize = 64 << 20;
/// Frames that are taken in before those that are due are handed on.
const BATCH: usize = 32;
/// Ethernet's header, and a tag that somebody may have put in, bytes.
const HEADERS: usize = 18;

/// A cable on which frames are under way for a time, and some get lost, between two TAP devices.
///
/// A thread for each direction takes frames from one device, keeps each for the delay, and hands it to the other. The
/// order is kept, also where the delay becomes shorter meanwhile. The rate is not this one's matter: the kernel shapes
/// what a device sends before it comes here.
///
/// The kernel's own `netem` would do this, but many kernels are built without it, and it forgets what it holds when it
/// is changed. This is the same everywhere. The price is a copy of each frame in and out, and two to three microseconds
/// of a core.
#[derive(Debug)]
pub(crate) struct Line {
    settings: Arc<Settings>,
    taps: [Arc<Tap>; 2],
    stop: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

/// Settings shared by both directions; they can change.
#[derive(Debug)]
struct Settings {
    delay_ns: AtomicU64,
    /// As a share of 2⁶⁴: a frame is lost when a random number is below. The largest number is all.
    loss: AtomicU64,
    black_hole: AtomicBool,
    pulled: AtomicBool,
}

impl Line {
    /// A line between two devices for packets of up to `mtu`. The same `seed` loses the same frames, counted from the
    /// beginning.
    pub(crate) fn start(
        name: &str,
        taps: [Tap; 2],
        mtu: u32,
        delay: Duration,
        loss: Loss,
        seed: u64,
    ) -> io::Result<Self> {
        let settings = Arc::new(Settings {
            delay_ns: AtomicU64::new(nanos(delay)),
            loss: AtomicU64::new(threshold(loss)),
            black_hole: AtomicBool::new(false),
            pulled: AtomicBool::new(false),
        });
        let taps = taps.map(Arc::new);
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let mut line = Self { settings, taps, stop, threads: Vec::new() };
        for direction in 0..2 {
            let mut way = Way {
                settings: line.settings.clone(),
                from: line.taps[direction].clone(),
                to: line.taps[1 - direction].clone(),
                stop: line.stop.clone(),
                random: Random::new(seed.wrapping_mul(2).wrapping_add(direction as u64)),
                frame_max: mtu as usize + HEADERS,
                under_way: VecDeque::new(),
                bytes: 0,
                spare: Vec::new(),
            };
            let thread = thread::Builder::new().name(name.to_owned()).spawn(move || way.run())?;
            line.threads.push(thread);
        }
        Ok(line)
    }

    pub(crate) fn set_delay(&self, delay: Duration) {
        self.settings.delay_ns.store(nanos(delay), Ordering::Relaxed);
    }

    pub(crate) fn set_loss(&self, loss: Loss) {
        self.settings.loss.store(threshold(loss), Ordering::Relaxed);
    }

    pub(crate) fn set_black_hole(&self, black_hole: bool) {
        self.settings.black_hole.store(black_hole, Ordering::Relaxed);
    }

    /// Pulls it, or plugs it in: both devices lose their carrier or get it. What was under way is lost.
    pub(crate) fn set_pulled(&self, pulled: bool) -> io::Result<()> {
        self.settings.pulled.store(pulled, Ordering::Relaxed);
        self.taps.iter().try_for_each(|tap| tap.set_carrier(!pulled))
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // Cannot fail: the counter is far from full.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn nanos(delay: Duration) -> u64 {
    u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX)
}

fn threshold(loss: Loss) -> u64 {
    // Saturates: all is the largest number.
    (loss.share() * 2_f64.powi(64)) as u64
}

/// One direction.
struct Way {
    settings: Arc<Settings>,
    from: Arc<Tap>,
    to: Arc<Tap>,
    stop: Arc<OwnedFd>,
    random: Random,
    frame_max: usize,
    /// In the order in which they are due.
    under_way: VecDeque<Frame>,
    bytes: usize,
    /// Memory of frames that were handed on.
    spare: Vec<Vec<u8>>,
}

struct Frame {
    due: Instant,
    bytes: Vec<u8>,
}

impl Way {
    fn run(&mut self) {
        // By default the kernel lets a thread sleep 50 µs longer than it asked for.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        loop {
            // An error: the device is gone, and so is the network.
            let Ok(more) = self.take_in() else { return };
            self.hand_on();
            if !more && self.wait() {
                return;
            }
        }
    }

    /// Takes what has come; whether there may be more.
    fn take_in(&mut self) -> io::Result<bool> {
        for _ in 0..BATCH {
            let mut bytes = self.spare.pop().unwrap_or_default();
            bytes.resize(self.frame_max, 0);
            let taken = self.from.receive(&mut bytes);
            let now = Instant::now();
            match taken {
                Ok(length) => {
                    bytes.truncate(length);
                    self.begin(now, bytes);
                }
                Err(error) => {
                    self.spare.push(bytes);
                    return match error.kind() {
                        io::ErrorKind::WouldBlock => Ok(false),
                        io::ErrorKind::Interrupted => Ok(true),
                        _ => Err(error),
                    };
                }
            }
        }
        Ok(true)
    }

    fn begin(&mut self, now: Instant, bytes: Vec<u8>) {
        let lost = match self.settings.loss.load(Ordering::Relaxed) {
            0 => false,
            u64::MAX => true,
            threshold => self.random.next() < threshold,
        };
        if lost || self.swallows() || self.bytes + bytes.len() > UNDER_WAY_MAX {
            self.spare.push(bytes);
            return;
        }
        let due = now + Duration::from_nanos(self.settings.delay_ns.load(Ordering::Relaxed));
        // Behind the last one, also where the delay was longer for that.
        let due = self.under_way.back().map_or(due, |last| due.max(last.due));
        self.bytes += bytes.len();
        self.under_way.push_back(Frame { due, bytes });
    }

    /// Hands on what is due.
    fn hand_on(&mut self) {
        let mut now = Instant::now();
        while self.under_way.front().is_some_and(|frame| frame.due <= now) {
            let Some(frame) = self.under_way.pop_front() else { break };
            self.bytes -= frame.bytes.len();
            if !self.swallows() {
                // What the other end cannot take, because it is down or full, is lost as on a real card.
                let _ = self.to.send(&frame.bytes);
            }
            self.spare.push(frame.bytes);
            // Handing on takes time, in which the next may become due.
            if self.under_way.front().is_some_and(|next| next.due > now) {
                now = Instant::now();
            }
        }
        self.spare.truncate(BATCH);
    }

    fn swallows(&self) -> bool {
        self.settings.black_hole.load(Ordering::Relaxed) || self.settings.pulled.load(Ordering::Relaxed)
    }

    /// Until a frame comes or one is due; whether to stop.
    fn wait(&self) -> bool {
        let until_due = self.under_way.front().map(|frame| {
            let wait = frame.due.saturating_duration_since(Instant::now());
            // At most the longest delay, which fits.
            Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() }
        });
        let mut fds = [PollFd::new(&*self.from, PollFlags::IN), PollFd::new(&*self.stop, PollFlags::IN)];
        match poll(&mut fds, until_due.as_ref()) {
            Ok(_) => !fds[1].revents().is_empty(),
            Err(error) => error != rustix::io::Errno::INTR,
        }
    }
}
