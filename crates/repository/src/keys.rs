//! Who may read an encrypted repository: its key, wrapped for each of several people.
//!
//! As of age's X25519 recipients: for each person a fresh pair of keys is made; of the secret that its half shares with
//! the person's key (X25519) and both public keys a wrapping key is derived (BLAKE3), which encrypts the repository's
//! key (AES-256-GCM-SIV, nonce 0: each wrapping key is used once).

use std::fmt;
use std::str::FromStr;

use aes_gcm_siv::aead::{Aead, Payload};
use aes_gcm_siv::{Aes256GcmSiv, KeyInit, Nonce};
use serde::{Deserialize, Serialize};
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

use crate::codec::MasterKey;
use crate::random::random;

const RECIPIENT: &str = "lunway-recipient-";
const IDENTITY: &str = "LUNWAY-SECRET-KEY-";
const CONTEXT: &str = "lunway 2026 repository recipient";

/// The public key of a person, for whom a repository is encrypted: `lunway-recipient-` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recipient([u8; 32]);

/// The secret key of a person: `LUNWAY-SECRET-KEY-` and 64 hexadecimal digits.
pub struct Identity(StaticSecret);

/// The repository's key for one person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrappedKey {
    /// The person.
    pub recipient: String,
    /// The public half of the pair that was made for this, 64 hexadecimal digits.
    ephemeral: String,
    /// The encrypted key, 96 hexadecimal digits.
    wrapped: String,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.len() == 2 * N && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    digits.then_some(bytes)
}

impl fmt::Display for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{RECIPIENT}{}", hex(&self.0))
    }
}

impl FromStr for Recipient {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let key = text.trim().strip_prefix(RECIPIENT).and_then(unhex);
        let key = key.ok_or_else(|| format!("a recipient is {RECIPIENT} and 64 hexadecimal digits"))?;
        // A point of low order (RFC 7748, section 6.1): with any secret key it gives zeroes.
        match StaticSecret::from([1; 32]).diffie_hellman(&PublicKey::from(key)).was_contributory() {
            true => Ok(Self(key)),
            false => Err("nothing can be encrypted for this key: no secret key belongs to it".into()),
        }
    }
}

impl Identity {
    /// A new one.
    ///
    /// # Errors
    ///
    /// Where the kernel has no random numbers.
    pub fn generate() -> std::io::Result<Self> {
        Ok(Self(StaticSecret::from(*Zeroizing::new(random::<32>()?))))
    }

    /// Reads one: the first line of a text that is one; others are comments.
    ///
    /// # Errors
    ///
    /// What is expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(IDENTITY));
        let key = line.and_then(unhex::<32>).map(Zeroizing::new);
        let key =
            key.ok_or_else(|| format!("a line with {IDENTITY} and 64 hexadecimal digits is expected"))?;
        Ok(Self(StaticSecret::from(*key)))
    }

    /// Its text.
    pub fn to_text(&self) -> Zeroizing<String> {
        Zeroizing::new(format!("{IDENTITY}{}", hex(self.0.as_bytes())))
    }

    /// Its public key.
    pub fn recipient(&self) -> Recipient {
        Recipient(PublicKey::from(&self.0).to_bytes())
    }
}

/// The wrapping key that both sides derive; `None`: the keys share no secret, as none do that were made in good
/// faith.
fn wrapping(
    secret: &StaticSecret,
    other: [u8; 32],
    ephemeral: &[u8; 32],
    recipient: &[u8; 32],
) -> Option<Aes256GcmSiv> {
    let shared = secret.diffie_hellman(&PublicKey::from(other));
    if !shared.was_contributory() {
        return None;
    }
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    hasher.update(shared.as_bytes()).update(ephemeral).update(recipient);
    let key = Zeroizing::new(*hasher.finalize().as_bytes());
    Some(Aes256GcmSiv::new(&(*key).into()))
}

impl WrappedKey {
    /// Wraps the key of a repository for a person.
    ///
    /// # Errors
    ///
    /// Where the kernel has no random numbers, or the recipient's key cannot be meant.
    pub fn wrap(master: &MasterKey, recipient: &Recipient) -> std::io::Result<Self> {
        let pair = Identity::generate()?;
        let ephemeral = pair.recipient().0;
        let Some(cipher) = wrapping(&pair.0, recipient.0, &ephemeral, &recipient.0) else {
            return Err(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                "this recipient's key is none",
            ));
        };
        let payload = Payload { msg: &master[..], aad: &recipient.0 };
        let wrapped = cipher.encrypt(&Nonce::default(), payload).map_err(std::io::Error::other)?;
        Ok(Self { recipient: recipient.to_string(), ephemeral: hex(&ephemeral), wrapped: hex(&wrapped) })
    }

    /// The key, if it is wrapped for this person.
    pub fn unwrap(&self, identity: &Identity) -> Option<MasterKey> {
        let recipient = identity.recipient();
        let (ephemeral, wrapped) = (unhex::<32>(&self.ephemeral)?, unhex::<48>(&self.wrapped)?);
        if self.recipient != recipient.to_string() {
            return None;
        }
        let cipher = wrapping(&identity.0, ephemeral, &ephemeral, &recipient.0)?;
        let payload = Payload { msg: &wrapped, aad: &recipient.0 };
        let key = Zeroizing::new(cipher.decrypt(&Nonce::default(), payload).ok()?);
        Some(Zeroizing::new(key.as_slice().try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_unwrapped_by_its_recipient_alone() {
        let master = MasterKey::new(random().unwrap());
        let (one, other) = (Identity::generate().unwrap(), Identity::generate().unwrap());
        let wrapped = WrappedKey::wrap(&master, &one.recipient()).unwrap();
        assert_eq!(wrapped.unwrap(&one).as_deref(), Some(&*master));
        assert_eq!(wrapped.unwrap(&other), None);
        let stolen = WrappedKey { recipient: other.recipient().to_string(), ..wrapped.clone() };
        assert_eq!(stolen.unwrap(&other), None);
        for at in 0..wrapped.wrapped.len() {
            let mut flipped = wrapped.clone();
            let digit = if &wrapped.wrapped[at..=at] == "0" { "1" } else { "0" };
            flipped.wrapped.replace_range(at..=at, digit);
            assert_eq!(flipped.unwrap(&one), None, "digit {at}");
        }
        assert!(WrappedKey::wrap(&master, &Recipient([0; 32])).is_err(), "a point that shares nothing");
    }

    #[test]
    fn keys_read_back_from_their_texts() {
        let identity = Identity::generate().unwrap();
        let text = format!("# a comment\n{}\n", *identity.to_text());
        let read = Identity::parse(&text).unwrap();
        assert_eq!(read.recipient(), identity.recipient());
        assert_eq!(identity.recipient().to_string().parse(), Ok(identity.recipient()));
        let none = format!("{RECIPIENT}{}", "0".repeat(64));
        for wrong in ["", "lunway-recipient-", "lunway-recipient-zz", &"0".repeat(64), &none] {
            assert!(wrong.parse::<Recipient>().is_err() && Identity::parse(wrong).is_err(), "{wrong}");
        }
    }
}
