//! The client's side of the handshake: from an address to what an export offers.

use std::io;

use lunway_block::spec::{NbdEndpoint, NbdUri};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::server::NbdLimits;
use crate::stream::Stream;
use crate::wire::{
    Greeting, NBD_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionHeader, OptionReplyHeader, allocation,
    dirty_bitmap, handshake, info, option, reply,
};

/// Most bytes of one part of the reply to an option: two strings of 4096 bytes, which is the specification's limit.
const PART_MAX: u32 = 16 << 10;
/// Most parts of the reply to an option: there are four kinds of information, and two contexts are asked for.
const PARTS_MAX: usize = 64;

/// What an export offers on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    /// Size, bytes: whole sectors.
    pub(super) size: u64,
    /// Transmission flags.
    flags: u16,
    /// 512 or 4096.
    pub(super) sector: u32,
    /// Most bytes of a read or write; at least a sector, and whole sectors.
    pub(super) transfer_max: u32,
    pub(super) structured: bool,
    /// Number of the context `base:allocation`.
    pub(super) allocation: Option<u32>,
    /// Number of the context of the bitmap that was asked for.
    pub(super) bitmap: Option<u32>,
}

impl Offer {
    pub(super) fn can(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

pub(super) fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the server does not speak the protocol: {what}"))
}

pub(super) async fn read_header<T: FromBytes + IntoBytes + FromZeros>(
    stream: &mut (impl AsyncRead + Unpin),
) -> io::Result<T> {
    let mut header = T::new_zeroed();
    stream.read_exact(header.as_mut_bytes()).await?;
    Ok(header)
}

/// Reply to an option.
enum Answer {
    Parts(Vec<Vec<u8>>),
    /// The number, and what the server said.
    Refused(u32, String),
}

async fn dial(uri: &NbdUri) -> io::Result<Stream> {
    match &uri.endpoint {
        NbdEndpoint::Unix(path) => Ok(Stream::Unix(UnixStream::connect(path).await?)),
        NbdEndpoint::Tcp { host, port } => {
            let stream = TcpStream::connect((&**host, *port)).await?;
            stream.set_nodelay(true)?;
            // A server that lost its power is noticed as a client is.
            NbdLimits::default().watch(&stream)?;
            Ok(Stream::Tcp(stream))
        }
    }
}

/// Sends an option and receives the reply.
async fn ask(stream: &mut Stream, option: u32, data: &[u8]) -> io::Result<Answer> {
    let header = OptionHeader {
        magic: OPTION_MAGIC.into(),
        option: option.into(),
        length: (data.len() as u32).into(),
    };
    stream.write_all(&[header.as_bytes(), data].concat()).await?;
    let mut parts = Vec::new();
    while parts.len() < PARTS_MAX {
        let header: OptionReplyHeader = read_header(stream).await?;
        if header.magic != OPTION_REPLY_MAGIC || header.option != option || header.length.get() > PART_MAX {
            return Err(wrong("a reply to an option"));
        }
        let mut data = vec![0; header.length.get() as usize];
        stream.read_exact(&mut data).await?;
        match header.reply.get() {
            reply::ACK => return Ok(Answer::Parts(parts)),
            reply::INFO | reply::META_CONTEXT => parts.push(data),
            number if number & reply::IS_ERROR != 0 => {
                return Ok(Answer::Refused(number, String::from_utf8_lossy(&data).into_owned()));
            }
            _ => return Err(wrong("a reply to an option that it does not have")),
        }
    }
    Err(wrong("a reply to an option that does not end"))
}

/// A number of so many bytes.
fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    Some(bytes.get(at..at + length)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

/// A connection in the transmission phase, and what the export offers on it.
pub(super) async fn shake_hands(uri: &NbdUri, bitmap: Option<&str>) -> io::Result<(Stream, Offer)> {
    let mut stream = dial(uri).await?;
    let greeting: Greeting = read_header(&mut stream).await?;
    if greeting.magic != NBD_MAGIC || greeting.option_magic != OPTION_MAGIC {
        return Err(wrong("its greeting"));
    }
    let flags = greeting.flags.get();
    if flags & handshake::FIXED_NEWSTYLE == 0 {
        return Err(wrong("it is too old: it does not know the fixed newstyle handshake"));
    }
    stream.write_u32(u32::from(flags & (handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES))).await?;
    let structured = matches!(ask(&mut stream, option::STRUCTURED_REPLY, &[]).await?, Answer::Parts(_));
    let bitmap = bitmap.map(|name| format!("{}{name}", dirty_bitmap::PREFIX));
    let mut contexts = [None, None];
    if structured {
        let queries: Vec<&str> = [allocation::NAME].into_iter().chain(bitmap.as_deref()).collect();
        let strings = queries.iter().flat_map(|query| string(query));
        let data: Vec<u8> = string(&uri.export)
            .into_iter()
            .chain((queries.len() as u32).to_be_bytes())
            .chain(strings)
            .collect();
        // A server that refuses has none: all is data.
        if let Answer::Parts(parts) = ask(&mut stream, option::SET_META_CONTEXT, &data).await? {
            for (query, context) in queries.iter().zip(&mut contexts) {
                let found = parts.iter().find(|part| part.get(4..) == Some(query.as_bytes()));
                *context = found.and_then(|part| number(part, 0, 4)).map(|number| number as u32);
            }
        }
    }
    let [allocation, bitmap] = contexts;
    if allocation.is_some() && allocation == bitmap {
        return Err(wrong("two contexts of one number"));
    }
    let data = [string(&uri.export), 1_u16.to_be_bytes().to_vec(), info::BLOCK_SIZE.to_be_bytes().to_vec()];
    let parts = match ask(&mut stream, option::GO, &data.concat()).await? {
        Answer::Parts(parts) => parts,
        Answer::Refused(number, said) => return Err(refused(number, &said)),
    };
    let offer = offer(&parts)?;
    Ok((stream, Offer { structured, allocation, bitmap, ..offer }))
}

/// What the reply to `GO` says of an export.
fn offer(parts: &[Vec<u8>]) -> io::Result<Offer> {
    let (mut export, mut blocks) = (None, None);
    for part in parts {
        match number(part, 0, 2).map(|kind| kind as u16) {
            Some(info::EXPORT) => export = number(part, 2, 8).zip(number(part, 10, 2)),
            Some(info::BLOCK_SIZE) => blocks = number(part, 2, 4).zip(number(part, 10, 4)),
            _ => {}
        }
    }
    let (size, flags) =
        export.filter(|(size, _)| *size <= i64::MAX as u64).ok_or_else(|| wrong("no size"))?;
    // A server that says nothing takes single bytes, and the 32 MiB that the specification has for it.
    let (min, max) = blocks.unwrap_or((1, 32 << 20));
    let sector = if min <= 512 { 512 } else { 4096 };
    let unusable = |what: String| io::Error::new(io::ErrorKind::Unsupported, what);
    if !min.is_power_of_two() || min > 4096 {
        return Err(unusable(format!("blocks of {min} bytes are not supported")));
    }
    if size % sector != 0 {
        return Err(unusable(format!("its {size} bytes are not whole sectors of {sector} bytes")));
    }
    let transfer_max = (max / sector * sector) as u32;
    if transfer_max == 0 {
        return Err(wrong("its largest block is smaller than a sector"));
    }
    Ok(Offer {
        size,
        flags: flags as u16,
        sector: sector as u32,
        transfer_max,
        structured: false,
        allocation: None,
        bitmap: None,
    })
}

fn refused(number: u32, said: &str) -> io::Error {
    let why = match number {
        reply::ERR_UNKNOWN => "it has no export of this name".to_owned(),
        reply::ERR_TLS_REQD => "it requires TLS, which is not supported".to_owned(),
        reply::ERR_UNSUP => "it is too old: it does not know NBD_OPT_GO".to_owned(),
        reply::ERR_POLICY => "it does not allow that".to_owned(),
        number => format!("it answers with error {number:#x}"),
    };
    let said = said.trim();
    io::Error::other(if said.is_empty() { why } else { format!("{why} ({said})") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(size: u64, blocks: Option<[u32; 3]>) -> Vec<Vec<u8>> {
        let export = [&info::EXPORT.to_be_bytes()[..], &size.to_be_bytes(), &[1, 3]].concat();
        let blocks = blocks.map(|sizes| {
            let sizes = sizes.map(u32::to_be_bytes).concat();
            [&info::BLOCK_SIZE.to_be_bytes()[..], &sizes].concat()
        });
        [export].into_iter().chain(blocks).collect()
    }

    #[test]
    fn sectors_and_lengths_are_what_the_server_can_do() {
        let of = |size, blocks| offer(&parts(size, blocks)).map(|offer| (offer.sector, offer.transfer_max));
        assert_eq!(of(1 << 20, None).unwrap(), (512, 32 << 20));
        assert_eq!(of(1 << 20, Some([1, 4096, u32::MAX])).unwrap(), (512, u32::MAX / 512 * 512));
        assert_eq!(of(1 << 20, Some([1024, 4096, 10_000])).unwrap(), (4096, 8192));
        for (size, blocks) in [
            (1 << 63, None),
            (1000, None),
            (512, Some([4096, 4096, 1 << 20])),
            (1 << 20, Some([8192, 8192, 1 << 20])),
            (1 << 20, Some([0, 1, 1 << 20])),
            (1 << 20, Some([3, 4096, 1 << 20])),
            (1 << 20, Some([1, 256, 256])),
        ] {
            assert!(of(size, blocks).is_err(), "{size} {blocks:?}");
        }
        for cut in 0..12 {
            assert!(offer(&[parts(512, None)[0][..cut].to_vec()]).is_err(), "{cut}");
        }
    }
}
