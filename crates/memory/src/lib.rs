//! RAM and null block devices.
