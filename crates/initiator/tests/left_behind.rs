//! What a lost session leaves behind: what its socket held at the loss never leaves it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, Buf, Durability};
use lunway_initiator::{IscsiDevice, IscsiUrl, SessionOptions};
use socket2::{Domain, Socket, Type};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};

use crate::support::recorder::{Recorder, is_lost};
use crate::support::scripted::{Disk, NAME, SECTOR};

/// Of the far end's socket: so small that most of what is sent stays with the sender.
const RECEIVE_BUFFER: usize = 8 << 10;

/// A write's data, all of it sent unasked.
const DATA: usize = 32 << 10;

/// A far end that takes one connection, hands bytes on until it is told to stop, and gives what it has of the
/// connection then.
async fn far_end(target: SocketAddr, stop: Arc<Notify>) -> (SocketAddr, oneshot::Receiver<TcpStream>) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(RECEIVE_BUFFER).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(1).unwrap();
    socket.set_nonblocking(true).unwrap();
    let listener = TcpListener::from_std(socket.into()).unwrap();
    let address = listener.local_addr().unwrap();
    let (give, given) = oneshot::channel();
    tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.unwrap();
        // No other: the way is gone.
        drop(listener);
        let mut far = TcpStream::connect(target).await.unwrap();
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut near, &mut far) => panic!("it ended early"),
            () = stop.notified() => give.send(near).unwrap(),
        }
    });
    (address, given)
}

/// What lies in the socket's receive buffer, once no more comes.
async fn lies_there(stream: &TcpStream) -> usize {
    let mut room = vec![0; 4 << 20];
    let mut last = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = stream.peek(&mut room).await.unwrap();
        if now == last {
            return now;
        }
        last = now;
    }
}

#[tokio::test]
async fn nothing_more_is_sent_of_a_session_from_the_moment_of_its_loss() {
    let disk = Disk::new(8 * 1024, 64);
    let (recorder, stop) = (Recorder::default(), Arc::new(Notify::new()));
    let (address, given) = far_end(disk.serve().await, stop.clone()).await;
    let url = IscsiUrl::parse(&format!("iscsi://{address}/{NAME}/0")).unwrap();
    let options = SessionOptions { observer: Some(recorder.observer()), ..SessionOptions::fail_fast() };
    let device = IscsiDevice::open(url, options).await.expect("open");
    stop.notify_one();
    let mut stream = given.await.unwrap();
    let writes = 32;
    let answers: Vec<_> = (0..writes)
        .map(|n| device.write((n * DATA) as u64, Buf::zeroed(DATA).freeze(), Durability::Volatile))
        .collect();
    let there = lies_there(&stream).await;
    assert!(there >= SECTOR && there < writes * DATA / 2, "{there}");

    device.sever("its port is gone");
    recorder.when("the loss", is_lost).await;
    // The far end takes bytes again: window enough for all that was ever queued.
    let start = Instant::now();
    let mut rest = Vec::new();
    let end = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut rest)).await;
    assert!(end.is_ok(), "the connection goes on");
    assert!(rest.len() <= there, "{} bytes came and {there} were there at the loss", rest.len());
    assert!(start.elapsed() < Duration::from_secs(2));
    drop(answers);
}
