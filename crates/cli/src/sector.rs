//! Sizes of sectors as people write them: `512`, `4096`, `4K`.

use lunway_block::size::parse_size;

/// Reads the size of a sector that a device can have, bytes.
pub(crate) fn sector(text: &str) -> Result<u32, String> {
    bytes(text).filter(|size| matches!(size, 512 | 4096)).ok_or_else(|| "512 or 4096 is expected".to_owned())
}

/// Reads the size of a physical sector of a logical unit, bytes. The daemon says which ones the logical sector allows.
pub(crate) fn physical(text: &str) -> Result<u32, String> {
    bytes(text).ok_or_else(|| "a size is expected, such as 512 or 4096".to_owned())
}

fn bytes(text: &str) -> Option<u32> {
    parse_size(text).ok().and_then(|size| u32::try_from(size).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_is_one_of_two_sizes() {
        assert_eq!((sector("512"), sector("4096"), sector("4K")), (Ok(512), Ok(4096), Ok(4096)));
        assert!(["", "0", "520", "8K", "x", "16T"].iter().all(|wrong| sector(wrong).is_err()));
        assert_eq!(physical("16K"), Ok(16384));
        assert!(physical("x").is_err() && physical("16T").is_err());
    }
}
