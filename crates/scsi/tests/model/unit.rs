//! One logical unit of the model: what SBC-4 and SPC-4 make of each command.

use lunway_block::Buf;
use lunway_scsi::vpd::{Association, BlockLimits, DesignatorType, DeviceIdentification, page};
use lunway_scsi::{Lun, Nexus, Response, Status, cdb};

use crate::answer::{
    INVALID_CDB, INVALID_PARAMETER, LIST_LENGTH, MISCOMPARE, OUT_OF_RANGE, Outcome, Refusal, Reply,
    WRONG_DATA_LENGTH, refuse, refuse_at, wrong,
};
use crate::disk::{Disk, Space};
use crate::layout::{blocks, number};
use crate::mode::Mode;
use crate::reservation::Reservations;
use crate::world::{UnitPlan, ready};

/// What a unit is, and the state that initiators have brought it to.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    pub(crate) disk: Disk,
    /// The name by which copy managers find it.
    pub(crate) naa: [u8; 16],
    pub(crate) thin: bool,
    pub(crate) removable: bool,
    pub(crate) read_only: bool,
    pub(crate) limits: BlockLimits,
    pub(crate) mode: Mode,
    pub(crate) reservations: Reservations,
    pub(crate) medium: bool,
    /// READ CAPACITY (16) from byte 12 on, which is the unit's to choose.
    pub(crate) capacity_rest: [u8; 20],
    /// INQUIRY data by page; `None` is the standard data.
    pub(crate) inquiry: Vec<(Option<u8>, Vec<u8>)>,
}

impl Unit {
    /// Asks a new unit what it has been made as, through a nexus that goes away afterwards.
    pub(crate) fn learn(scout: &Nexus, lun: u16, plan: &UnitPlan) -> Self {
        let send = |cdb: &[u8]| ready(scout.execute(Lun::new(lun).0, cdb, Buf::empty().freeze()));
        let data = |cdb: &[u8]| {
            let answer = send(cdb);
            assert_eq!(answer.status, Status::GOOD, "{cdb:02x?}");
            answer.data_in.to_vec()
        };
        send(&cdb::test_unit_ready());
        let mut inquiry = vec![(None, data(&cdb::inquiry(false, 0, u16::MAX)))];
        let supported = data(&cdb::inquiry(true, page::SUPPORTED, u16::MAX));
        inquiry.extend(
            supported[4..].iter().map(|&page| (Some(page), data(&cdb::inquiry(true, page, u16::MAX)))),
        );
        let limits = inquiry.iter().find(|(code, _)| *code == Some(page::BLOCK_LIMITS));
        let limits =
            limits.and_then(|(_, bytes)| BlockLimits::parse(bytes)).expect("a disk has block limits");
        let names = inquiry.iter().find(|(code, _)| *code == Some(page::DEVICE_IDENTIFICATION));
        let names =
            names.and_then(|(_, bytes)| DeviceIdentification::parse(bytes)).expect("a disk has names");
        let naa = names
            .designators
            .iter()
            .find(|name| name.kind == DesignatorType::NAA && name.association == Association::LogicalUnit);
        let naa = naa.and_then(|name| name.bytes.as_slice().try_into().ok());
        let pages = |control: u8| data(&[0x5A, 0x08, control << 6 | 0x3F, 0xFF, 0, 0, 0, 0xFF, 0xFF, 0]);
        let capacity = data(&cdb::read_capacity16(32));
        let granule = match limits.unmap_granularity {
            0 => 64 << 10,
            blocks => blocks as usize * plan.looks.sector as usize,
        };
        Self {
            disk: Disk::new(plan.looks.sector as usize, plan.blocks, granule),
            naa: naa.expect("a disk has an NAA designator"),
            thin: plan.looks.thin,
            removable: plan.removable,
            read_only: plan.read_only,
            limits,
            mode: Mode::learn(&pages(0), &pages(1), &pages(2)),
            reservations: Reservations::default(),
            medium: true,
            capacity_rest: capacity[12..].try_into().expect("32 bytes"),
            inquiry,
        }
    }

    /// The first block that cannot be reached, if there is one. A count of 0 behind the last block is refused by some
    /// and not by others.
    fn reach(&self, lba: u64, count: u64, actual: &Response) -> Result<(), Refusal> {
        let capacity = self.disk.blocks();
        let edge = count == 0 && lba == capacity;
        if edge && actual.status != Status::CHECK_CONDITION {
            return Ok(());
        }
        if edge || lba.checked_add(count).is_none_or(|end| end > capacity) {
            return refuse_at(OUT_OF_RANGE, lba.max(capacity));
        }
        Ok(())
    }

    /// The same, for commands that move the blocks: MAXIMUM TRANSFER LENGTH counts too.
    fn moved(&self, cdb: &[u8], limit: u64, actual: &Response) -> Result<(u64, u64), Refusal> {
        let (lba, count) = blocks(cdb);
        if limit != 0 && count > limit {
            return match self.reach(lba, count, actual) {
                Ok(()) => refuse(&[INVALID_CDB]),
                Err(_) => refuse(&[INVALID_CDB, OUT_OF_RANGE]),
            };
        }
        self.reach(lba, count, actual)?;
        Ok((lba, if lba == self.disk.blocks() { 0 } else { count }))
    }

    fn transferred(&self, cdb: &[u8], actual: &Response) -> Result<(u64, u64), Refusal> {
        self.moved(cdb, self.limits.transfer_max.into(), actual)
    }

    /// Whole blocks of data-out that came and that the CDB takes.
    fn whole<'a>(&self, data: &'a [u8], wanted: usize) -> &'a [u8] {
        let len = data.len().min(wanted);
        &data[..len - len % self.disk.sector]
    }

    pub(crate) fn read(&self, cdb: &[u8], actual: &Response) -> Outcome {
        let (lba, count) = self.transferred(cdb, actual)?;
        Reply::data(self.disk.read(lba, count).to_vec(), usize::MAX)
    }

    pub(crate) fn write(&mut self, cdb: &[u8], data: &[u8], actual: &Response) -> Outcome {
        let (lba, count) = self.transferred(cdb, actual)?;
        let len = count as usize * self.disk.sector;
        let data = self.whole(data, len);
        self.disk.write(lba, data);
        Reply::took(len as u64)
    }

    pub(crate) fn verify(&self, cdb: &[u8], data: &[u8], actual: &Response) -> Outcome {
        let byte_check = cdb[1] >> 1 & 3;
        if byte_check == 2 {
            return refuse(&[INVALID_CDB]);
        }
        let (lba, count) = self.transferred(cdb, actual)?;
        let sector = self.disk.sector;
        let medium = self.disk.read(lba, count);
        let wanted = match byte_check {
            0 => 0,
            1 => medium.len(),
            _ => sector.min(medium.len()),
        };
        let data = self.whole(data, wanted);
        let difference = match byte_check {
            0 => None,
            1 => data.iter().zip(medium).position(|(one, other)| one != other),
            _ if data.is_empty() => None,
            _ => medium
                .iter()
                .enumerate()
                .find(|(at, byte)| data[at % sector] != **byte)
                .map(|(at, _)| at % sector),
        };
        match difference {
            Some(at) => refuse_at(MISCOMPARE, at as u64),
            None => Reply::took(wanted as u64),
        }
    }

    pub(crate) fn write_and_verify(&mut self, cdb: &[u8], data: &[u8], actual: &Response) -> Outcome {
        match cdb[1] >> 1 & 3 {
            0 | 1 => self.write(cdb, data, actual),
            _ => refuse(&[INVALID_CDB]),
        }
    }

    pub(crate) fn write_same(&mut self, cdb: &[u8], data: &[u8], actual: &Response) -> Outcome {
        let (unmap, no_data) = (cdb[1] & 0x08 != 0, cdb[0] == 0x93 && cdb[1] & 1 != 0);
        if unmap && !self.thin {
            return refuse(&[INVALID_CDB]);
        }
        let (lba, count) = blocks(cdb);
        if count == 0 && self.limits.write_same_needs_count {
            return refuse(&[INVALID_CDB]);
        }
        let count = if count == 0 { self.disk.blocks().saturating_sub(lba) } else { count };
        if count > self.limits.write_same_max && self.limits.write_same_max != 0 {
            return refuse(&[INVALID_CDB, OUT_OF_RANGE]);
        }
        self.reach(lba, count, actual)?;
        let sector = self.disk.sector;
        if no_data || data.len() == sector && data.iter().all(|&byte| byte == 0) {
            self.disk.zero(lba, count, unmap);
            return Reply::took(if no_data { 0 } else { sector as u64 });
        }
        if data.len() != sector {
            return refuse(&[WRONG_DATA_LENGTH]);
        }
        self.disk.write(lba, &data.repeat(count as usize));
        Reply::took(sector as u64)
    }

    pub(crate) fn unmap(&mut self, cdb: &[u8], data: &[u8]) -> Outcome {
        let len = number(&cdb[7..9]) as usize;
        if len == 0 {
            return Reply::nothing();
        }
        if data.len() < len || len < 8 {
            return refuse(&[LIST_LENGTH]);
        }
        let told = number(&data[2..4]) as usize / 16 * 16;
        let descriptors: Vec<(u64, u64)> = data[8..len.min(8 + told)]
            .chunks_exact(16)
            .map(|descriptor| (number(&descriptor[..8]), number(&descriptor[8..12])))
            .collect();
        let out_of_range =
            |&(lba, count): &(u64, u64)| lba.checked_add(count).is_none_or(|end| end > self.disk.blocks());
        let too_many = descriptors.len() > self.limits.unmap_descriptors_max as usize
            || descriptors.iter().map(|(_, count)| count).sum::<u64>() > self.limits.unmap_blocks_max.into();
        match (too_many, descriptors.iter().any(out_of_range)) {
            (true, true) => return refuse(&[INVALID_PARAMETER, OUT_OF_RANGE]),
            (true, false) => return refuse(&[INVALID_PARAMETER]),
            (false, true) => return refuse(&[OUT_OF_RANGE]),
            (false, false) => {}
        }
        for (lba, count) in descriptors {
            self.disk.zero(lba, count, true);
        }
        Reply::took(len as u64)
    }

    pub(crate) fn compare_and_write(&mut self, cdb: &[u8], data: &[u8], actual: &Response) -> Outcome {
        let limit = u64::from(self.limits.compare_and_write_max).max(1);
        if blocks(cdb) == (self.disk.blocks(), 0) && !data.is_empty() {
            // Behind the last block, and with data that it does not take: either may be told.
            return refuse(&[INVALID_CDB, WRONG_DATA_LENGTH, OUT_OF_RANGE]);
        }
        let (lba, count) = self.moved(cdb, limit, actual)?;
        let len = count as usize * self.disk.sector;
        if data.len() != 2 * len {
            return refuse(&[INVALID_CDB, WRONG_DATA_LENGTH]);
        }
        let difference =
            data[..len].iter().zip(self.disk.read(lba, count)).position(|(one, other)| one != other);
        if let Some(at) = difference {
            return refuse_at(MISCOMPARE, at as u64);
        }
        self.disk.write(lba, &data[len..]);
        Reply::took(2 * len as u64)
    }

    pub(crate) fn or_write(&mut self, cdb: &[u8], data: &[u8], actual: &Response) -> Outcome {
        let (lba, count) = self.transferred(cdb, actual)?;
        let len = count as usize * self.disk.sector;
        let data = self.whole(data, len);
        let medium = self.disk.read(lba, (data.len() / self.disk.sector) as u64);
        let both: Vec<u8> = medium.iter().zip(data).map(|(one, other)| one | other).collect();
        self.disk.write(lba, &both);
        Reply::took(len as u64)
    }

    pub(crate) fn write_atomic(&mut self, cdb: &[u8], data: &[u8], actual: &Response) -> Outcome {
        let (lba, count) = self.moved(cdb, self.limits.atomic_max.into(), actual)?;
        let len = count as usize * self.disk.sector;
        let data = self.whole(data, len);
        if !data.is_empty() && data.len() < len {
            return refuse(&[WRONG_DATA_LENGTH]);
        }
        self.disk.write(lba, data);
        Reply::took(len as u64)
    }

    pub(crate) fn get_lba_status(&self, cdb: &[u8], actual: &Response) -> Outcome {
        let (start, allocation) = (number(&cdb[2..10]), number(&cdb[10..14]) as usize);
        if start >= self.disk.blocks() {
            return refuse(&[OUT_OF_RANGE]);
        }
        let data = &actual.data_in[..];
        if data.len() > allocation {
            return wrong("more than the allocation length");
        }
        if actual.status != Status::GOOD || data.len() < 24 {
            return Reply::checked();
        }
        if number(&data[..4]) + 4 < data.len() as u64 {
            return wrong("PARAMETER DATA LENGTH is less than what came");
        }
        let mut next = start;
        for descriptor in data[8..].chunks_exact(16) {
            let (lba, count, status) =
                (number(&descriptor[..8]), number(&descriptor[8..12]), descriptor[12] & 0xF);
            if lba != next || count == 0 || lba + count > self.disk.blocks() {
                return wrong(format!("a descriptor of {lba}+{count} where {next} comes next"));
            }
            next = lba + count;
            let fits = |lba: u64| match (status, self.disk.space(lba)) {
                (0, space) => !self.thin || space != Space::Deallocated,
                (1, space) => self.thin && space != Space::Mapped,
                _ => false,
            };
            if let Some(lba) = (lba..next).find(|&lba| !fits(lba)) {
                return wrong(format!("status {status} of block {lba}, which is {:?}", self.disk.space(lba)));
            }
        }
        Reply::checked()
    }

    /// SANITIZE is over when it answers, because nothing goes on behind this unit.
    pub(crate) fn sanitize(&mut self, cdb: &[u8], data: &[u8]) -> Outcome {
        let (sector, len) = (self.disk.sector, number(&cdb[7..9]) as usize);
        let blocks = self.disk.blocks();
        if cdb[1] & 0x1F != 0x01 {
            if len != 0 {
                return refuse(&[INVALID_CDB]);
            }
            if cdb[1] & 0x1F == 0x02 {
                self.disk.zero(0, blocks, true);
            }
            return Reply::nothing();
        }
        if len <= 4 || len > sector + 4 {
            return refuse(&[INVALID_CDB]);
        }
        if data.len() < len {
            return refuse(&[LIST_LENGTH]);
        }
        let (passes, pattern) = (data[0] & 0x1F, number(&data[2..4]) as usize);
        if passes == 0 || data[0] & 0x60 != 0 || pattern == 0 || pattern > sector {
            return refuse(&[INVALID_PARAMETER]);
        }
        if pattern > len - 4 {
            return refuse(&[LIST_LENGTH]);
        }
        // The pattern begins anew in each block; inverted or not, the last pass leaves the pattern itself.
        let block: Vec<u8> = data[4..4 + pattern].iter().copied().cycle().take(sector).collect();
        self.disk.write(0, &block.repeat(blocks as usize));
        Reply::took(len as u64)
    }

    /// PRE-FETCH and SYNCHRONIZE CACHE: a range, and nothing to see.
    pub(crate) fn range_only(&self, cdb: &[u8], actual: &Response) -> Outcome {
        let (lba, count) = blocks(cdb);
        self.reach(lba, count, actual)?;
        Reply::nothing()
    }

    pub(crate) fn read_capacity(&self, cdb: &[u8]) -> Outcome {
        let last = self.disk.blocks() - 1;
        if cdb[0] == 0x25 {
            let mut data = u32::try_from(last).unwrap_or(u32::MAX).to_be_bytes().to_vec();
            data.extend((self.disk.sector as u32).to_be_bytes());
            return Reply::data(data, usize::MAX);
        }
        let mut data = last.to_be_bytes().to_vec();
        data.extend((self.disk.sector as u32).to_be_bytes());
        data.extend(self.capacity_rest);
        Reply::data(data, number(&cdb[10..14]) as usize)
    }

    pub(crate) fn inquiry(&self, cdb: &[u8], actual: &Response) -> Outcome {
        let evpd = cdb[1] & 1 != 0;
        if !evpd && cdb[2] != 0 {
            return refuse(&[INVALID_CDB]);
        }
        let page = evpd.then_some(cdb[2]);
        match self.inquiry.iter().find(|(other, _)| *other == page) {
            // Page 83h names the port, which is the nexus's.
            Some(_) if page == Some(0x83) && actual.status == Status::GOOD => Reply::checked(),
            Some((_, data)) => Reply::data(data.clone(), number(&cdb[3..5]) as usize),
            None => refuse(&[INVALID_CDB]),
        }
    }

    fn block_descriptor(&self, long: bool) -> Vec<u8> {
        let sector = self.disk.sector as u32;
        if long {
            let mut bytes = self.disk.blocks().to_be_bytes().to_vec();
            bytes.extend([0; 4]);
            bytes.extend(sector.to_be_bytes());
            return bytes;
        }
        let mut bytes = u32::try_from(self.disk.blocks()).unwrap_or(u32::MAX).to_be_bytes().to_vec();
        bytes.extend(sector.to_be_bytes());
        bytes
    }

    pub(crate) fn mode_sense(&self, cdb: &[u8], protected: bool) -> Outcome {
        let control = cdb[2] >> 6;
        let pages = self.mode.pages(control, cdb[2] & 0x3F, cdb[3]);
        if control == 3 {
            const NO_SAVING: (u8, u16) = (5, 0x3900);
            return refuse(if pages.is_some() { &[NO_SAVING] } else { &[NO_SAVING, INVALID_CDB] });
        }
        let Some(pages) = pages else { return refuse(&[INVALID_CDB]) };
        let six = cdb[0] == 0x1A;
        let long = !six && cdb[1] & 0x10 != 0;
        let descriptor = if cdb[1] & 0x08 != 0 { Vec::new() } else { self.block_descriptor(long) };
        let specific = self.mode.device_specific | if protected { 0x80 } else { 0 };
        let rest = descriptor.len() + pages.len();
        let mut data = if six {
            vec![(3 + rest) as u8, 0, specific, descriptor.len() as u8]
        } else {
            let len = ((6 + rest) as u16).to_be_bytes();
            vec![len[0], len[1], 0, specific, u8::from(long), 0, 0, descriptor.len() as u8]
        };
        data.extend(descriptor);
        data.extend(pages);
        Reply::data(data, if six { cdb[4].into() } else { number(&cdb[7..9]) as usize })
    }

    /// Whether it changed anything.
    pub(crate) fn mode_select(&mut self, cdb: &[u8], data: &[u8]) -> Result<(u64, bool), Refusal> {
        if cdb[1] & 1 != 0 {
            return refuse(&[INVALID_CDB]);
        }
        let six = cdb[0] == 0x15;
        let len = if six { cdb[4].into() } else { number(&cdb[7..9]) as usize };
        if len == 0 {
            return Ok((0, false));
        }
        let header = if six { 4 } else { 8 };
        if data.len() < len || len < header {
            return refuse(&[LIST_LENGTH]);
        }
        let list = &data[..len];
        let long = !six && list[4] & 1 != 0;
        let descriptor = if six { list[3].into() } else { number(&list[6..8]) as usize };
        if list.len() < header + descriptor {
            return refuse(&[LIST_LENGTH, INVALID_PARAMETER]);
        }
        let (given, pages) = list[header..].split_at(descriptor);
        let mine = self.block_descriptor(long);
        if !given.is_empty() {
            // The number of blocks may be left out.
            let count = if long { 8 } else { 4 };
            let same = given.len() == mine.len()
                && given[count..] == mine[count..]
                && (given[..count] == mine[..count] || given[..count].iter().all(|&byte| byte == 0));
            if !same {
                return refuse(&[INVALID_PARAMETER]);
            }
        }
        Ok((len as u64, self.mode.select(pages, cdb[1] & 0x10 != 0)?))
    }
}
