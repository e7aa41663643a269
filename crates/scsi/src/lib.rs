//! SCSI: CDBs, sense, VPD and mode pages as types, and the disk device server.
