//! The client against our own server, and against servers that are not what they should be.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use lunway_block::decorate::ReadOnly;
use lunway_block::spec::NbdUri;
use lunway_block::{BlockDevice, BlockError, Buf, Durability, ExtentKind};
use lunway_memory::RamDisk;
use lunway_nbd::{Export, NbdAddress, NbdClient, NbdServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

const SIZE: u64 = 5 << 30;

#[tokio::test]
async fn an_export_is_read_by_many_requests_at_a_time_and_its_holes_are_seen() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nbd.sock");
    let disk = Arc::new(RamDisk::new(SIZE, 512).unwrap());
    for number in 0..64_u64 {
        let data = Buf::copy_of(&[number as u8 + 1; 4096]).freeze();
        disk.write(number << 26, data, Durability::Volatile).await.unwrap();
    }
    let device: Arc<dyn BlockDevice> = Arc::new(ReadOnly::new(disk));
    let export = Export { name: "x".to_owned(), description: String::new(), device, bitmaps: None };
    let server = NbdServer::bind(&NbdAddress::Unix(socket.clone()), export).await.unwrap();
    let mut connections = server.connections();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve(async { drop(stopped.await) }));

    let client = NbdClient::connect(&NbdUri::on_socket(&socket), None).await.unwrap();
    connections.wait_for(|count| *count > 0).await.unwrap();
    assert_eq!((client.geometry().size, client.geometry().read_only), (SIZE, true));
    let reads: Vec<_> =
        (0..64_u64).map(|number| client.read(number << 26, Buf::for_overwrite(4096))).collect();
    for (number, read) in reads.into_iter().enumerate() {
        assert_eq!(read.await.unwrap()[..], [number as u8 + 1; 4096]);
    }
    // Longer than one request may be.
    let long = client.read(0, Buf::for_overwrite(80 << 20)).await.unwrap();
    assert_eq!((long[0], long[64 << 20], long.iter().filter(|byte| **byte != 0).count()), (1, 2, 8192));
    let extents = client.extents(0, SIZE, usize::MAX).await.unwrap();
    assert_eq!(extents.iter().map(|extent| extent.len).sum::<u64>(), SIZE);
    let data: u64 =
        extents.iter().filter(|extent| extent.kind == ExtentKind::Data).map(|extent| extent.len).sum();
    assert!((64 * 4096..64 << 20).contains(&data), "{data}");
    let write = client.write(0, Buf::zeroed(512).freeze(), Durability::Volatile).await;
    assert_eq!(write, Err(BlockError::ReadOnly));
    assert!(matches!(client.read(SIZE, Buf::for_overwrite(512)).await, Err(BlockError::OutOfRange { .. })));

    // A thread that no runtime has asks as well.
    let client = Arc::new(client);
    let asking = Arc::clone(&client);
    let read = std::thread::spawn(move || asking.read(0, Buf::for_overwrite(512)).into_future());
    assert_eq!(read.join().unwrap().await.unwrap()[0], 1);

    drop(client);
    connections.wait_for(|count| *count == 0).await.unwrap();
    drop(stop);
    serving.await.unwrap().unwrap();
    assert!(NbdClient::connect(&NbdUri::on_socket(&socket), None).await.is_err());
}

/// The end of every request here: offset 0, 512 bytes.
const REQUEST_END: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0];

/// What a server sends, byte for byte, until the client goes: at once, and after the first request.
async fn answers(bytes: Vec<u8>, replies: Vec<u8>) -> Result<NbdClient, String> {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nbd.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (bytes, replies) = (bytes.clone(), replies.clone());
            tokio::spawn(async move {
                let _ = stream.write_all(&bytes).await;
                let mut heard = Vec::new();
                while !replies.is_empty() && !heard.ends_with(&REQUEST_END) {
                    match stream.read_u8().await {
                        Ok(byte) => heard.push(byte),
                        Err(_) => return,
                    }
                }
                let _ = stream.write_all(&replies).await;
                let _ =
                    tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut Vec::new())).await;
            });
        }
    });
    let uri = NbdUri::on_socket(&socket);
    let connecting = NbdClient::connect(&uri, Some("b"));
    let connected = tokio::time::timeout(Duration::from_secs(20), connecting).await.unwrap();
    connected.map_err(|error| error.to_string())
}

#[tokio::test]
async fn servers_that_speak_something_else_are_an_error_in_one_sentence() {
    let greeting = b"NBDMAGICIHAVEOPT\0\x03";
    for bytes in [
        &b"SSH-2.0-OpenSSH_9.2 and more\n"[..],
        greeting,
        // A reply of 4 GiB.
        b"NBDMAGICIHAVEOPT\0\x03\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x08\0\0\0\x01\xff\xff\xff\xff",
        // It has neither structured replies nor GO.
        &[greeting.to_vec(), reply(8, 1 << 31 | 1, b""), reply(7, 1 << 31 | 1, b"what?")].concat(),
        // It wants TLS; it has no end.
        &[greeting.to_vec(), reply(8, 1 << 31 | 5, b""), reply(7, 1 << 31 | 5, b"")].concat(),
        &[greeting.to_vec(), reply(8, 3, b"").repeat(100)].concat(),
        // Two contexts of one number, no size, a size that is no number of sectors.
        &[
            greeting.to_vec(),
            reply(8, 1, &[]),
            reply(10, 4, b"\0\0\0\x01base:allocation"),
            reply(10, 4, b"\0\0\0\x01qemu:dirty-bitmap:b"),
            reply(10, 1, &[]),
        ]
        .concat(),
        &[greeting.to_vec(), reply(8, 1, &[]), reply(10, 1, &[]), reply(7, 1, &[])].concat(),
        &[
            greeting.to_vec(),
            reply(8, 1, &[]),
            reply(10, 1, &[]),
            reply(7, 3, &[0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1]),
            reply(7, 1, &[]),
        ]
        .concat(),
    ] {
        let said = answers(bytes.to_vec(), Vec::new()).await.err().unwrap();
        assert!(said.contains("no NBD connection to") && !said.contains('\n'), "{said}");
    }
}

/// The reply to an option.
fn reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let magic = 0x0003_e889_0455_65a9_u64.to_be_bytes();
    let length = (data.len() as u32).to_be_bytes();
    [&magic[..], &option.to_be_bytes(), &kind.to_be_bytes(), &length, data].concat()
}

/// A handshake of an export of 1 MiB.
fn handshake() -> Vec<u8> {
    let size = [&[0, 0][..], &(1_u64 << 20).to_be_bytes(), &[0, 3]].concat();
    let parts = [
        b"NBDMAGICIHAVEOPT\0\x03".to_vec(),
        reply(8, 1, &[]),
        reply(10, 4, b"\0\0\0\x01base:allocation"),
        reply(10, 1, &[]),
        reply(7, 3, &size),
        reply(7, 1, &[]),
    ];
    parts.concat()
}

/// A chunk of a reply.
fn chunk(magic: u32, done: u16, kind: u16, cookie: u64, length: u32, data: &[u8]) -> Vec<u8> {
    let [magic, length] = [magic, length].map(u32::to_be_bytes);
    let [done, kind] = [done, kind].map(u16::to_be_bytes);
    [&magic[..], &done, &kind, &cookie.to_be_bytes(), &length, data].concat()
}

#[tokio::test]
async fn replies_that_the_protocol_does_not_have_are_errors_and_cost_no_memory() {
    const MAGIC: u32 = 0x668e_33ef;
    let far = [&(1_u64 << 19).to_be_bytes()[..], &[7; 512]].concat();
    let half = [&0_u64.to_be_bytes()[..], &[7; 256]].concat();
    for bytes in [
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        chunk(MAGIC + 1, 1, 1, 1, 8, &[0; 8]),
        chunk(MAGIC, 1, 1, 2, 8, &[0; 8]),
        // Data elsewhere, too much, too little, of no length.
        chunk(MAGIC, 1, 1, 1, 520, &far),
        chunk(MAGIC, 1, 1, 1, u32::MAX, &[0; 64]),
        chunk(MAGIC, 1, 1, 1, 264, &half),
        chunk(MAGIC, 1, 1, 1, 0, &[0; 8]),
        // A hole beyond the end, half a hole, the same data twice.
        chunk(MAGIC, 1, 2, 1, 12, &[&0_u64.to_be_bytes()[..], &1024_u32.to_be_bytes()].concat()),
        chunk(MAGIC, 1, 2, 1, 12, &[&0_u64.to_be_bytes()[..], &256_u32.to_be_bytes()].concat()),
        chunk(MAGIC, 0, 1, 1, 264, &half).repeat(2),
        // No chunk, without an end; a simple reply where chunks were agreed upon.
        chunk(MAGIC, 0, 0, 1, 0, &[]),
        [&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0][..], &1_u64.to_be_bytes(), &[7; 512]].concat(),
        // An end without data, a block status that nobody asked for, an error of 4 GiB.
        chunk(MAGIC, 1, 0, 1, 0, &[]),
        chunk(MAGIC, 1, 5, 1, 12, &[0; 12]),
        chunk(MAGIC, 1, 1 << 15 | 1, 1, u32::MAX, &[0; 64]),
    ] {
        let client = answers(handshake(), bytes.clone()).await.unwrap();
        let read = tokio::time::timeout(
            Duration::from_secs(20),
            client.read(0, Buf::for_overwrite(512)).into_future(),
        );
        let Err(BlockError::Gone { why, .. }) = read.await.unwrap() else { panic!("{bytes:?}") };
        assert!(why.starts_with("the server does not speak the protocol"), "{bytes:?}: {why}");
        assert!(!why.contains("a reply to nothing") || bytes[15] == 2, "{bytes:?}");
    }
    let error = chunk(MAGIC, 1, 1 << 15 | 1, 1, 6, &[0, 0, 0, 5, 0, 0]);
    let client = answers(handshake(), error).await.unwrap();
    assert!(matches!(client.read(0, Buf::for_overwrite(512)).await, Err(BlockError::Io { .. })));
    // Data and a hole in the order of the server.
    let rest = [&256_u64.to_be_bytes()[..], &256_u32.to_be_bytes()].concat();
    let bytes = [chunk(MAGIC, 0, 2, 1, 12, &rest), chunk(MAGIC, 1, 1, 1, 264, &half)].concat();
    let client = answers(handshake(), bytes).await.unwrap();
    let read = client.read(0, Buf::for_overwrite(512)).await.unwrap();
    assert_eq!(read[..], [[7; 256], [0; 256]].concat());
    // Of another context, the same twice, a length of nothing, half a descriptor.
    let one = [0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 0];
    for status in [
        chunk(MAGIC, 1, 5, 1, 4, &[0; 4]),
        chunk(MAGIC, 1, 5, 1, 2, &[0; 2]),
        chunk(MAGIC, 1, 5, 1, 4, &[0, 0, 0, 1]),
        chunk(MAGIC, 1, 5, 1, 12, &[0, 0, 0, 9, 0, 0, 2, 0, 0, 0, 0, 0]),
        chunk(MAGIC, 0, 5, 1, 12, &one).repeat(2),
        chunk(MAGIC, 1, 5, 1, 12, &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
        chunk(MAGIC, 1, 5, 1, 16, &[&one[..], &[0; 4]].concat()),
        chunk(MAGIC, 1, 5, 1, u32::MAX, &one),
    ] {
        let client = answers(handshake(), status.clone()).await.unwrap();
        let told = client.extents(0, 512, usize::MAX).await;
        assert!(
            matches!(told, Err(BlockError::Gone { why, .. }) if why.contains("the protocol")),
            "{status:?}"
        );
    }
}
