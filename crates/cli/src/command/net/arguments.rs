//! Elements of the lists of `lunway net`.

use lunway_block::size::parse_size;
use lunway_net::protocol::{BUFFER_RANGE, MESSAGE_MAX};
use lunway_net::{DEPTH_MAX, HEADER, Shape, Window};

/// An MTU: bytes, or the path's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mtu(pub(super) Option<u32>);

pub(super) fn window(text: &str) -> Result<Window, String> {
    if text == "auto" {
        return Ok(Window::Auto);
    }
    let bytes = small(text)?;
    if !BUFFER_RANGE.contains(&bytes) {
        return Err("a window has 2K to 1G, or is auto".to_owned());
    }
    Ok(Window::Bytes(bytes))
}

pub(super) fn mtu(text: &str) -> Result<Mtu, String> {
    if text == "path" {
        return Ok(Mtu(None));
    }
    match text.parse() {
        Ok(bytes @ 576..=65535) => Ok(Mtu(Some(bytes))),
        _ => Err("an MTU is 576 to 65535 bytes, or path".to_owned()),
    }
}

pub(super) fn count(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(count @ 1..=DEPTH_MAX) => Ok(count),
        _ => Err(format!("1 to {DEPTH_MAX}")),
    }
}

pub(super) fn block(text: &str) -> Result<u32, String> {
    message(text, 0, MESSAGE_MAX - HEADER)
}

pub(super) fn shape(text: &str) -> Result<Shape, String> {
    let (request, answer) = text.split_once(':').ok_or("write bytes out and bytes back, as in 64:1K")?;
    Ok(Shape { request: message(request, 1, MESSAGE_MAX)?, answer: message(answer, 1, MESSAGE_MAX)? })
}

/// Bits per second on the wire, as network cards are named: powers of 1000.
pub(crate) fn link(text: &str) -> Result<f64, String> {
    let units = [("Gbit", 1e9), ("Mbit", 1e6), ("kbit", 1e3)];
    let rate = units.iter().find_map(|&(unit, factor)| {
        let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        Some(number * factor)
    });
    rate.filter(|rate| rate.is_finite() && *rate >= 1e3)
        .ok_or_else(|| format!("`{text}` is not the rate of a link: write 1Gbit or 100Mbit"))
}

fn message(text: &str, least: u32, most: u32) -> Result<u32, String> {
    let bytes = small(text)?;
    if (least..=most).contains(&bytes) { Ok(bytes) } else { Err(format!("{least} bytes to 64M")) }
}

fn small(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    u32::try_from(bytes).map_err(|_| format!("`{text}` is too much"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_people_write_them() {
        assert_eq!(window("64K"), Ok(Window::Bytes(65536)));
        assert_eq!(window("auto"), Ok(Window::Auto));
        assert!(window("1").is_err() && window("8G").is_err());
        assert_eq!((mtu("path"), mtu("9000")), (Ok(Mtu(None)), Ok(Mtu(Some(9000)))));
        assert!(mtu("100").is_err() && mtu("9K").is_err());
        assert_eq!(shape("64:1K"), Ok(Shape { request: 64, answer: 1024 }));
        assert!(shape("64").is_err() && shape("0:1").is_err() && shape("1:65M").is_err());
        assert_eq!((block("0"), block("4K")), (Ok(0), Ok(4096)));
        assert_eq!((link("1Gbit"), link("2.5Gbit")), (Ok(1e9), Ok(2.5e9)));
        assert!(link("1G").is_err() && link("-1Gbit").is_err() && link("infGbit").is_err());
        assert!(count("0").is_err() && count("1025").is_err());
    }
}
