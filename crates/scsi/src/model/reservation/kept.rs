//! Reservations as they are kept over power loss (APTPL).
//!
//! | bytes | are |
//! |---|---|
//! | 0–3 | `LWPR` |
//! | 4 | version: 2; 1 where no registration has a principal |
//! | 5 | TYPE of the reservation (SPC-4 table 64); 0: none |
//! | 6–7 | number of registrations |
//! | 8–9 | which of them made the reservation; FFFFh: there is none |
//! | 10–11 | 0 |
//! | 12– | registrations: key (8), relative target port (2), length of the initiator port's name (2), the name; in version 2 principal with length (2) |
//!
//! Numbers are big-endian. PRGENERATION is not among them: power on sets it to 0 (SPC-4 §6.15.2); nor is the scope,
//! which is always the logical unit. Whether the bytes are those that were written is the store's to know: it has a
//! checksum. What is checked here is that they mean something; a blob that does not is refused as a whole.

use super::persistent::{Held, REGISTRATIONS_MAX};
use super::{Persistent, Registration, ReservationType};
use crate::data::field::{put, u8_at, u16_at, u64_at};
use crate::model::nexus::PortPair;

const MAGIC: &[u8; 4] = b"LWPR";
/// Since it tells principals apart.
const VERSION: u8 = 2;
const WITHOUT_PRINCIPALS: u8 = 1;
const HEADER: usize = 12;
const REGISTRATION: usize = 12;
const NOBODY: u16 = u16::MAX;

impl Persistent {
    /// Returns the bytes to store; empty where APTPL is not set.
    pub(crate) fn to_kept(&self) -> Vec<u8> {
        if !self.aptpl {
            return Vec::new();
        }
        let holder = self.held.as_ref().and_then(|held| {
            self.registrations.iter().position(|registration| registration.ports == held.holder)
        });
        let mut bytes = vec![0; HEADER];
        put(&mut bytes, 0, *MAGIC);
        // An earlier version can read it, as long as no initiators are told apart.
        let alike = self.registrations.iter().all(|registration| registration.ports.principal.is_empty());
        bytes[4] = if alike { WITHOUT_PRINCIPALS } else { VERSION };
        bytes[5] = self.kind().map_or(0, ReservationType::code);
        // There are at most REGISTRATIONS_MAX.
        put(&mut bytes, 6, (self.registrations.len() as u16).to_be_bytes());
        put(&mut bytes, 8, holder.map_or(NOBODY, |index| index as u16).to_be_bytes());
        for registration in &self.registrations {
            let name = registration.ports.initiator_port.as_bytes();
            bytes.extend(registration.key.to_be_bytes());
            bytes.extend(registration.ports.relative_target_port.to_be_bytes());
            bytes.extend((name.len() as u16).to_be_bytes());
            bytes.extend(name);
            if !alike {
                let principal = registration.ports.principal.as_bytes();
                bytes.extend((principal.len() as u16).to_be_bytes());
                bytes.extend(principal);
            }
        }
        bytes
    }

    /// Reads what was kept, or says what is wrong with it.
    pub(crate) fn from_kept(bytes: &[u8]) -> Result<Self, &'static str> {
        let magic = bytes.get(..4).is_some_and(|magic| magic == MAGIC);
        let version = u8_at(bytes, 4).filter(|version| [WITHOUT_PRINCIPALS, VERSION].contains(version));
        let Some(version) = version.filter(|_| magic) else {
            return Err("not reservations of version 1 or 2");
        };
        let kind = match u8_at(bytes, 5).unwrap_or(0) {
            0 => None,
            code => Some(ReservationType::from_code(code).ok_or("unknown type of reservation")?),
        };
        let count = usize::from(u16_at(bytes, 6).ok_or("cut short")?);
        let holder = u16_at(bytes, 8).ok_or("cut short")?;
        if count > REGISTRATIONS_MAX {
            return Err("more registrations than there can be");
        }
        let mut rest = bytes.get(HEADER..).ok_or("cut short")?;
        let mut registrations: Vec<Registration> = Vec::with_capacity(count);
        for _ in 0..count {
            let key = u64_at(rest, 0).filter(|&key| key != 0).ok_or("a registration without a key")?;
            let relative_target_port = u16_at(rest, 8).ok_or("cut short")?;
            let end = REGISTRATION + usize::from(u16_at(rest, 10).ok_or("cut short")?);
            let name = rest.get(REGISTRATION..end).ok_or("cut short")?;
            let name = std::str::from_utf8(name).map_err(|_| "a name that is no text")?;
            let (principal, end) = match version {
                WITHOUT_PRINCIPALS => ("", end),
                _ => {
                    let begin = end + 2;
                    let end = begin + usize::from(u16_at(rest, begin - 2).ok_or("cut short")?);
                    let principal = rest.get(begin..end).ok_or("cut short")?;
                    (std::str::from_utf8(principal).map_err(|_| "a principal that is no text")?, end)
                }
            };
            let (initiator_port, principal) = (name.to_owned(), principal.to_owned());
            let ports = PortPair { initiator_port, relative_target_port, principal };
            if name.is_empty() || registrations.iter().any(|other| other.ports == ports) {
                return Err("a registration without a name, or twice");
            }
            registrations.push(Registration { ports, key });
            rest = &rest[end..];
        }
        if !rest.is_empty() {
            return Err("more bytes than registrations");
        }
        let held = match kind {
            None => None,
            // Of an all-registrants type who made it does not matter, and may be gone.
            Some(kind) => {
                let made_it = registrations.get(usize::from(holder));
                let made_it = made_it.or(registrations.first().filter(|_| kind.all_registrants()));
                let holder = made_it.ok_or("a reservation without a holder")?.ports.clone();
                Some(Held { kind, holder })
            }
        };
        Ok(Self { aptpl: true, registrations, held, ..Self::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(kind: Option<ReservationType>) -> Persistent {
        let registration = |name: &str, port, key| Registration {
            ports: PortPair {
                initiator_port: name.to_owned(),
                relative_target_port: port,
                principal: String::new(),
            },
            key,
        };
        let registrations = vec![registration("iqn.a,i,0x1", 1, 5), registration("iqn.b,i,0x2", 2, u64::MAX)];
        let held = kind.map(|kind| Held { kind, holder: registrations[1].ports.clone() });
        Persistent { aptpl: true, registrations, held, ..Persistent::default() }
    }

    #[test]
    fn what_is_kept_comes_back() {
        for code in 0..=8 {
            let kept = sample(ReservationType::from_code(code));
            assert_eq!(Persistent::from_kept(&kept.to_kept()), Ok(kept));
        }
        let off = Persistent { aptpl: false, ..sample(None) };
        assert_eq!(off.to_kept(), []);
    }

    #[test]
    fn principals_are_kept_and_what_has_none_is_what_earlier_versions_wrote() {
        let mut kept = sample(Some(ReservationType::WriteExclusive));
        assert_eq!(kept.to_kept()[4], 1);
        kept.registrations[1].ports.principal = "user:joe".to_owned();
        kept.held = Some(Held { holder: kept.registrations[1].ports.clone(), ..kept.held.unwrap() });
        let bytes = kept.to_kept();
        assert_eq!(bytes[4], 2);
        assert_eq!(Persistent::from_kept(&bytes), Ok(kept));
        for len in 0..bytes.len() {
            assert!(Persistent::from_kept(&bytes[..len]).is_err(), "{len} of {}", bytes.len());
        }
    }

    #[test]
    fn a_blob_that_is_cut_or_longer_is_refused() {
        let bytes = sample(Some(ReservationType::WriteExclusive)).to_kept();
        for len in 0..bytes.len() {
            assert!(Persistent::from_kept(&bytes[..len]).is_err(), "{len} of {}", bytes.len());
        }
        assert!(Persistent::from_kept(&[bytes, vec![0]].concat()).is_err());
    }

    #[test]
    fn nonsense_is_refused() {
        let bytes = sample(Some(ReservationType::WriteExclusive)).to_kept();
        for (at, byte) in [(0, b'X'), (4, 3), (5, 2), (5, 99), (6, 0xFF), (7, 1), (7, 3), (9, 7), (23, 0xFF)]
        {
            let mut wrong = bytes.clone();
            wrong[at] = byte;
            assert!(Persistent::from_kept(&wrong).is_err(), "byte {at} = {byte}");
        }
        let mut no_key = bytes;
        no_key[12..20].fill(0);
        assert!(Persistent::from_kept(&no_key).is_err());
    }

    #[test]
    fn an_all_registrants_reservation_needs_no_holder() {
        let mut kept = sample(Some(ReservationType::ExclusiveAccessAllRegistrants));
        kept.registrations.truncate(1);
        let back = Persistent::from_kept(&kept.to_kept()).unwrap();
        assert_eq!(back.kind(), Some(ReservationType::ExclusiveAccessAllRegistrants));
    }
}
