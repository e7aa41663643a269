//! The PDUs of a login, one by one.

use lunway_iscsi::CloseReason;
use lunway_iscsi::negotiation::Parameters;
use lunway_iscsi::pdu::*;

use crate::requests::{number, requests, requests_after, requests_after_bytes};
use crate::wire::*;

/// All PDUs of a login, requests and responses by turns.
fn login(pair: &mut Pair) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut exchanges = Vec::new();
    let mut sent = requests(pair);
    while !sent.is_empty() && pair.initiator.logged_in().is_none() {
        assert_eq!(sent.len(), 1, "one request at a time");
        let request = sent.remove(0);
        let mut answers = answers_to_bytes(pair, &request);
        assert_eq!(answers.len(), 1, "one response to each");
        let response = answers.remove(0).1;
        sent = requests_after_bytes(pair, &response);
        exchanges.push((request, response));
    }
    exchanges
}

// shows RFC 7143 [6.3-1, 6.3.3-1, 11.12-1, 11.12.4-1, 11.12.4.1-1, 11.12.4.2-1, 11.12.6-1, 11.12.6-2, 11.12.7-1, 11.13.1-1]
// shows RFC 7143 [11.13.2-1, 11.12.8-1, 6.3.2-3, 6.3-7, 11.13.6-1]
#[test]
fn every_pdu_of_a_login_says_what_the_first_one_said() {
    let mut pair = Setup::default().connect();
    let exchanges = login(&mut pair);
    assert!(pair.initiator.logged_in().is_some() && exchanges.len() > 1);
    let (first, answer) = &exchanges[0];
    for (n, (request, response)) in exchanges.iter().enumerate() {
        assert_eq!(request[0], 0x43, "an immediate Login Request");
        assert_eq!(request[2..4], [0, 0], "version 0 at least and at most");
        assert_eq!(request[8..14], first[8..14], "ISID");
        assert_eq!(request[14..16], [0, 0], "TSIH of a new session");
        assert_eq!((&request[16..22], &request[24..28]), (&first[16..22], &first[24..28]), "tag, CID, CmdSN");
        assert_eq!(response[2..4], [0, 0], "version 0");
        assert_eq!(number(response, 24), number(answer, 24) + n as u32, "StatSN");
        assert_eq!(number(response, 28), number(first, 24), "the leading CmdSN is the next expected");
        let is_last = n + 1 == exchanges.len();
        assert_eq!((request[1] & 0x83 == 0x83, response[1] & 0x83 == 0x83), (is_last, is_last));
        assert_eq!(response[14..16] != [0, 0], is_last, "the TSIH comes at the end");
    }
}

// shows RFC 7143 [11.12.10-1, 11.13.8-1, 13.4-1, 13.4-2, 13.5-1, 13.5-2, 6.3.1-1, 6.1-1]
#[test]
fn the_first_request_says_who_and_to_whom_and_none_says_it_again() {
    let mut pair = Setup::default().connect();
    let exchanges = login(&mut pair);
    let says = |pdu: &[u8], key: &str| {
        pdu[48..].split(|byte| *byte == 0).any(|pair| pair.starts_with(key.as_bytes()))
    };
    for (n, (request, _)) in exchanges.iter().enumerate() {
        for key in ["InitiatorName=", "TargetName="] {
            assert_eq!(says(request, key), n == 0, "{key}");
        }
        let len = usize::from(request[6]) << 8 | usize::from(request[7]);
        assert_eq!(request[48 + len - 1], 0, "the last pair is ended as well");
    }
    assert!(says(&exchanges[0].1, "TargetPortalGroupTag=1"));
}

// shows RFC 7143 [11.13.2-2, 7.12-1]
#[test]
fn a_target_with_another_version_is_left() {
    let mut pair = Setup::default().connect();
    requests(&mut pair);
    let mut response = LoginResponse::new();
    response.isid = [0x80, 1, 2, 3, 4, 5];
    response.version_active = 1;
    assert_eq!(requests_after(&mut pair, &response), Vec::<Vec<u8>>::new());
    assert!(matches!(pair.initiator_closed, Some(CloseReason::LoginFailed(_))));
}

// shows RFC 7143 [6.2-2, 11.12.2-1, 11.13.7-1, 6.3.3-2]
#[test]
fn a_long_answer_is_fetched_by_empty_requests_that_keep_asking_for_the_next_stage() {
    let mut pair = Setup::default().connect();
    let request = requests(&mut pair).remove(0);
    assert_eq!(request[1] & 0xc0, 0x80, "T");
    let mut response = LoginResponse::new();
    response.isid = [0x80, 1, 2, 3, 4, 5];
    response.flags = LoginResponse::CONTINUE;
    let next = requests_after(&mut pair, &response).remove(0);
    assert_eq!((next.len(), next[1] & 0xc0), (48, 0x80), "empty, and still T");
}

// shows RFC 7143 [6.2-9, 6.2.2-2]
#[test]
fn words_that_are_answers_are_no_offers() {
    for word in ["Reject", "Irrelevant", "NotUnderstood", "None"] {
        let mut pair = Setup::default().connect();
        let mut request = LoginRequest::new();
        request.set_stages(Stage::OPERATIONAL, None);
        let text = format!(
            "InitiatorName=iqn.2026-11.test:i\0TargetName=iqn.2026-11.test:t\0MaxBurstLength={word}\0"
        );
        let answer = answers_to(&mut pair, &request, text.as_bytes()).remove(0).1;
        let text = String::from_utf8_lossy(&answer[48..]).into_owned();
        assert!(text.contains("MaxBurstLength=Reject\0"), "{word}: {text:?}");
    }
}

/// Such a name was shown by `lunway top` as it is, and could do to the terminal what it liked.
#[test]
fn a_name_with_control_characters_is_no_name() {
    for name in ["iqn.2026-11.test:i\x1b[2J", "iqn.2026-11.test:i\nroot", "iqn.2026-11.test:i\u{9b}"] {
        let mut pair = Setup::default().connect();
        let mut request = LoginRequest::new();
        request.set_stages(Stage::OPERATIONAL, None);
        let text = format!("InitiatorName={name}\0TargetName=iqn.2026-11.test:t\0");
        let answer = answers_to(&mut pair, &request, text.as_bytes()).remove(0).1;
        assert_eq!(answer[36..38], [2, 0], "{name:?}: an initiator error");
    }
}

// shows RFC 7143 [7.4.1-1, 13.21-1, 7.1.5-1]
#[test]
fn a_discovery_session_has_level_0_and_one_connection_whatever_is_wanted() {
    let all = Parameters { error_recovery_level: 2, max_connections: 8, ..Parameters::default() };
    let pair = Setup { initiator: all.clone(), target: all, discovery: true, ..Setup::default() }.log_in();
    for negotiated in [&pair.initiator.logged_in(), &pair.target.logged_in()]
        .map(|end| end.expect("logged in").negotiated.clone())
    {
        assert_eq!(negotiated.max_connections, 1);
        assert_eq!(negotiated.error_recovery_level, 0);
    }
}

// shows RFC 7143 [13.21-1]
#[test]
fn an_initiator_that_offers_all_keys_at_discovery_is_answered_with_values() {
    let mut pair = Setup::default().connect();
    let mut request = LoginRequest::new();
    request.set_stages(Stage::OPERATIONAL, Some(Stage::FULL_FEATURE));
    let text = "InitiatorName=iqn.2026-11.test:i\0SessionType=Discovery\0HeaderDigest=None\0DataDigest=None\0MaxConnections=1\0\
                InitialR2T=No\0ImmediateData=Yes\0MaxBurstLength=262144\0FirstBurstLength=65536\0MaxOutstandingR2T=1\0\
                DataPDUInOrder=Yes\0DataSequenceInOrder=Yes\0ErrorRecoveryLevel=0\0DefaultTime2Wait=2\0DefaultTime2Retain=0\0\
                MaxRecvDataSegmentLength=65536\0";
    let answer = answers_to(&mut pair, &request, text.as_bytes()).remove(0).1;
    let said = String::from_utf8_lossy(&answer[48..]).into_owned();
    for pair in text.split_terminator('\0').skip(2).filter(|pair| !pair.starts_with("MaxRecv")) {
        assert!(said.contains(&format!("{pair}\0")), "{pair}: {said:?}");
    }
    assert!(pair.target.logged_in().is_some());
}
