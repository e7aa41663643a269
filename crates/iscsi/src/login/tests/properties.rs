//! Properties that hold whatever both sides want, and whatever comes.

use proptest::prelude::*;

use super::*;
use crate::pdu::view;

/// Strategy for all combinations of the roles' wishes.
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
