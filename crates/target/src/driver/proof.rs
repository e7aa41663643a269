//! Login under way, and the time at which its CHAP response is checked: at once, or later where others were wrong
//! before it.

use std::time::Instant;

use lunway_iscsi::CloseReason;
use lunway_iscsi::login::LoginAsk;
use lunway_iscsi::pdu::LoginStatus;

use super::Connection;
use super::work::{Done, Work};

/// Facts about an initiator that logs in.
#[derive(Default)]
pub(super) struct LoginUnderWay {
    /// Its wish, also for the log.
    asked: Option<Box<LoginAsk>>,
    /// The CHAP user that it says it is, from its response on until it is known whether that was right.
    claims: Option<String>,
}

impl LoginUnderWay {
    pub(super) fn ask(&mut self, ask: LoginAsk) {
        self.asked = Some(Box::new(ask));
    }

    /// Returns `true` if it wants to join a session that there is.
    pub(super) fn joins(&self) -> bool {
        self.asked.as_ref().is_some_and(|ask| ask.tsih != 0)
    }

    pub(super) fn into_ask(self) -> Option<Box<LoginAsk>> {
        self.asked
    }
}

impl Connection {
    /// The initiator says that it is this user, and has sent its response. RFC 7143 §11.13.5: one that cannot be
    /// checked soon is told "out of resources", which initiators take as "later".
    pub(super) fn take_proof(&mut self, user: String) {
        let wait = self.shared.chap_failures.wait(self.ends.peer.ip(), &user, Instant::now());
        match wait {
            Some(wait) if wait.is_zero() => {
                self.login.claims = Some(user);
                self.core.check_proof();
            }
            Some(wait) => {
                self.login.claims = Some(user);
                self.executing.push(Work::Elsewhere(Box::pin(async move {
                    tokio::time::sleep(wait).await;
                    Done::ProofDue
                })));
            }
            None => self.core.refuse_login(LoginStatus::OUT_OF_RESOURCES),
        }
    }

    /// The login has succeeded.
    pub(super) fn proven(&mut self) {
        if let Some(user) = self.login.claims.take() {
            self.shared.chap_failures.succeeded(self.ends.peer.ip(), &user, Instant::now());
        }
    }

    /// The connection closes: if that is for a response that was wrong, it is counted.
    pub(super) fn not_proven(&mut self, reason: &CloseReason) {
        let wrong = matches!(reason, CloseReason::LoginRefused(LoginStatus::AUTHENTICATION_FAILURE));
        if let Some(user) = self.login.claims.take()
            && wrong
        {
            self.shared.chap_failures.failed(self.ends.peer.ip(), &user, Instant::now());
        }
    }
}
