//! The targets that are tortured, each in a process of its own, so that they can be killed and stopped.

use std::convert::Infallible;
use std::fmt;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lunway_block::BlockDevice;
use lunway_initiator::{IscsiDevice, IscsiUrl, SessionOptions};
use lunway_target::{ChangeOptions, Config, DeviceName, OpenDevice, Server};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Mutex;

use crate::incident::Incident;
use crate::lio;
use crate::region::Tally;
use crate::volatile::VolatileDisk;
use crate::{OPERATION_MAX, OPERATION_MAX_HUNG};

pub(crate) const NAME: &str = "iqn.2026-11.com.example:tortured";

/// Tells the child the folder of the disks.
const FOLDER: &str = "LUNWAY_TORTURE_FOLDER";
/// Stands before the address in what the child prints.
const SERVING: &str = "serving at ";
/// What the child prints when it has done what it was told.
const DONE: &str = "done";
/// Where tgtd listens, which cannot choose a port itself. The kernel's own begin at 32768 (`ip_local_port_range`), and
/// tgtd's control numbers end there.
const LISTEN_PORTS: std::ops::Range<u16> = 24_000..32_000;
const READY_TIME: Duration = Duration::from_secs(60);
/// LIO gives up a write whose data does not come after 3 s (`DATAOUT_TIMEOUT`), and a machine with a load of ten takes
/// its time.
const ORDER_TIME: Duration = Duration::from_secs(15);
/// `settle` of an address, unless set otherwise: what an operation may take beyond `queue`.
const SETTLE_TIME: Duration = Duration::from_secs(10);
/// How long a crash of tgtd goes unnoticed.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// The disk, and the other one that is put in its place.
const DISKS: [&str; 2] = ["disk", "other"];

/// A target with one LUN, which is either of two disks.
pub(crate) struct Target {
    folder: TempDir,
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) name: String,
    pub(crate) lun: u16,
    make: Make,
    /// Which of [`DISKS`] is served.
    served: usize,
}

/// What a target says, by the lines.
type Said = Lines<BufReader<ChildStdout>>;

enum Make {
    /// This very program. Its disk loses in a power cut what was not flushed.
    Ours { tell: ChildStdin, said: Said },
    /// tgt. Its disk is a file, and what was written survives its end in the page cache.
    Tgt { admin: PathBuf },
    /// LIO. Its disk loses in a power cut what was not flushed, and has a portal for each lane.
    Lio { tell: ChildStdin, said: Said },
}

impl Drop for Target {
    /// A kernel that is a process has others, which would stay.
    fn drop(&mut self) {
        if matches!(self.make, Make::Lio { .. }) && self.child.id().is_some() {
            lio::signal(&self.child, Signal::KILL);
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.make {
            Make::Ours { .. } => "our target",
            Make::Tgt { .. } => "tgt",
            Make::Lio { .. } => "LIO",
        })
    }
}

impl Target {
    /// Serves a new disk of so many bytes.
    pub(crate) async fn ours(size: u64) -> Self {
        let folder = folder(size);
        let (child, address, make) = start_ours(folder.path()).await;
        Self { folder, child, address, name: NAME.to_owned(), lun: 0, make, served: 0 }
    }

    /// `None` where it is not installed or may not run.
    pub(crate) async fn tgt(size: u64) -> Option<Self> {
        let (program, admin) = (lunway_foreign::program("tgtd")?, lunway_foreign::program("tgtadm")?);
        if !rustix::process::geteuid().is_root() {
            lunway_foreign::machine_lacks("root, for tgtd");
            return None;
        }
        let folder = folder(size);
        // Free now, and while tgtd is dead: below those that the kernel gives to others.
        let mut ports = LISTEN_PORTS.cycle().skip(std::process::id() as usize % LISTEN_PORTS.len());
        let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
        let port = ports.find(is_free).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let child = start_tgtd(&program, folder.path(), port);
        let name = NAME.to_owned();
        let mut tgt = Self { folder, child, address, name, lun: 1, make: Make::Tgt { admin }, served: 0 };
        tgt.set_up_tgt().await;
        Some(tgt)
    }

    /// In the network that [`lio::make_network`] has made.
    pub(crate) async fn lio(size: u64) -> Self {
        let folder = folder(size);
        let (child, address, make) = start_lio(folder.path(), DISKS[0]).await;
        Self { folder, child, address, name: NAME.to_owned(), lun: 0, make, served: 0 }
    }

    /// Where a lane leads to.
    pub(crate) fn portal(&self, lane: usize) -> SocketAddr {
        let first = self.address.port();
        let portal = if matches!(self.make, Make::Lio { .. }) { first + lane as u16 } else { first };
        SocketAddr::new(self.address.ip(), portal)
    }

    /// Whether a kill takes away what was not flushed.
    pub(crate) fn loses_power(&self) -> bool {
        !matches!(self.make, Make::Tgt { .. })
    }

    /// Whether a login that does not come on ends by itself. In LIO before Linux 6.5 it holds up all other logins of
    /// its portal group for as long as its connection is open ("Fix hang in the iSCSI login code").
    pub(crate) fn forgets_half_open_logins(&self) -> bool {
        !matches!(self.make, Make::Lio { .. })
    }

    /// Whether it is a LIO that lets in nobody, not even over a cable that nothing has ever happened to; it works again
    /// then.
    pub(crate) async fn hung(&mut self, tally: &Tally) -> bool {
        let url = IscsiUrl::parse(&format!("iscsi://{}/{}/{}", self.address, self.name, self.lun)).unwrap();
        let opening = IscsiDevice::open(url, SessionOptions::default());
        let hangs = matches!(self.make, Make::Lio { .. })
            && !tokio::time::timeout(ORDER_TIME, opening).await.is_ok_and(|opened| opened.is_ok());
        if hangs {
            self.power_cycle("logins", tally).await;
        }
        hangs
    }

    /// What a person does to a LIO that hangs.
    async fn power_cycle(&mut self, what: &str, tally: &Tally) {
        println!("LIO hangs in {what}");
        tally.note(format!("LIO hangs in {what}"));
        tally.crashes.fetch_add(1, Ordering::SeqCst);
        tally.power_cuts.fetch_add(1, Ordering::SeqCst);
        self.kill().await;
        self.start_again().await;
    }

    /// More than any operation takes, and for how long the client waits for a lane: as long as usual, or until a LIO
    /// that hangs has been found to do so and is there again.
    pub(crate) fn operation_max(&self) -> Duration {
        if matches!(self.make, Make::Lio { .. }) { OPERATION_MAX_HUNG } else { OPERATION_MAX }
    }

    pub(crate) fn queue_time(&self) -> Duration {
        self.operation_max() - SETTLE_TIME
    }

    /// Of how many kinds of incidents, in the order of [`Incident::random`], it is capable.
    pub(crate) fn incidents(&self) -> u64 {
        if matches!(self.make, Make::Lio { .. }) { Incident::ALL } else { Incident::ANYWHERE }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Without a chance to finish anything.
    pub(crate) async fn kill(&mut self) {
        if let Make::Lio { .. } = self.make {
            lio::signal(&self.child, Signal::KILL);
        }
        self.child.kill().await.unwrap();
    }

    /// Starts tgtd again where it has crashed, as its supervisor would: it does so now and then when sessions are lost
    /// and reinstated. Ours must not.
    pub(crate) async fn keep_up(target: &Mutex<Self>, tally: &Tally) -> Infallible {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            let mut target = target.lock().await;
            let status = target.child.try_wait().unwrap();
            if let Some(status) = status {
                assert!(matches!(target.make, Make::Tgt { .. }), "the target has ended: {status}");
                tally.note(format!("tgtd has crashed: {status}"));
                tally.crashes.fetch_add(1, Ordering::SeqCst);
                target.start_again().await;
            }
        }
    }

    pub(crate) async fn start_again(&mut self) {
        match &self.make {
            Make::Ours { .. } => {
                let (child, address, make) = start_ours(self.folder.path()).await;
                (self.child, self.address, self.make) = (child, address, make);
            }
            Make::Tgt { .. } => {
                let program = lunway_foreign::program("tgtd").unwrap();
                self.child = start_tgtd(&program, self.folder.path(), self.address.port());
                self.set_up_tgt().await;
            }
            Make::Lio { .. } => {
                (self.child, _, self.make) = start_lio(self.folder.path(), DISKS[self.served]).await;
            }
        }
    }

    /// All of it stands still, but for the kernel, which goes on acknowledging; with LIO the kernel, too.
    pub(crate) fn freeze(&self, on: bool) {
        let process = self.child.id().and_then(|id| Pid::from_raw(id as i32));
        kill_process(process.unwrap(), if on { Signal::STOP } else { Signal::CONT }).unwrap();
    }

    /// Takes the portal group out of service, which ends its sessions and refuses new ones, or back. Only LIO.
    pub(crate) async fn in_service(&mut self, on: bool, tally: &Tally) {
        self.order(if on { "enable" } else { "disable" }, tally).await;
    }

    /// Tells it something that it must have done within [`ORDER_TIME`]. A LIO that has not waits for a command that it
    /// has lost; its machine is switched off and on then, as a person would.
    async fn order(&mut self, what: &str, tally: &Tally) {
        let (Make::Ours { tell, said } | Make::Lio { tell, said }) = &mut self.make else {
            panic!("{self} takes no orders")
        };
        tell.write_all(format!("{what}\n").as_bytes()).await.unwrap();
        let done = async {
            while let Some(line) = said.next_line().await.unwrap() {
                if line.trim_end().ends_with(DONE) {
                    return;
                }
            }
            panic!("the target has ended");
        };
        if tokio::time::timeout(ORDER_TIME, done).await.is_err() {
            assert!(matches!(self.make, Make::Lio { .. }), "{what}: not in time");
            self.power_cycle(what, tally).await;
        }
    }

    /// Puts the other disk under the number, or the first one back; sessions go on with ours, which tells them.
    pub(crate) async fn exchange(&mut self, tally: &Tally) {
        self.served = 1 - self.served;
        let disk = DISKS[self.served];
        match &self.make {
            Make::Ours { .. } | Make::Lio { .. } => self.order(disk, tally).await,
            // Live sessions it does not tell of it (and removes no LUN with commands under way), so that nothing is to
            // be seen before the next login.
            Make::Tgt { .. } => {
                self.kill().await;
                self.start_again().await;
            }
        }
    }

    /// Whether the other disk is as it was made: all zeroes. Only while it is not served.
    pub(crate) fn other_is_untouched(&self) -> bool {
        let other = File::open(self.folder.path().join(DISKS[1])).unwrap();
        let mut chunk = vec![0; 1 << 20];
        (0..other.metadata().unwrap().len()).step_by(chunk.len()).all(|at| {
            other.read_exact_at(&mut chunk, at).unwrap();
            chunk.iter().all(|byte| *byte == 0)
        })
    }

    async fn admin(&self, arguments: &[&str]) -> bool {
        let Make::Tgt { admin } = &self.make else { panic!("it is not tgt") };
        let mut command = Command::new(admin);
        command.env("TGT_IPC_SOCKET", self.folder.path().join("ipc"));
        command.args(["-C", &self.address.port().to_string(), "--lld", "iscsi"]).args(arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().await.unwrap().success()
    }

    async fn add_lun(&self) {
        let disk = self.folder.path().join(DISKS[self.served]);
        // Disks differ by their serial numbers, as they do in life.
        let (serial, id) = (format!("tort{}", self.served), format!("IET 0001{}", self.served));
        let new = ["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1"];
        assert!(self.admin(&[&new[..], &["-b", disk.to_str().unwrap()]].concat()).await);
        let update = ["--op", "update", "--mode", "logicalunit", "--tid", "1", "--lun", "1"];
        let parameters = format!("scsi_sn={serial},scsi_id={id}");
        assert!(self.admin(&[&update[..], &["--params", &parameters]].concat()).await);
    }

    async fn set_up_tgt(&mut self) {
        let start = Instant::now();
        while !self.admin(&["--op", "show", "--mode", "target"]).await {
            assert!(start.elapsed() < READY_TIME, "tgtd does not answer");
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("tgtd has ended: {status}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(self.admin(&["--op", "new", "--mode", "target", "--tid", "1", "-T", NAME]).await);
        self.add_lun().await;
        assert!(self.admin(&["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"]).await);
        // It goes on without a portal where it has none.
        tokio::net::TcpStream::connect(self.address).await.expect("tgtd listens");
    }
}

/// The address at which a target says that it serves.
async fn serving(child: &mut Child) -> (SocketAddr, ChildStdin, Said) {
    let tell = child.stdin.take().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = async {
        while let Some(line) = said.next_line().await.unwrap() {
            if let Some((_, address)) = line.split_once(SERVING) {
                return address.trim_end().parse().unwrap();
            }
        }
        panic!("the target did not start");
    };
    let address = tokio::time::timeout(READY_TIME, address).await.expect("it serves in time");
    (address, tell, said)
}

async fn start_lio(folder: &Path, disk: &str) -> (Child, SocketAddr, Make) {
    let mut child = lio::start(folder, NAME, disk);
    let (address, tell, said) = serving(&mut child).await;
    (child, address, Make::Lio { tell, said })
}

fn folder(size: u64) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for disk in DISKS {
        File::create(folder.path().join(disk)).unwrap().set_len(size).unwrap();
    }
    folder
}

fn start_tgtd(program: &Path, folder: &Path, port: u16) -> Child {
    Command::new(program)
        .args(["-f", "-C", &port.to_string(), "--iscsi", &format!("portal=127.0.0.1:{port}")])
        .env("TGT_IPC_SOCKET", folder.join("ipc"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// Runs this very program as the target.
async fn start_ours(folder: &Path) -> (Child, SocketAddr, Make) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "target::the_target", "--ignored", "--nocapture"])
        .env(FOLDER, folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let (address, tell, said) = serving(&mut child).await;
    (child, address, Make::Ours { tell, said })
}

#[tokio::test]
#[ignore = "no test: the target of one, which starts it"]
async fn the_target() {
    use std::io::Write;
    let folder = PathBuf::from(std::env::var_os(FOLDER).expect("it is started by the test"));
    let config = format!(
        "listen = [\"127.0.0.1:0\"]\ncores = 1\n[[target]]\nname = \"{NAME}\"\nopen = true\n\
         [[target.lun]]\nid = 0\ndevice = \"{}\"\n",
        DISKS[0]
    );
    let open: OpenDevice = Arc::new(move |name: DeviceName, _| {
        let path = folder.join(name.as_written());
        Box::pin(async move {
            let device = VolatileDisk::open(&path).map_err(|error| error.to_string())?;
            Ok((Arc::new(device) as Arc<dyn BlockDevice>).into())
        })
    });
    let server = Server::start(Config::from_toml(&config, "torture").unwrap(), open).await.unwrap();
    println!("{SERVING}{}", server.addresses()[0]);
    std::io::stdout().flush().unwrap();
    // Until it is killed, or whoever started it ends.
    let (lines, mut told) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        std::io::stdin().lines().map_while(Result::ok).all(|line| lines.send(line).is_ok())
    });
    while let Some(disk) = told.recv().await {
        let device: DeviceName = disk.parse().unwrap();
        let luns = |with: Vec<_>| {
            move |config: &mut Config| {
                config.targets[0].luns.clone_from(&with);
                Ok(())
            }
        };
        let mut lun = server.config().targets[0].luns[0].clone();
        lun.device = device;
        // One is removed, and then another is added.
        let options = ChangeOptions { force: true, ..ChangeOptions::default() };
        server.change(luns(Vec::new()), options.clone()).await.unwrap();
        server.change(luns(vec![lun]), options).await.unwrap();
        println!("{DONE}");
        std::io::stdout().flush().unwrap();
    }
}
