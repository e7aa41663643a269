//! Both login machines against each other, and each against a peer that misbehaves.

mod agreement;
mod initiator;
mod properties;
mod target;

use super::*;
use crate::chap::{ChapAccount, ChapAlgorithm, Secret};
use crate::negotiation::{DigestPolicy, Parameters};
use crate::pdu::{LoginRequest, LoginResponse, LoginStatus, Stage};
use crate::text::{self, Builder};

const INITIATOR: &str = "iqn.2026-01.example:initiator";
const TARGET: &str = "iqn.2026-01.example:disk";
const ISID: Isid = [0x80, 1, 2, 3, 4, 5];

fn account(user: &str, secret: &str) -> ChapAccount {
    ChapAccount { user: user.into(), secret: Secret::new(secret).unwrap() }
}

fn config() -> InitiatorLoginConfig {
    InitiatorLoginConfig {
        initiator_name: INITIATOR.into(),
        initiator_alias: Some("my host".into()),
        target_name: Some(TARGET.into()),
        isid: ISID,
        tsih: 0,
        cid: 7,
        parameters: Parameters::default(),
        chap: None,
    }
}

fn chap(mutual: Option<ChapAccount>) -> Option<InitiatorChap> {
    Some(InitiatorChap {
        account: account("alice", "correct horse"),
        algorithms: ChapAlgorithm::OFFER.into(),
        mutual,
    })
}

fn grant(auth: Option<ChapAuth>) -> LoginGrant {
    LoginGrant {
        tsih: 42,
        target_portal_group_tag: 3,
        target_alias: Some("the disk".into()),
        auth,
        refusal: None,
    }
}

fn auth() -> ChapAuth {
    ChapAuth {
        accounts: vec![account("bob", "battery staple"), account("alice", "correct horse")],
        mutual: Some(account("target", "who goes there")),
        algorithms: ChapAlgorithm::ALL.into(),
        required: true,
        barred: Vec::new(),
    }
}

/// End of a login on both sides.
#[derive(Debug)]
struct Ending {
    target: Result<LoggedIn, LoginStatus>,
    initiator: Result<LoggedIn, LoginError>,
    requests: u32,
}

impl Ending {
    fn expect_success(self) -> (LoggedIn, LoggedIn) {
        (self.target.expect("the target lets in"), self.initiator.expect("the initiator gets in"))
    }

    fn expect_failure(self) -> (LoginStatus, LoginError) {
        (self.target.expect_err("the target refuses"), self.initiator.expect_err("the initiator is refused"))
    }
}

/// Runs a login to its end, PDU by PDU.
fn run(mut initiator: InitiatorLogin, mut target: TargetLogin, grant: &LoginGrant) -> Ending {
    let mut message = initiator.first();
    let mut requests = 0;
    let mut ended = None;
    loop {
        requests += 1;
        assert!(requests <= LOGIN_PDUS_MAX, "the login does not end");
        assert_eq!(message.header.data_segment_length.get() as usize, message.data.len());
        let mut step = target.request(&message.header, &message.data);
        if let TargetStep::Ask(ask) = step {
            assert_eq!((ask.initiator_name.as_str(), ask.isid, ask.cid), (INITIATOR, ISID, 7));
            step = target.grant(grant.clone());
        }
        if let TargetStep::Prove(_) = step {
            step = target.check_proof();
        }
        let reply = match step {
            TargetStep::Ask(_) | TargetStep::Prove(_) => panic!("the target asks twice"),
            TargetStep::Respond(reply) => reply,
            TargetStep::Finished(reply, logged_in) => {
                ended = Some(Ok(*logged_in));
                reply
            }
            TargetStep::Failed(reply) => {
                ended = Some(Err(reply.header.status()));
                reply
            }
        };
        assert_eq!(reply.header.data_segment_length.get() as usize, reply.data.len());
        let result = match initiator.response(&reply.header, &reply.data) {
            InitiatorStep::Send(next) => {
                assert!(ended.is_none(), "the target has ended, the initiator goes on");
                message = next;
                continue;
            }
            InitiatorStep::Finished(logged_in) => Ok(*logged_in),
            InitiatorStep::Failed(error) => Err(error),
        };
        // An initiator that gives up leaves the target waiting; the connection's end is its answer.
        let target = ended.unwrap_or(Err(LoginStatus::INITIATOR_ERROR));
        return Ending { target, initiator: result, requests };
    }
}

fn login(config: InitiatorLoginConfig, grant: &LoginGrant) -> Ending {
    run(InitiatorLogin::new(config), TargetLogin::new(Parameters::default()), grant)
}

/// A request written by hand.
fn request(flags: u8, pairs: &[(&str, &str)]) -> (LoginRequest, Vec<u8>) {
    let mut header = LoginRequest::new();
    header.flags = flags;
    header.isid = ISID;
    header.cid = 7.into();
    let mut text = Builder::new();
    for (key, value) in pairs {
        text.pair(key, value);
    }
    (header, text.into_bytes())
}

const WHO: [(&str, &str); 2] = [("InitiatorName", INITIATOR), ("TargetName", TARGET)];
const SECURITY_TO_OPERATIONAL: u8 = 0x81;
const SECURITY_TO_FULL: u8 = 0x83;
const OPERATIONAL: u8 = 0x04;
const OPERATIONAL_TO_FULL: u8 = 0x87;

/// Feeds requests, granting when asked; returns the last step.
fn feed(
    target: &mut TargetLogin,
    auth: Option<&ChapAuth>,
    requests: &[(LoginRequest, Vec<u8>)],
) -> TargetStep {
    let mut last = None;
    for (header, data) in requests {
        let mut step = target.request(header, data);
        if matches!(step, TargetStep::Ask(_)) {
            step = target.grant(grant(auth.cloned()));
        }
        if matches!(step, TargetStep::Prove(_)) {
            step = target.check_proof();
        }
        last = Some(step);
    }
    last.expect("at least one request")
}

fn reply(step: &TargetStep) -> &LoginReply {
    match step {
        TargetStep::Respond(reply) | TargetStep::Finished(reply, _) | TargetStep::Failed(reply) => reply,
        TargetStep::Ask(_) | TargetStep::Prove(_) => panic!("a question is no reply"),
    }
}
