//! The handshake: fixed newstyle, from the first byte to the transmission phase.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::export::Export;
use crate::stream::Stream;
use crate::wire::{
    Greeting, NBD_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionHeader, OptionReplyHeader, allocation,
    dirty_bitmap, handshake, info, option, reply,
};

/// Most bytes of an option: a name of 4096 and any sensible number of queries.
const OPTION_DATA_MAX: u32 = 64 << 10;
/// Longest string, which is the specification's limit.
const STRING_MAX: usize = 4096;
/// Padding after the answer to `EXPORT_NAME`, for clients that did not set `NO_ZEROES`.
const ZEROES: [u8; 124] = [0; 124];

/// Result of the negotiation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Agreed {
    /// Replies come in chunks.
    pub(crate) structured: bool,
    /// Block status may be asked for, in the context `base:allocation`.
    pub(crate) allocation: bool,
    /// The same of these bitmaps: the numbers by which replies refer to them, and their names.
    pub(crate) bitmaps: Vec<(u32, String)>,
}

impl Agreed {
    /// Contexts of which a block status tells.
    pub(crate) fn contexts(&self) -> usize {
        usize::from(self.allocation) + self.bitmaps.len()
    }
}

/// Reason why a handshake did not end in the transmission phase.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NegotiationError {
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    #[error("the client broke the protocol: {0}")]
    Protocol(&'static str),
    #[error("the client requested an unknown export")]
    NoExport,
    /// Not an error: that is how `nbdinfo` ends.
    #[error("the client ended the handshake")]
    Aborted,
}

/// Shakes hands. The caller sets a limit of time; memory is limited here.
pub(crate) async fn negotiate(stream: &mut Stream, export: &Export) -> Result<Agreed, NegotiationError> {
    let greeting = Greeting {
        magic: U64::new(NBD_MAGIC),
        option_magic: U64::new(OPTION_MAGIC),
        flags: (handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES).into(),
    };
    stream.write_all(greeting.as_bytes()).await?;
    let flags = stream.read_u32().await?;
    if flags & !u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES) != 0 {
        return Err(NegotiationError::Protocol("unknown flags"));
    }
    let mut haggling = Haggling { export, agreed: Agreed::default(), answer: Vec::new(), option: 0 };
    loop {
        let mut header = OptionHeader::new_zeroed();
        stream.read_exact(header.as_mut_bytes()).await?;
        if header.magic.get() != OPTION_MAGIC {
            return Err(NegotiationError::Protocol("an option without its magic number"));
        }
        if header.length.get() > OPTION_DATA_MAX {
            return Err(NegotiationError::Protocol("an option of more than 64 KiB"));
        }
        let mut data = vec![0; header.length.get() as usize];
        stream.read_exact(&mut data).await?;
        haggling.option = header.option.get();
        if haggling.option == option::EXPORT_NAME {
            if !export.is(&data) {
                return Err(NegotiationError::NoExport);
            }
            let mut answer = haggling.export_info(haggling.agreed.structured);
            if flags & u32::from(handshake::NO_ZEROES) == 0 {
                answer.extend_from_slice(&ZEROES);
            }
            stream.write_all(&answer).await?;
            return Ok(haggling.agreed);
        }
        let end = haggling.option(&data);
        stream.write_all(&haggling.answer).await?;
        haggling.answer.clear();
        match end {
            Next::Option => {}
            Next::Transmission => return Ok(haggling.agreed),
            Next::Close => return Err(NegotiationError::Aborted),
        }
    }
}

enum Next {
    Option,
    Transmission,
    Close,
}

struct Haggling<'a> {
    export: &'a Export,
    agreed: Agreed,
    answer: Vec<u8>,
    /// The one that is being answered.
    option: u32,
}

impl Haggling<'_> {
    fn option(&mut self, data: &[u8]) -> Next {
        match self.option {
            option::ABORT => {
                self.reply(reply::ACK, &[]);
                return Next::Close;
            }
            option::LIST if data.is_empty() => {
                let name = self.export.name.as_bytes();
                let mut server = U32::new(name.len() as u32).as_bytes().to_vec();
                server.extend_from_slice(name);
                server.extend_from_slice(self.export.description.as_bytes());
                self.reply(reply::SERVER, &server);
                self.reply(reply::ACK, &[]);
            }
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.agreed.structured = true;
                self.reply(reply::ACK, &[]);
            }
            option::LIST | option::STRUCTURED_REPLY => {
                self.reply(reply::ERR_INVALID, b"this option has no data");
            }
            option::STARTTLS => self.reply(reply::ERR_POLICY, b"there is no TLS here"),
            option::INFO | option::GO => return self.info(data),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(data),
            _ => self.reply(reply::ERR_UNSUP, b"unknown option"),
        }
        Next::Option
    }

    fn reply(&mut self, reply: u32, data: &[u8]) {
        let header = OptionReplyHeader {
            magic: U64::new(OPTION_REPLY_MAGIC),
            option: U32::new(self.option),
            reply: U32::new(reply),
            length: U32::new(data.len() as u32),
        };
        self.answer.extend_from_slice(header.as_bytes());
        self.answer.extend_from_slice(data);
    }

    /// Size and flags.
    fn export_info(&self, structured: bool) -> Vec<u8> {
        let mut bytes = self.export.size().to_be_bytes().to_vec();
        bytes.extend_from_slice(&self.export.flags(structured).to_be_bytes());
        bytes
    }

    fn info(&mut self, data: &[u8]) -> Next {
        let mut data = Data(data);
        let asked = (|| {
            let name = data.string()?;
            let count = data.u16()?;
            let wanted: Option<Vec<u16>> = (0..count).map(|_| data.u16()).collect();
            wanted.filter(|_| data.0.is_empty()).map(|wanted| (name, wanted))
        })();
        let Some((name, wanted)) = asked else {
            self.reply(reply::ERR_INVALID, b"the request does not have the length that it says");
            return Next::Option;
        };
        if name.len() > STRING_MAX {
            self.reply(reply::ERR_TOO_BIG, b"a name has at most 4096 bytes");
            return Next::Option;
        }
        if !self.export.is(name) {
            self.reply(reply::ERR_UNKNOWN, b"there is no export of this name");
            return Next::Option;
        }
        let with = |kind: u16, data: &[u8]| [&kind.to_be_bytes(), data].concat();
        self.reply(reply::INFO, &with(info::EXPORT, &self.export_info(self.agreed.structured)));
        // Told unasked too: a client that ignores it will hear EINVAL for what is not whole sectors.
        let [min, preferred, max] = self.export.block_sizes().map(u32::to_be_bytes);
        self.reply(reply::INFO, &with(info::BLOCK_SIZE, &[min, preferred, max].concat()));
        for (kind, text) in
            [(info::NAME, self.export.name.clone()), (info::DESCRIPTION, self.export.description.clone())]
        {
            if wanted.contains(&kind) {
                self.reply(reply::INFO, &with(kind, text.as_bytes()));
            }
        }
        self.reply(reply::ACK, &[]);
        if self.option == option::GO { Next::Transmission } else { Next::Option }
    }

    /// Lists or chooses contexts of block status. Choosing anew forgets what was chosen before.
    fn meta_context(&mut self, data: &[u8]) {
        let set = self.option == option::SET_META_CONTEXT;
        if set {
            self.agreed.allocation = false;
            self.agreed.bitmaps.clear();
        }
        let mut data = Data(data);
        let asked = (|| {
            let name = data.string()?;
            let count = data.u32()?;
            let queries: Option<Vec<&[u8]>> = (0..count).map(|_| data.string()).collect();
            queries.filter(|_| data.0.is_empty()).map(|queries| (name, queries))
        })();
        let Some((name, queries)) = asked else {
            return self.reply(reply::ERR_INVALID, b"the request does not have the length that it says");
        };
        if !self.agreed.structured {
            return self.reply(reply::ERR_INVALID, b"structured replies have to be agreed upon first");
        }
        if !self.export.is(name) {
            return self.reply(reply::ERR_UNKNOWN, b"there is no export of this name");
        }
        let asks = |context: &str| queries.contains(&context.as_bytes());
        // A namespace, or a part of one with its colon, means all that is in it, of a list alone.
        let lists = |part: &str| !set && (queries.is_empty() || asks(part));
        if asks(allocation::NAME) || lists("base:") {
            self.context(set, allocation::ID, allocation::NAME);
            self.agreed.allocation |= set;
        }
        let lists_bitmaps = lists(dirty_bitmap::NAMESPACE) || lists(dirty_bitmap::PREFIX);
        for (number, name) in (dirty_bitmap::FIRST_ID..).zip(self.export.bitmaps()) {
            let context = format!("{}{name}", dirty_bitmap::PREFIX);
            if asks(&context) || lists_bitmaps {
                self.context(set, number, &context);
                if set {
                    self.agreed.bitmaps.push((number, name));
                }
            }
        }
        self.reply(reply::ACK, &[]);
    }

    /// Tells of one context. Where it is not chosen its number means nothing.
    fn context(&mut self, set: bool, number: u32, name: &str) {
        let number = if set { number } else { 0 }.to_be_bytes();
        self.reply(reply::META_CONTEXT, &[&number[..], name.as_bytes()].concat());
    }
}

/// Remaining data of an option.
struct Data<'a>(&'a [u8]);

impl<'a> Data<'a> {
    fn u16(&mut self) -> Option<u16> {
        let (value, rest) = zerocopy::big_endian::U16::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(value.get())
    }

    fn u32(&mut self) -> Option<u32> {
        let (value, rest) = U32::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(value.get())
    }

    /// A length of 32 bits, and so many bytes.
    fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        let (string, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(string)
    }
}
