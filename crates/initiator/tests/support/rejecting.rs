//! A target's way of answering commands wrongly, and a network's of losing answers: between an initiator and a target,
//! PDU by PDU.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Opcode of a SCSI Command, without the immediate bit.
const SCSI_COMMAND: u8 = 0x01;
const SCSI_RESPONSE: u8 = 0x21;
const R2T: u8 = 0x31;
const REJECT: u8 = 0x3F;

/// Rejects commands, or answers them otherwise, instead of handing them on.
#[derive(Default)]
pub struct Rejecting {
    /// How many more.
    pub left: AtomicUsize,
    /// How many there were.
    pub done: AtomicUsize,
    /// How many more PDUs of the target vanish.
    pub loses: AtomicUsize,
}

/// Takes one from `left` if there is one.
fn take_one(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

impl Rejecting {
    /// A way to `target` that rejects commands with this operation code for this reason.
    pub async fn serve(self: &Arc<Self>, target: SocketAddr, opcode: u8, reason: u8) -> SocketAddr {
        self.serve_with(target, opcode, move |command| reject(command, reason)).await
    }

    /// A way to `target` that answers commands with this operation code by itself.
    pub async fn serve_with(
        self: &Arc<Self>,
        target: SocketAddr,
        opcode: u8,
        answer: impl Fn(&[u8]) -> Vec<u8> + Send + Sync + 'static,
    ) -> SocketAddr {
        let answer = Arc::new(answer);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let this = self.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (this, answer) = (this.clone(), answer.clone());
                tokio::spawn(async move {
                    let far = TcpStream::connect(target).await.unwrap();
                    this.carry(near, far, opcode, &*answer).await;
                });
            }
        });
        address
    }

    async fn carry(
        &self,
        near: TcpStream,
        far: TcpStream,
        opcode: u8,
        answer: &(dyn Fn(&[u8]) -> Vec<u8> + Sync),
    ) {
        let (mut near_read, mut near_write) = near.into_split();
        let (mut far_read, mut far_write) = far.into_split();
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel::<Vec<u8>>();
        let out = async {
            while let Some(pdu) = read_pdu(&mut near_read).await {
                let is_meant = pdu[0] & 0x3F == SCSI_COMMAND && pdu[32] == opcode;
                if is_meant && take_one(&self.left) {
                    self.done.fetch_add(1, Ordering::SeqCst);
                    tell.send(answer(&pdu)).unwrap();
                } else if far_write.write_all(&pdu).await.is_err() {
                    return;
                }
            }
        };
        // Whole PDUs, so that a Reject comes between two; reading one must not be given up half way.
        let (give, mut given) = tokio::sync::mpsc::unbounded_channel();
        let read = async {
            while let Some(pdu) = read_pdu(&mut far_read).await {
                if !take_one(&self.loses) {
                    give.send(pdu).unwrap();
                }
            }
        };
        let back = async {
            loop {
                let pdu = tokio::select! {
                    Some(pdu) = told.recv() => pdu,
                    Some(pdu) = given.recv() => pdu,
                };
                if near_write.write_all(&pdu).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = out => {}
            () = read => {}
            () = back => {}
        }
    }
}

/// Without digests.
async fn read_pdu(stream: &mut (impl AsyncReadExt + Unpin)) -> Option<Vec<u8>> {
    let mut pdu = vec![0; 48];
    stream.read_exact(&mut pdu).await.ok()?;
    let data = u32::from_be_bytes([0, pdu[5], pdu[6], pdu[7]]) as usize;
    let rest = usize::from(pdu[4]) * 4 + data.next_multiple_of(4);
    pdu.resize(48 + rest, 0);
    stream.read_exact(&mut pdu[48..]).await.ok()?;
    Some(pdu)
}

/// GOOD, for a command that counts.
pub fn good(command: &[u8]) -> Vec<u8> {
    let mut pdu = answer_to(command, SCSI_RESPONSE);
    let next = u32::from_be_bytes(command[24..28].try_into().unwrap()) + 1;
    pdu[28..32].copy_from_slice(&next.to_be_bytes());
    pdu[32..36].copy_from_slice(&next.to_be_bytes());
    pdu
}

/// GOOD for a READ, with so many of its bytes, and flags and count of a residual.
pub fn read_with(command: &[u8], len: usize, flags: u8, residual: u32) -> Vec<u8> {
    let mut pdu = good(command);
    // Data-In with F and S.
    (pdu[0], pdu[1]) = (0x25, 0x81 | flags);
    pdu[5..8].copy_from_slice(&(len as u32).to_be_bytes()[1..]);
    pdu[20..24].fill(0xFF);
    pdu[44..48].copy_from_slice(&residual.to_be_bytes());
    pdu.resize(48 + len.next_multiple_of(4), 0x5A);
    pdu
}

/// An R2T for 4096 bytes behind the first MiB.
pub fn ask_beyond(command: &[u8]) -> Vec<u8> {
    let mut pdu = answer_to(command, R2T);
    pdu[20..24].copy_from_slice(&5u32.to_be_bytes());
    pdu[40..44].copy_from_slice(&(1u32 << 20).to_be_bytes());
    pdu[44..48].copy_from_slice(&4096u32.to_be_bytes());
    pdu
}

/// With LUN, tag, and StatSN as it is expected.
fn answer_to(command: &[u8], opcode: u8) -> Vec<u8> {
    let mut pdu = vec![0; 48];
    (pdu[0], pdu[1]) = (opcode, 0x80);
    pdu[16..20].copy_from_slice(&command[16..20]);
    pdu[24..28].copy_from_slice(&command[28..32]);
    pdu[28..32].copy_from_slice(&command[24..28]);
    pdu[32..36].copy_from_slice(&command[24..28]);
    if opcode == R2T {
        pdu[8..16].copy_from_slice(&command[8..16]);
    }
    pdu
}

/// The command does not count: ExpCmdSN is its own CmdSN.
fn reject(command: &[u8], reason: u8) -> Vec<u8> {
    let mut pdu = vec![0; 48];
    (pdu[0], pdu[1], pdu[2], pdu[7]) = (REJECT, 0x80, reason, 48);
    pdu[16..20].fill(0xFF);
    // StatSN as it is expected, CmdSN as it was sent.
    pdu[24..28].copy_from_slice(&command[28..32]);
    pdu[28..32].copy_from_slice(&command[24..28]);
    pdu[32..36].copy_from_slice(&command[24..28]);
    pdu.extend_from_slice(&command[..48]);
    pdu
}
