//! Who is let in, and what a client can cost.

use std::time::Duration;

use lunway_console::{Client, Method, Sockets};
use lunway_target::ApiConfig;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Daemon, TARGET};

async fn say(daemon: &Daemon, request: &str) -> String {
    let mut stream = TcpStream::connect(daemon.console.tcp_address().unwrap()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    tokio::time::timeout(Duration::from_secs(10), read).await.unwrap().unwrap();
    answer
}

#[tokio::test]
async fn on_tcp_only_who_knows_the_token_is_answered() {
    let daemon = Daemon::start().await;
    let health = Client::new(daemon.tcp()).get("/v1/health").await.unwrap();
    assert_eq!(health["status"], "ok");
    for header in
        ["", "Authorization: Bearer 0123456789abcdef0123456789abcdeX\r\n", "Authorization: Basic eDp4\r\n"]
    {
        let request = format!("GET /v1/config HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}\r\n");
        let answer = say(&daemon, &request).await;
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
        assert!(answer.contains("www-authenticate: Bearer") && answer.contains("{\"error\":"), "{answer}");
        assert!(!answer.contains(TARGET), "{answer}");
    }
    daemon.stop().await;
}

#[tokio::test]
async fn a_client_with_the_token_is_answered_while_64_strangers_stand_in_the_door() {
    let daemon = Daemon::start().await;
    let address = daemon.console.tcp_address().unwrap();
    let mut strangers = Vec::new();
    for number in 0..96 {
        let mut stranger = TcpStream::connect(address).await.unwrap();
        // Some say nothing, some begin, some are told that they may not.
        let head = "GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n";
        stranger.write_all(&head.as_bytes()[..[0, 20, head.len()][number % 3]]).await.unwrap();
        strangers.push(stranger);
    }
    for _ in 0..3 {
        let client = Client::new(daemon.tcp());
        // Shorter than a stranger may stay.
        let health = tokio::time::timeout(Duration::from_secs(8), client.get("/v1/health")).await;
        assert_eq!(health.expect("an answer").unwrap()["status"], "ok");
    }
    assert_eq!(daemon.get("/v1/health").await["status"], "ok", "by the other socket as well");
    drop(strangers);
    daemon.stop().await;
}

#[test]
fn tcp_without_a_token_is_refused() {
    let api = ApiConfig { socket: None, listen: Some("127.0.0.1:0".parse().unwrap()), token_file: None };
    let sentence = Sockets::bind(None, Some(&api)).unwrap_err().to_string();
    assert!(sentence.contains("token_file"), "{sentence}");
}

#[tokio::test]
async fn what_is_too_large_or_no_json_is_refused_and_the_next_request_is_answered() {
    let daemon = Daemon::start().await;
    let path = format!("/v1/targets/{TARGET}");
    let (status, sentence) = daemon.put(&path, json!({ "alias": "x".repeat(5 << 20) })).await.unwrap_err();
    assert_eq!(status, 413, "{sentence}");
    // Far larger, and of an unknown size.
    let (status, sentence) = daemon.put(&path, json!({ "alias": "x".repeat(40 << 20) })).await.unwrap_err();
    assert_eq!(status, 413, "{sentence}");
    let token = "Authorization: Bearer 0123456789abcdef0123456789abcdef";
    let request = format!(
        "PUT {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{token}\r\nContent-Length: 5\r\n\r\n{{ no!"
    );
    let answer = say(&daemon, &request).await;
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("is not JSON"), "{answer}");
    // One that asks before it sends need not send.
    let request = format!(
        "PUT {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{token}\r\nExpect: 100-continue\r\nContent-Length: 5000000\r\n\r\n"
    );
    let answer = say(&daemon, &request).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    let long = format!("GET /{} HTTP/1.1\r\nHost: x\r\n{token}\r\n\r\n", "x".repeat(64 << 10));
    assert!(!say(&daemon, &long).await.contains(" 200 "));
    assert_eq!(daemon.get("/v1/health").await["status"], "ok");
    daemon.stop().await;
}

#[tokio::test]
async fn if_match_guards_a_change() {
    let daemon = Daemon::start().await;
    let token = "Authorization: Bearer 0123456789abcdef0123456789abcdef";
    let put = |tag: &str| {
        format!(
            "PUT /v1/targets/{TARGET} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{token}\r\nIf-Match: {tag}\r\nContent-Length: 13\r\n\r\n{{\"alias\":\"A\"}}"
        )
    };
    assert!(say(&daemon, &put("\"5\"")).await.starts_with("HTTP/1.1 409 "));
    let done = say(&daemon, &put("\"1\"")).await;
    assert!(done.starts_with("HTTP/1.1 200 ") && done.contains("etag: \"2\""), "{done}");
    daemon.stop().await;
}

#[tokio::test]
async fn a_daemon_that_ends_is_not_ready_and_changes_nothing_any_more() {
    let daemon = Daemon::start().await;
    assert_eq!(daemon.get("/v1/ready").await["status"], "ok");
    let client = daemon.client.clone();
    daemon.stop().await;
    let sentence = client.call(Method::GET, "/v1/ready", None).await.unwrap_err().to_string();
    assert!(sentence.contains("no daemon answers on"), "{sentence}");
}
