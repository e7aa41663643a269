//! Both login machines against each other, and each against a peer that misbehaves.

use super::*;
use crate::chap::{ChapAccount, ChapAlgorithm, Secret};
use crate::negotiation::{DigestPolicy, Parameters};
use crate::pdu::{LoginRequest, LoginResponse, LoginStatus, Stage, view};
use crate::text::{self, Builder};
use proptest::prelude::*;

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
    LoginGrant { tsih: 42, target_portal_group_tag: 3, target_alias: Some("the disk".into()), auth }
}

fn auth() -> ChapAuth {
    ChapAuth {
        accounts: vec![account("bob", "battery staple"), account("alice", "correct horse")],
        mutual: Some(account("target", "who goes there")),
        algorithms: ChapAlgorithm::ALL.into(),
        barred: Vec::new(),
    }
}

/// How a login ended on both sides.
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
        let reply = match step {
            TargetStep::Ask(_) => panic!("the target asks twice"),
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

// shows RFC 7143 [6.3-3, 6.3-8]
#[test]
fn without_authentication_two_requests_suffice_and_both_sides_agree() {
    let ending = login(config(), &grant(None));
    assert_eq!(ending.requests, 2);
    let (target, initiator) = ending.expect_success();
    assert_eq!(initiator.negotiated, target.negotiated);
    assert_eq!(target.initiator_name, INITIATOR);
    assert_eq!(target.initiator_alias.as_deref(), Some("my host"));
    assert_eq!(target.target_name.as_deref(), Some(TARGET));
    assert_eq!(
        (target.session_type, target.tsih, target.cid, target.isid),
        (SessionType::Normal, 42, 7, ISID)
    );
    assert_eq!(target.user, None);
    assert_eq!(initiator.target_alias.as_deref(), Some("the disk"));
    assert_eq!((initiator.target_portal_group_tag, initiator.tsih), (Some(3), 42));
}

// shows RFC 7143 [13.6-1, 13.7-1]
#[test]
fn each_side_learns_what_the_other_takes() {
    let mut config = config();
    config.parameters.max_recv_data_segment_length = 65_536;
    let target =
        TargetLogin::new(Parameters { max_recv_data_segment_length: 131_072, ..Parameters::default() });
    let (target, initiator) = run(InitiatorLogin::new(config), target, &grant(None)).expect_success();
    assert_eq!((target.negotiated.max_recv_ours, target.negotiated.max_recv_peer), (131_072, 65_536));
    assert_eq!((initiator.negotiated.max_recv_ours, initiator.negotiated.max_recv_peer), (65_536, 131_072));
}

// shows RFC 7143 [6.3.1-1, 13.21-2, 4.2.7.1-3]
#[test]
fn a_discovery_session_needs_no_target_name_and_is_told_its_portal_group() {
    let mut config = config();
    config.target_name = None;
    let (target, initiator) = login(config, &grant(None)).expect_success();
    assert_eq!(target.session_type, SessionType::Discovery);
    assert_eq!(initiator.session_type, SessionType::Discovery);
    assert_eq!(
        (target.target_name, target.target_portal_group_tag),
        (None, initiator.target_portal_group_tag)
    );
    assert!(initiator.target_portal_group_tag.is_some());
    assert_eq!(initiator.target_alias, None);
}

// shows RFC 7143 [9.1-1, 9.2.1-1, 12.1-1, 12.1-2, 12.1-3, 12.1.3-1, 12.1.3-2, 12.1.3-3, 12.1.3-5]
// shows RFC 7143 [6.3.2-1, 4.2.4-1]
#[test]
fn chap_works_one_way_and_mutual_with_every_algorithm() {
    for algorithm in ChapAlgorithm::ALL {
        for mutual in [None, Some(account("target", "who goes there"))] {
            for discovery in [false, true] {
                let mut config = config();
                config.chap = chap(mutual.clone());
                if discovery {
                    config.target_name = None;
                }
                let auth = ChapAuth { algorithms: vec![algorithm], ..auth() };
                let (target, initiator) = login(config, &grant(Some(auth))).expect_success();
                assert_eq!(target.user.as_deref(), Some("alice"), "{algorithm:?}");
                assert_eq!(initiator.user.as_deref(), Some("alice"), "{algorithm:?}");
            }
        }
    }
}

// shows RFC 7143 [13.1-1, 6.2.1-2]
#[test]
fn every_digest_policy_meets_every_other() {
    use DigestPolicy::{Allow, Never, Prefer, Require};
    for (ours, theirs, expected) in [
        (Never, Never, Some(false)),
        (Never, Prefer, Some(false)),
        (Never, Require, None),
        (Allow, Allow, Some(false)),
        (Allow, Prefer, Some(false)),
        (Allow, Require, Some(true)),
        (Prefer, Never, Some(false)),
        (Prefer, Allow, Some(true)),
        (Prefer, Require, Some(true)),
        (Require, Allow, Some(true)),
        (Require, Never, None),
        (Require, Require, Some(true)),
    ] {
        let mut config = config();
        config.parameters.header_digest = ours;
        config.parameters.data_digest = Allow;
        let target = TargetLogin::new(Parameters { header_digest: theirs, ..Parameters::default() });
        let ending = run(InitiatorLogin::new(config), target, &grant(None));
        match expected {
            Some(on) => {
                let (target, initiator) = ending.expect_success();
                assert_eq!(target.negotiated.header_digest, on, "{ours:?} meets {theirs:?}");
                assert_eq!(target.negotiated, initiator.negotiated);
                assert!(!target.negotiated.data_digest);
            }
            None => {
                ending.initiator.expect_err("no common digest");
            }
        }
    }
}

// shows RFC 7143 [9.2-4, 12.1.3-4, 6.3.2-4]
#[test]
fn a_wrong_secret_or_name_is_an_authentication_failure() {
    for wrong in [
        account("alice", "incorrect horse"),
        account("mallory", "correct horse"),
        account("alice", "battery staple"),
    ] {
        let mut config = config();
        config.chap =
            Some(InitiatorChap { account: wrong, algorithms: ChapAlgorithm::OFFER.into(), mutual: None });
        let (status, error) = login(config, &grant(Some(auth()))).expect_failure();
        assert_eq!(status, LoginStatus::AUTHENTICATION_FAILURE);
        assert_eq!(error, LoginError::AuthenticationFailed);
    }
}

#[test]
fn whoever_brings_no_secret_where_one_is_asked_for_is_refused() {
    let (status, error) = login(config(), &grant(Some(auth()))).expect_failure();
    assert_eq!(status, LoginStatus::AUTHENTICATION_FAILURE);
    assert_eq!(error, LoginError::AuthenticationFailed);
}

#[test]
fn a_secret_nobody_asks_for_stays_unused() {
    let mut config = config();
    config.chap = chap(None);
    let (target, initiator) = login(config, &grant(None)).expect_success();
    assert_eq!((target.user, initiator.user), (None, None));
}

// shows RFC 7143 [12.1.3-2]
#[test]
fn no_common_algorithm_is_an_authentication_failure() {
    let mut config = config();
    config.chap = Some(InitiatorChap { algorithms: vec![ChapAlgorithm::Md5], ..chap(None).unwrap() });
    let auth = ChapAuth { algorithms: vec![ChapAlgorithm::Sha256], ..auth() };
    assert_eq!(login(config, &grant(Some(auth))).expect_failure().0, LoginStatus::AUTHENTICATION_FAILURE);
}

// shows RFC 7143 [12.1.3-6, 6.3.2-5]
#[test]
fn a_target_that_cannot_prove_itself_is_refused_by_the_initiator() {
    for theirs in [account("target", "someone else"), account("other", "who goes there")] {
        let mut config = config();
        config.chap = chap(Some(account("target", "who goes there")));
        let auth = ChapAuth { mutual: Some(theirs), ..auth() };
        let error = login(config, &grant(Some(auth))).initiator.unwrap_err();
        assert!(matches!(error, LoginError::TargetNotAuthenticated(_)), "{error}");
    }
}

#[test]
fn mutual_chap_fails_where_the_target_has_no_secret_or_wants_no_authentication() {
    let mut config = config();
    config.chap = chap(Some(account("target", "who goes there")));
    let auth = ChapAuth { mutual: None, ..auth() };
    assert_eq!(
        login(config.clone(), &grant(Some(auth))).expect_failure().0,
        LoginStatus::AUTHENTICATION_FAILURE
    );
    assert_eq!(login(config, &grant(None)).expect_failure().0, LoginStatus::AUTHENTICATION_FAILURE);
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
        last = Some(step);
    }
    last.expect("at least one request")
}

fn refused(auth: Option<&ChapAuth>, requests: &[(LoginRequest, Vec<u8>)]) -> LoginStatus {
    match feed(&mut TargetLogin::new(Parameters::default()), auth, requests) {
        TargetStep::Failed(reply) => reply.header.status(),
        step => panic!("expected a refusal, got {step:?}"),
    }
}

fn reply(step: &TargetStep) -> &LoginReply {
    match step {
        TargetStep::Respond(reply) | TargetStep::Finished(reply, _) | TargetStep::Failed(reply) => reply,
        TargetStep::Ask(_) => panic!("a question is no reply"),
    }
}

fn values(reply: &LoginReply) -> Vec<(&str, &str)> {
    text::parse(&reply.data).unwrap()
}

#[test]
fn a_login_may_begin_in_the_operational_stage_and_take_one_request() {
    let mut target = TargetLogin::new(Parameters::default());
    let step =
        feed(&mut target, None, &[request(OPERATIONAL_TO_FULL, &[WHO[0], WHO[1], ("InitialR2T", "No")])]);
    let TargetStep::Finished(reply, logged_in) = step else { panic!("not finished: {step:?}") };
    assert_eq!((reply.header.flags, reply.header.tsih.get()), (0x87, 42));
    assert!(!logged_in.negotiated.initial_r2t);
    assert_eq!(
        values(&reply),
        [
            ("TargetPortalGroupTag", "3"),
            ("TargetAlias", "the disk"),
            ("InitialR2T", "No"),
            ("MaxRecvDataSegmentLength", "262144"),
        ]
    );
}

#[test]
fn a_login_may_go_from_security_to_full_feature_and_keep_all_defaults() {
    let mut target = TargetLogin::new(Parameters::default());
    let step =
        feed(&mut target, None, &[request(SECURITY_TO_FULL, &[WHO[0], WHO[1], ("AuthMethod", "CHAP,None")])]);
    let TargetStep::Finished(_, logged_in) = step else { panic!("not finished: {step:?}") };
    assert_eq!(logged_in.negotiated.max_recv_ours, 8192, "nothing larger was declared");
}

// shows RFC 7143 [6.3-9]
#[test]
fn names_repeated_in_the_operational_stage_are_accepted_if_they_are_the_same() {
    let first = request(SECURITY_TO_OPERATIONAL, &[WHO[0], WHO[1], ("AuthMethod", "None")]);
    let same = request(OPERATIONAL_TO_FULL, &WHO);
    let other = request(OPERATIONAL_TO_FULL, &[("TargetName", "iqn.2026-01.example:other")]);
    let mut target = TargetLogin::new(Parameters::default());
    assert!(matches!(feed(&mut target, None, &[first.clone(), same]), TargetStep::Finished(..)));
    assert_eq!(refused(None, &[first, other]), LoginStatus::INITIATOR_ERROR);
}

// shows RFC 7143 [6.2-13]
#[test]
fn an_empty_login_in_several_steps_succeeds() {
    let mut target = TargetLogin::new(Parameters::default());
    let steps = [
        request(0, &WHO),
        request(SECURITY_TO_OPERATIONAL, &[]),
        request(OPERATIONAL, &[]),
        request(OPERATIONAL_TO_FULL, &[]),
    ];
    assert!(matches!(feed(&mut target, None, &steps), TargetStep::Finished(..)));
}

// shows RFC 7143 [6.3-2, 13.4-1, 13.5-1, 9.2-3]
// shows RFC 7143 [11.12.4.1-2, 11.12.4.2-2]
#[test]
fn what_is_missing_or_unsupported_has_its_own_status() {
    assert_eq!(refused(None, &[request(OPERATIONAL_TO_FULL, &WHO[1..])]), LoginStatus::MISSING_PARAMETER);
    assert_eq!(refused(None, &[request(OPERATIONAL_TO_FULL, &WHO[..1])]), LoginStatus::MISSING_PARAMETER);
    assert_eq!(
        refused(None, &[request(OPERATIONAL_TO_FULL, &[WHO[0], WHO[1], ("SessionType", "Copy")])]),
        LoginStatus::SESSION_TYPE_NOT_SUPPORTED
    );
    let (mut header, data) = request(OPERATIONAL_TO_FULL, &WHO);
    header.version_max = 2;
    header.version_min = 1;
    assert_eq!(refused(None, &[(header, data)]), LoginStatus::UNSUPPORTED_VERSION);
}

// shows RFC 7143 [6.3-4, 6.2-1, 11.12.6-3, 11.12.7-2]
// shows RFC 7143 [6.3-7]
#[test]
fn nothing_that_breaks_the_stages_passes() {
    let first = request(SECURITY_TO_OPERATIONAL, &WHO);
    for broken in [
        vec![request(0x82, &WHO)], // to stage 2, which is none
        vec![request(0x80, &WHO)], // to the stage it is in
        vec![request(0x85, &WHO)], // backwards, from operational to itself
        vec![request(0xc1, &WHO)], // leaves and continues
        vec![request(0x08, &WHO)], // begins in stage 2
        vec![request(0x0c, &WHO)], // begins in the full feature phase
        vec![first.clone(), request(SECURITY_TO_OPERATIONAL, &[])], // falls back
        vec![request(0, &WHO), request(OPERATIONAL_TO_FULL, &[])], // jumps ahead
    ] {
        assert_eq!(refused(None, &broken), LoginStatus::INITIATOR_ERROR, "{broken:?}");
    }
    let (mut other, data) = request(OPERATIONAL_TO_FULL, &[]);
    other.isid = [0; 6];
    assert_eq!(refused(None, &[first, (other, data)]), LoginStatus::INITIATOR_ERROR);
}

// shows RFC 7143 [6.3-5]
#[test]
fn no_way_leads_around_authentication() {
    let failure = LoginStatus::AUTHENTICATION_FAILURE;
    let auth = auth();
    let auth = Some(&auth);
    assert_eq!(refused(auth, &[request(OPERATIONAL_TO_FULL, &WHO)]), failure);
    assert_eq!(refused(auth, &[request(SECURITY_TO_FULL, &WHO)]), failure);
    assert_eq!(refused(auth, &[request(0, &[WHO[0], WHO[1], ("AuthMethod", "None")])]), failure);
    // Chosen, and then off to the next stage without proof: the target stays where it is, and refuses the jump.
    let chosen = request(SECURITY_TO_OPERATIONAL, &[WHO[0], WHO[1], ("AuthMethod", "CHAP")]);
    let mut target = TargetLogin::new(Parameters::default());
    let step = feed(&mut target, auth, std::slice::from_ref(&chosen));
    assert_eq!(reply(&step).header.flags, 0, "no transit");
    assert_eq!(
        refused(auth, &[chosen.clone(), request(OPERATIONAL_TO_FULL, &[])]),
        LoginStatus::INITIATOR_ERROR
    );
    // A response before any challenge.
    let early = request(SECURITY_TO_OPERATIONAL, &[("CHAP_N", "alice"), ("CHAP_R", "0x00")]);
    assert_eq!(refused(auth, &[chosen.clone(), early]), LoginStatus::INITIATOR_ERROR);
    // A second choice of None after CHAP was chosen.
    let none = request(SECURITY_TO_OPERATIONAL, &[("AuthMethod", "None")]);
    assert_eq!(refused(auth, &[chosen, none]), LoginStatus::INITIATOR_ERROR);
}

/// Plays an initiator up to the challenge, then answers with what `respond` makes of it.
fn after_challenge(respond: impl Fn(&[(&str, &str)]) -> Vec<(&'static str, String)>) -> TargetStep {
    let mut target = TargetLogin::new(Parameters::default());
    let begin =
        [request(0, &[WHO[0], WHO[1], ("AuthMethod", "CHAP,None")]), request(0, &[("CHAP_A", "9,x,5")])];
    let step = feed(&mut target, Some(&auth()), &begin);
    let answers = respond(&values(reply(&step)));
    let pairs: Vec<_> = answers.iter().map(|(key, value)| (*key, value.as_str())).collect();
    feed(&mut target, None, &[request(SECURITY_TO_OPERATIONAL, &pairs)])
}

fn value_of(pairs: &[(&str, &str)], key: &str) -> String {
    pairs.iter().find(|(k, _)| *k == key).unwrap().1.to_owned()
}

fn correct_response(pairs: &[(&str, &str)]) -> String {
    use crate::chap::Challenge;
    assert_eq!(value_of(pairs, "CHAP_A"), "5");
    let challenge = Challenge::from_text(&value_of(pairs, "CHAP_I"), &value_of(pairs, "CHAP_C")).unwrap();
    text::to_hexadecimal(&challenge.answer(ChapAlgorithm::Md5, &Secret::new("correct horse").unwrap()))
}

// shows RFC 7143 [9.2.1-11]
#[test]
fn a_reflected_challenge_is_refused() {
    let step = after_challenge(|pairs| {
        vec![
            ("CHAP_N", "alice".into()),
            ("CHAP_R", correct_response(pairs)),
            ("CHAP_I", "0x7".into()),
            ("CHAP_C", value_of(pairs, "CHAP_C")),
        ]
    });
    assert_eq!(reply(&step).header.status(), LoginStatus::AUTHENTICATION_FAILURE);
    assert!(reply(&step).data.is_empty(), "no proof is given away");
}

// shows RFC 7143 [9.2-3]
#[test]
fn half_a_proof_or_a_malformed_one_is_refused() {
    let with = |name: Option<&str>, response: Option<&str>, extra: Option<(&'static str, &str)>| {
        let step = after_challenge(|pairs| {
            let name = name.map(|name| ("CHAP_N", name.to_owned()));
            let response =
                response.map(|r| ("CHAP_R", if r == "right" { correct_response(pairs) } else { r.into() }));
            name.into_iter().chain(response).chain(extra.map(|(k, v)| (k, v.to_owned()))).collect()
        });
        reply(&step).header.status()
    };
    assert_eq!(with(Some("alice"), Some("right"), None), LoginStatus::SUCCESS);
    assert_eq!(with(Some("alice"), None, None), LoginStatus::MISSING_PARAMETER);
    assert_eq!(with(None, Some("right"), None), LoginStatus::MISSING_PARAMETER);
    assert_eq!(with(None, None, None), LoginStatus::MISSING_PARAMETER);
    assert_eq!(with(Some("alice"), Some("right"), Some(("CHAP_I", "1"))), LoginStatus::MISSING_PARAMETER);
    let failure = LoginStatus::AUTHENTICATION_FAILURE;
    for response in
        ["0x", "12345", "0xzz", "0x00", &format!("0b{}", "A".repeat(4000)), &format!("0x{}", "0".repeat(34))]
    {
        assert_eq!(with(Some("alice"), Some(response), None), failure, "{response}");
    }
    // A name that looks like a number is a name.
    assert_eq!(with(Some("0x616c696365"), Some("right"), None), failure);
    assert_eq!(with(Some("alice"), Some("right"), Some(("CHAP_A", "5"))), LoginStatus::INITIATOR_ERROR);
}

// shows RFC 7143 [6.2-6, 6.2-7]
#[test]
fn unknown_keys_are_answered_and_harm_nothing() {
    let mut target = TargetLogin::new(Parameters::default());
    let step = feed(
        &mut target,
        None,
        &[request(OPERATIONAL_TO_FULL, &[WHO[0], WHO[1], ("X-com.example.a", "1"), ("New", "")])],
    );
    assert!(matches!(step, TargetStep::Finished(..)));
    let found = values(reply(&step));
    assert!(
        found.contains(&("X-com.example.a", "NotUnderstood")) && found.contains(&("New", "NotUnderstood"))
    );
}

// shows RFC 7143 [6.3-9, 12-1]
#[test]
fn keys_of_other_phases_and_keys_sent_twice_are_errors() {
    for pairs in [
        [("SendTargets", "All"), ("X-a", "")],
        [("InitialR2T", "No"), ("InitialR2T", "No")],
        [("MaxRecvDataSegmentLength", "0"), ("X-a", "")],
        [("TargetAlias", "mine"), ("X-a", "")],
        [("CHAP_N", "alice"), ("X-a", "")],
    ] {
        let pairs: Vec<_> = WHO.into_iter().chain(pairs).collect();
        assert_eq!(
            refused(None, &[request(OPERATIONAL_TO_FULL, &pairs)]),
            LoginStatus::INITIATOR_ERROR,
            "{pairs:?}"
        );
    }
    let (header, _) = request(OPERATIONAL_TO_FULL, &[]);
    assert_eq!(refused(None, &[(header, b"no pair\0".to_vec())]), LoginStatus::INITIATOR_ERROR);
}

#[test]
fn a_login_without_end_is_ended() {
    let mut target = TargetLogin::new(Parameters::default());
    let mut requests = vec![request(0, &WHO)];
    requests.resize(LOGIN_PDUS_MAX as usize, request(0, &[]));
    assert!(matches!(feed(&mut target, None, &requests), TargetStep::Respond(_)));
    let step = feed(&mut target, None, &[request(0, &[])]);
    assert_eq!(reply(&step).header.status(), LoginStatus::INITIATOR_ERROR);
    // And stays ended.
    assert!(matches!(feed(&mut target, None, &[request(0, &[])]), TargetStep::Failed(_)));
}

// shows RFC 7143 [7.12-1, 11.13.5-4]
#[test]
fn a_refusal_carries_its_status_to_the_initiator_as_a_meaning() {
    for (status, expected) in [
        (LoginStatus::AUTHORIZATION_FAILURE, LoginError::AuthorizationFailed),
        (LoginStatus::NOT_FOUND, LoginError::NotFound),
        (LoginStatus::TARGET_REMOVED, LoginError::Removed),
        (LoginStatus::OUT_OF_RESOURCES, LoginError::TargetUnavailable(LoginStatus::OUT_OF_RESOURCES)),
        (LoginStatus::TOO_MANY_CONNECTIONS, LoginError::Refused(LoginStatus::TOO_MANY_CONNECTIONS)),
        (LoginStatus(0x0455), LoginError::Refused(LoginStatus(0x0455))),
    ] {
        let mut initiator = InitiatorLogin::new(config());
        let mut target = TargetLogin::new(Parameters::default());
        let message = initiator.first();
        assert!(matches!(target.request(&message.header, &message.data), TargetStep::Ask(_)));
        let step = target.refuse(status);
        let refusal = reply(&step);
        let InitiatorStep::Failed(error) = initiator.response(&refusal.header, &refusal.data) else {
            panic!("a refusal must end the login");
        };
        assert_eq!(error, expected);
    }
}

// shows RFC 7143 [11.13.5-1, 11.13.5-2, 13.8-1]
#[test]
fn a_redirection_tells_where_and_for_how_long() {
    for (status, permanent) in [(0x0101, false), (0x0102, true)] {
        let mut initiator = InitiatorLogin::new(config());
        let mut target = TargetLogin::new(Parameters::default());
        let message = initiator.first();
        assert!(matches!(target.request(&message.header, &message.data), TargetStep::Ask(_)));
        let step = target.refuse(LoginRefusal::moved("[2001:db8::1]:3260", permanent));
        let TargetStep::Failed(refusal) = step else { panic!("a redirection ends the login") };
        assert_eq!(refusal.header.status(), LoginStatus(status));
        let step = initiator.response(&refusal.header, &refusal.data);
        let InitiatorStep::Failed(error) = step else { panic!("a redirection ends the login") };
        assert_eq!(error, LoginError::Redirected { address: "[2001:db8::1]:3260".into(), permanent });
    }
}

// shows RFC 7143 [9.2.1-9]
#[test]
fn one_secret_for_both_directions_is_refused_even_if_it_is_known() {
    let same = ChapAuth { mutual: Some(account("target", "correct horse")), ..auth() };
    let mut config = config();
    config.chap = chap(Some(account("target", "correct horse")));
    let (status, _) = login(config, &grant(Some(same))).expect_failure();
    assert_eq!(status, LoginStatus::AUTHENTICATION_FAILURE);
}

/// A response written by hand.
fn response(flags: u8, pairs: &[(&str, &str)]) -> (LoginResponse, Vec<u8>) {
    let mut header = LoginResponse::new();
    header.flags = flags;
    header.isid = ISID;
    (header, request(0, pairs).1)
}

#[test]
fn the_initiator_answers_a_target_that_makes_offers_of_its_own() {
    let mut initiator = InitiatorLogin::new(config());
    initiator.first();
    let (header, data) = response(0x81, &[("AuthMethod", "None")]);
    assert!(matches!(initiator.response(&header, &data), InitiatorStep::Send(_)));
    let (header, data) =
        response(0x04, &[("OFMarker", "Yes"), ("TaskReporting", "FastAbort,RFC3720"), ("X-y", "1")]);
    let InitiatorStep::Send(message) = initiator.response(&header, &data) else { panic!("an answer is due") };
    assert_eq!(
        text::parse(&message.data).unwrap(),
        [("OFMarker", "No"), ("TaskReporting", "RFC3720"), ("X-y", "NotUnderstood")]
    );
    let (header, data) = response(0x87, &[]);
    assert!(matches!(initiator.response(&header, &data), InitiatorStep::Finished(_)));
}

// shows RFC 7143 [9.2-2]
#[test]
fn a_target_that_leaves_stages_on_its_own_is_not_followed() {
    for flags in [0x83, 0x87, 0xc1, 0x80, 0x04] {
        let mut initiator = InitiatorLogin::new(config());
        initiator.first();
        let (header, data) = response(flags, &[("AuthMethod", "None")]);
        let step = initiator.response(&header, &data);
        assert!(matches!(step, InitiatorStep::Failed(LoginError::Protocol(_))), "{flags:#04x}: {step:?}");
    }
}

// shows RFC 7143 [12.1.3-6]
#[test]
fn a_target_cannot_skip_its_own_proof() {
    let mut config = config();
    config.chap = chap(Some(account("target", "who goes there")));
    let mut initiator = InitiatorLogin::new(config);
    initiator.first();
    for (flags, pairs) in [
        (0x00, vec![("AuthMethod", "CHAP")]),
        (0x00, vec![("CHAP_A", "5"), ("CHAP_I", "1"), ("CHAP_C", "0x000102030405060708")]),
    ] {
        let (header, data) = response(flags, &pairs);
        assert!(matches!(initiator.response(&header, &data), InitiatorStep::Send(_)));
    }
    let (header, data) = response(0x81, &[]);
    let step = initiator.response(&header, &data);
    assert!(matches!(step, InitiatorStep::Failed(LoginError::TargetNotAuthenticated(_))), "{step:?}");
}

/// One of all the combinations of roles' wishes.
fn any_parameters() -> impl Strategy<Value = Parameters> {
    let digest =
        prop_oneof![Just(DigestPolicy::Never), Just(DigestPolicy::Allow), Just(DigestPolicy::Prefer)];
    (
        digest.clone(),
        digest,
        any::<[bool; 4]>(),
        512u32..1 << 24,
        512u32..1 << 24,
        512u32..1 << 24,
        1u16..,
        0u16..=3600,
        0u16..=3600,
        0u8..=2,
    )
        .prop_map(
            |(header_digest, data_digest, flags, recv, max_burst, first_burst, r2t, wait, retain, level)| {
                Parameters {
                    header_digest,
                    data_digest,
                    max_connections: r2t,
                    initial_r2t: flags[0],
                    immediate_data: flags[1],
                    max_recv_data_segment_length: recv,
                    max_burst_length: max_burst,
                    first_burst_length: first_burst,
                    max_outstanding_r2t: r2t,
                    default_time2wait: wait,
                    default_time2retain: retain,
                    data_pdu_in_order: flags[2],
                    data_sequence_in_order: flags[3],
                    error_recovery_level: level,
                    ..Parameters::default()
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    // shows RFC 7143 [6.2.2-1, 6.2-5, 11.13.3-1]
    #[test]
    fn whatever_both_want_they_end_with_the_same(ours in any_parameters(), theirs in any_parameters(), with_chap: bool) {
        let mut config = config();
        config.parameters = ours.clone();
        config.chap = if with_chap { chap(None) } else { None };
        let auth = with_chap.then(auth);
        let ending = run(InitiatorLogin::new(config), TargetLogin::new(theirs.clone()), &grant(auth));
        let (target, initiator) = ending.expect_success();
        prop_assert_eq!(target.negotiated.max_recv_peer, ours.max_recv_data_segment_length);
        prop_assert_eq!(target.negotiated.max_recv_ours, theirs.max_recv_data_segment_length);
        let mirrored = Negotiated {
            max_recv_ours: initiator.negotiated.max_recv_peer,
            max_recv_peer: initiator.negotiated.max_recv_ours,
            ..initiator.negotiated
        };
        prop_assert!(mirrored.first_burst_length <= mirrored.max_burst_length);
        prop_assert_eq!(target.negotiated, mirrored);
    }

    #[test]
    fn texts_cut_anywhere_change_nothing(ours in 80usize..600, theirs in 40usize..600, mutual: bool) {
        let mut config = config();
        config.chap = chap(mutual.then(|| account("target", "who goes there")));
        let mut initiator = InitiatorLogin::new(config);
        let mut target = TargetLogin::new(Parameters::default());
        initiator.segment_len = ours;
        target.segment_len = theirs;
        let (target, initiator) = run(initiator, target, &grant(Some(auth()))).expect_success();
        prop_assert_eq!(target.negotiated, initiator.negotiated);
    }

    #[test]
    fn no_request_makes_the_target_panic(requests in proptest::collection::vec((any_header(), any_text()), 1..12)) {
        let mut target = TargetLogin::new(Parameters::default());
        let requests: Vec<_> = requests.into_iter().map(|(header, text)| (*view::<LoginRequest>(&header), text)).collect();
        feed(&mut target, Some(&auth()), &requests);
    }

    #[test]
    fn no_response_makes_the_initiator_panic(responses in proptest::collection::vec((any_header(), any_text()), 1..12)) {
        let mut config = config();
        config.chap = chap(Some(account("target", "who goes there")));
        let mut initiator = InitiatorLogin::new(config);
        initiator.first();
        for (header, text) in responses {
            initiator.response(view(&header), &text);
        }
    }
}

/// Headers that are mostly acceptable, so that the text behind them is read.
fn any_header() -> impl Strategy<Value = crate::pdu::Header> {
    let flags = prop_oneof![Just(0x00u8), Just(0x04), Just(0x40), Just(0x81), Just(0x87), any::<u8>()];
    flags.prop_map(|flags| {
        let mut header = [0; 48];
        header[1] = flags;
        header[8..14].copy_from_slice(&ISID);
        header
    })
}

/// Texts out of keys that mean something, with values that may.
fn any_text() -> impl Strategy<Value = Vec<u8>> {
    let key = proptest::sample::select(crate::keys::KEYS.iter().map(|rule| rule.name).collect::<Vec<_>>());
    let value = prop_oneof![
        Just("Yes".to_owned()),
        Just("None".to_owned()),
        Just("CHAP,None".to_owned()),
        Just("CHAP".to_owned()),
        Just("5".to_owned()),
        Just("Normal".to_owned()),
        Just("0x00112233445566778899aabbccddeeff".to_owned()),
        "[ -~]{0,20}",
    ];
    let pair = (key, value).prop_map(|(key, value)| format!("{key}={value}\0").into_bytes());
    let known = proptest::collection::vec(pair, 0..6).prop_map(|pairs| pairs.concat());
    prop_oneof![4 => known, 1 => proptest::collection::vec(any::<u8>(), 0..100)]
}

#[test]
fn the_stage_names_of_the_flags_used_here_are_right() {
    let (header, _) = request(OPERATIONAL_TO_FULL, &[]);
    assert_eq!((header.current_stage(), header.next_stage()), (Stage::OPERATIONAL, Stage::FULL_FEATURE));
    assert!(header.transits() && !header.continues());
}

// shows RFC 7143 [11.13.6-2, 6.3-6, 11.13.7-1]
#[test]
fn the_end_of_a_long_answer_leaves_the_stage_only_if_it_is_still_asked_for() {
    for (flags, finished) in [(OPERATIONAL, false), (OPERATIONAL_TO_FULL, true)] {
        let mut target = TargetLogin::new(Parameters::default());
        target.segment_len = 50;
        let step = feed(&mut target, None, &[request(OPERATIONAL_TO_FULL, &WHO)]);
        assert_eq!(reply(&step).header.flags, 0x44, "continues and stays");
        let step = feed(&mut target, None, &[request(flags, &[])]);
        assert_eq!(matches!(step, TargetStep::Finished(..)), finished, "{step:?}");
        if !finished {
            let step = feed(&mut target, None, &[request(OPERATIONAL_TO_FULL, &[])]);
            assert!(matches!(step, TargetStep::Finished(..)));
        }
    }
}
