//! Data through the whole path.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lunway_iscsi::initiator::{InitiatorEvent, Residual};
use lunway_iscsi::login::InitiatorLoginConfig;
use lunway_iscsi::negotiation::Parameters;

use crate::support::*;

// shows RFC 7143 [4.2.1-1, 4.2.5.1-1]
#[test]
fn what_is_written_is_read_back_in_all_sizes() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    for (blocks, seed) in [(1, 1), (8, 2), (511, 3), (512, 4), (2048, 5), (8000, 6)] {
        let data = pattern(blocks, seed);
        client.write(0, 100, &data);
        assert!(client.read(0, 100, blocks as u16) == data, "{blocks} blocks");
    }
}

#[test]
fn writes_without_any_unsolicited_data_arrive_whole() {
    let daemon = Daemon::start("");
    let parameters = Parameters {
        initial_r2t: true,
        immediate_data: false,
        max_recv_data_segment_length: 4096,
        max_burst_length: 16384,
        ..Parameters::default()
    };
    let mut client =
        Client::log_in(daemon.address, InitiatorLoginConfig { parameters, ..login(1) }).unwrap().ready();
    let data = pattern(1000, 9);
    client.write(0, 3, &data);
    assert!(client.read(0, 3, 1000) == data);
}

#[test]
fn many_commands_at_a_time_are_all_answered() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    let data = pattern(64 * 8, 7);
    let writes: Vec<_> =
        (0..64).map(|i| client.submit_write(0, i * 8, &data[i as usize * 4096..][..4096])).collect();
    for token in writes {
        assert_eq!(client.wait(token).status, 0);
    }
    let reads: Vec<_> = (0..64).map(|i| client.submit_read(0, i * 8, 8)).collect();
    for (i, token) in reads.into_iter().enumerate().rev() {
        assert!(client.wait(token).data_in[..] == data[i * 4096..][..4096], "read {i}");
    }
}

#[test]
fn a_device_that_takes_its_time_delays_nobody_else() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    let data = pattern(16, 8);
    client.write(1, 0, &data);
    daemon.slow.hold();
    let slow = client.submit_read(1, 0, 16);
    daemon.slow.await_waiting(1);
    client.write(0, 0, &pattern(16, 1));
    assert_eq!(client.read(0, 0, 16), pattern(16, 1));
    daemon.slow.release();
    assert!(client.wait(slow).data_in[..] == data);
}

// shows RFC 7143 [11.4.5.2-1, 11.4.5.2-2, 11.4.5.1-1]
// shows RFC 7143 [11.4.5.3-1, 11.4.5.3-2, 11.4.1-1]
#[test]
fn residuals_say_what_was_not_transferred() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    let under = client.execute(0, &cdb10(0x28, 0, 1), &[], 4 * BLOCK);
    assert_eq!(
        (under.status, under.data_in_len, under.residual),
        (0, BLOCK, Residual::Under(3 * BLOCK as u32))
    );
    let over = client.execute(0, &cdb10(0x28, 0, 4), &[], BLOCK);
    assert_eq!((over.status, over.data_in_len, over.residual), (0, BLOCK, Residual::Over(3 * BLOCK as u32)));
}

#[test]
fn an_initiator_that_does_not_take_its_answers_is_answered_once_it_does() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    // 64 × 1 MiB: more than the queue of answers and both socket buffers hold.
    let reads: Vec<_> = (0..64).map(|_| client.submit_read(0, 0, 2048)).collect();
    std::thread::sleep(std::time::Duration::from_millis(200));
    for token in reads {
        let completed = client.wait(token);
        assert_eq!((completed.status, completed.data_in_len), (0, 1 << 20));
    }
}

/// Long reads of a RAM disk are sent from its memory.
#[test]
fn chunks_of_a_ram_disk_are_of_one_moment_however_their_reader_takes_them() {
    const CHUNK: usize = 64 << 10;
    let daemon = Daemon::start("");
    let (mut reader, mut writer) = (daemon.log_in().ready(), daemon.log_in_as(2).ready());
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for version in (1..=250).cycle() {
                for chunk in 0..16 {
                    writer.write(0, chunk * 128, &[version; CHUNK]);
                }
                if ended.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let mut versions = BTreeSet::new();
        for round in 0..12 {
            // PDUs end with chunks: within one, the next PDU would be of another moment.
            let reads: Vec<_> = (0..8).map(|_| reader.submit_read(0, 0, 16 * 128)).collect();
            std::thread::sleep(Duration::from_millis(round % 4 * 10));
            for token in reads {
                let completed = reader.wait(token);
                for chunk in completed.data_in.chunks(CHUNK) {
                    assert!(chunk.iter().all(|byte| *byte == chunk[0]), "torn");
                    versions.insert(chunk[0]);
                }
            }
        }
        ended.store(true, Ordering::Relaxed);
        assert!(versions.len() > 10, "nothing was written meanwhile: {versions:?}");
    });
}

#[test]
fn an_initiator_that_does_not_take_its_answers_holds_up_no_other() {
    let daemon = Daemon::start("");
    let (mut stuck, mut other) = (daemon.log_in().ready(), daemon.log_in_as(2).ready());
    let reads: Vec<_> = (0..64).map(|_| stuck.submit_read(0, 0, 2048)).collect();
    std::thread::sleep(Duration::from_millis(200));
    for block in 0..16_u8 {
        other.write(0, u32::from(block) * 128, &pattern(128, block));
        // It needs its block for itself: COMPARE AND WRITE.
        let cdb = [0x89, 0, 0, 0, 0, 0, 0, 0, 7, block, 0, 0, 0, 1, 0, 0];
        let before = other.read(0, 7 << 8 | u32::from(block), 1);
        assert_eq!(other.execute(0, &cdb, &[before.clone(), before].concat(), 0).status, 0);
    }
    drop(reads);
    drop(stuck);
    assert_eq!(other.read(0, 15 * 128, 128), pattern(128, 15));
}

// shows RFC 7143 [11.7.3-1]
#[test]
fn a_lun_that_is_not_there_is_an_error_of_the_command_only() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    let completed = client.execute(9, &cdb10(0x28, 0, 1), &[], BLOCK);
    assert_eq!(completed.status, 2);
    assert!(!completed.sense.is_empty());
    client.read(0, 0, 1);
}

#[test]
fn a_read_only_lun_and_a_4096_byte_lun_are_what_they_say() {
    let text = format!(
        "[[target]]\nname = \"{TARGET}\"\nopen = true\n[[target.lun]]\nid = 0\ndevice = \"ram:64M\"\nread_only = true\n\
         [[target.lun]]\nid = 1\ndevice = \"ram:64M\"\nsector = 4096\n"
    );
    let daemon = Daemon::start_with(&text);
    let mut client = daemon.log_in().ready();
    let refused = client.submit_write(0, 0, &pattern(1, 1));
    assert_eq!(client.wait(refused).status, 2);
    let capacity = client.execute(1, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 8);
    assert_eq!(capacity.data_in[4..8], 4096u32.to_be_bytes());
    let summary = &daemon.server().targets()[0];
    assert_eq!(
        summary.luns.iter().map(|lun| (lun.id, lun.sector, lun.read_only)).collect::<Vec<_>>(),
        [(0, 512, true), (1, 4096, false)]
    );
}

#[test]
fn a_write_under_way_when_the_initiator_logs_out_is_finished_by_the_device() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    daemon.slow.hold();
    client.submit_write(1, 0, &pattern(1, 1));
    daemon.slow.await_waiting(1);
    client.core.logout();
    assert!(matches!(client.other_event(), Some(InitiatorEvent::Closing(_))));
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(daemon.slow.waiting.load(Ordering::SeqCst), 1, "the write was dropped in the middle");
    daemon.slow.release();
    daemon.await_sessions(0);
    assert_eq!(daemon.slow.waiting.load(Ordering::SeqCst), 0);
}

// shows RFC 7143 [11.4.5.1-1]
#[test]
fn a_command_whose_header_announces_no_data_moves_none_and_says_so_by_its_residual() {
    let daemon = Daemon::start("");
    let mut client = daemon.log_in().ready();
    client.write(0, 7, &pattern(2, 1));
    for (opcode, residual) in [(0x2a, Residual::Over(1024)), (0x28, Residual::Over(1024))] {
        let completed = client.execute(0, &cdb10(opcode, 7, 2), &[], 0);
        assert_eq!((completed.status, completed.residual), (0, residual), "{opcode:#x}");
    }
    // The bit of the other direction.
    let completed = client.execute(0, &cdb10(0x2a, 7, 2), &[], 1024);
    assert_eq!((completed.status, completed.residual), (0, Residual::Under(1024)));
    let completed = client.execute(0, &cdb10(0x28, 7, 2), &pattern(2, 2), 0);
    assert_eq!((completed.status, completed.residual), (0, Residual::Under(1024)));
    assert_eq!(client.read(0, 7, 2), pattern(2, 1), "nothing was written");
}
