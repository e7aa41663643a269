//! Sessions of our own initiator, straight to the daemon or through a connection that breaks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lunway_block::{BlockDevice, BlockError, Buf, Durability, Zeroing};
use lunway_initiator::{IscsiDevice, IscsiUrl, SessionOptions};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::daemon::TARGET;
use crate::region::{BLOCK, BLOCKS, Region};
use crate::tally::{Random, Tally};

/// Lives one session after the other until the task is dropped.
pub(crate) async fn live(slot: u64, address: SocketAddr, breaks: bool, tally: Arc<Tally>) {
    let mut random = Random(slot);
    let mut region = Region::new(slot);
    let portal = if breaks { breaking(slot, address, tally.clone()).await } else { address };
    let url = format!("iscsi://{portal}/{TARGET}/0?initiator=iqn.2026-11.com.example:polite-{slot}");
    // Two hundred sessions that watch their sockets without sleeping would leave no core for the daemon.
    let options = SessionOptions { spin: Duration::ZERO, ..SessionOptions::default() };
    let mut first = true;
    loop {
        let url = IscsiUrl::parse(&url).expect("a good address");
        let device = match IscsiDevice::open(url, options.clone()).await {
            Ok(device) => device,
            // Opening does not try again: that is the caller's to do.
            Err(_) if breaks => continue,
            Err(error) => {
                tally.fail(format!("polite session {slot}: {error}"));
                sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        tally.logins.add(1);
        let result = one_life(&device, &mut region, &mut random, first, &tally).await;
        if let Err(error) = result {
            tally.fail(format!("polite session {slot}: {error}"));
            return;
        }
        first = false;
        if random.once_in(2) {
            device.close().await;
        }
        drop(device);
        sleep(Duration::from_millis(random.below(100))).await;
    }
}

async fn one_life(
    device: &IscsiDevice,
    region: &mut Region,
    random: &mut Random,
    first: bool,
    tally: &Tally,
) -> Result<(), String> {
    let failed = |error: BlockError| error.to_string();
    if first {
        write(device, region, 0, BLOCKS, tally).await.map_err(failed)?;
    }
    for _ in 0..5 + random.below(40) {
        let block = random.below(BLOCKS);
        let count = 1 + random.below((BLOCKS - block).min(16));
        let offset = region.lba(block) * BLOCK as u64;
        match random.below(10) {
            0..4 => write(device, region, block, count, tally).await.map_err(failed)?,
            4 => {
                region.sent(block, count, 0);
                let len = count * BLOCK as u64;
                if random.once_in(2) {
                    device.write_zeroes(offset, len, Zeroing::KeepAllocated).await.map_err(failed)?;
                } else {
                    device.unmap(offset, len).await.map_err(failed)?;
                }
                region.done(block, count, 0);
            }
            5 => device.flush().await.map_err(failed)?,
            _ => {
                let buf = Buf::zeroed(count as usize * BLOCK);
                let data = device.read(offset, buf).await.map_err(failed)?;
                region.verify(block, &data)?;
                tally.verified.add(count);
            }
        }
        sleep(Duration::from_millis(random.below(60))).await;
    }
    Ok(())
}

async fn write(
    device: &IscsiDevice,
    region: &mut Region,
    block: u64,
    count: u64,
    tally: &Tally,
) -> Result<(), BlockError> {
    let (stamp, data) = region.fresh(block, count);
    region.sent(block, count, stamp);
    let offset = region.lba(block) * BLOCK as u64;
    device.write(offset, Buf::copy_of(&data).freeze(), Durability::Volatile).await?;
    region.done(block, count, stamp);
    tally.written.add(count);
    Ok(())
}

/// A way to the daemon that breaks every second or so, wherever the bytes just are.
async fn breaking(slot: u64, address: SocketAddr, tally: Arc<Tally>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let local = listener.local_addr().expect("it is bound");
    let mut random = Random(!slot);
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let Ok(mut far) = TcpStream::connect(address).await else { continue };
            let lifetime = Duration::from_millis(100 + random.below(2500));
            let tally = tally.clone();
            tokio::spawn(async move {
                if timeout(lifetime, copy_bidirectional(&mut near, &mut far)).await.is_err() {
                    tally.cut.add(1);
                }
            });
        }
    });
    local
}
