//! Raw files and block devices as block devices.
