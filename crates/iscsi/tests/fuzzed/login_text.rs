//! Both login machines fed by a peer that may say anything.
//!
//! The first byte chooses the circumstances; then come records: flags, status class, length of the text (two bytes,
//! big-endian), text.

use lunway_iscsi::chap::{ChapAccount, ChapAlgorithm, Secret};
use lunway_iscsi::login::{
    ChapAuth, InitiatorChap, InitiatorLogin, InitiatorLoginConfig, InitiatorStep, LOGIN_PDUS_MAX, LoggedIn,
    LoginGrant, TargetLogin, TargetStep,
};
use lunway_iscsi::negotiation::Parameters;
use lunway_iscsi::pdu::{LoginRequest, LoginResponse, LoginStatus};
use lunway_iscsi::text;

fn account() -> ChapAccount {
    ChapAccount { user: "alice".into(), secret: Secret::new("correct horse").expect("short enough") }
}

/// One PDU of the peer.
struct Record<'a> {
    flags: u8,
    status_class: u8,
    text: &'a [u8],
}

fn records(mut input: &[u8]) -> Vec<Record<'_>> {
    let mut records = Vec::new();
    while let Some((&[flags, status_class, high, low], rest)) = input.split_first_chunk::<4>() {
        let len = usize::from(u16::from_be_bytes([high, low])).min(rest.len());
        records.push(Record { flags, status_class, text: &rest[..len] });
        input = &rest[len..];
    }
    records
}

/// What must hold of every login that succeeds, whoever is at the other end.
fn check(logged_in: &LoggedIn, ours: &Parameters) {
    let agreed = &logged_in.negotiated;
    assert!(agreed.first_burst_length <= agreed.max_burst_length);
    assert!(agreed.max_burst_length >= 512 && agreed.max_recv_peer >= 512);
    assert!(agreed.max_outstanding_r2t >= 1 && agreed.max_connections >= 1);
    assert!(agreed.max_outstanding_r2t <= ours.max_outstanding_r2t);
    assert!(agreed.error_recovery_level <= ours.error_recovery_level);
}

fn target(choice: u8, records: &[Record<'_>]) {
    let ours = Parameters::default();
    let mut target = TargetLogin::new(ours.clone());
    let asks = choice & 1 != 0;
    let auth = asks.then(|| ChapAuth {
        accounts: vec![account()],
        mutual: (choice & 2 != 0).then(account),
        algorithms: ChapAlgorithm::ALL.into(),
        required: choice & 8 == 0,
        barred: Vec::new(),
    });
    let mut asked = false;
    let mut answered = 0;
    for record in records {
        let mut header = LoginRequest::new();
        header.flags = record.flags;
        let mut step = target.request(&header, record.text);
        if let TargetStep::Ask(_) = step {
            assert!(!std::mem::replace(&mut asked, true), "asked twice");
            step = if choice & 4 != 0 {
                target.refuse(LoginStatus::NOT_FOUND)
            } else {
                target.grant(LoginGrant {
                    tsih: 1,
                    target_portal_group_tag: 1,
                    target_alias: None,
                    auth: auth.clone(),
                    refusal: None,
                })
            };
        }
        if let TargetStep::Prove(_) = step {
            step = target.check_proof();
        }
        answered += 1;
        let reply = match step {
            TargetStep::Ask(_) | TargetStep::Prove(_) => panic!("asked twice"),
            TargetStep::Respond(reply) => reply,
            TargetStep::Finished(reply, logged_in) => {
                // The challenge is random and the secret unknown to the fuzzer.
                assert!(!asks || choice & 8 != 0, "let in without proof");
                check(&logged_in, &ours);
                assert_eq!(reply.header.tsih.get(), 1);
                reply
            }
            TargetStep::Failed(reply) => {
                assert_ne!(reply.header.status(), LoginStatus::SUCCESS);
                reply
            }
        };
        assert_eq!(reply.data.len(), reply.header.data_segment_length.get() as usize);
        assert!(reply.data.len() <= text::LOGIN_SEGMENT_LEN_MAX);
        assert!(answered <= LOGIN_PDUS_MAX || reply.header.status() != LoginStatus::SUCCESS);
    }
}

fn initiator(choice: u8, records: &[Record<'_>]) {
    let ours = Parameters::default();
    let mutual = choice & 2 != 0;
    let mut initiator = InitiatorLogin::new(InitiatorLoginConfig {
        initiator_name: "iqn.2026-01.example:a".into(),
        initiator_alias: None,
        target_name: (choice & 4 != 0).then(|| "iqn.2026-01.example:b".into()),
        isid: [0; 6],
        tsih: 0,
        cid: 0,
        parameters: ours.clone(),
        chap: (choice & 1 != 0).then(|| InitiatorChap {
            account: account(),
            algorithms: ChapAlgorithm::OFFER.into(),
            mutual: mutual.then(account),
        }),
    });
    initiator.first();
    for record in records {
        let mut header = LoginResponse::new();
        header.flags = record.flags;
        header.status_class = record.status_class;
        match initiator.response(&header, record.text) {
            InitiatorStep::Send(message) => assert!(message.data.len() <= text::LOGIN_SEGMENT_LEN_MAX),
            InitiatorStep::Finished(logged_in) => {
                assert!(choice & 1 == 0 || !mutual, "the target proved nothing");
                check(&logged_in, &ours);
            }
            InitiatorStep::Failed(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// Runs one input. Panics if something is wrong with the code, never because of the input.
pub(crate) fn run(input: &[u8]) {
    let Some((&choice, rest)) = input.split_first() else { return };
    let records = records(rest);
    if choice & 0x80 == 0 {
        target(choice, &records);
    } else {
        initiator(choice, &records);
    }
    if let Ok(pairs) = text::parse(rest) {
        assert!(pairs.len() <= text::PAIRS_MAX);
        for (_, value) in pairs {
            let _ = (text::number(value), text::boolean(value), text::range(value));
            if let Ok(bytes) = text::binary(value, 64) {
                assert!(bytes.len() <= 64);
                assert_eq!(text::binary(&text::to_hexadecimal(&bytes), 64), Ok(bytes));
            }
        }
    }
}
