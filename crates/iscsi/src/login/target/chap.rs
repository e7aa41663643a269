//! CHAP of a target: the initiator's proof, and the target's own.

use super::{Outcome, TEXT_VALUE_LEN_MAX, TargetLogin};
use crate::chap::{Challenge, ChapAccount, ChapAlgorithm};
use crate::keys::Key;
use crate::pdu::LoginStatus;
use crate::text::{self, Builder, answer};

/// The CHAP a login must pass.
#[derive(Debug, Clone, PartialEq, Eq)]
// RFC 7143 [4.2.4-1]
pub struct ChapAuth {
    /// The accounts that may log in.
    pub accounts: Vec<ChapAccount>,
    /// Account that the target proves to an initiator that asks (mutual CHAP).
    pub mutual: Option<ChapAccount>,
    /// Algorithms the target accepts; the initiator's order decides among them.
    pub algorithms: Vec<ChapAlgorithm>,
    /// `false`: an initiator that offers to log in without a proof (AuthMethod=None) need not give one; one that offers
    /// CHAP alone is not turned away for it.
    pub required: bool,
    /// Users among the accounts that may not log in here, even if they prove to be who they say: they are told so, and
    /// only then ("authorization failure").
    pub barred: Vec<String>,
}

/// Progress of authentication.
#[derive(Debug)]
pub(super) enum Chap {
    /// No method chosen.
    Start,
    /// CHAP chosen; waiting for CHAP_A.
    Chosen,
    /// Challenge sent; waiting for CHAP_N and CHAP_R.
    Challenged(ChapAlgorithm, Challenge),
    /// Proven, or not asked for.
    Passed(Option<String>),
}

/// The security keys of one text.
#[derive(Debug, Default)]
pub(super) struct Security<'a> {
    methods: Option<&'a str>,
    algorithms: Option<&'a str>,
    name: Option<&'a str>,
    response: Option<&'a str>,
    identifier: Option<&'a str>,
    challenge: Option<&'a str>,
}

impl TargetLogin {
    /// Returns `true` if nothing is left to prove.
    pub(super) fn is_admitted(&self) -> bool {
        let auth = self.grant.as_ref().and_then(|grant| grant.auth.as_ref());
        match self.chap {
            Chap::Passed(_) => true,
            Chap::Start => auth.is_none_or(|auth| !auth.required),
            Chap::Chosen | Chap::Challenged(..) => false,
        }
    }

    /// The user that a text says the initiator is, where a challenge waits for its response.
    pub(super) fn claimed_user(&self, text: &[u8]) -> Option<String> {
        if !matches!(self.chap, Chap::Challenged(..)) {
            return None;
        }
        let pairs = text::parse(text).ok()?;
        let name =
            |(key, value): &(&str, &str)| (*key == Key::ChapN.rule().name).then(|| (*value).to_owned());
        pairs.iter().find_map(name)
    }

    /// Moves authentication on (§12.1, §12.1.3).
    // RFC 7143 [6.3.2-1, 6.3.2-4, 12.1.3-2, 12.1-2, 9.2-3]
    pub(super) fn authenticate(&mut self, security: &Security<'_>, out: &mut Builder) -> Outcome<()> {
        let failure = LoginStatus::AUTHENTICATION_FAILURE;
        let auth = self.grant.as_ref().and_then(|grant| grant.auth.as_ref());
        if let Some(methods) = security.methods {
            let offers = |method: &str| text::list(methods).any(|offered| offered == method);
            let none = auth.is_none_or(|auth| !auth.required) && offers(answer::NONE);
            if !matches!(self.chap, Chap::Start) || !(none || (auth.is_some() && offers("CHAP"))) {
                return Err(failure);
            }
            out.pair(Key::AuthMethod.rule().name, if none { answer::NONE } else { "CHAP" });
            self.chap = if none { Chap::Passed(None) } else { Chap::Chosen };
        }
        let Some(auth) = auth else {
            return if security.has_chap() { Err(LoginStatus::INITIATOR_ERROR) } else { Ok(()) };
        };
        match (&self.chap, security) {
            (Chap::Chosen, Security { algorithms: Some(algorithms), name: None, response: None, .. }) => {
                let algorithm = text::list(algorithms)
                    .filter_map(|number| ChapAlgorithm::from_number(text::number(number).ok()?))
                    .find(|algorithm| auth.algorithms.contains(algorithm))
                    .ok_or(failure)?;
                let challenge = Challenge::fresh().map_err(|_| LoginStatus::TARGET_ERROR)?;
                out.pair(Key::ChapA.rule().name, algorithm.number());
                out.pair(Key::ChapI.rule().name, challenge.identifier());
                out.pair(Key::ChapC.rule().name, text::to_hexadecimal(challenge.bytes()));
                self.chap = Chap::Challenged(algorithm, challenge);
                Ok(())
            }
            (Chap::Challenged(algorithm, challenge), security) => {
                let user = auth.verify(*algorithm, challenge, security, out)?;
                if auth.barred.contains(&user) {
                    return Err(LoginStatus::AUTHORIZATION_FAILURE);
                }
                self.chap = Chap::Passed(Some(user));
                Ok(())
            }
            // Only AuthMethod in this text, or a text without any security key before or after the proof.
            (Chap::Chosen, security) if security.methods.is_some() && !security.has_chap() => Ok(()),
            (Chap::Start | Chap::Passed(_), security) if !security.has_chap() => {
                // An initiator that wants to leave the stage without an offer will not make one later.
                if self.is_admitted() || self.last.next.is_none() { Ok(()) } else { Err(failure) }
            }
            _ => Err(LoginStatus::INITIATOR_ERROR),
        }
    }
}

impl<'a> Security<'a> {
    /// Keeps a security key of the text; false if the key is none.
    pub(super) fn set(&mut self, key: Key, value: &'a str) -> bool {
        let field = match key {
            Key::AuthMethod => &mut self.methods,
            Key::ChapA => &mut self.algorithms,
            Key::ChapN => &mut self.name,
            Key::ChapR => &mut self.response,
            Key::ChapI => &mut self.identifier,
            Key::ChapC => &mut self.challenge,
            _ => return false,
        };
        *field = Some(value);
        true
    }

    fn has_chap(&self) -> bool {
        [self.algorithms, self.name, self.response, self.identifier, self.challenge]
            .iter()
            .any(Option::is_some)
    }
}

impl ChapAuth {
    /// Checks the initiator's proof and gives ours if it asks (§12.1.3); returns the name that was proven.
    // RFC 7143 [9.2-4, 12.1.3-4, 12.1.3-5]
    fn verify(
        &self,
        algorithm: ChapAlgorithm,
        challenge: &Challenge,
        security: &Security<'_>,
        out: &mut Builder,
    ) -> Outcome<String> {
        let failure = LoginStatus::AUTHENTICATION_FAILURE;
        let missing = LoginStatus::MISSING_PARAMETER;
        // RFC 7143 [9.2-3]
        let (name, response) = (security.name.ok_or(missing)?, security.response.ok_or(missing)?);
        // A response of another length is no response, in whatever constant it came.
        let response = text::binary(response, algorithm.response_len()).map_err(|_| failure)?;
        let proven = self
            .accounts
            .iter()
            .find(|a| a.user == name && challenge.is_answered_by(algorithm, &a.secret, &response))
            .filter(|_| name.len() <= TEXT_VALUE_LEN_MAX)
            .ok_or(failure)?;
        match (security.identifier, security.challenge) {
            (None, None) => {}
            (Some(identifier), Some(theirs)) => {
                let theirs = Challenge::from_text(identifier, theirs).map_err(|_| failure)?;
                let mutual = self.mutual.as_ref().ok_or(failure)?;
                // RFC 7143 [9.2.1-9, 9.2.1-11]
                // §9.2.1: with one secret for both directions each side could be made to answer for the other.
                if theirs.is_reflection_of(challenge) || mutual.secret == proven.secret {
                    return Err(failure);
                }
                out.pair(Key::ChapN.rule().name, &mutual.user);
                let response = theirs.answer(algorithm, &mutual.secret);
                out.pair(Key::ChapR.rule().name, text::to_hexadecimal(&response));
            }
            _ => return Err(missing),
        }
        Ok(name.to_owned())
    }
}
