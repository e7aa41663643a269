//! Time at which a CHAP response is checked: at once, or later where others were wrong before it.

use std::time::Instant;

use lunway_iscsi::CloseReason;
use lunway_iscsi::pdu::LoginStatus;

use super::Connection;
use super::work::{Done, Work};

impl Connection {
    /// The initiator says that it is this user, and has sent its response. RFC 7143 §11.13.5: one that cannot be
    /// checked soon is told "out of resources", which initiators take as "later".
    pub(super) fn take_proof(&mut self, user: String) {
        let wait = self.shared.chap_failures.wait(self.ends.peer.ip(), &user, Instant::now());
        match wait {
            Some(wait) if wait.is_zero() => {
                self.claims = Some(user);
                self.core.check_proof();
            }
            Some(wait) => {
                self.claims = Some(user);
                self.push_work(Work::Elsewhere(Box::pin(async move {
                    tokio::time::sleep(wait).await;
                    Done::ProofDue
                })));
            }
            None => self.core.refuse_login(LoginStatus::OUT_OF_RESOURCES),
        }
    }

    /// The login has succeeded.
    pub(super) fn proven(&mut self) {
        if let Some(user) = self.claims.take() {
            self.shared.chap_failures.succeeded(self.ends.peer.ip(), &user, Instant::now());
        }
    }

    /// The connection closes: if that is for a response that was wrong, it is counted.
    pub(super) fn not_proven(&mut self, reason: &CloseReason) {
        let wrong = matches!(reason, CloseReason::LoginRefused(LoginStatus::AUTHENTICATION_FAILURE));
        if let Some(user) = self.claims.take()
            && wrong
        {
            self.shared.chap_failures.failed(self.ends.peer.ip(), &user, Instant::now());
        }
    }
}
