//! The operational negotiation, key by key.

use super::*;
use crate::text::parse;

fn negotiation() -> Negotiation {
    Negotiation::new(Parameters::default(), false, true)
}

/// Sends pairs to a responder, returns its answers.
fn answers(negotiation: &mut Negotiation, pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut out = Builder::new();
    for (key, value) in pairs {
        negotiation.receive(Key::find(key).unwrap(), value, &mut out).unwrap();
    }
    negotiation.end_of_text(&mut out);
    let bytes = out.into_bytes();
    parse(&bytes).unwrap().into_iter().map(|(k, v)| (k.into(), v.into())).collect()
}

fn answer_with(parameters: Parameters, key: &str, value: &str) -> String {
    let mut negotiation = Negotiation::new(parameters, false, true);
    let answers = answers(&mut negotiation, &[(key, value)]);
    assert_eq!(answers.len(), 1, "{key}");
    assert_eq!(answers[0].0, key);
    answers[0].1.clone()
}

// shows RFC 7143 [6.2.1-1, 6.2.1-3, 6.2.2-1, 6.2.2-2, 6.2.2-4, 13.25-2, 13.25-3]
#[test]
fn every_result_function_gives_what_the_standard_says() {
    let ours = Parameters {
        initial_r2t: false,
        immediate_data: true,
        data_pdu_in_order: false,
        data_sequence_in_order: true,
        max_connections: 4,
        max_burst_length: 1 << 20,
        first_burst_length: 100_000,
        max_outstanding_r2t: 8,
        default_time2wait: 5,
        default_time2retain: 30,
        error_recovery_level: 1,
        protocol_level: 2,
        task_reporting: TaskReporting::ResponseFence,
        ..Parameters::default()
    };
    for (key, offer, expected) in [
        // Or
        ("InitialR2T", "Yes", "Yes"),
        ("InitialR2T", "No", "No"),
        ("DataPDUInOrder", "Yes", "Yes"),
        ("DataPDUInOrder", "No", "No"),
        ("DataSequenceInOrder", "Yes", "Yes"),
        ("DataSequenceInOrder", "No", "Yes"),
        // And
        ("ImmediateData", "Yes", "Yes"),
        ("ImmediateData", "No", "No"),
        // Minimum
        ("MaxConnections", "1", "1"),
        ("MaxConnections", "65535", "4"),
        ("MaxBurstLength", "0x80000", "524288"),
        ("MaxBurstLength", "16776192", "1048576"),
        ("FirstBurstLength", "65536", "65536"),
        ("FirstBurstLength", "262144", "100000"),
        ("MaxOutstandingR2T", "16", "8"),
        ("DefaultTime2Retain", "0", "0"),
        ("DefaultTime2Retain", "3600", "30"),
        ("ErrorRecoveryLevel", "2", "1"),
        ("iSCSIProtocolLevel", "31", "2"),
        ("iSCSIProtocolLevel", "0", "0"),
        // Maximum
        ("DefaultTime2Wait", "0", "5"),
        ("DefaultTime2Wait", "9", "9"),
        // First common
        ("HeaderDigest", "CRC32C,None", "CRC32C"),
        ("HeaderDigest", "None,CRC32C", "None"),
        ("DataDigest", "X-other,CRC32C", "CRC32C"),
        ("DataDigest", "X-other", "Reject"),
        ("TaskReporting", "FastAbort,ResponseFence,RFC3720", "ResponseFence"),
        ("TaskReporting", "FastAbort", "Reject"),
        // Obsolete
        ("OFMarker", "Yes", "No"),
        ("IFMarker", "No", "No"),
        ("OFMarkInt", "1~2048", "Reject"),
        ("IFMarkInt", "1~2048", "Reject"),
        // Not a value
        ("InitialR2T", "yes", "Reject"),
        ("MaxConnections", "0", "Reject"),
        ("MaxConnections", "65536", "Reject"),
        ("MaxBurstLength", "511", "Reject"),
        ("MaxBurstLength", "16777216", "Reject"),
        ("DefaultTime2Wait", "3601", "Reject"),
        ("ErrorRecoveryLevel", "3", "Reject"),
        ("MaxOutstandingR2T", "many", "Reject"),
    ] {
        assert_eq!(answer_with(ours.clone(), key, offer), expected, "{key}={offer}");
    }
}

// shows RFC 7143 [13.14-1, 6.2-12]
#[test]
fn the_first_burst_never_exceeds_the_largest_whatever_the_order() {
    let mut negotiation = negotiation();
    let offers = [("FirstBurstLength", "262144"), ("MaxBurstLength", "65536")];
    assert_eq!(
        answers(&mut negotiation, &offers),
        [("MaxBurstLength".into(), "65536".into()), ("FirstBurstLength".into(), "65536".into())]
    );
    assert_eq!(negotiation.finish().unwrap().first_burst_length, 65_536);
}

#[test]
fn the_default_first_burst_shrinks_with_the_largest() {
    let mut negotiation = negotiation();
    answers(&mut negotiation, &[("MaxBurstLength", "4096")]);
    assert_eq!(negotiation.finish().unwrap().first_burst_length, 4096);
}

// shows RFC 7143 [6.2-5, 13.23-2, 13.24-1, 7.1.5-2]
#[test]
fn silence_means_the_defaults_of_the_standard() {
    let negotiated = negotiation().finish().unwrap();
    assert_eq!(
        negotiated,
        Negotiated {
            header_digest: false,
            data_digest: false,
            max_connections: 1,
            initial_r2t: true,
            immediate_data: true,
            max_burst_length: 262_144,
            first_burst_length: 65_536,
            max_outstanding_r2t: 1,
            default_time2wait: 2,
            default_time2retain: 20,
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            error_recovery_level: 0,
            max_recv_ours: 8192,
            max_recv_peer: 8192,
            task_reporting: TaskReporting::Rfc3720,
            protocol_level: 1,
        }
    );
}

// shows RFC 7143 [6.3-9, 6.3-10]
#[test]
fn a_key_sent_twice_is_an_error() {
    let mut negotiation = negotiation();
    let mut out = Builder::new();
    negotiation.receive(Key::InitialR2T, "Yes", &mut out).unwrap();
    assert_eq!(
        negotiation.receive(Key::InitialR2T, "Yes", &mut out),
        Err(NegotiationError::Repeated { key: Key::InitialR2T, value: "Yes".into() })
    );
}

#[test]
fn a_declaration_gets_no_answer_and_must_be_in_range() {
    let mut negotiation = negotiation();
    assert_eq!(answers(&mut negotiation, &[("MaxRecvDataSegmentLength", "65536")]), []);
    assert_eq!(negotiation.finish().unwrap().max_recv_peer, 65_536);
    for value in ["511", "16777216", "Reject", ""] {
        let error = self::negotiation()
            .receive(Key::MaxRecvDataSegmentLength, value, &mut Builder::new())
            .unwrap_err()
            .to_string();
        let expected = "a number from 512 to 16777215 is expected";
        assert_eq!(error, format!("the other side declares MaxRecvDataSegmentLength={value:?}: {expected}"));
    }
}

// shows RFC 7143 [13.21-1, 7.4.1-1]
#[test]
fn a_discovery_session_answers_every_key_with_a_value() {
    let all = Parameters { max_connections: 8, error_recovery_level: 2, ..Parameters::default() };
    let mut negotiation = Negotiation::new(all, true, true);
    let offers = [
        ("MaxBurstLength", "4096", "4096"),
        ("FirstBurstLength", "8192", "4096"),
        ("InitialR2T", "No", "No"),
        ("ImmediateData", "Yes", "Yes"),
        ("DefaultTime2Wait", "3", "3"),
        ("HeaderDigest", "None", "None"),
        ("MaxConnections", "4", "1"),
        ("MaxOutstandingR2T", "2", "2"),
        ("ErrorRecoveryLevel", "2", "0"),
        ("DataPDUInOrder", "Yes", "Yes"),
        ("DataSequenceInOrder", "No", "Yes"),
        ("TaskReporting", "RFC3720", "RFC3720"),
        ("iSCSIProtocolLevel", "1", "1"),
    ];
    let found = answers(&mut negotiation, &offers.map(|(key, offer, _)| (key, offer)));
    assert_eq!(found.len(), offers.len());
    for (key, _, expected) in offers {
        assert!(found.contains(&(key.into(), expected.into())), "{key}: {found:?}");
    }
    let mut out = Builder::new();
    Negotiation::new(Parameters::default(), true, true).offer(&mut out);
    assert!(!String::from_utf8(out.into_bytes()).unwrap().contains("Burst"), "we offer what has a meaning");
}

// shows RFC 7143 [13-1]
#[test]
fn a_joining_connection_cannot_change_the_session() {
    let mut leading = self::negotiation();
    answers(&mut leading, &[("MaxBurstLength", "65536"), ("InitialR2T", "No"), ("ErrorRecoveryLevel", "0")]);
    let mut negotiation = Negotiation::joining(Parameters::default(), leading.finish().unwrap());
    let offers = [
        ("MaxBurstLength", "4096"),
        ("InitialR2T", "No"),
        ("ErrorRecoveryLevel", "2"),
        ("TaskReporting", "FastAbort,RFC3720"),
        ("DataDigest", "CRC32C"),
    ];
    let found = answers(&mut negotiation, &offers);
    assert_eq!(
        found.iter().map(|(_, v)| v.as_str()).collect::<Vec<_>>(),
        ["65536", "No", "0", "RFC3720", "CRC32C"],
        "what holds in the session is told again"
    );
    let mut out = Builder::new();
    Negotiation::new(Parameters::default(), false, false).offer(&mut out);
    assert_eq!(parse(&out.into_bytes()).unwrap().len(), 2, "the digests only");
}

#[test]
fn a_required_digest_that_is_not_agreed_ends_the_login() {
    let parameters = Parameters { data_digest: DigestPolicy::Require, ..Parameters::default() };
    let mut negotiation = Negotiation::new(parameters, false, true);
    assert_eq!(answers(&mut negotiation, &[("DataDigest", "None")])[0].1, "Reject");
    let error = negotiation.finish().unwrap_err().to_string();
    assert_eq!(error, "DataDigest: CRC32C is required, the other side answered \"None\"");
}

// shows RFC 7143 [6.2-7]
#[test]
fn answers_that_are_no_values_leave_the_defaults() {
    let mut initiator = Negotiation::new(Parameters::default(), false, true);
    initiator.offer(&mut Builder::new());
    let mut out = Builder::new();
    initiator.receive(Key::MaxBurstLength, "Reject", &mut out).unwrap();
    initiator.receive(Key::InitialR2T, "Irrelevant", &mut out).unwrap();
    initiator.receive(Key::MaxOutstandingR2T, "NotUnderstood", &mut out).unwrap();
    assert!(out.is_empty());
    let negotiated = initiator.finish().unwrap();
    assert_eq!(
        (negotiated.max_burst_length, negotiated.initial_r2t, negotiated.max_outstanding_r2t),
        (262_144, true, 1)
    );
}

#[test]
fn an_answer_beyond_our_offer_moves_to_the_safe_side() {
    let mut initiator = Negotiation::new(
        Parameters { initial_r2t: true, max_burst_length: 65_536, ..Parameters::default() },
        false,
        true,
    );
    initiator.offer(&mut Builder::new());
    let mut out = Builder::new();
    initiator.receive(Key::MaxBurstLength, "1048576", &mut out).unwrap();
    initiator.receive(Key::InitialR2T, "No", &mut out).unwrap();
    let negotiated = initiator.finish().unwrap();
    assert_eq!((negotiated.max_burst_length, negotiated.initial_r2t), (65_536, true));
}

#[test]
fn wishes_outside_a_keys_range_are_brought_inside() {
    let parameters = Parameters {
        max_recv_data_segment_length: 1,
        max_burst_length: u32::MAX,
        max_connections: 0,
        error_recovery_level: 9,
        ..Parameters::default()
    };
    let mut out = Builder::new();
    let mut initiator = Negotiation::new(parameters, false, true);
    initiator.offer(&mut out);
    initiator.declare(&mut out);
    let bytes = out.into_bytes();
    let offers = parse(&bytes).unwrap();
    for offer in [
        ("MaxRecvDataSegmentLength", "512"),
        ("MaxBurstLength", "16777215"),
        ("MaxConnections", "1"),
        ("ErrorRecoveryLevel", "2"),
    ] {
        assert!(offers.contains(&offer), "{offer:?}");
    }
    assert_eq!(initiator.finish().unwrap().max_recv_ours, 512);
}

// shows RFC 7143 [6.2.1-4]
#[test]
fn a_choice_that_was_not_offered_is_an_error() {
    let mut initiator = Negotiation::new(
        Parameters { header_digest: DigestPolicy::Never, ..Parameters::default() },
        false,
        true,
    );
    initiator.offer(&mut Builder::new());
    let error = initiator.receive(Key::HeaderDigest, "CRC32C", &mut Builder::new()).unwrap_err().to_string();
    assert_eq!(
        error,
        "HeaderDigest: we offered None, the other side answered \"CRC32C\": one of None is expected"
    );
    let error = initiator.receive(Key::MaxConnections, "many", &mut Builder::new()).unwrap_err().to_string();
    assert_eq!(
        error,
        "MaxConnections: we offered 1, the other side answered \"many\": a number from 1 to 65535 is expected"
    );
}

// shows RFC 7143 [13.19-2]
#[test]
fn with_recovery_and_sequences_in_order_one_r2t_is_out_at_a_time() {
    let parameters = Parameters { error_recovery_level: 1, ..Parameters::default() };
    let mut negotiation = Negotiation::new(parameters, false, true);
    let offers = [("MaxOutstandingR2T", "8"), ("ErrorRecoveryLevel", "1"), ("DataSequenceInOrder", "Yes")];
    answers(&mut negotiation, &offers);
    assert_eq!(negotiation.finish().unwrap().max_outstanding_r2t, 1);
}

// shows RFC 7143 [13.19-2]
#[test]
fn with_error_recovery_there_is_one_r2t_at_a_time_whatever_the_order_of_the_offers() {
    let parameters = Parameters { error_recovery_level: 1, ..Parameters::default() };
    for offers in [
        [("MaxOutstandingR2T", "8"), ("ErrorRecoveryLevel", "2")],
        [("ErrorRecoveryLevel", "1"), ("MaxOutstandingR2T", "8")],
    ] {
        let mut negotiation = Negotiation::new(parameters.clone(), false, true);
        assert!(answers(&mut negotiation, &offers).contains(&("MaxOutstandingR2T".into(), "1".into())));
        assert_eq!(negotiation.finish().unwrap().max_outstanding_r2t, 1);
    }
    let mut negotiation = Negotiation::new(parameters, false, true);
    let offers = [("MaxOutstandingR2T", "8"), ("ErrorRecoveryLevel", "0")];
    assert!(answers(&mut negotiation, &offers).contains(&("MaxOutstandingR2T".into(), "8".into())));
}

#[test]
fn discovery_goes_without_the_digests_that_normal_sessions_must_have() {
    let required = || Parameters {
        header_digest: DigestPolicy::Require,
        data_digest: DigestPolicy::Require,
        ..Parameters::default()
    };
    let mut discovery = Negotiation::new(required(), true, true);
    discovery.end_of_text(&mut Builder::default());
    assert!(discovery.finish().is_ok_and(|agreed| !agreed.header_digest && !agreed.data_digest));
    let mut normal = Negotiation::new(required(), false, true);
    normal.end_of_text(&mut Builder::default());
    let error = normal.finish().unwrap_err().to_string();
    assert_eq!(error, "HeaderDigest: CRC32C is required, the other side answered nothing");
}
