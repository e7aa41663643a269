//! What one session can make the daemon allocate: alone in its process, because it measures the process's memory.

#![expect(clippy::unwrap_used, reason = "this is all test")]

#[path = "daemon/support.rs"]
#[expect(dead_code, reason = "the daemon's other tests use the rest")]
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lunway_iscsi::login::InitiatorLoginConfig;
use lunway_iscsi::negotiation::Parameters;
use lunway_iscsi::pdu::{self, DataOut, HEADER_LEN, NopOut, ScsiCommand, TaskManagementRequest};
use socket2::{Domain, SockRef, Socket, Type};
use support::{Client, Daemon, cdb10, login};

/// `session_memory_mib` unless set otherwise, and what the allocator, sockets and the test itself take.
const PROMISED: usize = 64 << 20;
const OTHERS: usize = 32 << 20;
/// What stays when a flood is over: 32 MiB of buffers that each of two cores keeps for the next transfers, and what the
/// allocator needs: 8 MiB on most runs, a little more on some.
const KEPT: usize = 88 << 20;
/// Until when, on a machine with a load of ten.
const FREED_BY: Duration = Duration::from_secs(20);
/// What is not given back adds up: of two reads of the longest transfer each, to 128 MiB.
const FLOODS: usize = 8;
/// Blocks of the longest transfer.
const BLOCKS: u16 = 16384;
const TRANSFER: u32 = 8 << 20;
const IMMEDIATE: u8 = 0x40;
const FINAL_READ: u8 = 0xc0;
const FINAL_WRITE: u8 = 0xa0;
/// A write whose unsolicited data is to come.
const WRITE: u8 = 0x20;

/// Resident memory of this process, bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// A session whose PDUs the test makes itself.
struct Attacker {
    client: Client,
    cmd_sn: u32,
    tag: u32,
    /// Commands that have ended and were not waited for.
    ended: usize,
}

impl Attacker {
    fn new(daemon: &Daemon, isid: u8) -> Self {
        let mut attacker =
            Self { client: daemon.log_in_as(isid).ready(), cmd_sn: 0, tag: 0x4000_0000, ended: 0 };
        attacker.cmd_sn = attacker.ping();
        attacker
    }

    /// Another connection of the session, and its number.
    fn join(&self, daemon: &Daemon, cid: u16) -> Self {
        let leading = self.client.core.logged_in().unwrap();
        let joining = several(InitiatorLoginConfig { tsih: leading.tsih, cid, ..login(leading.isid[5]) });
        let client = Client::log_in(daemon.address, joining).unwrap();
        Self { client, cmd_sn: self.cmd_sn, tag: self.tag + (u32::from(cid) << 16), ended: 0 }
    }

    fn send(&mut self, header: &[u8; HEADER_LEN], data: &[u8]) {
        let mut bytes = header.to_vec();
        bytes[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        bytes.extend_from_slice(data);
        self.client.stream.write_all(&bytes).unwrap();
    }

    /// Sends a command, and gives its tag.
    fn command(&mut self, flags: u8, cdb: &[u8], expected: u32, data: &[u8]) -> u32 {
        let mut command = ScsiCommand::new();
        self.tag += 1;
        command.flags = flags;
        command.lun = 0x0001_0000_0000_0000.into();
        command.initiator_task_tag = self.tag.into();
        command.expected_data_transfer_length = expected.into();
        command.cmd_sn = self.cmd_sn.into();
        command.cdb[..cdb.len()].copy_from_slice(cdb);
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        self.send(&pdu::to_bytes(&command), data);
        self.tag
    }

    /// A PDU whose answer is short, and its data.
    fn short_request(&mut self, what: &str) -> Vec<u8> {
        self.tag += 1;
        let mut header = [0; HEADER_LEN];
        let mut data = Vec::new();
        match what {
            "INQUIRY" => {
                let mut command = ScsiCommand::new();
                command.flags = FINAL_READ;
                command.initiator_task_tag = self.tag.into();
                command.expected_data_transfer_length = 36.into();
                command.cmd_sn = self.cmd_sn.into();
                (command.cdb[0], command.cdb[4]) = (0x12, 36);
                self.cmd_sn = self.cmd_sn.wrapping_add(1);
                header = pdu::to_bytes(&command);
            }
            "long pings" => {
                let mut ping = NopOut::new();
                ping.opcode.0 |= IMMEDIATE;
                ping.initiator_task_tag = self.tag.into();
                header = pdu::to_bytes(&ping);
                data = vec![7; 32 << 10];
            }
            // No request of this number is known.
            _ => header[0] = 0x1e,
        }
        header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        [&header[..], &data].concat()
    }

    /// Takes a PDU.
    fn take(&mut self) -> [u8; HEADER_LEN] {
        let mut header = [0; HEADER_LEN];
        self.client.stream.read_exact(&mut header).unwrap();
        let len = usize::from(header[5]) << 16 | usize::from(header[6]) << 8 | usize::from(header[7]);
        self.client.stream.read_exact(&mut vec![0; len.next_multiple_of(4)]).unwrap();
        let has_status = header[0] == 0x25 && header[1] & 1 != 0;
        self.ended += usize::from(header[0] == 0x21 || has_status);
        header
    }

    /// Takes answers until as many commands more have ended, those counted that ended during a ping.
    fn take_answers(&mut self, commands: usize) {
        while self.ended < commands {
            self.take();
        }
        self.ended -= commands;
    }

    /// Pings and gives ExpCmdSN.
    fn ping(&mut self) -> u32 {
        let mut ping = NopOut::new();
        ping.opcode.0 |= IMMEDIATE;
        ping.initiator_task_tag = 0x7777_7777.into();
        ping.cmd_sn = self.cmd_sn.into();
        self.send(&pdu::to_bytes(&ping), &[]);
        loop {
            let header = self.take();
            if header[16..20] == [0x77; 4] {
                return u32::from_be_bytes([header[28], header[29], header[30], header[31]]);
            }
        }
    }
}

/// Sessions that do not read what they are answered, each with PDUs of one kind, as long as their sockets take any.
/// Short answers kept buffers of 8 KiB each, echoes that are cut the whole of what they echo: 45 MiB of a session, or
/// more.
#[test]
fn sessions_that_never_read_their_answers_take_a_mebibyte_or_two_each() {
    const SESSIONS: u8 = 8;
    const EACH: usize = 3 << 20;
    /// Answers of 100 bytes that fill the buffers of both sockets and what the daemon keeps, and more.
    const REQUESTS_MAX: usize = 100_000;
    let _alone = ALONE.lock();
    for (first, what) in [(0, "requests that are rejected"), (20, "INQUIRY"), (40, "long pings")] {
        let daemon = Daemon::start("");
        let mut sessions: Vec<_> = (0..SESSIONS)
            .map(|number| {
                // A ping is echoed as far as the initiator takes it.
                let short = Parameters { max_recv_data_segment_length: 512, ..Parameters::default() };
                let parameters = if what == "long pings" { short } else { Parameters::default() };
                let login = InitiatorLoginConfig { parameters, ..login(first + number) };
                let client = Client::log_in(daemon.address, login).unwrap().ready();
                let mut attacker = Attacker { client, cmd_sn: 0, tag: 0x4000_0000, ended: 0 };
                attacker.cmd_sn = attacker.ping();
                attacker
            })
            .collect();
        let before = resident();
        let mut sent = 0;
        for attacker in &mut sessions {
            let (mut unsent, mut requests) = (Vec::new(), 0);
            SockRef::from(&attacker.client.stream).set_recv_buffer_size(64 << 10).unwrap();
            attacker.client.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
            // Commands beyond the window are read for ever.
            while requests < REQUESTS_MAX {
                if unsent.is_empty() {
                    (0..64).for_each(|_| unsent.extend(attacker.short_request(what)));
                    requests += 64;
                }
                match attacker.client.stream.write(&unsent) {
                    Ok(bytes) => drop(unsent.drain(..bytes)),
                    Err(_) => break,
                }
            }
            sent += requests;
        }
        let most = soon_at_most(before);
        println!("{what}: {sent} sent, {} MiB at most", most >> 20);
        assert!(most < usize::from(SESSIONS) * EACH + OTHERS / 2, "{what}: {} MiB", most >> 20);
    }
}

/// A login that offers two connections.
fn several(login: InitiatorLoginConfig) -> InitiatorLoginConfig {
    let parameters = Parameters { max_connections: 2, ..login.parameters };
    InitiatorLoginConfig { parameters, ..login }
}

/// What the process grows by while a session does something to a device that hangs, and that it is given back once the
/// device goes on and what was asked for has ended by `end`: again and again, so that what is not adds up.
fn growth(what: &str, isid: u8, end: impl Fn(&mut Attacker), attack: impl Fn(&mut Attacker)) {
    let daemon = Daemon::start("");
    let mut attacker = Attacker::new(&daemon, isid);
    let before = resident();
    for _ in 0..FLOODS {
        daemon.slow.hold();
        attack(&mut attacker);
        attacker.ping();
        let most = soon_at_most(before);
        let waiting = daemon.slow.waiting.load(Ordering::SeqCst);
        daemon.slow.release();
        assert!(most < PROMISED + OTHERS, "{what}: {} MiB, {waiting} commands with the device", most >> 20);
        end(&mut attacker);
        let kept = given_back(what, before, most);
        println!("{what}: {} MiB at most, {} MiB afterwards", most >> 20, kept >> 20);
        attacker = Attacker::new(&daemon, isid);
    }
}

/// The most memory above `before` while a flood is on: what the daemon reads it has soon.
fn soon_at_most(before: usize) -> usize {
    let (mut most, start) = (0, Instant::now());
    while start.elapsed() < Duration::from_millis(300) {
        most = most.max(resident().saturating_sub(before));
        std::thread::sleep(Duration::from_millis(10));
    }
    most
}

/// What is left of `most` bytes when no more than [`KEPT`] is.
fn given_back(what: &str, before: usize, most: usize) -> usize {
    let start = Instant::now();
    loop {
        let kept = resident().saturating_sub(before);
        if kept <= KEPT {
            return kept;
        }
        assert!(start.elapsed() < FREED_BY, "{what}: {} MiB are left of {} MiB", kept >> 20, most >> 20);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The session goes on: its commands are answered.
fn answered(commands: usize) -> impl Fn(&mut Attacker) {
    move |attacker| attacker.take_answers(commands)
}

/// All of the session's commands have ended with the device.
fn ended(_: &mut Attacker) {}

/// Nothing of the session's commands can be answered: it ends.
fn cut(attacker: &mut Attacker) {
    attacker.client.stream.shutdown(std::net::Shutdown::Both).unwrap();
}

/// One test at a time: the memory is the process's.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn floods_of_the_longest_reads_do_not_add_up() {
    let _alone = ALONE.lock();
    let daemon = Daemon::start("");
    let mut attacker = Attacker::new(&daemon, 1);
    let mut neighbour = Attacker::new(&daemon, 2);
    // The disk's own memory is not meant.
    attacker.command(FINAL_READ, &cdb10(0x28, 0, BLOCKS), TRANSFER, &[]);
    attacker.take_answers(1);
    let before = resident();
    let (mut most, mut kept) = (0, 0);
    for _ in 0..FLOODS {
        for _ in 0..120 {
            attacker.command(FINAL_READ, &cdb10(0x28, 0, BLOCKS), TRANSFER, &[]);
        }
        // All that may be with the device is, and its answers do not go out.
        std::thread::sleep(Duration::from_millis(300));
        neighbour.ping();
        most = most.max(resident().saturating_sub(before));
        attacker.take_answers(120);
        kept = given_back("reads, again and again", before, most);
    }
    println!("{} MiB at most, {} MiB afterwards", most >> 20, kept >> 20);
    assert!(most < PROMISED + OTHERS, "{} MiB", most >> 20);
}

/// What a session costs that has logged in, has read and written, and waits: of the daemon alone, as the other ends are
/// only sockets.
#[test]
fn an_idle_session_takes_no_more_than_32_kib() {
    const SESSIONS: u16 = 500;
    const EACH: usize = 32 << 10;
    let _alone = ALONE.lock();
    let limits = "sessions = 1000\nsessions_per_initiator = 1000\nlogins_per_second = 0";
    let daemon = Daemon::start(&format!("[limits]\n{limits}"));
    let session = |number: u16| {
        let [high, low] = number.to_be_bytes();
        let login = InitiatorLoginConfig { isid: [0x80, 0, 0, 1, high, low], ..login(0) };
        let mut client = Client::log_in(daemon.address, login).unwrap().ready();
        client.write(0, 0, &[7; 4096]);
        client.read(0, 0, 8);
        client.stream
    };
    // What is there once.
    drop((0..20).map(session).collect::<Vec<_>>());
    daemon.await_sessions(0);
    let before = resident();
    let sessions: Vec<TcpStream> = (0..SESSIONS).map(session).collect();
    let each = resident().saturating_sub(before) / sessions.len();
    println!("{each} bytes for each of {SESSIONS} idle sessions");
    assert!(each <= EACH, "{each} bytes");
}

/// What is promised is the session's, over all its connections.
#[test]
fn a_session_of_two_connections_takes_no_more_memory_than_one() {
    let _alone = ALONE.lock();
    let daemon = Daemon::start("[limits]\nconnections_per_session = 2");
    let (read, write) = (cdb10(0x28, 0, BLOCKS), cdb10(0x2a, 0, BLOCKS));
    let before = resident();
    for (isid, what) in
        [(1, "reads"), (2, "reads without room for their data"), (3, "writes that go on"), (4, "reads")]
    {
        let leading = Client::log_in(daemon.address, several(login(isid))).unwrap().ready();
        assert_eq!(leading.core.logged_in().unwrap().negotiated.max_connections, 2);
        let mut one = Attacker { client: leading, cmd_sn: 0, tag: 0x4000_0000, ended: 0 };
        one.cmd_sn = one.ping();
        let other = one.join(&daemon, 1);
        let mut both = [one, other];
        daemon.slow.hold();
        let mut cmd_sn = both[0].cmd_sn;
        for number in 0..120 {
            let connection = &mut both[number % 2];
            connection.cmd_sn = cmd_sn;
            match what {
                "reads" => drop(connection.command(FINAL_READ, &read, TRANSFER, &[])),
                "writes that go on" => {
                    let tag = connection.command(WRITE, &write, TRANSFER, &[]);
                    let mut data = DataOut::new();
                    data.initiator_task_tag = tag.into();
                    connection.send(&pdu::to_bytes(&data), &[7; 512]);
                }
                _ => drop(connection.command(FINAL_READ, &read, 0, &[])),
            }
            cmd_sn = connection.cmd_sn;
        }
        for connection in &mut both {
            connection.cmd_sn = cmd_sn;
            connection.ping();
        }
        let most = soon_at_most(before);
        let waiting = daemon.slow.waiting.load(Ordering::SeqCst);
        daemon.slow.release();
        // What the devices have at a time is a quarter of the session's memory, however many connections it has.
        let fit = if what == "reads" { (PROMISED / 4) / TRANSFER as usize } else { usize::MAX };
        assert!(waiting <= fit, "{what}: the device has {waiting}, where {fit} are allowed");
        println!("{what} over two connections: {} MiB at most", most >> 20);
        assert!(most < PROMISED + OTHERS, "{what}: {} MiB", most >> 20);
        both.iter_mut().for_each(cut);
        given_back(what, before, most);
    }
}

#[test]
fn a_session_takes_no_more_memory_than_is_promised_whatever_it_sends_and_gives_it_back() {
    let _alone = ALONE.lock();
    let (read, write) = (cdb10(0x28, 0, BLOCKS), cdb10(0x2a, 0, BLOCKS));
    growth("reads without room for their data", 1, answered(120), |attacker| {
        for _ in 0..120 {
            attacker.command(FINAL_READ, &read, 0, &[]);
        }
    });
    growth("reads", 2, answered(120), |attacker| {
        for _ in 0..120 {
            attacker.command(FINAL_READ, &read, TRANSFER, &[]);
        }
    });
    growth("verifications", 3, answered(120), |attacker| {
        for _ in 0..120 {
            attacker.command(0x80, &cdb10(0x2f, 0, BLOCKS), 0, &[]);
        }
    });
    growth("writes that begin and do not go on", 4, cut, |attacker| {
        for _ in 0..120 {
            let tag = attacker.command(WRITE, &write, TRANSFER, &[]);
            let mut data = DataOut::new();
            data.initiator_task_tag = tag.into();
            attacker.send(&pdu::to_bytes(&data), &[7; 512]);
        }
    });
    growth("writes that are aborted and sent again", 5, ended, |attacker| {
        let data = vec![7; 256 << 10];
        let blocks = u16::try_from(data.len() / 512).unwrap();
        for _ in 0..1000 {
            // The window closes, and what is outside of it is ignored.
            let tag = attacker.command(FINAL_WRITE, &cdb10(0x2a, 0, blocks), data.len() as u32, &data);
            let mut abort = TaskManagementRequest::new();
            abort.opcode.0 |= IMMEDIATE;
            abort.flags = 0x81;
            abort.lun = 0x0001_0000_0000_0000.into();
            abort.initiator_task_tag = (tag | 0x2000_0000).into();
            abort.referenced_task_tag = tag.into();
            abort.cmd_sn = attacker.cmd_sn.into();
            attacker.send(&pdu::to_bytes(&abort), &[]);
            attacker.ping();
        }
    });
    growth("writes out of order", 6, cut, |attacker| {
        // The longest data that may come unasked, in the whole window but for the first one, which never comes.
        let data = vec![7; 256 << 10];
        attacker.cmd_sn += 1;
        for _ in 1..128 {
            attacker.command(FINAL_WRITE, &write, TRANSFER, &data);
        }
    });
    growth("writes out of order, each of them twice", 7, cut, |attacker| {
        // One number is one command, and held once.
        let data = vec![7; 256 << 10];
        attacker.cmd_sn += 1;
        for _ in 1..128 {
            attacker.command(FINAL_WRITE, &write, TRANSFER, &data);
            attacker.cmd_sn -= 1;
            attacker.command(FINAL_WRITE, &write, TRANSFER, &data);
        }
    });
}

/// A client that comes from this address: without CHAP another source is another principal.
fn from(daemon: &Daemon, source: &str, isid: u8) -> Client {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&format!("{source}:0").parse::<SocketAddr>().unwrap().into()).unwrap();
    socket.connect(&daemon.address.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(support::PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    Client::log_in_over(stream, login(isid)).unwrap()
}

/// The median time of a write of 4 KiB, of many one after another.
fn median(client: &mut Client) -> Duration {
    let data = vec![9; 4096];
    let mut times: Vec<_> = (0..201)
        .map(|_| {
            let begun = Instant::now();
            client.write(0, 0, &data);
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

/// Each session held its window of data: gigabytes.
#[test]
fn sessions_that_wait_for_a_command_take_no_more_than_their_principal_has_and_harm_no_other() {
    const SESSIONS: u8 = 150;
    const WINDOW: usize = 128;
    const BUDGET: usize = 64 << 20;
    /// Of each session beside the budget: buffers of its connection at both ends, and headers.
    const EACH: usize = 400 << 10;
    let _alone = ALONE.lock();
    let daemon = Daemon::start(
        "[limits]\nsessions_per_initiator = 256\nmemory_mib = 256\nprincipal_memory_mib = 64\nlogins_per_second = 0",
    );
    // The name of an initiator port of its own: a second session of the same would take its place.
    let mut neighbour = from(&daemon, "127.0.0.2", SESSIONS).ready();
    let alone = median(&mut neighbour);
    let mut attackers: Vec<_> = (0..SESSIONS).map(|isid| Attacker::new(&daemon, isid)).collect();
    let before = resident();
    // 64 KiB a command would be 1.2 GiB.
    let data = vec![7; 64 << 10];
    let (write, len) = (cdb10(0x2a, 0, 128), data.len() as u32);
    for (number, attacker) in attackers.iter_mut().enumerate() {
        attacker.cmd_sn += 1;
        for _ in 1..WINDOW {
            attacker.command(FINAL_WRITE, &write, len, &data);
        }
        attacker.ping();
        let most = resident().saturating_sub(before);
        assert!(most < BUDGET + OTHERS + (number + 1) * EACH, "{} MiB by {number} sessions", most >> 20);
    }
    println!("{} MiB at most", resident().saturating_sub(before) >> 20);
    let memory = daemon.server().metrics().memory;
    let of = |source: &str| memory.principals.iter().find(|of| of.principal == source).unwrap();
    assert!(of("127.0.0.1").used as usize <= BUDGET && of("127.0.0.1").used as usize > BUDGET / 2);

    // The other principal finds what it needs, and as fast as before.
    let beside = median(&mut neighbour);
    println!("4 KiB in {alone:?} alone, in {beside:?} beside");
    assert!(beside < alone * 5 + Duration::from_millis(2), "{alone:?} alone, {beside:?} beside");
    neighbour.write(0, 0, &vec![3; 8 << 20]);
    assert_eq!(neighbour.read(0, 0, BLOCKS), vec![3; 8 << 20]);
    let memory = daemon.server().metrics().memory;
    let of = |source: &str| memory.principals.iter().find(|of| of.principal == source).unwrap();
    assert_eq!((of("127.0.0.2").waits, of("127.0.0.2").refused), (0, 0));

    // The missing command comes: all are answered, those that found no place with TASK SET FULL.
    for attacker in &mut attackers {
        attacker.cmd_sn = attacker.cmd_sn.wrapping_sub(WINDOW as u32);
        attacker.command(FINAL_WRITE, &write, len, &data);
        attacker.take_answers(WINDOW);
    }
    let least_refused = SESSIONS as u64 * WINDOW as u64 / 2;
    assert!(daemon.server().metrics().memory.refused > least_refused);
    for attacker in &mut attackers {
        attacker.cmd_sn = attacker.ping();
        attacker.command(FINAL_WRITE, &write, len, &data);
        attacker.take_answers(1);
    }
    support::until("all memory is given back", || daemon.server().metrics().memory.used == 0);
}

/// Writes that ask for their data, and reads, of many sessions that have little memory together: none waits for ever.
#[test]
fn sessions_of_a_principal_that_need_more_than_it_has_take_turns() {
    const SESSIONS: u8 = 12;
    let _alone = ALONE.lock();
    let daemon = Daemon::start("[limits]\nmemory_mib = 64\nprincipal_memory_mib = 16");
    let mut clients: Vec<_> = (0..SESSIONS).map(|isid| daemon.log_in_as(isid).ready()).collect();
    let before = resident();
    daemon.slow.hold();
    let threads: Vec<_> = clients
        .drain(..)
        .map(|mut client| {
            std::thread::spawn(move || {
                // One after the other: this client does not read while it writes.
                let writes: Vec<_> = (0..3).map(|_| client.submit_write(1, 0, &vec![5; 8 << 20])).collect();
                writes.into_iter().for_each(|write| assert_eq!(client.wait(write).status, 0));
                let reads: Vec<_> = (0..3).map(|_| client.submit_read(1, 0, BLOCKS)).collect();
                reads.into_iter().for_each(|read| assert_eq!(client.wait(read).status, 0));
            })
        })
        .collect();
    support::until("commands wait for memory", || daemon.server().metrics().memory.waits > 5);
    let used = daemon.server().metrics().memory.used;
    assert!(used <= 16 << 20, "{used}");
    daemon.slow.release();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    support::until("all memory is given back", || daemon.server().metrics().memory.used == 0);
    println!("{} MiB more, with the clients' own", resident().saturating_sub(before) >> 20);
}
