//! The initiator against targets that are written by hand.

use super::*;

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
