//! Commands that the target rejects (RFC 7143 §11.17).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lunway_block::{BlockDevice, BlockError, Buf, Durability};
use lunway_initiator::{IscsiDevice, IscsiUrl, SessionOptions};

use crate::support::quick;
use crate::support::rejecting::Rejecting;
use crate::support::scripted::{Disk, NAME};

const WRITE: u8 = 0x8A;

const DATA_DIGEST_ERROR: u8 = 0x02;
const PROTOCOL_ERROR: u8 = 0x04;
const COMMAND_NOT_SUPPORTED: u8 = 0x05;
const IMMEDIATE_COMMAND_REJECT: u8 = 0x06;
const TASK_IN_PROGRESS: u8 = 0x07;
const INVALID_PDU_FIELD: u8 = 0x09;
const LONG_OPERATION_REJECT: u8 = 0x0A;
const WAITING_FOR_LOGOUT: u8 = 0x0C;

async fn open(reason: u8, options: SessionOptions) -> (Arc<Disk>, Arc<Rejecting>, IscsiDevice) {
    let (disk, rejecting) = (Disk::new(64, 8), Arc::new(Rejecting::default()));
    let address = rejecting.serve(disk.serve().await, WRITE, reason).await;
    let url = IscsiUrl::parse(&format!("iscsi://{address}/{NAME}/0")).unwrap();
    let device = IscsiDevice::open(url, options).await.expect("open");
    (disk, rejecting, device)
}

fn ones() -> lunway_block::SharedBuf {
    Buf::copy_of(&[1; 512]).freeze()
}

#[tokio::test]
async fn a_command_that_was_rejected_is_sent_again() {
    for reason in [
        DATA_DIGEST_ERROR,
        PROTOCOL_ERROR,
        IMMEDIATE_COMMAND_REJECT,
        INVALID_PDU_FIELD,
        LONG_OPERATION_REJECT,
    ] {
        for options in [quick(), SessionOptions::fail_fast()] {
            let (disk, rejecting, device) = open(reason, options).await;
            rejecting.left.store(3, Ordering::SeqCst);
            device.write(0, ones(), Durability::Volatile).await.unwrap();
            assert_eq!((rejecting.done.load(Ordering::SeqCst), disk.count(WRITE)), (3, 1), "{reason:#04x}");
            assert_eq!(device.epoch(), 1, "in the same session");
        }
    }
}

#[tokio::test]
async fn a_command_that_is_rejected_again_and_again_is_an_error_that_says_so() {
    let (disk, rejecting, device) = open(PROTOCOL_ERROR, quick()).await;
    rejecting.left.store(usize::MAX, Ordering::SeqCst);
    let error = device.write(0, ones(), Durability::Volatile).await.unwrap_err();
    assert!(error.to_string().contains("rejected the command 6 times: protocol error"), "{error}");
    assert_eq!((rejecting.done.load(Ordering::SeqCst), disk.count(WRITE)), (6, 0));
    rejecting.left.store(0, Ordering::SeqCst);
    device.write(0, ones(), Durability::Volatile).await.expect("the session goes on");
}

#[tokio::test]
async fn where_another_path_may_do_it_a_rejected_command_fails_as_not_done() {
    for reason in [PROTOCOL_ERROR, COMMAND_NOT_SUPPORTED] {
        let (_disk, rejecting, device) = open(reason, SessionOptions::fail_fast()).await;
        rejecting.left.store(usize::MAX, Ordering::SeqCst);
        let error = device.write(0, ones(), Durability::Volatile).await.unwrap_err();
        assert!(matches!(&error, BlockError::Gone { why, .. } if why.contains("rejected")), "{error}");
    }
}

#[tokio::test]
async fn an_opcode_that_the_target_does_not_know_is_not_sent_again() {
    let (_disk, rejecting, device) = open(COMMAND_NOT_SUPPORTED, quick()).await;
    rejecting.left.store(usize::MAX, Ordering::SeqCst);
    let error = device.write(0, ones(), Durability::Volatile).await.unwrap_err();
    assert!(error.to_string().contains("rejected the command: command not supported"), "{error}");
    assert_eq!(rejecting.done.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_target_that_waits_for_the_logout_or_is_out_of_step_gets_the_command_in_the_next_session() {
    for reason in [WAITING_FOR_LOGOUT, TASK_IN_PROGRESS] {
        let (disk, rejecting, device) = open(reason, quick()).await;
        rejecting.left.store(1, Ordering::SeqCst);
        device.write(0, ones(), Durability::Volatile).await.unwrap();
        assert_eq!(disk.logins.load(Ordering::Relaxed), 2, "{reason:#04x}");
    }
}
