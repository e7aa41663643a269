//! The second act where no network can be built: proxies on this machine that stand for cables.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use lunway_bench::{BlockSizes, Cancel, End, Job, Limit, Mix, Pattern, Region};
use lunway_device::{OpenOptions, Opened};
use lunway_lab::experiment::{Label, SAMPLING, Sampler};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::act::Act;
use super::on_loopback;
use super::volumes::Volumes;
use crate::command::serve;
use crate::device;
use crate::failure::Failure;

const NAME: &str = "iqn.2026-11.io.lunway:lanes";
/// Not a number of the first act, whose volumes are there still.
const LUN: u16 = 2;
/// As in the sandbox: what is written, for how long, and when the lane is out.
const SIZE: u64 = 64 << 20;
const BLOCK: u32 = 256 << 10;
const DEPTH: u32 = 8;
const TIME: Duration = Duration::from_secs(6);
const PULLED: Duration = Duration::from_secs(2);
const PLUGGED: Duration = Duration::from_secs(4);
/// Bandwidth of a proxy in each direction, bytes per second: about that of a cable of 200 Mbit.
const RATE: u32 = 24_600_000;
/// A proxy passes on so much at once.
const CHUNK: usize = 32 << 10;
/// Longest delay that a proxy makes up for: timers are late on a busy machine.
const LATE: Duration = Duration::from_millis(10);

/// Serves, reaches the disk over two proxies, and closes one of them in mid-write. `reason` is why there are no cables.
pub(super) async fn act(volumes: &Volumes, reason: &str, cancel: &Cancel) -> Result<Act, Failure> {
    let config = on_loopback(NAME, vec![volumes.unit(LUN, SIZE, 512)?])?;
    let server = serve::start(config).await?;
    let result = async {
        let portal = *server.addresses().first().context("the target listens nowhere")?;
        let lanes = [1, 2].map(|last| Proxy::start(Ipv4Addr::new(127, 0, 0, last), portal));
        let [first, second] = lanes.map(|lane| lane.context("cannot start a proxy"));
        let (first, second) = (first?, second?);
        let device = open(&first, &second).await?;
        let shown = measure(&device, [&first, &second], cancel).await;
        device.close_or_log().await;
        shown
    }
    .await;
    server.shutdown(Duration::from_secs(2)).await.map_err(Failure::failed)?;
    Ok(Act {
        lanes: format!(
            "Networks cannot be built here ({reason}): the lanes are proxies on {} and {}, and pulling one closes it.",
            Ipv4Addr::LOCALHOST,
            Ipv4Addr::new(127, 0, 0, 2)
        ),
        ..result?
    })
}

async fn open(first: &Proxy, second: &Proxy) -> Result<Opened, Failure> {
    let lane = |proxy: &Proxy| format!("lane={}>{}", proxy.address.ip(), proxy.address);
    let url =
        format!("iscsi://{}/{NAME}/{LUN}?{}&{}&policy=adaptive", first.address, lane(first), lane(second));
    device::open(&device::parse(&url)?, &OpenOptions::default()).await
}

async fn measure(device: &Opened, lanes: [&Proxy; 2], cancel: &Cancel) -> Result<Act, Failure> {
    let job = Job {
        pattern: Pattern::Sequential,
        mix: Mix::WRITE,
        queue_depth: DEPTH,
        limit: Limit::Time(TIME),
        region: Some(Region { offset: 0, len: SIZE }),
        block_sizes: BlockSizes::Fixed(BLOCK),
        verify: true,
        destroy: true,
        ..Job::new("second act")
    };
    let labels = lanes.iter().enumerate().map(|(index, proxy)| Label {
        ends: (proxy.address.ip(), proxy.address),
        name: format!("lane{}", index + 1),
    });
    let origin = Instant::now();
    let sampler = Sampler::start(device.device.clone(), origin.into_std(), labels.collect());
    let happen = async {
        let mut events = Vec::new();
        for (at, plugged, what) in [(PULLED, false, "lane1 pulled"), (PLUGGED, true, "lane1 plugged in")] {
            sleep_until(origin + at).await;
            lanes[0].plugged.send_replace(plugged);
            events.push((origin.elapsed(), what.to_owned()));
        }
        events
    };
    let mut silent = |_: &lunway_bench::Tick| {};
    let measuring = lunway_bench::run(device.device.clone(), &job, &mut silent, cancel);
    let (outcome, mut events) = tokio::join!(measuring, happen);
    let seen = sampler.end(TIME, None);
    let outcome = outcome.map_err(Failure::failed)?;
    if outcome.end == End::Cancelled {
        return Err(Failure::failed(anyhow::anyhow!("interrupted")));
    }
    events.extend(seen.marks.into_iter().map(|mark| (mark.at, mark.what)));
    events.sort_by_key(|(at, _)| *at);
    Ok(Act {
        lanes: String::new(),
        interval: SAMPLING,
        lines: seen.lines,
        events,
        mb: outcome.write.bytes as f64 / 1e6,
        longest_ms: outcome.write.response.max() as f64 / 1e6,
        errors: outcome.errors(),
        verified: outcome.verification.map(|found| (found.checked, found.faulty)).unwrap_or_default(),
    })
}

/// A listener that passes on what it gets, as fast as a cable would, and can be pulled out: its connections end, and
/// no connection is let in until it is plugged in again. Lives on a thread of its own, until this is dropped.
struct Proxy {
    address: SocketAddr,
    plugged: watch::Sender<bool>,
}

impl Proxy {
    fn start(address: Ipv4Addr, portal: SocketAddr) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind((address, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (plugged, is_plugged) = watch::channel(true);
        thread::Builder::new().name("lane".to_owned()).spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(pass_on(listener, portal, is_plugged))
        })?;
        Ok(Self { address, plugged })
    }
}

/// Ends when the proxy is dropped.
async fn pass_on(
    listener: std::net::TcpListener,
    portal: SocketAddr,
    mut is_plugged: watch::Receiver<bool>,
) -> io::Result<()> {
    let address = listener.local_addr()?;
    let mut listener = Some(TcpListener::from_std(listener)?);
    // What is in it ends when it is dropped.
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            accepted = accepted => {
                let (client, _) = accepted?;
                connections.spawn(carry(client, portal));
            }
            changed = is_plugged.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                let plugged = *is_plugged.borrow();
                connections = JoinSet::new();
                listener = if plugged { Some(TcpListener::bind(address).await?) } else { None };
            }
        }
    }
}

/// Carries one connection, both ways, until either end closes.
async fn carry(client: TcpStream, portal: SocketAddr) -> io::Result<()> {
    let server = TcpStream::connect(portal).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        there = one_way(from_client, to_server) => there,
        back = one_way(from_server, to_client) => back,
    }
}

async fn one_way(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut free = Instant::now();
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..count]).await?;
        free = free.max(Instant::now() - LATE) + Duration::from_secs_f64(count as f64 / f64::from(RATE));
        sleep_until(free).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_proxy_that_is_pulled_ends_its_connections_and_lets_nobody_in_until_it_is_back() {
        let echo = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let portal = echo.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = echo.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    tokio::io::copy(&mut from, &mut to).await
                });
            }
        });
        let proxy = Proxy::start(Ipv4Addr::LOCALHOST, portal).unwrap();
        let answered = async || -> io::Result<[u8; 5]> {
            let mut stream = TcpStream::connect(proxy.address).await?;
            stream.write_all(b"hello").await?;
            let mut answer = [0; 5];
            stream.read_exact(&mut answer).await?;
            Ok(answer)
        };
        let mut before = TcpStream::connect(proxy.address).await.unwrap();
        assert_eq!(&answered().await.unwrap(), b"hello");
        proxy.plugged.send_replace(false);
        let ended = before.read(&mut [0; 1]).await;
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
        assert!(answered().await.is_err());
        proxy.plugged.send_replace(true);
        // It listens again a moment later.
        let mut back = answered().await;
        for _ in 0..100 {
            if back.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            back = answered().await;
        }
        assert_eq!(&back.unwrap(), b"hello");
    }
}
