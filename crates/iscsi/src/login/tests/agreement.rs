//! Both login machines against each other.

use super::*;

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
