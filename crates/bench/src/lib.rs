//! Load generation, profiles, statistics and reports over any block device.
