//! A device that fails on purpose.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::spec::{FaultOp, FaultRule, FaultSpec};
use crate::{BlockDevice, BlockError, Buf, Durability, Io, SharedBuf, Zeroing};

/// Interval between checks for the switch file: short enough for a person and a script, long enough (a check is a
/// system call of about 1 µs) not to show in a measurement.
const SWITCH_PERIOD: Duration = Duration::from_millis(10);

/// Fails operations or corrupts reads as a [`FaultSpec`] says: `fault:SPEC:DEVICE`.
///
/// A failed operation never reaches the device. A range that the device would refuse is refused by the
/// device, so that an injected fault is never taken for a caller's mistake. The generator is deterministic:
/// one thread issuing the same operations meets the same faults. Several threads meet the same number, in
/// another order.
pub struct Fault {
    inner: Arc<dyn BlockDevice>,
    spec: FaultSpec,
    random: Random,
    switch: Option<Switch>,
}

impl Fault {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn BlockDevice>, spec: FaultSpec) -> Self {
        let random = Random { seed: spec.seed, draws: AtomicU64::new(0) };
        let switch = spec.file.clone().map(Switch::new);
        Self { inner, spec, random, switch }
    }

    /// The first byte that a rule for `op` hits in the range, if one strikes now.
    fn strikes(&self, op: FaultOp, offset: u64, len: u64) -> Option<u64> {
        if !self.switch.as_ref().is_none_or(Switch::on) {
            return None;
        }
        let mut rules = self.spec.rules.iter().filter(|rule| rule.op == op);
        rules.find_map(|rule| {
            let first = first_hit(rule, offset, len)?;
            (rule.rate >= 1.0 || self.random.fraction() < rule.rate).then_some(first)
        })
    }

    /// `Err` where the operation shall fail; the device's own complaint about the range goes first.
    fn fails(&self, op: FaultOp, offset: u64, len: u64) -> Result<(), BlockError> {
        match self.strikes(op, offset, len) {
            Some(first) if self.inner.geometry().check(offset, len).is_ok() => Err(self.spec.error.at(first)),
            _ => Ok(()),
        }
    }
}

/// The first byte of the range that the rule covers. A flush has no range and is covered by any.
fn first_hit(rule: &FaultRule, offset: u64, len: u64) -> Option<u64> {
    match &rule.range {
        _ if rule.op == FaultOp::Flush => Some(0),
        _ if len == 0 => None,
        None => Some(offset),
        Some(range) => {
            let first = offset.max(range.start);
            (first < offset.saturating_add(len).min(range.end)).then_some(first)
        }
    }
}

impl crate::Layer for Fault {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Result<Buf, BlockError>> {
        let len = buf.len() as u64;
        if let Err(error) = self.fails(FaultOp::Read, offset, len) {
            return Io::err(error);
        }
        let Some(first) = self.strikes(FaultOp::Corrupt, offset, len) else {
            return self.inner.read(offset, buf);
        };
        // One bit or more of the byte changes, whatever it was; which one is drawn too.
        let (index, mask) = ((first - offset) as usize, (self.random.next() as u8) | 1);
        self.inner.read(offset, buf).map(move |answer| {
            answer.map(|mut buf| {
                if let Some(byte) = buf.get_mut(index) {
                    *byte ^= mask;
                }
                buf
            })
        })
    }

    fn write(&self, offset: u64, data: SharedBuf, durability: Durability) -> Io<Result<(), BlockError>> {
        match self.fails(FaultOp::Write, offset, data.len() as u64) {
            Ok(()) => self.inner.write(offset, data, durability),
            Err(error) => Io::err(error),
        }
    }

    fn flush(&self) -> Io<Result<(), BlockError>> {
        match self.fails(FaultOp::Flush, 0, 0) {
            Ok(()) => self.inner.flush(),
            Err(error) => Io::err(error),
        }
    }

    fn unmap(&self, offset: u64, len: u64) -> Io<Result<(), BlockError>> {
        match self.fails(FaultOp::Unmap, offset, len) {
            Ok(()) => self.inner.unmap(offset, len),
            Err(error) => Io::err(error),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, zeroing: Zeroing) -> Io<Result<(), BlockError>> {
        match self.fails(FaultOp::Write, offset, len) {
            Ok(()) => self.inner.write_zeroes(offset, len, zeroing),
            Err(error) => Io::err(error),
        }
    }
}

/// SplitMix64 over a counter: no lock, and each draw is a function of the seed and its number alone.
struct Random {
    seed: u64,
    draws: AtomicU64,
}

impl Random {
    fn next(&self) -> u64 {
        let draw = self.draws.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let mut z = self.seed.wrapping_add(draw.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 up to, not including, 1.
    fn fraction(&self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// A file whose existence turns faults on.
struct Switch {
    path: PathBuf,
    start: Instant,
    /// Nanoseconds after `start` from which on the answer is too old.
    stale_at: AtomicU64,
    on: AtomicBool,
}

impl Switch {
    fn new(path: PathBuf) -> Self {
        Self { path, start: Instant::now(), stale_at: AtomicU64::new(0), on: AtomicBool::new(false) }
    }

    fn on(&self) -> bool {
        let now = self.start.elapsed().as_nanos() as u64;
        let stale_at = self.stale_at.load(Ordering::Relaxed);
        let next = now + SWITCH_PERIOD.as_nanos() as u64;
        // The thread that moves the moment looks; the others use the old answer meanwhile.
        let relaxed = Ordering::Relaxed;
        if now >= stale_at && self.stale_at.compare_exchange(stale_at, next, relaxed, relaxed).is_ok() {
            self.on.store(self.path.exists(), relaxed);
        }
        self.on.load(relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decorate::test_device::TestDevice;

    fn fault(spec: &str) -> Fault {
        Fault::new(TestDevice::new(8192).shared(), spec.parse().unwrap())
    }

    fn read(device: &Fault, offset: u64) -> Result<Buf, BlockError> {
        match device.read(offset, Buf::zeroed(512)) {
            Io::Ready(answer) => answer,
            Io::Pending(_) => panic!("not ready"),
        }
    }

    #[tokio::test]
    async fn only_the_named_operations_fail() {
        let data = Buf::copy_of(&[9; 512]).freeze();
        let medium = BlockError::Medium { offset: 0 };
        let device = fault("write,flush");
        assert_eq!(device.write(0, data.clone(), Durability::Volatile).await, Err(medium.clone()));
        assert_eq!(device.write_zeroes(0, 512, Zeroing::MayUnmap).await, Err(medium.clone()));
        assert_eq!(device.flush().await, Err(medium.clone()));
        assert_eq!(device.unmap(0, 512).await, Ok(()));
        assert_eq!(&read(&device, 0).unwrap()[..], &[0; 512], "a failed write must not reach the device");
        let device = fault("unmap,error=busy");
        assert_eq!(device.unmap(0, 512).await, Err(BlockError::Busy));
        assert_eq!(device.write(0, data, Durability::Volatile).await, Ok(()));
    }

    #[test]
    fn a_range_hits_what_touches_it_and_says_where() {
        let device = fault("read@1K-2K");
        assert!(read(&device, 512).is_ok());
        assert!(read(&device, 2048).is_ok());
        assert_eq!(read(&device, 1536).unwrap_err(), BlockError::Medium { offset: 1536 });
        let Io::Ready(answer) = device.read(0, Buf::zeroed(4096)) else { panic!("not ready") };
        assert_eq!(answer.unwrap_err(), BlockError::Medium { offset: 1024 });
    }

    #[test]
    fn the_callers_own_mistakes_keep_their_names() {
        assert!(matches!(read(&fault("read"), 8192), Err(BlockError::OutOfRange { .. })));
        assert!(matches!(read(&fault("read"), 1), Err(BlockError::Misaligned { .. })));
    }

    #[test]
    fn a_rate_is_met_and_a_seed_repeats_it() {
        let fates = |seed: u64| {
            let device = fault(&format!("read=0.1,seed={seed}"));
            (0..10_000).map(|_| read(&device, 0).is_err()).collect::<Vec<_>>()
        };
        let failed = fates(1).iter().filter(|&&failed| failed).count();
        assert!((850..1150).contains(&failed), "{failed} of 10000");
        assert_eq!(fates(1), fates(1));
        assert_ne!(fates(1), fates(2));
        assert!(!(0..1000).any(|_| read(&fault("read=0"), 0).is_err()));
    }

    #[tokio::test]
    async fn corruption_succeeds_with_one_byte_wrong() {
        for pending in [false, true] {
            let inner = TestDevice::new(8192).answering_later(pending).shared();
            let device = Fault::new(inner, "corrupt@1000-1001".parse().unwrap());
            let buf = device.read(512, Buf::zeroed(1024)).await.unwrap();
            let wrong: Vec<_> = (0..1024).filter(|&index| buf[index] != 0).collect();
            assert_eq!(wrong, [1000 - 512]);
        }
    }

    #[test]
    fn a_file_switches_it_on_and_off() {
        let path = std::env::temp_dir().join(format!("lunway-fault-switch-{}", std::process::id()));
        let device = fault(&format!("read,file={}", path.display()));
        assert!(read(&device, 0).is_ok());
        std::fs::write(&path, "").unwrap();
        std::thread::sleep(2 * SWITCH_PERIOD);
        let while_there = read(&device, 0);
        std::fs::remove_file(&path).unwrap();
        assert!(while_there.is_err());
        std::thread::sleep(2 * SWITCH_PERIOD);
        assert!(read(&device, 0).is_ok());
    }
}
