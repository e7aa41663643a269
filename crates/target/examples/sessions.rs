//! Many sessions with one target, for `script/bench scale`:
//!
//! ```text
//! sessions ADDRESS:PORT TARGET idle COUNT
//! sessions ADDRESS:PORT TARGET busy COUNT SECONDS
//! ```
//!
//! The first logs in, prints the seconds that took, and stays until its input ends. The second reads 4 KiB of LUN 0 at
//! depth 32 over each session, and prints I/Os per second.

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lunway_block::{Buf, SharedBuf};
use lunway_iscsi::Cdb;
use lunway_iscsi::initiator::{InitiatorConnection, InitiatorConnectionConfig, InitiatorEvent, Submission};
use lunway_iscsi::login::InitiatorLoginConfig;
use lunway_iscsi::negotiation::Parameters;
use lunway_iscsi::pdu::TaskAttribute;

/// Threads that log sessions in.
const THREADS: usize = 4;
/// Commands under way in a busy session, as in the other tables.
const DEPTH: u64 = 32;
/// Blocks of 512 bytes in an I/O, and I/Os that fit into the disk of 1 GiB.
const BLOCKS: u8 = 8;
const PLACES: u64 = (1 << 30) / 4096;

type Failure = Box<dyn Error + Send + Sync>;

struct Session {
    stream: TcpStream,
    core: InitiatorConnection,
}

impl Session {
    /// Logs in as initiator port number so many, and has the unit attention and one read behind it, as a host has that
    /// is idle.
    fn log_in(address: &str, target: &str, number: usize) -> Result<Self, Failure> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let [_, high, middle, low] = u32::try_from(number)?.to_be_bytes();
        let login = InitiatorLoginConfig {
            initiator_name: "iqn.2026-11.io.lunway:bench".to_owned(),
            initiator_alias: None,
            target_name: Some(target.to_owned()),
            isid: [0x80, 0, 0, high, middle, low],
            tsih: 0,
            cid: 0,
            parameters: Parameters::default(),
            chap: None,
        };
        let config = InitiatorConnectionConfig {
            login,
            login_timeout: Duration::from_secs(60),
            nop_interval: Duration::ZERO,
            nop_timeout: Duration::ZERO,
        };
        let mut session = Self { stream, core: InitiatorConnection::new(config, Instant::now()) };
        while session.core.logged_in().is_none() {
            session.exchange()?;
            if let Some(InitiatorEvent::Closing(reason)) = session.core.poll_event() {
                return Err(format!("session {number} was refused: {reason}").into());
            }
        }
        for _ in 0..2 {
            session.submit(0)?;
            while session.completions()? == 0 {}
        }
        Ok(session)
    }

    /// Sends what there is, and receives once.
    fn exchange(&mut self) -> io::Result<()> {
        while self.core.unsent() > 0 {
            let mut slices = Vec::new();
            self.core.gather(&mut slices, 256);
            let sent = self.stream.write_vectored(&slices)?;
            self.core.sent(sent);
        }
        let bytes = self.stream.read_vectored(&mut self.core.receive_space())?;
        if bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.core.received(bytes);
        Ok(())
    }

    fn submit(&mut self, place: u64) -> Result<(), Failure> {
        let block = u32::try_from(place * u64::from(BLOCKS))?.to_be_bytes();
        let cdb = [0x28, 0, block[0], block[1], block[2], block[3], 0, 0, BLOCKS, 0];
        let submission = Submission {
            token: place,
            lun: [0; 8],
            cdb: Cdb::new(&cdb),
            data_out: SharedBuf::default(),
            data_in: Buf::for_overwrite(usize::from(BLOCKS) * 512),
            attribute: TaskAttribute::SIMPLE,
        };
        self.core.submit(submission).map_err(|_| "the command window is too small")?;
        Ok(())
    }

    /// The number of commands that have ended, after one exchange.
    fn completions(&mut self) -> Result<u64, Failure> {
        self.exchange()?;
        let mut count = 0;
        while let Some(event) = self.core.poll_event() {
            match event {
                InitiatorEvent::Completed(_) => count += 1,
                InitiatorEvent::Closing(reason) => return Err(format!("a session ended: {reason}").into()),
                _ => {}
            }
        }
        Ok(count)
    }
}

fn log_in_all(address: &str, target: &str, count: usize) -> Result<Vec<Session>, Failure> {
    thread::scope(|scope| {
        let logins = (0..THREADS).map(|first| {
            scope.spawn(move || {
                let numbers = (first..count).step_by(THREADS);
                numbers.map(|number| Session::log_in(address, target, number)).collect::<Result<Vec<_>, _>>()
            })
        });
        let logins: Vec<_> = logins.collect();
        let mut all = Vec::new();
        for login in logins {
            all.extend(login.join().map_err(|_| "a thread failed")??);
        }
        Ok(all)
    })
}

fn busy(sessions: Vec<Session>, seconds: f64) -> Result<f64, Failure> {
    let (done, over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let runs = sessions.into_iter().enumerate().map(|(number, mut session)| {
            let (done, over) = (&done, &over);
            scope.spawn(move || -> Result<(), Failure> {
                // Places all over the disk, other ones in each session.
                let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(number as u64 + 1);
                let mut next = move || {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 33) % PLACES
                };
                let mut free = DEPTH;
                while !over.load(Ordering::Relaxed) {
                    for _ in 0..free {
                        session.submit(next())?;
                    }
                    free = session.completions()?;
                    done.fetch_add(free, Ordering::Relaxed);
                }
                Ok(())
            })
        });
        let runs: Vec<_> = runs.collect();
        let (begun, before) = (Instant::now(), done.load(Ordering::Relaxed));
        thread::sleep(Duration::from_secs_f64(seconds));
        let (after, took) = (done.load(Ordering::Relaxed), begun.elapsed());
        over.store(true, Ordering::Relaxed);
        for run in runs {
            run.join().map_err(|_| "a thread failed")??;
        }
        Ok((after - before) as f64 / took.as_secs_f64())
    })
}

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let begun = Instant::now();
    match words[..] {
        [address, target, "idle", count] => {
            let sessions = log_in_all(address, target, count.parse()?)?;
            println!("{:.3}", begun.elapsed().as_secs_f64());
            io::stdin().read_to_end(&mut Vec::new())?;
            drop(sessions);
        }
        [address, target, "busy", count, seconds] => {
            let sessions = log_in_all(address, target, count.parse()?)?;
            println!("{:.0}", busy(sessions, seconds.parse()?)?);
        }
        _ => return Err("sessions ADDRESS:PORT TARGET idle COUNT | busy COUNT SECONDS".into()),
    }
    Ok(())
}
