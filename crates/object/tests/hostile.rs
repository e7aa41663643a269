//! Stores that lose answers, cut connections, stall, lie and storm; what is tried again, and what it ends as.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lunway_object::{Address, Body, Condition, Credentials, Settings, Store, StoreError, Timing};
use support::server::{Answer, Server, answer};

const SECRET: &str = "hidden-secret";
const TOKEN: &str = "hidden-token";

/// A client whose limits are as short as tests are.
fn client(server: &Server) -> Store {
    client_with(server, Timing { patience: Duration::from_millis(300), ..quick() })
}

fn quick() -> Timing {
    Timing {
        connect: Duration::from_secs(5),
        stall: Duration::from_secs(5),
        patience: Duration::from_secs(20),
        slowest: 64 << 10,
        pause: Duration::from_millis(1),
    }
}

fn client_with(server: &Server, timing: Timing) -> Store {
    let address = Address::parse(&format!("s3://bucket/p?endpoint=http://{}", server.address())).unwrap();
    let credentials = Credentials::new("key", SECRET, Some(TOKEN));
    Store::open(&address, &Settings { credentials, endpoint: None, region: None, ca_file: None, timing })
        .unwrap()
}

fn put(store: &Store, key: &str, bytes: &[u8]) -> Result<(), StoreError> {
    store.put(key, Body::Bytes(bytes), Condition::Always).map(drop)
}

/// What a failure says: never a secret.
fn said<T>(result: Result<T, StoreError>) -> String {
    let text = result.map(drop).unwrap_err().to_string();
    assert!(!text.contains("hidden"), "{text}");
    text
}

#[test]
fn objects_are_written_read_listed_and_removed() {
    let server = Server::start();
    let store = client(&server);
    let bytes: Vec<u8> = (0..100_000u32).map(|number| number as u8).collect();
    put(&store, "p/a b+ü", &bytes).unwrap();
    put(&store, "p/empty", b"").unwrap();
    for number in 0..2500 {
        server.set(&format!("p/many/{number:04}"), b"x");
    }
    let part = store.get("p/a b+ü", 99_000..200_000).unwrap();
    assert_eq!((&part.bytes[..], part.total), (&bytes[99_000..], 100_000));
    assert_eq!(store.get("p/empty", 0..10).unwrap().total, 0);
    assert!(matches!(store.get("p/empty", 5..10), Err(StoreError::Short(_))));
    assert!(matches!(store.get("p/none", 0..10), Err(StoreError::Absent(_))));
    let listing = store.list("p/").unwrap();
    assert_eq!(
        (listing.keys, listing.folders),
        (vec!["p/a b+ü".into(), "p/empty".into()], vec!["p/many/".into()])
    );
    let many = store.list("p/many/").unwrap().keys;
    assert_eq!((many.len(), many.is_sorted()), (2500, true));
    store.remove("p/empty").unwrap();
    store.remove("p/empty").unwrap();
    assert!(server.bytes("p/empty").is_none() && server.bytes("p/a b+ü").unwrap() == bytes);
}

#[test]
fn conditions_are_obeyed_or_the_store_is_refused() {
    let server = Server::start();
    let store = client(&server);
    let first = store.put("k", Body::Bytes(b"1"), Condition::Absent).unwrap();
    assert!(matches!(store.put("k", Body::Bytes(b"2"), Condition::Absent), Err(StoreError::Condition(_))));
    let second = store.put("k", Body::Bytes(b"3"), Condition::Is(&first)).unwrap();
    assert!(matches!(
        store.put("k", Body::Bytes(b"4"), Condition::Is(&first)),
        Err(StoreError::Condition(_))
    ));
    store.remove("k").unwrap();
    assert!(matches!(
        store.put("k", Body::Bytes(b"5"), Condition::Is(&second)),
        Err(StoreError::Condition(_))
    ));
    store.prove_conditions("p/trial-").unwrap();
    assert_eq!(server.keys(), Vec::<String>::new());
    for (absent, is, named) in [(true, false, "If-None-Match"), (false, true, "If-Match")] {
        let server = Server::start();
        server.ignore_conditions(absent, is);
        let store = client(&server);
        let told = said(store.prove_conditions("p/trial-"));
        assert!(told.contains(named) && told.contains("conditional writes"), "{told}");
        assert_eq!(server.keys(), Vec::<String>::new());
    }
    let server = Server::start();
    server.know_bare_versions();
    let store = client(&server);
    store.prove_conditions("p/trial-").unwrap();
    let first = store.put("k", Body::Bytes(b"1"), Condition::Absent).unwrap();
    store.put("k", Body::Bytes(b"2"), Condition::Is(&first)).unwrap();
    assert!(matches!(
        store.put("k", Body::Bytes(b"3"), Condition::Is(&first)),
        Err(StoreError::Condition(_))
    ));
    // One that does not know the header at all.
    server.rule(|asked| match asked.headers.contains_key("if-match") {
        true => Answer::Refused(501, "NotImplemented", ""),
        false => Answer::Served,
    });
    assert!(said(client(&server).prove_conditions("p/trial-")).contains("NotImplemented"));
}

#[test]
fn what_passes_is_tried_again_and_what_does_not_ends_with_its_reason() {
    let server = Server::start();
    let store = client_with(&server, quick());
    put(&store, "k", &[7; 1000]).unwrap();
    type Bad = fn() -> Answer;
    let passing: [Bad; 6] = [
        || Answer::Refused(503, "SlowDown", ""),
        || Answer::Refused(500, "InternalError", ""),
        || Answer::Refused(429, "", ""),
        || Answer::Cut,
        || Answer::Torn(10),
        || Answer::Torn(400),
    ];
    for bad in passing {
        server.rule(move |asked| if asked.number < 3 { bad() } else { Answer::Served });
        assert_eq!(store.get("k", 0..1000).unwrap().bytes, [7; 1000]);
        assert_eq!(server.requests(), 4);
        server.rule(move |asked| if asked.number < 3 { bad() } else { Answer::Served });
        put(&store, "k", &[7; 1000]).unwrap();
    }
    let store = client(&server);
    for bad in passing {
        server.rule(move |_| bad());
        let begun = Instant::now();
        let error = store.get("k", 0..1000).unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(5) && server.requests() > 3);
        let text = error.to_string();
        assert!(text.contains("times within") && text.contains("127.0.0.1"), "{text}");
        // It must not be taken for a damaged file.
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::TimedOut);
    }
    for (status, code, part) in [
        (403, "AccessDenied", "refuses access"),
        (403, "RequestTimeTooSkewed", "clock"),
        (404, "NoSuchBucket", "no bucket bucket"),
        (404, "", "404"),
        (400, "InvalidRequest", "InvalidRequest"),
    ] {
        server.rule(move |_| Answer::Refused(status, code, ""));
        let error = store.get("k", 0..1000).unwrap_err();
        assert_eq!(server.requests(), 1, "{status} {code} does not pass");
        let kind = io::Error::from(store.get("k", 0..1000).unwrap_err()).kind();
        assert!(!matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof), "{status} {code}");
        assert!(error.to_string().contains(part), "{error}");
        said::<()>(Err(error));
    }
    server.rule(|asked| match asked.number {
        0 => Answer::Refused(503, "SlowDown", "Retry-After: 1\r\n"),
        _ => Answer::Served,
    });
    let begun = Instant::now();
    assert!(
        put(&client_with(&server, quick()), "k", b"x").is_ok()
            && begun.elapsed() > Duration::from_millis(400)
    );
}

#[test]
fn an_upload_whose_answer_was_lost_is_no_conflict_with_itself() {
    let server = Server::start();
    let store = client_with(&server, quick());
    let lose_first = || server.rule(|asked| if asked.number == 0 { Answer::Lost } else { Answer::Served });
    lose_first();
    let first = store.put("k", Body::Bytes(b"1"), Condition::Absent).unwrap();
    lose_first();
    let second = store.put("k", Body::Bytes(b"2"), Condition::Is(&first)).unwrap();
    store.put("k", Body::Bytes(b"3"), Condition::Is(&second)).unwrap();
    // Another one's object is one, though the bytes are the same.
    server.rule(|asked| if asked.number == 0 { Answer::Cut } else { Answer::Served });
    assert!(matches!(store.put("k", Body::Bytes(b"3"), Condition::Absent), Err(StoreError::Condition(_))));
    lose_first();
    store.remove("k").unwrap();
    assert_eq!(server.keys(), Vec::<String>::new());
}

#[test]
fn a_store_that_stalls_or_trickles_holds_nobody_for_ever() {
    let server = Server::start();
    put(&client(&server), "k", &[7; 1 << 20]).unwrap();
    let timing = Timing {
        connect: Duration::from_millis(200),
        stall: Duration::from_millis(200),
        patience: Duration::from_millis(100),
        slowest: 1 << 30,
        pause: Duration::from_millis(1),
    };
    let store = client_with(&server, timing);
    let ends = |what: &str| {
        let begun = Instant::now();
        let text = said(store.get("k", 0..1 << 20));
        assert!(begun.elapsed() < Duration::from_secs(5), "{what}: {:?}", begun.elapsed());
        assert!(text.contains("did not answer in time"), "{what}: {text}");
    };
    server.rule(|_| Answer::Late(Duration::from_secs(20)));
    ends("no answer");
    server.rule(|_| {
        Answer::Raw(Box::new(|socket| {
            socket.write_all(b"HTTP/1.1 206 Status\r\nContent-Length: 1048576\r\nContent-Range: bytes 0-1048575/1048576\r\n\r\n")?;
            loop {
                socket.write_all(b"x")?;
                socket.flush()?;
                std::thread::sleep(Duration::from_millis(20));
            }
        }))
    });
    ends("a byte now and then");
}

#[test]
fn answers_that_lie_are_refused_within_limits() {
    let server = Server::start();
    let store = client(&server);
    put(&store, "k", &[7; 1000]).unwrap();
    let raw = |bytes: Vec<u8>| {
        move |_: &_| {
            let bytes = bytes.clone();
            Answer::Raw(Box::new(move |socket| socket.write_all(&bytes)))
        }
    };
    for (lie, part) in [
        (answer(206, "Content-Range: bytes 5-14/1000\r\n", &[0; 10]), "another one"),
        (answer(206, "Content-Range: bytes 0-8/1000\r\n", &[0; 9]), "another one"),
        (answer(206, "Content-Range: bytes 0-9/1000\r\n", &[0; 5]), "another one"),
        (answer(206, "", &[0; 10]), "no Content-Range"),
        (answer(206, "Content-Range: bytes 0-99/1000\r\n", &[0; 100]), "longer than"),
        (answer(200, "", &[0; 1000]), "longer than"),
        (answer(302, "Location: http://127.0.0.1:1/x\r\n", b""), "elsewhere"),
    ] {
        server.rule(raw(lie.clone()));
        let told = said(store.get("k", 0..10));
        assert!(told.contains(part), "{}: {told}", String::from_utf8_lossy(&lie));
    }
    // More than memory: it is not read to its end.
    let sent = std::sync::Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    server.rule(move |_| {
        let counted = counted.clone();
        Answer::Raw(Box::new(move |socket| {
            socket.write_all(b"HTTP/1.1 200 Status\r\n\r\n<ListBucketResult>")?;
            let piece = b"<Contents><Key>p/a</Key></Contents>".repeat(10_000);
            loop {
                counted.fetch_add(piece.len(), Ordering::SeqCst);
                socket.write_all(&piece)?;
            }
        }))
    });
    assert!(said(store.list("p/")).contains("longer than"));
    assert!(sent.load(Ordering::SeqCst) < 64 << 20, "{sent:?}");
    for (xml, part) in [
        ("<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>", "the rest"),
        (
            "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>\
             <Contents><Key>p/a</Key></Contents></ListBucketResult>",
            "no end",
        ),
        ("<html>welcome</html>", "no listing"),
        (
            "<!DOCTYPE a [<!ENTITY b \"c\">]><ListBucketResult><Contents><Key>&b;</Key></Contents></ListBucketResult>",
            "entity",
        ),
    ] {
        server.rule(raw(answer(200, "", xml.as_bytes())));
        let told = said(store.list("p/"));
        assert!(told.contains(part), "{xml}: {told}");
    }
    // An end that each page puts off.
    let pages = std::sync::Arc::new(AtomicUsize::new(0));
    server.rule(move |_| {
        let number = pages.fetch_add(1, Ordering::SeqCst);
        let xml = format!(
            "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>{number}</NextContinuationToken>\
             <Contents><Key>p/{number}</Key></Contents></ListBucketResult>"
        );
        let page = answer(200, "", xml.as_bytes());
        Answer::Raw(Box::new(move |socket| socket.write_all(&page)))
    });
    let told = said(store.list("p/"));
    assert!(told.contains("empty pages"), "{told}");
    // Keys of others are not ours.
    let other = "<ListBucketResult><Contents><Key>other/k</Key></Contents></ListBucketResult>";
    server.rule(raw(answer(200, "", other.as_bytes())));
    assert_eq!(store.list("p/").unwrap().keys, Vec::<String>::new());
}

#[test]
fn credentials_go_to_one_host() {
    let (server, other) = (Server::start(), Server::start());
    let location: &'static str = format!("Location: http://{}/bucket/k\r\n", other.address()).leak();
    for status in [301, 302, 307, 308] {
        server.rule(move |_| Answer::Refused(status, "PermanentRedirect", location));
        said(client(&server).get("k", 0..10));
        said(put(&client(&server), "k", b"x"));
    }
    assert_eq!(other.requests(), 0);
    server.rule(|_| Answer::Refused(301, "PermanentRedirect", "x-amz-bucket-region: eu-9\r\n"));
    assert!(said(client(&server).get("k", 0..10)).contains("region=eu-9"));
    let far = Address::parse("s3://bucket?endpoint=http://192.0.2.1").unwrap();
    let credentials = Credentials::new("key", SECRET, None);
    let settings = Settings { credentials, endpoint: None, region: None, ca_file: None, timing: quick() };
    assert!(said(Store::open(&far, &settings)).contains("plain-http=yes"));
    let accepted = Address::parse("s3://bucket?endpoint=http://192.0.2.1&plain-http=yes").unwrap();
    assert!(Store::open(&accepted, &settings).is_ok());
}
