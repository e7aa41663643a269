//! Every method of the waist reaches what is inside a layer; `confirm` reaches what is below any device.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Below, Disk, Outcome, Probe, SIZE_MIN, Subject, Verdict, ensure};
use crate::{BlockDevice, BlockError, Buf, Compaction, Durability, Io, Layer, Permit, SharedBuf, Zeroing};

/// Operations with what they are called, as [`Probe`] calls them.
const OPERATIONS: [&str; 14] = [
    "read",
    "write",
    "durable write",
    "flush",
    "unmap",
    "zeroing",
    "zeroing that keeps space",
    "extents",
    "first extents",
    "confirm",
    "resize",
    "snapshot",
    "compact",
    "close",
];

pub(super) async fn passes_on(subject: &Subject) -> Verdict {
    let (Some(kept), Below::Device(over)) = (subject.layer, &subject.below) else {
        return Ok(Outcome::Lacks("no layer"));
    };
    let probe = Arc::new(Probe::default());
    let instance = over(probe.clone()).await;
    let device = &*instance.device;
    let mut missing: Vec<&str> = Vec::new();
    let mut expect = |method: &'static str, reached: bool| {
        if !reached {
            missing.push(method);
        }
    };
    let inside = probe.geometry();
    let shown = device.geometry();
    expect("geometry", shown == inside);
    expect("pull", device.pull() == probe.pull());
    expect("space", device.space() == probe.space());
    expect("what is wrong with the file behind it", device.backing() == probe.backing());
    expect("a lost name of the file behind it", device.lost_name() == probe.lost_name());
    expect("paths", device.paths() == probe.paths());
    expect("identity", device.identity() == probe.identity());
    expect("caching", device.caching() == probe.caching());
    probe.take_reached();
    for operation in OPERATIONS {
        let answer = carry_out(device, operation).await;
        let reached = probe.take_reached();
        expect(operation, answer.is_ok() && reached == [operation]);
    }
    let answered = device.extents(0, 8192, usize::MAX).await;
    let same = answered.is_ok_and(|list| Some(&list) == ready(probe.extents(0, 8192, usize::MAX)).as_ref());
    expect("extents", same);
    let read = device.read(4096, Buf::zeroed(4096)).await;
    expect("read", read.is_ok_and(|buf| buf.iter().all(|&byte| byte == Probe::BYTE)));
    // Last: a layer that mends a lost cache has something to do after this.
    let heard = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
    let counting = |counter: &Arc<AtomicU32>| {
        let counter = Arc::clone(counter);
        move || {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    };
    let (resized, news) = (counting(&heard[0]), counting(&heard[1]));
    device.on_resize(Box::new(move |_| resized()));
    device.on_cache_news(Box::new(move |_| news()));
    probe.tell();
    for (method, heard) in ["on_resize", "on_cache_news"].into_iter().zip(&heard) {
        expect(method, heard.load(Ordering::Relaxed) == 1);
    }
    missing.dedup();
    let names: Vec<&str> = kept.iter().map(|(method, _)| *method).collect();
    let forgotten: Vec<&str> = missing.iter().filter(|method| !names.contains(method)).copied().collect();
    ensure!(forgotten.is_empty(), "does not pass on: {}", forgotten.join(", "));
    let wrong: Vec<&str> = names.into_iter().filter(|method| !missing.contains(method)).collect();
    ensure!(wrong.is_empty(), "passes on what it is said to keep: {}", wrong.join(", "));
    Ok(Outcome::Holds)
}

/// A disk that others have taken away.
struct Lost(Disk);

impl Layer for Lost {
    fn inner(&self) -> &dyn BlockDevice {
        &self.0
    }

    fn confirm(&self) -> Io<Result<(), BlockError>> {
        Io::err(BlockError::Medium { offset: 0 })
    }
}

/// A protocol between two devices may have no such question: that is said, and no error.
pub(super) async fn confirm(subject: &Subject) -> Verdict {
    let fresh = subject.fresh().await;
    let confirmed = fresh.device.confirm().await;
    ensure!(confirmed == Ok(()), "of a fresh device: {confirmed:?}");
    let (size, over) = match &subject.below {
        Below::Nothing => return Ok(Outcome::Holds),
        Below::Device(over) => (SIZE_MIN, over),
        Below::Format(size, over) => (*size, over),
    };
    let instance = over(Arc::new(Lost(Disk::new(size)))).await;
    match instance.device.confirm().await {
        Err(BlockError::Medium { offset: 0 }) => Ok(Outcome::Holds),
        Ok(()) if subject.layer.is_none() => Ok(Outcome::Lacks("not asked below")),
        answer => Err(format!("of a device that was taken away: {answer:?}")),
    }
}

async fn carry_out(device: &dyn BlockDevice, operation: &str) -> Result<(), BlockError> {
    let data = || -> SharedBuf { Buf::zeroed(4096).freeze() };
    match operation {
        "read" => device.read(0, Buf::zeroed(4096)).await.map(drop),
        "write" => device.write(0, data(), Durability::Volatile).await,
        "durable write" => device.write(0, data(), Durability::Stable).await,
        "flush" => device.flush().await,
        "unmap" => device.unmap(0, 4096).await,
        "zeroing" => device.write_zeroes(0, 4096, Zeroing::MayUnmap).await,
        "zeroing that keeps space" => device.write_zeroes(0, 4096, Zeroing::KeepAllocated).await,
        "extents" => device.extents(0, 4096, usize::MAX).await.map(drop),
        "first extents" => device.extents(0, 4096, 1).await.map(drop),
        "confirm" => device.confirm().await,
        "snapshot" => device.snapshot(Path::new("leaf"), Box::new(|| Ok(()))).await,
        "compact" => device.compact(Arc::new(Compaction::new(1))).await,
        "close" => device.close().await,
        _ => device.resize(Probe::SIZE, Permit::default()).await,
    }
}

fn ready<T>(io: Io<Result<T, BlockError>>) -> Option<T> {
    match io {
        Io::Ready(answer) => answer.ok(),
        Io::Pending(_) => None,
    }
}
