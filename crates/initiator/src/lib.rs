//! The iSCSI initiator: one path as a block device.
