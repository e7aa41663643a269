//! Cables that are pulled and addresses that are taken away, in a network namespace of the test's own.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lunway_block::{BlockDevice, Buf, Durability};
use lunway_foreign::namespace::{inside, ip};
use lunway_initiator::SessionOptions;
use lunway_iscsi_paths::{Address, IscsiMultipath};
use lunway_memory::RamDisk;
use lunway_multipath::{LaneState, LaneStatus};
use lunway_target::{Config, OpenDevice, Server};

const NAME: &str = "iqn.2026-11.com.example:disk";
/// In the environment of the process that is the storage, in a namespace of its own.
const STORAGE: &str = "LUNWAY_TEST_STORAGE";
/// More than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The storage in a network namespace of its own, behind two cables: whatever goes over them really does.
struct Far {
    process: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Far {
    /// What it says when an order is carried out.
    const DONE: &str = "storage: done";

    /// Starts the same test once more, which is to call [`serve`](Self::serve) there.
    fn start(test: &str) -> Self {
        ip("link set lo up");
        let mut command = Command::new(lunway_foreign::program("unshare").unwrap());
        let this = std::env::current_exe().unwrap();
        command.arg("--net").arg(this).args(["--exact", test, "--nocapture"]).env(STORAGE, "1");
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let orders = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut far = Self { process, orders, answers };
        far.wait();
        for n in 0..2 {
            ip(&format!("link add near{n} type veth peer name far{n} netns {}", far.process.id()));
            ip(&format!("link set near{n} up"));
            ip(&format!("addr add 10.9.{n}.1/24 dev near{n}"));
            far.ip(&format!("link set far{n} up"));
            far.ip(&format!("addr add 10.9.{n}.2/24 dev far{n}"));
        }
        far.ip("link set lo up");
        far.order("serve");
        far
    }

    fn wait(&mut self) {
        while !self.answers.next().unwrap().unwrap().contains(Self::DONE) {}
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
        self.wait();
    }

    fn ip(&mut self, arguments: &str) {
        self.order(arguments);
    }

    /// The storage's own part: carries out orders until there are no more.
    async fn serve() {
        let mut server = None;
        println!("{}", Self::DONE);
        for order in std::io::stdin().lines() {
            match order.unwrap().as_str() {
                "serve" => server = Some(start().await),
                arguments => ip(arguments),
            }
            println!("{}", Self::DONE);
        }
        drop(server);
    }

    fn end(self) {
        let Self { mut process, orders, answers } = self;
        drop(orders);
        answers.for_each(drop);
        assert!(process.wait().unwrap().success());
    }
}

async fn until(disk: &IscsiMultipath, what: &str, is: impl Fn(&[LaneStatus]) -> bool) {
    let start = Instant::now();
    loop {
        let lanes = disk.device().lanes();
        if is(&lanes) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: {lanes:#?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn all_up(lanes: &[LaneStatus]) -> bool {
    lanes.iter().all(|lane| lane.state == LaneState::Up)
}

/// The first lane is down for this reason, the second is up.
fn first_down(reason: &'static str) -> impl Fn(&[LaneStatus]) -> bool {
    move |lanes| {
        let said = lanes[0].last_event.as_ref().is_some_and(|(_, text)| text.contains(reason));
        lanes[0].state == LaneState::Down && said && lanes[1].state == LaneState::Up
    }
}

/// Two cables within one machine: what goes between their ends goes past them, so that nothing but the kernel's news
/// tells of a cable that is pulled.
async fn serve() -> Server {
    ip("link set lo up");
    for n in 0..2 {
        ip(&format!("link add near{n} type veth peer name far{n}"));
        for (end, host) in [("near", 1), ("far", 2)] {
            ip(&format!("link set {end}{n} up"));
            ip(&format!("addr add 10.9.{n}.{host}/24 dev {end}{n}"));
        }
    }
    start().await
}

/// The storage behind both cables, whose far ends are here.
async fn start() -> Server {
    let config = format!(
        "listen = [\"10.9.0.2\", \"10.9.1.2\"]\ncores = 1\n[[target]]\nname = \"{NAME}\"\nopen = true\n\
         [[target.lun]]\nid = 0\ndevice = \"ram:16M\"\n"
    );
    let open: OpenDevice = Arc::new(|_, _| {
        Box::pin(async {
            let disk = RamDisk::new(16 << 20, 512).map_err(|error| error.to_string())?;
            Ok((Arc::new(disk) as Arc<dyn BlockDevice>).into())
        })
    });
    Server::start(Config::from_toml(&config, "test").unwrap(), open).await.expect("start")
}

#[tokio::test]
async fn a_pulled_cable_and_a_lost_address_end_their_lane_at_once_with_the_reason_and_no_io_fails() {
    if !inside(
        "cables::a_pulled_cable_and_a_lost_address_end_their_lane_at_once_with_the_reason_and_no_io_fails",
    ) {
        return;
    }
    let _server = serve().await;
    let text = format!("iscsi://10.9.0.2/{NAME}/0?portal=10.9.1.2&from=10.9.0.1&from=10.9.1.1");
    let Ok(Address::Several(url)) = Address::parse(&text) else { panic!("{text}") };
    let disk = IscsiMultipath::open(&url, &SessionOptions::default()).await.unwrap();
    until(&disk, "at first", all_up).await;
    let interfaces: Vec<_> = disk.plan().lanes.iter().map(|lane| lane.interface.clone().unwrap()).collect();
    assert_eq!(interfaces, ["near0", "near1"]);

    let stop = Arc::new(AtomicBool::new(false));
    let (device, stopped) = (disk.device().clone(), stop.clone());
    let work = tokio::spawn(async move {
        let mut n = 0_u64;
        while !stopped.load(Ordering::Relaxed) {
            let (offset, data) = ((n % 64) << 16, Buf::copy_of(&[n as u8; 4096]).freeze());
            device.write(offset, data, Durability::Volatile).await.unwrap();
            let read = device.read(offset, Buf::zeroed(4096)).await.unwrap();
            assert!(read.iter().all(|byte| *byte == n as u8), "{n}");
            n += 1;
        }
        n
    });

    ip("link set far0 down");
    until(&disk, "the cable is pulled", first_down("cable pulled: near0 has no carrier")).await;
    ip("link set far0 up");
    until(&disk, "the cable is back", |lanes| lanes[0].epoch > 1).await;
    ip("addr del 10.9.0.1/24 dev near0");
    until(&disk, "the address is gone", first_down("10.9.0.1 is no address of this machine any more")).await;
    ip("addr add 10.9.0.1/24 dev near0");
    until(&disk, "the address is back", |lanes| lanes[0].epoch > 2).await;
    stop.store(true, Ordering::Relaxed);
    assert!(work.await.unwrap() > 10);
    disk.close().await;
}

/// Attempts to connect in this network namespace (ActiveOpens of TCP in `/proc/net/snmp`, RFC 4022).
fn connections_begun() -> u64 {
    let text = std::fs::read_to_string("/proc/self/net/snmp").unwrap();
    let mut tcp = text.lines().filter_map(|line| line.strip_prefix("Tcp: ")).map(|line| line.split(' '));
    let (names, values) = (tcp.next().unwrap(), tcp.next().unwrap());
    names.zip(values).find(|(name, _)| *name == "ActiveOpens").unwrap().1.parse().unwrap()
}

#[tokio::test]
async fn a_lane_whose_cable_is_plugged_in_again_is_used_at_once_and_tries_nothing_while_it_is_pulled() {
    const TEST: &str =
        "cables::a_lane_whose_cable_is_plugged_in_again_is_used_at_once_and_tries_nothing_while_it_is_pulled";
    if std::env::var_os(STORAGE).is_some() {
        return Far::serve().await;
    }
    if !inside(TEST) {
        return;
    }
    let mut far = Far::start(TEST);
    let text = format!("iscsi://10.9.0.2/{NAME}/0?portal=10.9.1.2&from=10.9.0.1&from=10.9.1.1");
    let Ok(Address::Several(url)) = Address::parse(&text) else { panic!("{text}") };
    // The best of some, each its disk's first loss: the machine may be busy.
    let mut best = PATIENCE;
    for pulled_ms in [700, 1300, 1900] {
        let disk = IscsiMultipath::open(&url, &SessionOptions::default()).await.unwrap();
        until(&disk, "at first", all_up).await;
        far.ip("link set far0 down");
        until(&disk, "the cable is pulled", first_down("cable pulled: near0 has no carrier")).await;
        // Until the end of the session is proven over the other cable.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let attempts = connections_begun();
        tokio::time::sleep(Duration::from_millis(pulled_ms)).await;
        assert_eq!(connections_begun(), attempts, "tried in vain");
        let start = Instant::now();
        far.ip("link set far0 up");
        until(&disk, "the cable is back", all_up).await;
        best = best.min(start.elapsed());
        println!("{:?} after the plug, {pulled_ms} ms after the pull", start.elapsed());
        disk.close().await;
    }
    assert!(best < Duration::from_millis(400), "{best:?}");
    far.end();
}
