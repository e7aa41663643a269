//! The target, in a process of its own, so that it can be killed.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use lunway_block::BlockDevice;
use lunway_file::{FileDevice, FileOptions};
use lunway_target::{Config, OpenDevice, Server};
use tempfile::NamedTempFile;

pub(crate) const NAME: &str = "iqn.2026-11.com.example:tortured";

/// Tells the child which file to serve.
const FILE: &str = "LUNWAY_TORTURE_FILE";
/// Stands before the address in what the child prints.
const SERVING: &str = "serving at ";

pub(crate) struct Target {
    file: NamedTempFile,
    child: tokio::process::Child,
    pub(crate) address: SocketAddr,
}

impl Target {
    /// Serves a new file of so many bytes.
    pub(crate) async fn start(size: u64) -> Self {
        let file = NamedTempFile::new().unwrap();
        file.as_file().set_len(size).unwrap();
        let (child, address) = serve(&file).await;
        Self { file, child, address }
    }

    /// Without a chance to finish anything.
    pub(crate) async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    pub(crate) async fn start_again(&mut self) {
        (self.child, self.address) = serve(&self.file).await;
    }
}

/// Runs this very program as the target.
async fn serve(file: &NamedTempFile) -> (tokio::process::Child, SocketAddr) {
    use tokio::io::{AsyncBufReadExt, BufReader};
    let mut child = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "target::the_target", "--ignored", "--nocapture"])
        .env(FILE, file.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if let Some((_, address)) = line.split_once(SERVING) {
                return address.parse().unwrap();
            }
        }
        panic!("the target did not start");
    };
    let address = tokio::time::timeout(Duration::from_secs(20), address).await.expect("in time");
    (child, address)
}

#[tokio::test]
#[ignore = "no test: the target of one, which starts it"]
async fn the_target() {
    use std::io::{Read, Write};
    let path = std::env::var_os(FILE).expect("it is started by the test");
    let config = format!(
        "listen = [\"127.0.0.1:0\"]\ncores = 1\n[[target]]\nname = \"{NAME}\"\nopen = true\n\
         [[target.lun]]\nid = 0\ndevice = \"file\"\n"
    );
    let open: OpenDevice = Arc::new(move |_, _| {
        let path = path.clone();
        Box::pin(async move {
            let device =
                FileDevice::open(path, &FileOptions::default()).map_err(|error| error.to_string())?;
            Ok((Arc::new(device) as Arc<dyn BlockDevice>).into())
        })
    });
    let server = Server::start(Config::from_toml(&config, "torture").unwrap(), open).await.unwrap();
    println!("{SERVING}{}", server.addresses()[0]);
    std::io::stdout().flush().unwrap();
    // Until it is killed, or whoever started it ends.
    let ended = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0]));
    let _ = ended.await;
}
