//! The initiator, in a process of its own, so that it can be killed: what it did is known by what it has answered.
//!
//! The child opens the disk over all lanes and does what comes over a Unix socket. A request is 8 bytes of a number
//! that its answer bears, one of what to do ([`Verb`]), one of a flag, 8 each of offset and length, and the data of a
//! write; an answer is the number, a byte that is 0 if it was done, 4 of a length, and so many bytes: data, or the
//! sentence of an error.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, Buf};
use lunway_initiator::{InitiatorPorts, SessionOptions};
use lunway_iscsi_paths::{Address, IscsiMultipath};
use lunway_multipath::{LaneState, Policy};
use lunway_retain::{RetainingDevice, UNFLUSHED_MAX};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

use crate::connection::{Answer, Connection, Failed, Request, Verb, Waiting};

/// Tell the child where to connect, and what to open.
const SOCKET: &str = "LUNWAY_TORTURE_SOCKET";
const ADDRESS: &str = "LUNWAY_TORTURE_ADDRESS";
/// Tells the child where the host's sessions are recorded.
const RECORDS: &str = "LUNWAY_TORTURE_RECORDS";
/// How long the disk may take to be there: one cable is always well, but all may have been cut a moment ago.
const OPEN_TIME: Duration = Duration::from_secs(60);

const POLICIES: [&str; 5] = ["adaptive", "round-robin", "least-queue-depth", "service-time", "least-blocks"];

/// Carries requests and answers until either end is gone.
fn carry(
    connection: Arc<Connection>,
    stream: UnixStream,
    mut requests: mpsc::UnboundedReceiver<(Request, Waiting)>,
) {
    let (mut from, mut to) = stream.into_split();
    let waiting = Arc::new(Mutex::new(HashMap::<u64, Waiting>::new()));
    let writer = {
        let waiting = waiting.clone();
        tokio::spawn(async move {
            for number in 0_u64.. {
                let Some((request, answer)) = requests.recv().await else { return };
                waiting.lock().unwrap().insert(number, answer);
                let mut head = number.to_le_bytes().to_vec();
                head.extend([request.what as u8, u8::from(request.flag)]);
                head.extend(request.offset.to_le_bytes());
                head.extend(request.len.to_le_bytes());
                if to.write_all(&head).await.is_err() || to.write_all(&request.data).await.is_err() {
                    return;
                }
            }
        })
    };
    tokio::spawn(async move {
        loop {
            let Ok((number, answer)) = answer(&mut from).await else { break };
            if let Some(waits) = waiting.lock().unwrap().remove(&number) {
                let _ = waits.send(answer);
            }
        }
        connection.die();
        // With the receiver of requests go those that were not sent.
        writer.abort();
        let _ = writer.await;
        waiting.lock().unwrap().clear();
    });
}

async fn answer(from: &mut (impl AsyncReadExt + Unpin)) -> io::Result<(u64, Answer)> {
    let number = from.read_u64_le().await?;
    let failed = from.read_u8().await? != 0;
    let mut bytes = vec![0; from.read_u32_le().await? as usize];
    from.read_exact(&mut bytes).await?;
    let answer =
        if failed { Err(Failed::Told(String::from_utf8_lossy(&bytes).into_owned())) } else { Ok(bytes) };
    Ok((number, answer))
}

/// A client process.
pub(crate) struct Client {
    child: tokio::process::Child,
    pub(crate) connection: Arc<Connection>,
}

impl Client {
    /// Starts one, and waits until it has opened the disk; `None` if it has ended without.
    pub(crate) async fn start(folder: &Path, address: &str) -> Option<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let socket: PathBuf = folder.join(format!("client{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
        let listener = UnixListener::bind(&socket).unwrap();
        let mut child = tokio::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "client::the_client", "--ignored", "--nocapture"])
            .env(SOCKET, &socket)
            .env(ADDRESS, address)
            .env(RECORDS, folder.join("ports"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        // It connects when it has the disk.
        let stream = tokio::select! {
            accepted = tokio::time::timeout(OPEN_TIME + Duration::from_secs(20), listener.accept()) => {
                accepted.expect("the client opens the disk in time").unwrap().0
            }
            _ = child.wait() => return None,
        };
        let _ = std::fs::remove_file(socket);
        let (connection, to_send) = Connection::new();
        carry(connection.clone(), stream, to_send);
        Some(Self { child, connection })
    }

    /// As the kernel does for want of memory, or a person: without a chance to finish anything.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// An orderly end.
    pub(crate) async fn close(mut self) {
        self.connection.ask(Request::new(Verb::Close)).await.unwrap();
        self.child.wait().await.unwrap();
    }

    pub(crate) async fn set_policy(&self, index: usize) {
        let request = Request { offset: (index % POLICIES.len()) as u64, ..Request::new(Verb::Policy) };
        let _ = self.connection.ask(request).await;
    }

    /// Lanes that are away, and sessions that there were.
    pub(crate) async fn lanes(&self) -> (u64, u64) {
        let lanes = self.connection.ask(Request::new(Verb::Lanes)).await.unwrap();
        let word = |at: usize| u64::from_le_bytes(lanes[at..at + 8].try_into().unwrap());
        (word(0), word(8))
    }
}

#[tokio::test]
#[ignore = "no test: the initiator of one, which starts it"]
async fn the_client() {
    let address = std::env::var(ADDRESS).expect("it is started by the test");
    let Address::Several(url) = Address::parse(&address).unwrap() else { panic!("{address} is one path") };
    // A cable's end that acknowledges what nobody gets is found out by pings alone.
    let options = SessionOptions {
        nop_interval: Duration::from_millis(400),
        nop_timeout: Duration::from_millis(800),
        initiator_ports: InitiatorPorts::In(std::env::var_os(RECORDS).unwrap().into()),
        ..SessionOptions::default()
    };
    let until = Instant::now() + OPEN_TIME;
    let disk = loop {
        match IscsiMultipath::open(&url, &options).await {
            Ok(disk) => break Arc::new(disk),
            Err(error) if Instant::now() > until => panic!("cannot open the disk: {error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    // As every command of the program opens it: what was not flushed is kept, except on a disk that is shared.
    let kept: Arc<dyn BlockDevice> = match url.key {
        Some(_) => disk.device().clone(),
        None => Arc::new(RetainingDevice::new(disk.device().clone(), UNFLUSHED_MAX)),
    };
    let (mut from, mut to) =
        UnixStream::connect(std::env::var_os(SOCKET).unwrap()).await.unwrap().into_split();
    let (answers, mut answered) = mpsc::unbounded_channel::<(u64, Result<Vec<u8>, String>)>();
    let writer = tokio::spawn(async move {
        while let Some((number, answer)) = answered.recv().await {
            let (failed, bytes) = match answer {
                Ok(bytes) => (0, bytes),
                Err(sentence) => (1, sentence.into_bytes()),
            };
            let mut head = number.to_le_bytes().to_vec();
            head.push(failed);
            head.extend((bytes.len() as u32).to_le_bytes());
            if to.write_all(&head).await.is_err() || to.write_all(&bytes).await.is_err() {
                break;
            }
        }
    });
    // It ends with the test.
    while let Ok(number) = from.read_u64_le().await {
        let what = Verb::ALL[from.read_u8().await.unwrap() as usize];
        let flag = from.read_u8().await.unwrap() != 0;
        let (offset, len) = (from.read_u64_le().await.unwrap(), from.read_u64_le().await.unwrap());
        let mut data = Buf::for_overwrite(if what == Verb::Write { len as usize } else { 0 });
        from.read_exact(&mut data).await.unwrap();
        let (disk, kept, answers) = (disk.clone(), kept.clone(), answers.clone());
        let close = what == Verb::Close;
        let doing = tokio::spawn(async move {
            let request = Request { what, flag, offset, len, data: data.freeze() };
            let _ = answers.send((number, carry_out(&disk, &*kept, request).await));
        });
        if close {
            doing.await.unwrap();
            break;
        }
    }
    drop(answers);
    let _ = tokio::time::timeout(Duration::from_secs(1), writer).await;
    // What is not answered by now has nobody to answer to.
    std::process::exit(0);
}

async fn carry_out(
    disk: &IscsiMultipath,
    device: &dyn BlockDevice,
    request: Request,
) -> Result<Vec<u8>, String> {
    match request.what {
        Verb::Policy => {
            disk.device().set_policy(POLICIES[request.offset as usize].parse::<Policy>().unwrap());
            Ok(Vec::new())
        }
        Verb::Lanes => {
            let lanes = disk.device().lanes();
            let away = lanes
                .iter()
                .filter(|lane| matches!(lane.state, LaneState::Down | LaneState::Suspect))
                .count();
            let sessions: u64 = lanes.iter().map(|lane| lane.epoch).sum();
            Ok([(away as u64).to_le_bytes(), sessions.to_le_bytes()].concat())
        }
        Verb::Close => {
            device.flush().await.unwrap();
            disk.close().await;
            Ok(Vec::new())
        }
        _ => request.carry_out(device).await.map_err(|error| error.to_string()),
    }
}
