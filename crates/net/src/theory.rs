//! Theoretical limits: the lines that a measurement is drawn against.

use std::time::Duration;

/// Around every frame on Ethernet: header 14, checksum 4, preamble 8, gap 12 bytes (IEEE 802.3 §3.1.1, §4.4.2).
pub const ETHERNET_OVERHEAD: u32 = 38;
/// Headers of IPv4 and TCP without options.
const HEADERS: u32 = 40;
/// Timestamps in every segment, padded (RFC 7323 §3.2).
const TIMESTAMPS: u32 = 12;

/// Payload bits per second that TCP over IPv4 moves at best over Ethernet of `link_bits_per_second`, every frame full.
///
/// One gigabit: 941.5 Mb/s at an MTU of 1500 and 990.0 at 9000, with timestamps; 949.3 and 991.4 without.
pub fn goodput(mtu: u32, link_bits_per_second: f64, timestamps: bool) -> f64 {
    let headers = HEADERS + if timestamps { TIMESTAMPS } else { 0 };
    let payload = mtu.saturating_sub(headers);
    link_bits_per_second * f64::from(payload) / f64::from(mtu + ETHERNET_OVERHEAD)
}

/// Bits per second that a window lets through at most: one window per round trip.
pub fn window_limit(window: u32, round_trip: Duration) -> f64 {
    f64::from(window) * 8.0 / round_trip.as_secs_f64().max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gigabit_carries_what_everybody_computes() {
        let megabits = |mtu, timestamps| (goodput(mtu, 1e9, timestamps) / 1e5).round() / 10.0;
        assert_eq!([megabits(1500, true), megabits(9000, true)], [941.5, 990.0]);
        assert_eq!([megabits(1500, false), megabits(9000, false)], [949.3, 991.4]);
        assert_eq!(goodput(40, 1e9, true), 0.0);
    }

    #[test]
    fn a_window_of_64_kib_over_a_millisecond_is_half_a_gigabit() {
        assert_eq!(window_limit(65536, Duration::from_millis(1)), 524_288_000.0);
    }
}
