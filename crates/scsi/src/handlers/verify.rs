//! VERIFY and WRITE AND VERIFY, with real comparison.

use lunway_block::{Buf, Durability, TimeSlices};

use super::transfer::{Blocks, whole_blocks};
use crate::block_error::Step;
use crate::command::{Answer, Command, failure, stepwise};
use crate::data::response::Response;
use crate::data::sense::{AdditionalSense, Sense, SenseKey};

/// Bytes read in a time slice: a verification needs the data only for a moment, whatever its length.
pub(crate) const CHUNK: usize = 512 << 10;

/// Data that the medium is compared with (BYTCHK, SBC-4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    /// Nothing: it only has to be readable.
    Readable,
    /// Data-out, byte by byte.
    Data,
    /// One block of data-out, repeated.
    OneBlock,
}

impl Comparison {
    fn of(command: &Command) -> Result<Self, Response> {
        match command.cdb.u8(1) >> 1 & 0b11 {
            0b00 => Ok(Self::Readable),
            0b01 => Ok(Self::Data),
            0b11 => Ok(Self::OneBlock),
            _ => Err(Sense::invalid_cdb_field(1, 2).into()),
        }
    }
}

/// MISCOMPARE with the offset of the first differing byte of data-out in INFORMATION.
pub(crate) fn miscompare(offset: usize) -> Response {
    Sense::new(SenseKey::MISCOMPARE, AdditionalSense::MISCOMPARE_DURING_VERIFY)
        .with_information(offset as u64)
        .into()
}

/// Index of the first difference between `medium` and `expected` repeated.
pub(crate) fn first_difference(medium: &[u8], expected: &[u8]) -> Option<usize> {
    // Equality of slices is a `memcmp`: the position is only looked for in the part that differs.
    let part = expected.len().max(1);
    medium.chunks(part).enumerate().find_map(|(index, chunk)| {
        if *chunk == expected[..chunk.len()] {
            return None;
        }
        let at = chunk.iter().zip(expected).position(|(one, other)| one != other)?;
        Some(index * part + at)
    })
}

fn verify(command: Command, blocks: Blocks) -> Answer {
    let comparison = Comparison::of(&command)?;
    let geometry = command.unit().geometry();
    let (offset, len) = blocks.transferred(&command, &geometry)?;
    let sector = geometry.logical_sector as usize;
    stepwise(async move {
        let wanted = match comparison {
            Comparison::Readable => 0,
            Comparison::Data => len,
            Comparison::OneBlock => sector.min(len),
        };
        let data = whole_blocks(command.data_out.clone(), wanted, sector as u32);
        // Less data than blocks, by the transport's word: what is there is compared.
        let len = if comparison == Comparison::Data { data.len() } else { len };
        if comparison == Comparison::OneBlock && data.is_empty() {
            return Ok(Response::took(wanted as u64));
        }
        let device = command.unit().device();
        let (mut done, mut slices) = (0, TimeSlices::new());
        while done < len {
            let chunk = CHUNK.min(len - done);
            slices.spend(chunk as u64).await;
            let read = device.read(offset + done as u64, Buf::for_overwrite(chunk)).await;
            let step = Step::Read { offset, len: len as u64 };
            let medium = read.map_err(|error| failure(command.unit(), step, &error))?;
            let difference = match comparison {
                Comparison::Readable => None,
                Comparison::Data => first_difference(&medium, &data[done..done + chunk]).map(|at| done + at),
                Comparison::OneBlock => first_difference(&medium, &data).map(|at| (done + at) % sector),
            };
            if let Some(at) = difference {
                return Err(miscompare(at));
            }
            done += chunk;
        }
        Ok(Response::took(wanted as u64))
    })
}

pub(crate) fn verify_10(command: Command) -> Answer {
    let blocks = Blocks::of_10(&command.cdb);
    verify(command, blocks)
}

pub(crate) fn verify_12(command: Command) -> Answer {
    let blocks = Blocks::of_12(&command.cdb);
    verify(command, blocks)
}

pub(crate) fn verify_16(command: Command) -> Answer {
    let blocks = Blocks::of_16(&command.cdb);
    verify(command, blocks)
}

/// Write and verification alone on their blocks: another write between the two steps would be told as a miscompare.
fn write_and_verify(command: Command, blocks: Blocks) -> Answer {
    let comparison = Comparison::of(&command)?;
    if comparison == Comparison::OneBlock {
        return Err(Sense::invalid_cdb_field(1, 2).into());
    }
    let geometry = command.unit().geometry();
    let (offset, len) = blocks.transferred(&command, &geometry)?;
    stepwise(async move {
        let data = whole_blocks(command.data_out.clone(), len, geometry.logical_sector);
        let (reading, writing) =
            (Step::Read { offset, len: len as u64 }, Step::Write { offset, len: len as u64 });
        let device = command.unit().device();
        // What is verified is what is on the medium.
        let written = device.write(offset, data.clone(), Durability::Stable).await;
        written.map_err(|error| failure(command.unit(), writing, &error))?;
        let (mut done, mut slices) = (0, TimeSlices::new());
        while done < data.len() {
            let chunk = CHUNK.min(data.len() - done);
            slices.spend(chunk as u64).await;
            let medium = device.read(offset + done as u64, Buf::for_overwrite(chunk)).await;
            let medium = medium.map_err(|error| failure(command.unit(), reading, &error))?;
            if comparison == Comparison::Data
                && let Some(at) = first_difference(&medium, &data[done..done + chunk])
            {
                return Err(miscompare(done + at));
            }
            done += chunk;
        }
        Ok(Response::took(len as u64))
    })
}

pub(crate) fn write_and_verify_10(command: Command) -> Answer {
    let blocks = Blocks::of_10(&command.cdb);
    write_and_verify(command, blocks)
}

pub(crate) fn write_and_verify_12(command: Command) -> Answer {
    let blocks = Blocks::of_12(&command.cdb);
    write_and_verify(command, blocks)
}

pub(crate) fn write_and_verify_16(command: Command) -> Answer {
    let blocks = Blocks::of_16(&command.cdb);
    write_and_verify(command, blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_found_also_against_a_repeated_block() {
        assert_eq!(first_difference(b"abcdef", b"abcdef"), None);
        assert_eq!(first_difference(b"abcdef", b"abcxef"), Some(3));
        assert_eq!(first_difference(b"ababab", b"ab"), None);
        assert_eq!(first_difference(b"ababxb", b"ab"), Some(4));
        assert_eq!(first_difference(b"", b""), None);
    }
}
