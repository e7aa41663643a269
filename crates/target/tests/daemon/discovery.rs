//! Discovery sessions: what has to be proven, and what guessing of secrets costs.

use std::io::Write;
use std::time::{Duration, Instant};

use lunway_iscsi::chap::{ChapAccount, ChapAlgorithm, Secret};
use lunway_iscsi::initiator::InitiatorEvent;
use lunway_iscsi::login::{InitiatorChap, InitiatorLoginConfig, LoginError};
use lunway_iscsi::{CloseReason, SendTargets};

use crate::support::*;

const SECRET: &str = "the secret of one";
const OURS: &str = "the secret of the daemon";

fn file(secret: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{secret}").unwrap();
    file
}

fn account(user: &str, secret: &str) -> ChapAccount {
    ChapAccount { user: user.to_owned(), secret: Secret::new(secret).unwrap() }
}

fn chap(user: &str, secret: &str) -> InitiatorChap {
    InitiatorChap { account: account(user, secret), algorithms: ChapAlgorithm::OFFER.to_vec(), mutual: None }
}

/// The targets that an initiator is told of which proves itself so, or offers nothing but None.
fn discover(daemon: &Daemon, chap: Option<InitiatorChap>) -> Result<Vec<String>, LoginError> {
    let login = InitiatorLoginConfig { target_name: None, chap, ..login(7) };
    let mut client = match Client::log_in(daemon.address, login) {
        Ok(client) => client,
        Err(CloseReason::LoginFailed(error)) => return Err(error),
        Err(other) => panic!("expected a refusal: {other:?}"),
    };
    client.core.send_targets(&SendTargets::All);
    let Some(InitiatorEvent::Targets(targets)) = client.other_event() else { panic!("targets") };
    Ok(targets.into_iter().map(|target| target.name).collect())
}

// shows RFC 7143 [4.2.4-1]
#[test]
fn discovery_can_ask_for_proof_in_both_directions() {
    let (one, ours) = (file(SECRET), file(OURS));
    let daemon = Daemon::start(&format!(
        "[[discovery.chap]]\nuser = \"one\"\nsecret_file = {:?}\n\
         [discovery.mutual_chap]\nuser = \"daemon\"\nsecret_file = {:?}",
        one.path(),
        ours.path()
    ));
    assert_eq!(discover(&daemon, None), Err(LoginError::AuthenticationFailed));
    assert_eq!(
        discover(&daemon, Some(chap("one", "the secret of two"))),
        Err(LoginError::AuthenticationFailed)
    );
    assert_eq!(discover(&daemon, Some(chap("one", SECRET))), Ok(vec![TARGET.to_owned()]));
    let mutual = |secret| InitiatorChap { mutual: Some(account("daemon", secret)), ..chap("one", SECRET) };
    assert_eq!(discover(&daemon, Some(mutual(OURS))), Ok(vec![TARGET.to_owned()]));
    assert!(discover(&daemon, Some(mutual("the secret of another"))).is_err());
    // What is to be proven for discovery has nothing to do with what a target asks for.
    daemon.log_in();

    std::fs::write(one.path(), "another secret of one").unwrap();
    let changed = daemon.change(|_| {}).unwrap();
    assert_eq!(changed.changes[0].to_string(), "~ discovery: a secret");
    assert!(discover(&daemon, Some(chap("one", SECRET))).is_err());
    assert!(discover(&daemon, Some(chap("one", "another secret of one"))).is_ok());
}

#[test]
fn an_offer_of_chap_alone_is_answered_with_the_users_of_the_targets() {
    let (one, ours) = (file(SECRET), file(OURS));
    let daemon = Daemon::start_with(&format!(
        "[[target]]\nname = \"{TARGET}\"\nopen = true\n\
         [[target.chap]]\nuser = \"one\"\nsecret_file = {:?}\n\
         [target.mutual_chap]\nuser = \"daemon\"\nsecret_file = {:?}\n{}",
        one.path(),
        ours.path(),
        luns()
    ));
    assert_eq!(discover(&daemon, None), Ok(vec![TARGET.to_owned()]), "nothing is required");
    let unheeded = discover(&daemon, Some(chap("one", "the secret of two")));
    assert_eq!(unheeded, Ok(vec![TARGET.to_owned()]), "CHAP,None was offered");
    // An initiator that wants proof itself offers CHAP alone.
    let alone = |secret| InitiatorChap { mutual: Some(account("daemon", OURS)), ..chap("one", secret) };
    assert_eq!(discover(&daemon, Some(alone(SECRET))), Ok(vec![TARGET.to_owned()]));
    let wrong = discover(&daemon, Some(alone("the secret of two")));
    assert_eq!(wrong, Err(LoginError::AuthenticationFailed));
}

#[test]
fn guesses_of_a_secret_are_counted_and_slowed_down() {
    let one = file(SECRET);
    let daemon =
        Daemon::start(&format!("[[discovery.chap]]\nuser = \"one\"\nsecret_file = {:?}", one.path()));
    for _ in 0..3 {
        let guess = discover(&daemon, Some(chap("one", "the secret of two")));
        assert_eq!(guess, Err(LoginError::AuthenticationFailed));
    }
    let start = Instant::now();
    assert!(discover(&daemon, Some(chap("one", SECRET))).is_ok(), "who mistyped gets in, later");
    let waited = start.elapsed();
    assert!(waited >= Duration::from_millis(800), "{waited:?}");
    let metrics = daemon.server().metrics();
    assert_eq!((metrics.chap_failures, metrics.chap_delayed), (3, 1));
    let page = metrics.prometheus();
    assert!(page.contains("\nlunway_chap_failures_total 3\n"), "{page}");
    assert!(discover(&daemon, Some(chap("one", SECRET))).is_ok());
    assert_eq!(daemon.server().metrics().chap_delayed, 1, "a secret that was right is forgiven");
}
