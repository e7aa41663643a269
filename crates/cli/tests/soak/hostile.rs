//! Connections that never become sessions, or only for a moment.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::client::Client;
use crate::tally::{Random, Tally};

/// Attacks until the task is dropped.
pub(crate) async fn live(slot: u64, address: SocketAddr, tally: Arc<Tally>) {
    let mut random = Random(slot);
    loop {
        let pause = Duration::from_millis(random.below(2000));
        match random.below(6) {
            0 => drop(TcpStream::connect(address).await),
            1 => garbage(address, &mut random).await,
            2 => half_a_login(address, &mut random, pause).await,
            3 => {
                // Never a word, until the daemon has enough of it.
                if let Ok(mut stream) = TcpStream::connect(address).await {
                    let _ = timeout(Duration::from_secs(10), stream.read(&mut [0; 64])).await;
                }
            }
            4 => {
                // Sessions that push each other out.
                let port = slot as u16;
                let logins = (0..3).map(|_| Client::log_in(address, port));
                let sessions = futures_util::future::join_all(logins).await;
                sleep(pause / 8).await;
                drop(sessions);
            }
            _ => {
                if let Ok(client) = Client::log_in(address, slot as u16).await {
                    sleep(pause).await;
                    drop(client);
                }
            }
        }
        tally.hostile.add(1);
        sleep(pause / 4).await;
    }
}

async fn garbage(address: SocketAddr, random: &mut Random) {
    let Ok(mut stream) = TcpStream::connect(address).await else { return };
    let bytes: Vec<u8> = (0..1 + random.below(500)).map(|_| random.below(256) as u8).collect();
    let _ = stream.write_all(&bytes).await;
    let _ = timeout(Duration::from_secs(5), stream.read(&mut [0; 64])).await;
}

/// A login request that is right as far as it goes.
async fn half_a_login(address: SocketAddr, random: &mut Random, pause: Duration) {
    let Ok(mut stream) = TcpStream::connect(address).await else { return };
    let text = b"InitiatorName=iqn.2026-11.com.example:half\0SessionType=Discovery\0AuthMethod=None\0";
    let mut request = [0; 48];
    request[..2].copy_from_slice(&[0x43, 0x81]);
    request[5..8].copy_from_slice(&(text.len() as u32).to_be_bytes()[1..]);
    request[8..14].copy_from_slice(&[0x80, 0, 0, 0, 0, 1]);
    let mut bytes = request.to_vec();
    bytes.extend(text);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes.truncate(1 + random.below(bytes.len() as u64) as usize);
    let _ = stream.write_all(&bytes).await;
    sleep(pause).await;
}
