//! Tests of what is made of a unit's answers.

use lunway_block::ExtentKind;
use lunway_scsi::Provisioning;

use super::*;

fn facts() -> Facts {
    Facts {
        transfer_max: 4 << 20,
        long: true,
        capacity: ReadCapacity::parse(&{
            let mut bytes = [0; 32];
            bytes[6..8].copy_from_slice(&0x0FFFu16.to_be_bytes());
            bytes[8..12].copy_from_slice(&512u32.to_be_bytes());
            bytes[13] = 3;
            bytes[14] = 0xC0;
            bytes
        }),
        ..Facts::default()
    }
}

fn limits() -> BlockLimits {
    let mut page = [0; 64];
    page[1] = 0xB0;
    page[3] = 60;
    BlockLimits::parse(&page).unwrap()
}

#[test]
fn what_is_not_said_is_taken_for_the_careful_case() {
    let shape = facts().shape().unwrap();
    assert_eq!((shape.geometry.size, shape.geometry.physical_sector), (4096 * 512, 4096));
    assert_eq!(shape.write_cache, None);
    assert!(shape.geometry.volatile_cache && !shape.fua && !shape.geometry.rotational);
    assert_eq!(shape.transfer_max, 4 << 20);
    assert_eq!(shape.geometry.unmap, Unmap::Ignored, "LBPRZ alone promises nothing of UNMAP");
}

#[test]
fn limits_apply_in_bytes_and_whole_sectors() {
    let mut facts = facts();
    facts.limits = Some(BlockLimits { transfer_max: 7, write_same_max: 100, ..limits() });
    let shape = facts.shape().unwrap();
    assert_eq!(
        (shape.transfer_max, shape.geometry.max_transfer, shape.write_same_blocks_max),
        (3584, 3584, 100)
    );
    facts.transfer_max = 1000;
    assert_eq!(facts.shape().unwrap().transfer_max, 512);
    facts.transfer_max = 0;
    assert_eq!(facts.shape().unwrap().transfer_max, 512, "one sector always goes");
}

#[test]
fn unmap_needs_limits_and_zeroes_need_write_same() {
    let mut facts = facts();
    facts.limits = Some(BlockLimits {
        unmap_blocks_max: 1 << 20,
        unmap_descriptors_max: 1,
        unmap_granularity: 8,
        ..limits()
    });
    let provisioning = LogicalBlockProvisioning::parse(&[0, 0xB2, 0, 4, 0, 0x80, 0, 0]).unwrap();
    facts.provisioning = Some(provisioning);
    let shape = facts.shape().unwrap();
    assert_eq!(shape.geometry.unmap, Unmap::Frees { granularity: 4096 });
    assert_eq!(shape.extent_kind(Provisioning::DEALLOCATED), ExtentKind::Zero);
    facts.provisioning = Some(LogicalBlockProvisioning { write_same_16: true, ..provisioning });
    let shape = facts.shape().unwrap();
    assert!(shape.geometry.unmap.zeroes() && shape.write_same_unmaps);
    assert_eq!(shape.extent_kind(Provisioning::DEALLOCATED), ExtentKind::Unallocated);
}

#[test]
fn sectors_that_no_device_has_are_refused() {
    for block_len in [0, 1, 520, 1 << 20] {
        let mut facts = facts();
        facts.capacity = facts.capacity.map(|capacity| ReadCapacity { block_len, ..capacity });
        assert!(facts.shape().unwrap_err().contains(&block_len.to_string()));
    }
}
