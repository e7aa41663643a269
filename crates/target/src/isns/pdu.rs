//! iSNSP messages (RFC 4171 §5): what a registration says, and how it was taken.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};

/// Of a PDU (§5.1).
const HEADER_LEN: usize = 12;
const VERSION: u16 = 1;
/// Longest payload of a PDU: a 16-bit length, a multiple of four.
const PAYLOAD_MAX: usize = 0xfffc;
/// Longest answer that is read.
const RESPONSE_MAX: usize = 1 << 20;

// Flags (§5.1.4).
const FROM_CLIENT: u16 = 0x8000;
const REPLACE: u16 = 0x1000;
const LAST: u16 = 0x0800;
const FIRST: u16 = 0x0400;

/// Functions (§4.1.3).
pub(super) const DEV_ATTR_REG: u16 = 0x0001;
pub(super) const DEV_DEREG: u16 = 0x0004;
/// Added in an answer.
const RESPONSE: u16 = 0x8000;

// Attributes (§6.1).
const DELIMITER: u32 = 0;
const ENTITY_IDENTIFIER: u32 = 1;
const ENTITY_PROTOCOL: u32 = 2;
const REGISTRATION_PERIOD: u32 = 6;
const PORTAL_IP: u32 = 16;
const PORTAL_PORT: u32 = 17;
const ISCSI_NAME: u32 = 32;
const ISCSI_NODE_TYPE: u32 = 33;
const ISCSI_ALIAS: u32 = 34;
const PG_ISCSI_NAME: u32 = 48;
const PG_PORTAL_IP: u32 = 49;
const PG_PORTAL_PORT: u32 = 50;
const PG_TAG: u32 = 51;

const PROTOCOL_ISCSI: u32 = 2;
const NODE_TARGET: u32 = 1;

/// Registration with an iSNS server: one network entity with its portals and its targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Registration {
    /// Entity identifier, the same as long as it is registered.
    pub(super) entity: String,
    pub(super) portals: Vec<SocketAddr>,
    /// At least one, which speaks for the entity.
    pub(super) targets: Vec<RegisteredTarget>,
}

/// A target, and the portals that offer it with their groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RegisteredTarget {
    pub(super) name: String,
    pub(super) alias: Option<String>,
    pub(super) portals: Vec<(SocketAddr, u16)>,
}

/// Reason why a server's answer is none.
#[derive(Debug, thiserror::Error)]
pub(super) enum AnswerError {
    /// The connection.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// To something else, or not in the protocol.
    #[error("its answer does not match the request")]
    Foreign,
    /// Too long.
    #[error("its answer has more than {RESPONSE_MAX} bytes")]
    TooLong,
    /// Does not do what was asked (§5.4).
    #[error("it refuses with status {0}")]
    Refused(u32),
}

/// Attributes in a row.
#[derive(Default)]
struct Attributes(Vec<u8>);

impl Attributes {
    fn push(&mut self, tag: u32, value: &[u8]) {
        let len = value.len().next_multiple_of(4);
        self.0.extend(tag.to_be_bytes());
        self.0.extend((len as u32).to_be_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len() + len - value.len(), 0);
    }

    fn number(&mut self, tag: u32, value: u32) {
        self.push(tag, &value.to_be_bytes());
    }

    /// Texts end with a 0.
    fn text(&mut self, tag: u32, value: &str) {
        self.push(tag, &[value.as_bytes(), &[0]].concat());
    }

    /// An address of IPv4 is written as one of IPv6, and of the port's bits the lower 16 are TCP's number.
    fn portal(&mut self, [ip, port]: [u32; 2], address: SocketAddr) {
        let v6 = match address.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        self.push(ip, &v6.octets());
        self.number(port, u32::from(address.port()));
    }
}

impl Registration {
    /// DevAttrReg (§5.6.5.1): all of it, in the place of what was registered before.
    pub(super) fn register(&self, transaction: u16, period_s: u32) -> Vec<u8> {
        let mut message = self.addressed();
        message.text(ENTITY_IDENTIFIER, &self.entity);
        message.number(ENTITY_PROTOCOL, PROTOCOL_ISCSI);
        message.number(REGISTRATION_PERIOD, period_s);
        for portal in &self.portals {
            message.portal([PORTAL_IP, PORTAL_PORT], *portal);
        }
        for target in &self.targets {
            message.text(ISCSI_NAME, &target.name);
            message.number(ISCSI_NODE_TYPE, NODE_TARGET);
            if let Some(alias) = &target.alias {
                message.text(ISCSI_ALIAS, alias);
            }
        }
        for target in &self.targets {
            for (portal, tag) in &target.portals {
                message.text(PG_ISCSI_NAME, &target.name);
                message.portal([PG_PORTAL_IP, PG_PORTAL_PORT], *portal);
                message.number(PG_TAG, u32::from(*tag));
            }
        }
        cut(DEV_ATTR_REG, REPLACE, transaction, &message.0)
    }

    /// DevDereg (§5.6.5.4): the entity and all that belongs to it.
    pub(super) fn deregister(&self, transaction: u16) -> Vec<u8> {
        let mut message = Attributes::default();
        message.text(ISCSI_NAME, self.source());
        message.push(DELIMITER, &[]);
        message.text(ENTITY_IDENTIFIER, &self.entity);
        cut(DEV_DEREG, 0, transaction, &message.0)
    }

    /// Source and key.
    fn addressed(&self) -> Attributes {
        let mut message = Attributes::default();
        message.text(ISCSI_NAME, self.source());
        message.text(ENTITY_IDENTIFIER, &self.entity);
        message.push(DELIMITER, &[]);
        message
    }

    fn source(&self) -> &str {
        self.targets.first().map_or("", |target| &target.name)
    }
}

/// The PDUs of a message.
fn cut(function: u16, flags: u16, transaction: u16, message: &[u8]) -> Vec<u8> {
    let mut pdus = Vec::with_capacity(message.len() + HEADER_LEN);
    let pieces = message.chunks(PAYLOAD_MAX);
    let last = pieces.len() - 1;
    for (sequence, piece) in pieces.enumerate() {
        let mut flags = flags | FROM_CLIENT;
        if sequence == 0 {
            flags |= FIRST;
        }
        if sequence == last {
            flags |= LAST;
        }
        for field in [VERSION, function, piece.len() as u16, flags, transaction, sequence as u16] {
            pdus.extend(field.to_be_bytes());
        }
        pdus.extend(piece);
    }
    pdus
}

/// Reads the answer to a message, however many PDUs it has, and says whether the server did it.
pub(super) fn answer(stream: &mut impl Read, function: u16, transaction: u16) -> Result<(), AnswerError> {
    let mut message = Vec::new();
    loop {
        let mut header = [0; HEADER_LEN];
        stream.read_exact(&mut header)?;
        let field = |index: usize| u16::from_be_bytes([header[2 * index], header[2 * index + 1]]);
        if (field(0), field(1), field(4)) != (VERSION, function | RESPONSE, transaction) {
            return Err(AnswerError::Foreign);
        }
        let old = message.len();
        message.resize(old + usize::from(field(2)), 0);
        if message.len() > RESPONSE_MAX {
            return Err(AnswerError::TooLong);
        }
        stream.read_exact(&mut message[old..])?;
        if field(3) & LAST != 0 {
            break;
        }
    }
    match message.first_chunk().map(|status| u32::from_be_bytes(*status)) {
        Some(0) => Ok(()),
        Some(status) => Err(AnswerError::Refused(status)),
        None => Err(AnswerError::Foreign),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registration(targets: usize) -> Registration {
        let portal = "10.0.0.1:3260".parse().unwrap();
        let target = |number| RegisteredTarget {
            name: format!("iqn.2026-11.com.example:{number}"),
            alias: None,
            portals: vec![(portal, 7)],
        };
        let targets = (0..targets).map(target).collect();
        Registration { entity: "disks".to_owned(), portals: vec![portal], targets }
    }

    #[test]
    fn a_registration_is_written_as_the_standard_says() {
        let bytes = registration(1).register(5, 600);
        assert_eq!(bytes[..2], [0, 1]);
        assert_eq!(bytes[2..4], [0, 1], "DevAttrReg");
        assert_eq!(usize::from(u16::from_be_bytes([bytes[4], bytes[5]])), bytes.len() - HEADER_LEN);
        assert_eq!(bytes[6..12], [0x9c, 0, 0, 5, 0, 0], "flags, transaction, sequence");
        // Source: a name of 25 bytes with its 0, padded to 28.
        assert_eq!(bytes[12..20], [0, 0, 0, 32, 0, 0, 0, 28]);
        assert_eq!(&bytes[20..46], b"iqn.2026-11.com.example:0\0");
        // Key, delimiter.
        assert_eq!(&bytes[48..64], b"\0\0\0\x01\0\0\0\x08disks\0\0\0");
        assert_eq!(bytes[64..72], [0; 8]);
        let group = b"\0\0\0\x31\0\0\0\x10\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x01\0\0\0\x32\0\0\0\x04\0\0\x0c\xbc\0\0\0\x33\0\0\0\x04\0\0\0\x07";
        assert!(bytes.ends_with(group));
    }

    #[test]
    fn a_message_that_is_too_long_for_a_pdu_is_cut() {
        let bytes = registration(1000).register(1, 600);
        let (mut rest, mut flags, mut sequences) = (&bytes[..], Vec::new(), Vec::new());
        while let Some((header, after)) = rest.split_first_chunk::<HEADER_LEN>() {
            flags.push(u16::from_be_bytes([header[6], header[7]]) & (FIRST | LAST));
            sequences.push(header[11]);
            rest = &after[usize::from(u16::from_be_bytes([header[4], header[5]]))..];
        }
        assert_eq!((flags, sequences), (vec![FIRST, 0, LAST], vec![0, 1, 2]));
    }

    /// A PDU of an answer.
    fn response(flags: u16, transaction: u16, payload: &[u8]) -> Vec<u8> {
        let header = [VERSION, DEV_ATTR_REG | RESPONSE, payload.len() as u16, flags, transaction, 0];
        header.iter().flat_map(|field| field.to_be_bytes()).chain(payload.iter().copied()).collect()
    }

    #[test]
    fn an_answer_says_whether_it_was_done() {
        let parse = |bytes: &[u8]| answer(&mut { bytes }, DEV_ATTR_REG, 3);
        assert!(parse(&response(LAST, 3, &[0; 4])).is_ok());
        let two = [response(FIRST, 3, &[0; 8]), response(LAST, 3, &[1; 8])].concat();
        assert!(parse(&two).is_ok());
        assert!(matches!(parse(&response(LAST, 3, &[0, 0, 0, 6])), Err(AnswerError::Refused(6))));
        assert!(matches!(parse(&response(LAST, 4, &[0; 4])), Err(AnswerError::Foreign)));
        assert!(matches!(parse(&response(LAST, 3, &[0; 3])), Err(AnswerError::Foreign)));
        assert!(matches!(parse(&two[..two.len() - 1]), Err(AnswerError::Io(_))));
        let endless = response(0, 3, &[0; 0xfffc]).repeat(20);
        assert!(matches!(parse(&endless), Err(AnswerError::TooLong)));
    }
}
