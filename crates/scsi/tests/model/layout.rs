//! How CDBs look, written down from SPC-4 and SBC-4 a second time.

/// Conflict of a command with a reservation of another nexus (SPC-4 table 68, SBC-4 table 13, SPC-2 7.21).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConflictClass {
    /// Always allowed.
    Free,
    /// Refused under RESERVE.
    Query,
    /// PERSISTENT RESERVE IN and OUT: refused under RESERVE, to its holder as well (SPC-2 5.5.1).
    Persistent,
    /// Reads the medium.
    Read,
    /// Changes the medium, or what it is like.
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    TestUnitReady,
    RequestSense,
    Inquiry,
    ReportLuns,
    ReadCapacity10,
    ReadCapacity16,
    Read,
    Write,
    Verify,
    WriteAndVerify,
    WriteSame,
    Unmap,
    CompareAndWrite,
    OrWrite,
    WriteAtomic,
    GetLbaStatus,
    PreFetch,
    SynchronizeCache,
    ModeSense,
    ModeSelect,
    Reserve,
    Release,
    ReadKeys,
    ReadReservation,
    ReadFullStatus,
    ReserveOut,
    Sanitize,
    ExtendedCopy,
    StartStop,
    PreventAllow,
}

#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) command: Command,
    pub(crate) action: Option<u8>,
    /// Operation code, then the bits of each byte that mean something, CONTROL last.
    pub(crate) fields: &'static [u8],
    access: ConflictClass,
    pub(crate) medium: bool,
    pub(crate) writes: bool,
}

const fn layout(command: Command, fields: &'static [u8], access: ConflictClass, medium: bool) -> Layout {
    let writes = medium && matches!(access, ConflictClass::Write);
    Layout { command, action: None, fields, access, medium, writes }
}

impl Layout {
    const fn action(mut self, action: u8) -> Self {
        self.action = Some(action);
        self
    }

    const fn harmless(mut self) -> Self {
        self.writes = false;
        self
    }

    /// START STOP UNIT that starts and PREVENT ALLOW MEDIUM REMOVAL that allows are always allowed (SBC-4 table 13).
    pub(crate) fn access(&self, cdb: &[u8]) -> ConflictClass {
        match self.command {
            Command::StartStop if cdb[4] & 0xF1 == 1 => Free,
            Command::PreventAllow if cdb[4] & 3 == 0 => Free,
            _ => self.access,
        }
    }

    /// Changes what all nexuses share, other than blocks: not for a nexus that may not write. Only what is the nexus's
    /// own it may give up: RELEASE, PREVENT ALLOW MEDIUM REMOVAL that allows, and its registration.
    pub(crate) fn changes_state(&self, cdb: &[u8], data: &[u8]) -> bool {
        match self.command {
            Command::ModeSelect | Command::Reserve => true,
            Command::StartStop => cdb[4] & 0xF2 == 0x02,
            Command::PreventAllow => cdb[4] & 3 != 0,
            Command::ReserveOut => {
                let registers = matches!(cdb[1] & 0x1F, 0 | 6);
                let gives_up = data.len() >= 24 && data[8..16] == [0; 8] && data[20] & 0x08 == 0;
                !(registers && gives_up)
            }
            Command::Sanitize => self.action == Some(0x1F),
            _ => false,
        }
    }

    /// Bits are set that ask for what no unit here does. Of CONTROL that is NACA (SAM-5 5.2); reserved and obsolete
    /// bits mean nothing.
    pub(crate) fn has_refused_bits(&self, cdb: &[u8]) -> bool {
        let of_command: &[(usize, u8)] = match self.command {
            // Protection information, in byte 1 of all but the commands of 6 bytes.
            Command::Read | Command::Write if self.fields.len() == 6 => &[],
            Command::Read | Command::Write | Command::Verify | Command::WriteAndVerify | Command::OrWrite => {
                &[(1, 0xE0)]
            }
            Command::CompareAndWrite => &[(1, 0xE0), (10, 0xFF), (11, 0xFF), (12, 0xFF)],
            Command::WriteAtomic => &[(1, 0xE0), (10, 0xFF), (11, 0xFF)],
            // WRPROTECT, ANCHOR, PBDATA, LBDATA.
            Command::WriteSame => &[(1, 0xF6)],
            Command::Unmap => &[(1, 0x01)],
            Command::Inquiry | Command::ModeSelect => &[(1, 0x02)],
            Command::Reserve | Command::Release if self.fields.len() == 6 => &[(1, 0x1F)],
            Command::Reserve | Command::Release => &[(1, 0x13)],
            Command::GetLbaStatus => &[(14, 0xFF)],
            // Whatever is reserved: it erases everything.
            Command::Sanitize => &[(1, 0x40), (2, 0xFF), (3, 0xFF), (4, 0xFF), (5, 0xFF), (6, 0xFF)],
            _ => &[],
        };
        cdb[self.fields.len() - 1] & 0x04 != 0 || of_command.iter().any(|&(at, bits)| cdb[at] & bits != 0)
    }
}

use ConflictClass::{Free, Persistent, Query, Read, Write};

#[rustfmt::skip]
pub(crate) const LAYOUTS: &[Layout] = &[
    layout(Command::TestUnitReady, &[0x00, 0, 0, 0, 0, 0], Query, true),
    layout(Command::RequestSense, &[0x03, 0x01, 0, 0, 0xFF, 0], Free, false),
    layout(Command::Inquiry, &[0x12, 0x01, 0xFF, 0xFF, 0xFF, 0], Free, false),
    layout(Command::ReportLuns, &[0xA0, 0, 0xFF, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], Free, false),
    layout(Command::ReadCapacity10, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], Free, true),
    layout(Command::ReadCapacity16, &[0x9E, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], Free, true).action(0x10),
    layout(Command::GetLbaStatus, &[0x9E, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], Read, true).action(0x12),
    layout(Command::Read, &[0x08, 0x1F, 0xFF, 0xFF, 0xFF, 0], Read, true),
    layout(Command::Read, &[0x28, 0x18, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0xFF, 0xFF, 0], Read, true),
    layout(Command::Read, &[0xA8, 0x18, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0], Read, true),
    layout(Command::Read, &[0x88, 0x18, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0], Read, true),
    layout(Command::Write, &[0x0A, 0x1F, 0xFF, 0xFF, 0xFF, 0], Write, true),
    layout(Command::Write, &[0x2A, 0x18, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0xFF, 0xFF, 0], Write, true),
    layout(Command::Write, &[0xAA, 0x18, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0], Write, true),
    layout(Command::Write, &[0x8A, 0x18, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0], Write, true),
    layout(Command::Verify, &[0x2F, 0x16, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0xFF, 0xFF, 0], Read, true),
    layout(Command::Verify, &[0xAF, 0x16, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0], Read, true),
    layout(Command::Verify, &[0x8F, 0x16, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0], Read, true),
    layout(Command::WriteAndVerify, &[0x2E, 0x16, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0xFF, 0xFF, 0], Write, true),
    layout(Command::WriteAndVerify, &[0xAE, 0x16, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0], Write, true),
    layout(Command::WriteAndVerify, &[0x8E, 0x16, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0], Write, true),
    layout(Command::WriteSame, &[0x41, 0x08, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0xFF, 0xFF, 0], Write, true),
    layout(Command::WriteSame, &[0x93, 0x09, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0], Write, true),
    layout(Command::Unmap, &[0x42, 0, 0, 0, 0, 0, 0x3F, 0xFF, 0xFF, 0], Write, true),
    layout(Command::CompareAndWrite, &[0x89, 0x18, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0xFF, 0x3F, 0], Write, true),
    layout(Command::OrWrite, &[0x8B, 0x18, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0], Write, true),
    layout(Command::WriteAtomic, &[0x9C, 0x18, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0xFF, 0xFF, 0x3F, 0], Write, true),
    layout(Command::PreFetch, &[0x34, 0x02, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0xFF, 0xFF, 0], Read, true),
    layout(Command::PreFetch, &[0x90, 0x02, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0], Read, true),
    layout(Command::SynchronizeCache, &[0x35, 0x02, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0xFF, 0xFF, 0], Write, true).harmless(),
    layout(Command::SynchronizeCache, &[0x91, 0x02, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3F, 0], Write, true).harmless(),
    layout(Command::ModeSense, &[0x1A, 0x08, 0xFF, 0xFF, 0xFF, 0], Read, false),
    layout(Command::ModeSense, &[0x5A, 0x18, 0xFF, 0xFF, 0, 0, 0, 0xFF, 0xFF, 0], Read, false),
    layout(Command::ModeSelect, &[0x15, 0x11, 0, 0, 0xFF, 0], Write, false),
    layout(Command::ModeSelect, &[0x55, 0x11, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], Write, false),
    layout(Command::Reserve, &[0x16, 0, 0, 0, 0, 0], Free, false),
    layout(Command::Reserve, &[0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0], Free, false),
    layout(Command::Release, &[0x17, 0, 0, 0, 0, 0], Free, false),
    layout(Command::Release, &[0x57, 0, 0, 0, 0, 0, 0, 0, 0, 0], Free, false),
    layout(Command::ReadKeys, &[0x5E, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], Persistent, false).action(0),
    layout(Command::ReadReservation, &[0x5E, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], Persistent, false).action(1),
    layout(Command::ReadFullStatus, &[0x5E, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], Persistent, false).action(3),
    layout(Command::ReserveOut, &[0x5F, 0, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0], Persistent, false).action(0),
    layout(Command::ReserveOut, &[0x5F, 0, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0], Persistent, false).action(1),
    layout(Command::ReserveOut, &[0x5F, 0, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0], Persistent, false).action(2),
    layout(Command::ReserveOut, &[0x5F, 0, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0], Persistent, false).action(3),
    layout(Command::ReserveOut, &[0x5F, 0, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0], Persistent, false).action(4),
    layout(Command::ReserveOut, &[0x5F, 0, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0], Persistent, false).action(5),
    layout(Command::ReserveOut, &[0x5F, 0, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0], Persistent, false).action(6),
    layout(Command::Sanitize, &[0x48, 0xA0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], Write, true).action(0x01),
    layout(Command::Sanitize, &[0x48, 0xA0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], Write, true).action(0x02),
    layout(Command::Sanitize, &[0x48, 0xA0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], Write, true).action(0x1F).harmless(),
    layout(Command::ExtendedCopy, &[0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], Write, false).action(0),
    layout(Command::StartStop, &[0x1B, 0x01, 0, 0x0F, 0xF7, 0], Write, false),
    layout(Command::PreventAllow, &[0x1E, 0, 0, 0, 0x03, 0], Write, false),
];

/// The layout of a CDB by its operation code and service action.
pub(crate) fn find(cdb: &[u8]) -> Option<&'static Layout> {
    let (first, second) = (*cdb.first()?, cdb.get(1).copied().unwrap_or(0));
    LAYOUTS.iter().find(|layout| {
        layout.fields[0] == first && layout.action.is_none_or(|action| second & 0x1F == action)
    })
}

pub(crate) fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

/// Logical block address and count of a command that has both.
pub(crate) fn blocks(cdb: &[u8]) -> (u64, u64) {
    match (cdb[0], cdb.len()) {
        (_, 6) => (number(&cdb[1..4]) & 0x1F_FFFF, if cdb[4] == 0 { 256 } else { cdb[4].into() }),
        (_, 10) => (number(&cdb[2..6]), number(&cdb[7..9])),
        (_, 12) => (number(&cdb[2..6]), number(&cdb[6..10])),
        (0x89, _) => (number(&cdb[2..10]), cdb[13].into()),
        (0x9C, _) => (number(&cdb[2..10]), number(&cdb[12..14])),
        _ => (number(&cdb[2..10]), number(&cdb[10..14])),
    }
}
