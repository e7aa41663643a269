//! CHAP (RFC 7143 §12.1.3, RFC 1994): the arithmetic, the secrets, and nothing of the conversation.
//!
//! The conversation (who sends which key when) is part of the login; see [`crate::login`].

use crate::text;
use sha2::digest::Digest;
use std::fmt;
use subtle::ConstantTimeEq;

/// Shortest challenge this side accepts, bytes. RFC 7143 §12.1.3 leaves the length to the parties; LIO and tgt send 16.
const CHALLENGE_LEN_MIN: usize = 8;
/// Longest challenge, bytes (RFC 7143 §12.1.3).
// RFC 7143 [12.1.3-7]
const CHALLENGE_LEN_MAX: usize = 1024;
/// Length of the challenges made here: the shortest that carries as many random bits as the shortest digest has bytes.
const CHALLENGE_LEN: usize = 16;

/// A hash for CHAP, by the number it has in CHAP_A (RFC 7143 §12.1.3, IANA registry of PPP authentication algorithms).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// RFC 7143 [9.1-1, 12.1-3, 9.2.1-1]
pub enum ChapAlgorithm {
    /// 5; the one every implementation has.
    Md5,
    /// 6.
    Sha1,
    /// 7.
    Sha256,
    /// 8.
    Sha3,
}

impl ChapAlgorithm {
    /// All, strongest first.
    // RFC 7143 [12.1.3-8]
    pub const ALL: [Self; 4] = [Self::Sha3, Self::Sha256, Self::Sha1, Self::Md5];

    /// The order in which an initiator offers them. SHA-256 comes last because tgt takes the first of 5 and 7 it finds
    /// and computes SHA-1 under number 7; with a secret of the length the standard asks for, MD5 is no weaker here.
    // RFC 7143 [12.1.3-8]
    pub const OFFER: [Self; 4] = [Self::Sha3, Self::Sha1, Self::Md5, Self::Sha256];

    /// The number in CHAP_A.
    pub const fn number(self) -> u8 {
        match self {
            Self::Md5 => 5,
            Self::Sha1 => 6,
            Self::Sha256 => 7,
            Self::Sha3 => 8,
        }
    }

    /// The algorithm with this number.
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|a| u64::from(a.number()) == number)
    }

    /// Length of a response, bytes.
    pub const fn response_len(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha256 | Self::Sha3 => 32,
        }
    }
}

/// A CHAP secret: up to 255 bytes that no `Debug` shows and that are overwritten when dropped.
#[derive(Clone)]
// RFC 7143 [9.2.1-6]
pub struct Secret(Box<[u8]>);

/// A secret of this length cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a CHAP secret has 1 to 255 bytes, this one has {0}")]
pub struct SecretLengthError(pub usize);

/// Error of a file whose content is not a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretFileError {
    /// Nothing, or too much.
    #[error(transparent)]
    Length(#[from] SecretLengthError),
    /// More than a secret.
    #[error("it has several lines instead of one")]
    Lines,
}

impl Secret {
    /// Longest file that can hold a secret, bytes: with a few line ends.
    pub const FILE_LEN_MAX: usize = Self::LEN_MAX + 16;
    /// Longest secret, bytes.
    // RFC 7143 [9.2.1-2]
    pub const LEN_MAX: usize = 255;
    /// Below this many bytes a secret can be guessed from one overheard login (RFC 7143 §9.2.1 asks for 96 random
    /// bits).
    pub const LEN_STRONG: usize = 12;

    /// A secret of these bytes.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, SecretLengthError> {
        let bytes = bytes.as_ref();
        if bytes.is_empty() || bytes.len() > Self::LEN_MAX {
            return Err(SecretLengthError(bytes.len()));
        }
        Ok(Self(bytes.into()))
    }

    /// The secret that a file holds: its only line. Line ends after it (LF, CR LF) are not part of it, as editors and
    /// `echo` write them. Both ends read their files so.
    pub fn from_file(content: &[u8]) -> Result<Self, SecretFileError> {
        let end = content.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r')).map_or(0, |last| last + 1);
        let line = &content[..end];
        if line.contains(&b'\n') {
            return Err(SecretFileError::Lines);
        }
        Ok(Self::new(line)?)
    }

    /// Returns `true` if the secret is shorter than the standard asks for. It works all the same: many installations
    /// use short ones.
    pub fn is_weak(&self) -> bool {
        self.0.len() < Self::LEN_STRONG
    }

    /// The bytes, for hashing only.
    fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl PartialEq for Secret {
    /// In time that depends on the lengths only.
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.fill(0);
        // Keeps the compiler from leaving out a store to memory that is about to be freed.
        std::hint::black_box(&self.0);
    }
}

/// A name and the secret that proves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChapAccount {
    /// CHAP_N.
    pub user: String,
    /// Secret that CHAP_R is made from.
    pub secret: Secret,
}

/// A question: identifier and challenge (CHAP_I and CHAP_C).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Challenge {
    identifier: u8,
    bytes: Vec<u8>,
}

/// Error of a challenge, before any secret is considered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChapError {
    /// The system gave no random numbers.
    #[error("the system gave no random numbers for a challenge")]
    NoRandom,
    /// A challenge that is too short to be worth answering or longer than the standard allows.
    #[error("a challenge of {0} bytes is not acceptable")]
    ChallengeLength(usize),
    /// CHAP_I is no number of eight bits, or CHAP_C no binary value.
    #[error("CHAP_I or CHAP_C cannot be read")]
    Unreadable,
}

impl Challenge {
    /// Makes a fresh one from the system's random numbers.
    // RFC 7143 [9.2.1-10]
    pub fn fresh() -> Result<Self, ChapError> {
        let mut random = [0; CHALLENGE_LEN + 1];
        getrandom::fill(&mut random).map_err(|_| ChapError::NoRandom)?;
        let [identifier, bytes @ ..] = random;
        Ok(Self { identifier, bytes: bytes.into() })
    }

    /// A challenge that came from the peer.
    pub fn received(identifier: u8, bytes: Vec<u8>) -> Result<Self, ChapError> {
        if !(CHALLENGE_LEN_MIN..=CHALLENGE_LEN_MAX).contains(&bytes.len()) {
            return Err(ChapError::ChallengeLength(bytes.len()));
        }
        Ok(Self { identifier, bytes })
    }

    /// A challenge as it stands in CHAP_I and CHAP_C.
    pub fn from_text(identifier: &str, challenge: &str) -> Result<Self, ChapError> {
        let identifier = text::number(identifier).ok().and_then(|number| u8::try_from(number).ok());
        let bytes = text::binary(challenge, CHALLENGE_LEN_MAX);
        Self::received(identifier.ok_or(ChapError::Unreadable)?, bytes.map_err(|_| ChapError::Unreadable)?)
    }

    /// CHAP_I.
    pub const fn identifier(&self) -> u8 {
        self.identifier
    }

    /// CHAP_C.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns `true` if `other` asks the same question. A peer that sends our own challenge back wants us to compute
    /// the response it owes; RFC 7143 §9.2.1 has the connection closed. The identifier is left out of the comparison: a
    /// reflected challenge under another identifier is no accident either.
    // RFC 7143 [9.2.1-11]
    pub fn is_reflection_of(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }

    /// The response that proves knowledge of `secret` (CHAP_R): a hash of identifier, secret and challenge (RFC 1994
    /// §4.1).
    // RFC 7143 [9.2-1]
    pub fn answer(&self, algorithm: ChapAlgorithm, secret: &Secret) -> Vec<u8> {
        fn hash<D: Digest>(challenge: &Challenge, secret: &Secret) -> Vec<u8> {
            D::new()
                .chain_update([challenge.identifier])
                .chain_update(secret.expose())
                .chain_update(&challenge.bytes)
                .finalize()
                .to_vec()
        }
        match algorithm {
            ChapAlgorithm::Md5 => hash::<md5::Md5>(self, secret),
            ChapAlgorithm::Sha1 => hash::<sha1::Sha1>(self, secret),
            ChapAlgorithm::Sha256 => hash::<sha2::Sha256>(self, secret),
            ChapAlgorithm::Sha3 => hash::<sha3::Sha3_256>(self, secret),
        }
    }

    /// Returns `true` if `response` proves knowledge of `secret`, in time that reveals nothing about where it differs.
    pub fn is_answered_by(&self, algorithm: ChapAlgorithm, secret: &Secret, response: &[u8]) -> bool {
        self.answer(algorithm, secret).ct_eq(response).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_means_the_same_secret_whatever_line_ends_stand_behind_it() {
        for content in ["sesame open now", "sesame open now\n", "sesame open now\r\n", "sesame open now\n\n"]
        {
            let secret = Secret::from_file(content.as_bytes());
            assert_eq!(secret, Ok(Secret::new("sesame open now").unwrap()), "{content:?}");
        }
        assert_eq!(Secret::from_file(b" spaces count "), Ok(Secret::new(" spaces count ").unwrap()));
        assert_eq!(Secret::from_file(b"one\ntwo\n"), Err(SecretFileError::Lines));
        assert_eq!(Secret::from_file(b"\n"), Err(SecretFileError::Length(SecretLengthError(0))));
        let long = [b'x'; Secret::FILE_LEN_MAX + 1];
        assert!(matches!(Secret::from_file(&long), Err(SecretFileError::Length(_))));
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    // shows RFC 7143 [9.2-1]
    #[test]
    fn each_algorithm_hashes_identifier_secret_and_challenge_in_this_order() {
        // Computed with Python's hashlib over 0x01 || "secret-secret" || 00..0f.
        let challenge = Challenge::received(1, (0..16).collect()).unwrap();
        let secret = Secret::new("secret-secret").unwrap();
        let expected = [
            "510e04a14bcea37da7d70eb6d15aed3a6da6bf3dd1600e4c361db71a50477f6b",
            "8702a8c0aaf9cca9efa685f9c14d9d1c3a408bb412cdfbea3aa28127cf0e60fc",
            "7fe93362cb97cd38a3d784d278ffe28022363d08",
            "41cdd4a71fbf6e597cb74760765d3f8a",
        ];
        for (algorithm, expected) in ChapAlgorithm::ALL.into_iter().zip(expected) {
            let answer = challenge.answer(algorithm, &secret);
            assert_eq!(hex(&answer), expected);
            assert_eq!(answer.len(), algorithm.response_len());
            assert!(challenge.is_answered_by(algorithm, &secret, &answer));
            assert!(!challenge.is_answered_by(algorithm, &secret, &answer[1..]));
            assert!(!challenge.is_answered_by(algorithm, &Secret::new("other").unwrap(), &answer));
        }
    }

    // shows RFC 7143 [12.1.3-8]
    #[test]
    fn the_numbers_are_those_of_the_registry() {
        let numbers = ChapAlgorithm::ALL.map(ChapAlgorithm::number);
        assert_eq!(numbers, [8, 7, 6, 5]);
        assert_eq!(ChapAlgorithm::from_number(7), Some(ChapAlgorithm::Sha256));
        assert!(ChapAlgorithm::OFFER.contains(&ChapAlgorithm::Md5), "the one that everybody must have");
        assert_eq!(ChapAlgorithm::from_number(9), None);
        assert_eq!(ChapAlgorithm::from_number(5 + 256), None);
    }

    // shows RFC 7143 [9.2.1-2, 9.2.1-6]
    #[test]
    fn a_secret_shows_nothing_and_knows_when_it_is_weak() {
        let secret = Secret::new("short").unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(…)");
        assert!(secret.is_weak());
        assert!(!Secret::new("twelve bytes").unwrap().is_weak());
        assert_eq!(Secret::new("").unwrap_err(), SecretLengthError(0));
        assert_eq!(Secret::new([0; 256]).unwrap_err(), SecretLengthError(256));
    }

    // shows RFC 7143 [9.2.1-10]
    #[test]
    fn no_two_challenges_are_alike() {
        let (a, b) = (Challenge::fresh().unwrap(), Challenge::fresh().unwrap());
        assert!(!a.is_reflection_of(&b));
        let back = Challenge::received(a.identifier().wrapping_add(1), a.bytes().to_vec()).unwrap();
        assert!(back.is_reflection_of(&a));
    }

    // shows RFC 7143 [12.1.3-7]
    #[test]
    fn a_challenge_of_unreasonable_length_is_refused() {
        assert_eq!(Challenge::received(0, vec![0; 7]), Err(ChapError::ChallengeLength(7)));
        assert_eq!(Challenge::received(0, vec![0; 1025]), Err(ChapError::ChallengeLength(1025)));
    }
}
