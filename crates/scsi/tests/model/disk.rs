//! The medium: a vector of bytes, and what is known about the space behind it.

/// What GET LBA STATUS has to say of a granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Mapped,
    Deallocated,
    /// Zeroes were written where there was nothing: the device may have seen it or not.
    Either,
}

#[derive(Clone, Debug)]
pub(crate) struct Disk {
    pub(crate) sector: usize,
    pub(crate) bytes: Vec<u8>,
    /// Bytes that are allocated and freed together.
    granule: usize,
    space: Vec<Space>,
}

impl Disk {
    pub(crate) fn new(sector: usize, blocks: u64, granule: usize) -> Self {
        let mut disk = Self { sector, bytes: Vec::new(), granule, space: Vec::new() };
        disk.resize(blocks);
        disk
    }

    pub(crate) fn blocks(&self) -> u64 {
        (self.bytes.len() / self.sector) as u64
    }

    pub(crate) fn resize(&mut self, blocks: u64) {
        self.bytes.resize(blocks as usize * self.sector, 0);
        self.space.resize(self.bytes.len().div_ceil(self.granule), Space::Deallocated);
    }

    fn range(&self, lba: u64, count: u64) -> std::ops::Range<usize> {
        lba as usize * self.sector..(lba + count) as usize * self.sector
    }

    pub(crate) fn read(&self, lba: u64, count: u64) -> &[u8] {
        &self.bytes[self.range(lba, count)]
    }

    /// Whole blocks.
    pub(crate) fn write(&mut self, lba: u64, data: &[u8]) {
        let range = self.range(lba, (data.len() / self.sector) as u64);
        self.touch(range.clone(), Space::Mapped);
        self.bytes[range].copy_from_slice(data);
    }

    /// Whole blocks that a copy manager brought: of zeroes it may have left out the space.
    pub(crate) fn copy_in(&mut self, lba: u64, data: &[u8]) {
        let range = self.range(lba, (data.len() / self.sector) as u64);
        for index in range.start / self.granule..range.end.div_ceil(self.granule) {
            let (start, end) = (index * self.granule, (index + 1) * self.granule);
            let part = start.max(range.start) - range.start..end.min(range.end) - range.start;
            let covered = range.start <= start && end <= range.end;
            self.space[index] = match self.space[index] {
                _ if data[part].iter().any(|&byte| byte != 0) => Space::Mapped,
                Space::Mapped if !covered => Space::Mapped,
                _ => Space::Either,
            };
        }
        self.bytes[range].copy_from_slice(data);
    }

    fn touch(&mut self, range: std::ops::Range<usize>, space: Space) {
        if !range.is_empty() {
            self.space[range.start / self.granule..range.end.div_ceil(self.granule)].fill(space);
        }
    }

    /// Zeroes; those who may unmap give back every granule that they cover.
    pub(crate) fn zero(&mut self, lba: u64, count: u64, unmap: bool) {
        let range = self.range(lba, count);
        self.bytes[range.clone()].fill(0);
        for index in range.start / self.granule..range.end.div_ceil(self.granule) {
            let (start, end) = (index * self.granule, (index + 1) * self.granule);
            if range.is_empty() {
                continue;
            }
            self.space[index] = match self.space[index] {
                _ if unmap && range.start <= start && end <= range.end => Space::Deallocated,
                Space::Deallocated if unmap => Space::Deallocated,
                // The disk's last granule may be covered as far as the disk goes.
                _ if unmap && range.start <= start && range.end == self.bytes.len() => Space::Either,
                Space::Mapped => Space::Mapped,
                _ => Space::Either,
            };
        }
    }

    pub(crate) fn space(&self, lba: u64) -> Space {
        self.space[lba as usize * self.sector / self.granule]
    }
}
