//! Documents of every kind, built from figures as they come from real runs.

mod bench;
mod compare;
mod lab;
mod net;

use lunway_report::chart::escape;
use lunway_report::{Block, Card, Document, Fact};

/// One of each kind.
pub(crate) fn all() -> Vec<Document> {
    let mut documents = vec![bench::document(), compare::document(), net::document(), lab::document()];
    for document in &mut documents {
        document.environment = environment();
    }
    documents
}

/// How many charts a page of `document` shows: of a chart drawn twice, one.
pub(crate) fn charts(document: &Document) -> usize {
    let blocks = document.sections.iter().flat_map(|section| &section.blocks);
    blocks.filter(|block| matches!(block, Block::Chart(_))).count()
}

/// The same on every machine, so that pictures can be compared.
fn environment() -> Vec<Fact> {
    let facts = [
        ("Size", "64 GiB"),
        ("Sectors", "512 bytes logical, 4096 bytes physical"),
        ("lunway", "0.1.0"),
        ("Host", "server.example"),
        ("Kernel", "Linux 6.18.44 x86_64"),
        ("Processor", "8 × Intel(R) Xeon(R) Processor @ 2.90GHz"),
        ("Virtual machine", "yes, KVM"),
        ("CPU limit", "none"),
        ("CPU governor", "performance"),
        ("CPU stolen since boot", "0.02 %"),
        ("Memory", "31.4 GiB"),
        ("Clock source", "tsc"),
        ("Card eth0", "MTU 9000, 10 Gb/s full duplex, driver ixgbe, 8 queues, up"),
        ("Card lo", "MTU 65536"),
        ("net.ipv4.tcp_congestion_control", "cubic"),
        ("net.ipv4.tcp_rmem", "4096 131072 33554432"),
        ("net.ipv4.tcp_wmem", "4096 16384 33554432"),
        ("net.core.default_qdisc", "fq_codel"),
    ];
    facts.map(|(name, value)| Fact::new(name, value)).to_vec()
}

fn card(title: &str, detail: &str, svg: String, wide: bool) -> Block {
    assert!(!svg.contains(&escape("NaN")), "{title}");
    Block::Chart(Card { title: title.into(), detail: detail.into(), svg, wide })
}

/// Numbers that look random and are the same every time, from 0 to 1.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / (1u64 << 24) as f64
    }

    /// `value` with up to `percent` per cent more or less.
    fn about(&mut self, value: f64, percent: f64) -> f64 {
        value * (1.0 + (self.next() - 0.5) * percent / 50.0)
    }
}
