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

/// A chunk of btrfs: logical addresses that lie in one or several places of the disk.
pub(crate) struct Chunk {
    logical: Range<u64>,
    stripes: Vec<u64>,
}

impl Chunk {
    /// The places of a logical address.
    fn places(&self, at: u64) -> impl Iterator<Item = u64> + '_ {
        let within = self.logical.contains(&at).then(|| at - self.logical.start);
        self.stripes.iter().filter_map(move |stripe| Some(stripe + within?))
    }

    /// The other places of what lies at a place: none for a chunk that is written once, or does not lie there.
    pub(crate) fn copies(&self, place: u64) -> impl Iterator<Item = u64> + '_ {
        let len = self.logical.end - self.logical.start;
        let mine = self.stripes.iter().find(|stripe| (**stripe..**stripe + len).contains(&place));
        let others = self.stripes.iter().filter(move |stripe| Some(*stripe) != mine);
        others.filter_map(move |stripe| Some(stripe + place - mine?))
    }
}

/// The places of nodes that are no leaves, and of the old form of the free-space cache, whose files no subvolume has.
pub(crate) fn inner_nodes_and_caches(image: &Path) -> Vec<Range<u64>> {
    let (chunks, node) = (chunks(image), node_size(image));
    let (mut all, mut item) = (Vec::new(), 0);
    for line in tree_of(image, "extent").lines() {
        if let Some((_, key)) = line.strip_prefix("\titem ").and_then(|line| line.split_once(" key (")) {
            item = key.split(' ').next().and_then(|at| at.parse().ok()).unwrap_or(0);
        } else if line.contains("tree block") && line.contains(" level ") && number(line, " level ") > 0 {
            all.push((item, node));
        }
    }
    let caches = tree_of(image, "root");
    let caches = caches.lines().filter(|line| line.contains("extent data disk byte "));
    all.extend(caches.map(|line| (number(line, "disk byte"), number(line, " nr"))));
    let places = |at| chunks.iter().flat_map(move |chunk| chunk.places(at));
    all.into_iter().flat_map(|(at, len)| places(at).map(move |place| place..place + len)).collect()
}

fn superblock(image: &Path, name: &str) -> u64 {
    let all = run("btrfs", &["inspect-internal", "dump-super", text(image)]);
    number(all.lines().find(|line| line.starts_with(name)).expect(name), name)
}

fn node_size(image: &Path) -> u64 {
    superblock(image, "nodesize")
}

fn tree_of(image: &Path, tree: &str) -> String {
    run("btrfs", &["inspect-internal", "dump-tree", "-t", tree, text(image)])
}

/// The chunks by `btrfs inspect-internal dump-tree`.
pub(crate) fn chunks(image: &Path) -> Vec<Chunk> {
    let mut chunks: Vec<Chunk> = Vec::new();
    for line in tree_of(image, "chunk").lines() {
        if line.contains(" CHUNK_ITEM ") {
            let at = number(line, "CHUNK_ITEM");
            chunks.push(Chunk { logical: at..at, stripes: Vec::new() });
        } else if let Some(chunk) = chunks.last_mut() {
            if line.trim().starts_with("length ") {
                chunk.logical.end = chunk.logical.start + number(line, "length");
            } else if line.trim().starts_with("stripe ") && line.contains("offset") {
                chunk.stripes.push(number(line, "offset"));
            }
        }
    }
    chunks
}

/// What is free by `btrfs inspect-internal dump-tree`: neither in an extent's place, nor in that of a superblock.
pub(crate) fn dump_tree(image: &Path) -> Vec<Range<u64>> {
    let (node, size) = (node_size(image), superblock(image, "dev_item.total_bytes"));
    let chunks = chunks(image);
    let mut used = vec![0..MIB, 64 * MIB..64 * MIB + (64 << 10)];
    // Tree blocks have a key among their fields as well.
    for line in tree_of(image, "extent").lines().filter(|line| line.starts_with("\titem ")) {
        let Some((at, kind)) = line.split_once(" key (").and_then(|(_, key)| key.split_once(' ')) else {
            continue;
        };
        let Ok(at) = at.parse::<u64>() else { continue };
        let len = match kind {
            _ if kind.starts_with("EXTENT_ITEM ") => number(kind, "EXTENT_ITEM"),
            _ if kind.starts_with("METADATA_ITEM ") => node,
            _ => continue,
        };
        let places: Vec<_> = chunks.iter().flat_map(|chunk| chunk.places(at)).collect();
        assert!(!places.is_empty(), "no chunk holds {at}");
        used.extend(places.into_iter().map(|place| place..place + len));
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
