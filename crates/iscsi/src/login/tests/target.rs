//! The target against initiators that are written by hand.

use super::*;

fn refused(auth: Option<&ChapAuth>, requests: &[(LoginRequest, Vec<u8>)]) -> LoginStatus {
    match feed(&mut TargetLogin::new(Parameters::default()), auth, requests) {
        TargetStep::Failed(reply) => reply.header.status(),
        step => panic!("expected a refusal, got {step:?}"),
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

/// The accounts of [`auth`], whose proof an initiator need not give.
fn optional() -> ChapAuth {
    ChapAuth { required: false, ..auth() }
}

#[test]
fn where_no_proof_is_required_an_offer_without_one_is_taken_whatever_else_is_offered() {
    for offer in ["None", "None,CHAP", "CHAP,None"] {
        let requests = [request(SECURITY_TO_FULL, &[WHO[0], WHO[1], ("AuthMethod", offer)])];
        let step = feed(&mut TargetLogin::new(Parameters::default()), Some(&optional()), &requests);
        let TargetStep::Finished(reply, logged_in) = step else { panic!("not finished: {step:?}") };
        assert!(values(&reply).contains(&("AuthMethod", "None")), "{offer}");
        assert_eq!(logged_in.user, None);
    }
    let operational = [request(OPERATIONAL_TO_FULL, &WHO)];
    let step = feed(&mut TargetLogin::new(Parameters::default()), Some(&optional()), &operational);
    assert!(matches!(step, TargetStep::Finished(..)), "{step:?}");
}

#[test]
fn where_no_proof_is_required_an_offer_of_chap_alone_is_answered_and_the_proof_is_checked() {
    // One that wants proof itself offers nothing else.
    let mutual = || chap(Some(account("target", "who goes there")));
    let right = InitiatorLoginConfig { chap: mutual(), ..config() };
    let (target, _) = login(right, &grant(Some(optional()))).expect_success();
    assert_eq!(target.user.as_deref(), Some("alice"));
    let wrong = InitiatorChap { account: account("alice", "wrong horse here"), ..mutual().unwrap() };
    let wrong = InitiatorLoginConfig { chap: Some(wrong), ..config() };
    let (status, _) = login(wrong, &grant(Some(optional()))).expect_failure();
    assert_eq!(status, LoginStatus::AUTHENTICATION_FAILURE);
    let other = [request(0, &[WHO[0], WHO[1], ("AuthMethod", "KRB5")])];
    assert_eq!(refused(Some(&optional()), &other), LoginStatus::AUTHENTICATION_FAILURE);
}

#[test]
fn a_proof_waits_until_it_may_be_checked_and_can_be_refused_without() {
    let to_proof = |target: &mut TargetLogin| {
        let begun = [request(0, &[WHO[0], WHO[1], ("AuthMethod", "CHAP")]), request(0, &[("CHAP_A", "5")])];
        feed(target, Some(&auth()), &begun);
        let (header, data) =
            request(0, &[("CHAP_N", "alice"), ("CHAP_R", "0x00112233445566778899aabbccddeeff")]);
        target.request(&header, &data)
    };
    let mut target = TargetLogin::new(Parameters::default());
    let TargetStep::Prove(user) = to_proof(&mut target) else { panic!("a proof") };
    assert_eq!(user, "alice");
    let (header, data) = request(0, &[]);
    let early = reply(&target.request(&header, &data)).header.status();
    assert_eq!(early, LoginStatus::INVALID_DURING_LOGIN, "nothing comes between");
    let mut target = TargetLogin::new(Parameters::default());
    to_proof(&mut target);
    let refusal = reply(&target.refuse(LoginStatus::OUT_OF_RESOURCES)).header.status();
    assert_eq!(refusal, LoginStatus::OUT_OF_RESOURCES);
    let mut target = TargetLogin::new(Parameters::default());
    to_proof(&mut target);
    assert_eq!(reply(&target.check_proof()).header.status(), LoginStatus::AUTHENTICATION_FAILURE);
}
