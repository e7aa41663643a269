//! The iSCSI target daemon: portals, sessions, LUN map, configuration, per-core drivers.
