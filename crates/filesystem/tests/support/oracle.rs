//! What the file systems' own tools call free, in bytes of the volume.

use std::ops::Range;
use std::path::Path;

use super::{run, text};

const MIB: u64 = 1 << 20;

/// What dumpe2fs calls free, in bytes.
pub(crate) fn dumpe2fs(image: &Path) -> Vec<Range<u64>> {
    let dump = run("dumpe2fs", &[text(image)]);
    let field = |name: &str| -> u64 {
        let line =
            dump.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {dump}"));
        line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
    };
    let (block, blocks) = (field("Block size:"), field("Block count:"));
    let cluster = if dump.contains("Cluster size:") { field("Cluster size:") / block } else { 1 };
    let mut all: Vec<Range<u64>> = Vec::new();
    for list in dump.lines().filter_map(|line| line.strip_prefix("  Free blocks: ")) {
        for range in list.split(", ").filter(|range| !range.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let [first, last] = [first, last].map(|number| number.trim().parse::<u64>().expect("a block"));
            // dumpe2fs names the first block of the last cluster.
            let end = (last / cluster * cluster + cluster).min(blocks);
            let range = first * block..end * block;
            match all.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => all.push(range),
            }
        }
    }
    all
}

/// What xfs_db calls free, in bytes.
pub(crate) fn xfs_db(image: &Path) -> Vec<Range<u64>> {
    let geometry = run("xfs_db", &["-r", "-c", "sb 0", "-c", "p blocksize agblocks", text(image)]);
    let field = |name: &str| -> u64 {
        let line = geometry.lines().find_map(|line| line.strip_prefix(name)).expect(name);
        line.trim_start_matches(" = ").parse().expect("a number")
    };
    let (block, blocks) = (field("blocksize"), field("agblocks"));
    let dump = run("xfs_db", &["-r", "-c", "freesp -d", text(image)]);
    let mut found: Vec<Range<u64>> = Vec::new();
    for line in dump.lines() {
        let numbers: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        // Behind the list comes a histogram, whose lines have more words.
        let [group, start, count] = numbers[..] else { continue };
        if line.split_whitespace().count() == 3 {
            let start = (group * blocks + start) * block;
            found.push(start..start + count * block);
        }
    }
    found
}

/// The number behind a word.
pub(crate) fn number(line: &str, word: &str) -> u64 {
    let rest = line.split(word).nth(1).unwrap_or_else(|| panic!("{word} in {line}"));
    let digits = rest.trim_start().split(|char: char| !char.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().unwrap_or_else(|_| panic!("a number behind {word} in {line}"))
}

/// What is free by `btrfs inspect-internal dump-tree`: neither in an extent's place, nor in that of a superblock.
pub(crate) fn dump_tree(image: &Path) -> Vec<Range<u64>> {
    let dump = |tree: &str| run("btrfs", &["inspect-internal", "dump-tree", "-t", tree, text(image)]);
    let superblock = run("btrfs", &["inspect-internal", "dump-super", text(image)]);
    let field =
        |name: &str| number(superblock.lines().find(|line| line.starts_with(name)).expect(name), name);
    let (node, size) = (field("nodesize"), field("dev_item.total_bytes"));

    let mut chunks: Vec<(u64, u64, Vec<u64>)> = Vec::new();
    for line in dump("chunk").lines() {
        if line.contains(" CHUNK_ITEM ") {
            chunks.push((number(line, "CHUNK_ITEM"), 0, Vec::new()));
        } else if let Some(chunk) = chunks.last_mut() {
            if line.trim().starts_with("length ") {
                chunk.1 = number(line, "length");
            } else if line.trim().starts_with("stripe ") && line.contains("offset") {
                chunk.2.push(number(line, "offset"));
            }
        }
    }
    let mut used = vec![0..MIB, 64 * MIB..64 * MIB + (64 << 10)];
    // Tree blocks have a key among their fields as well.
    for line in dump("extent").lines().filter(|line| line.starts_with("\titem ")) {
        let Some((at, kind)) = line.split_once(" key (").and_then(|(_, key)| key.split_once(' ')) else {
            continue;
        };
        let Ok(at) = at.parse::<u64>() else { continue };
        let len = match kind {
            _ if kind.starts_with("EXTENT_ITEM ") => number(kind, "EXTENT_ITEM"),
            _ if kind.starts_with("METADATA_ITEM ") => node,
            _ => continue,
        };
        let (logical, _, stripes) =
            chunks.iter().find(|chunk| (chunk.0..chunk.0 + chunk.1).contains(&at)).expect("a chunk");
        used.extend(stripes.iter().map(|stripe| stripe + at - logical..stripe + at - logical + len));
    }
    used.sort_by_key(|range| range.start);
    let (mut free, mut at) = (Vec::new(), 0);
    for range in used {
        if range.start > at {
            free.push(at..range.start.min(size));
        }
        at = at.max(range.end);
    }
    if at < size {
        free.push(at..size);
    }
    free
}
