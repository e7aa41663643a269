//! The end that does what it is asked.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::NetError;
use crate::line::{Line, StopFlag};
use crate::protocol::{GO, Report, Request, Status, Task, Welcome};
use crate::round_trips;
use crate::socket::{Buffers, congestion, set_window};
use crate::stream::{close, give, take, thread_cpu};
use crate::tcp_info::TcpInfo;

/// Measurements at a time: four clients with as many streams as they can have.
pub const SESSIONS_MAX: usize = 64;
/// Connections beyond those that are told that the responder is busy; further ones are just closed.
const REFUSALS_MAX: usize = 8;
/// From the handshake to the whole request.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// From the welcome to the go: other streams may have to connect first.
const GO_TIME: Duration = Duration::from_secs(30);
/// Grace time of a measurement beyond its planned duration: data in flight, queues.
const GRACE: Duration = Duration::from_secs(20);
/// Time that a peer may take to read the end.
const CLOSE_TIME: Duration = Duration::from_secs(2);
/// Interval at which a responder checks whether it should stop.
const ACCEPT_TIME: Duration = Duration::from_millis(100);
/// After a failure to accept, for instance for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers measurements on a listening socket, one thread per connection, until it is asked to stop.
///
/// Promises to the user who exposes it: at most [`SESSIONS_MAX`] measurements run; each ends by itself, at the latest
/// half a minute after the time it asked for, which is at most ten minutes; memory per measurement is constant (one
/// buffer of a megabyte); data is only ever sent on a connection that asked for it. It reads no file and runs no
/// program. There is no authentication: who reaches the port can fill the link for as long as it keeps its connections.
#[derive(Debug)]
pub struct Responder;

impl Responder {
    /// Serves until `stop`, blocking the caller. The threads that it starts are the caller's children, so they are in
    /// the caller's network namespace.
    pub fn serve(listener: TcpListener, stop: &StopFlag) -> Result<(), NetError> {
        // Accepting times out as reading does (socket(7)).
        SockRef::from(&listener).set_read_timeout(Some(ACCEPT_TIME))?;
        let running = AtomicUsize::new(0);
        thread::scope(|scope| {
            while !stop.is_stopped() {
                let stream = match listener.accept() {
                    Ok((stream, _)) => stream,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                    // The peer's doing, or for want of something that comes back.
                    Err(_) => {
                        thread::sleep(ACCEPT_PAUSE);
                        continue;
                    }
                };
                let before = running.fetch_add(1, Ordering::Relaxed);
                let running = &running;
                let session = move || {
                    // How a measurement ends is its client's matter; the client has seen it.
                    let _ = answer(&stream, before >= SESSIONS_MAX, stop);
                    running.fetch_sub(1, Ordering::Relaxed);
                };
                let started = before < SESSIONS_MAX + REFUSALS_MAX
                    && thread::Builder::new().name("net".into()).spawn_scoped(scope, session).is_ok();
                if !started {
                    running.fetch_sub(1, Ordering::Relaxed);
                }
            }
        });
        Ok(())
    }
}

fn answer(stream: &TcpStream, busy: bool, stop: &StopFlag) -> Result<(), NetError> {
    let mut line = Line::new(stream, stop, REQUEST_TIME)?;
    let mut request = [0; Request::SIZE];
    line.read_exact(&mut request)?;
    let request = match Request::decode(&request) {
        Ok(_) if busy => Err(Status::Busy),
        request => request,
    };
    let request = match request {
        Ok(request) => request,
        Err(status) => {
            line.write_all(&Welcome::refusing(status).encode())?;
            close(&mut line, CLOSE_TIME);
            return Ok(());
        }
    };
    if request.buffer != 0 {
        set_window(SockRef::from(stream), request.buffer).map_err(|(_, error)| error)?;
    }
    let Buffers { send, receive } = Buffers::of(stream)?;
    let welcome = Welcome {
        send_buffer: send,
        receive_buffer: receive,
        congestion: congestion(stream),
        ..Welcome::refusing(Status::Accepted)
    };
    // Once the client has its welcome its data may be here at any moment. Our 64 bytes are counted with the rest.
    let before = TcpInfo::of(line.stream())?;
    line.write_all(&welcome.encode())?;
    if request.task == Task::Describe {
        close(&mut line, CLOSE_TIME);
        return Ok(());
    }
    line.extend(GO_TIME);
    let mut go = [0];
    line.read_exact(&mut go)?;
    if go != [GO] {
        return Ok(());
    }
    line.extend(request.duration + GRACE);
    let report = carry_out(&mut line, &request, &before)?;
    line.write_all(&report.encode())?;
    close(&mut line, CLOSE_TIME);
    Ok(())
}

/// `before`: as the connection was when nothing had come yet.
fn carry_out(line: &mut Line<'_>, request: &Request, before: &TcpInfo) -> Result<Report, NetError> {
    let cpu = thread_cpu();
    let origin = Instant::now();
    let (bytes, elapsed) = match request.task {
        Task::Describe => (0, Duration::ZERO),
        Task::Take => {
            let window = Some(request.buffer).filter(|&bytes| bytes != 0);
            let taken = take(line, window, |_, _| {})?;
            (taken.bytes, taken.elapsed)
        }
        Task::Give => (give(line, request.duration, |_, _| {})?, origin.elapsed()),
        Task::Answer { request, answer } => {
            (round_trips::answer(line, request as usize, answer as usize)?, origin.elapsed())
        }
    };
    let cpu = thread_cpu().saturating_sub(cpu);
    Ok(Report { bytes, elapsed, cpu, tcp: TcpInfo::of(line.stream())?.since(before) })
}
