//! Front ends with what comes out at their other end: every byte of the device behind them.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lunway_block::BlockDevice;
use lunway_block::conformance::{Close, Instance, Subject};
use lunway_device::{OpenOptions, open};
use lunway_file::{FileDevice, FileOptions};
use lunway_fuse::Mounted;
use lunway_initiator::{IscsiDevice, IscsiUrl};
use lunway_iscsi_paths::{Address, IscsiMultipath};
use lunway_nbd::{Export, NbdAddress, NbdServer};
use lunway_target::{Config, OpenDevice, Server};
use tokio::sync::oneshot;

use super::backs::{VHDX_ROOM, format_blank};
use super::conforms;

const NAME: &str = "iqn.2026-11.com.example:disk";

/// Served disks of this process so far.
static SERVED: AtomicU64 = AtomicU64::new(0);

/// Serves a device at two portals, as a disk of its own: an initiator of an ended server that dials the port again,
/// which another server has by then, must find another disk there.
async fn serve(device: Arc<dyn BlockDevice>) -> (Server, [SocketAddr; 2]) {
    let serial = format!("{}-{}", std::process::id(), SERVED.fetch_add(1, Ordering::Relaxed));
    let config = format!(
        "listen = [\"127.0.0.1:0\", \"127.0.0.2:0\"]\ncores = 1\n[[target]]\nname = \"{NAME}\"\nopen = true\n\
         [[target.lun]]\nid = 0\ndevice = \"disk\"\nserial = \"{serial}\"\n"
    );
    let open: OpenDevice = Arc::new(move |_, _| {
        let device = device.clone();
        Box::pin(async move { Ok(device.into()) })
    });
    let server = Server::start(Config::from_toml(&config, "test").unwrap(), open).await.unwrap();
    let addresses = [server.addresses()[0], server.addresses()[1]];
    (server, addresses)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_and_an_initiator_conform() {
    conforms(Subject::door("iSCSI: target and initiator", |disk| {
        Box::pin(async move {
            let (server, [address, _]) = serve(disk).await;
            let url = IscsiUrl::parse(&format!("iscsi://{address}/{NAME}/0")).unwrap();
            let options = lunway_initiator::SessionOptions::default();
            let device = Arc::new(IscsiDevice::open(url, options).await.unwrap());
            Instance { keep: Box::new(server), ..Instance::plain(device) }
        })
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_paths_conform() {
    conforms(Subject::door("iSCSI over two paths", |disk| {
        Box::pin(async move {
            let (server, [one, other]) = serve(disk).await;
            let text = format!("iscsi://{one}/{NAME}/0?portal={other}&from=127.0.0.3&from=127.0.0.4");
            let Address::Several(url) = Address::parse(&text).unwrap() else { panic!("{text}") };
            let disk =
                IscsiMultipath::open(&url, &lunway_initiator::SessionOptions::default()).await.unwrap();
            Instance { keep: Box::new(server), ..Instance::plain(Arc::new(disk)) }
        })
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_of_the_grammar_conforms() {
    conforms(Subject::door("iSCSI, as a device is opened", |disk| {
        Box::pin(async move {
            let (server, [address, _]) = serve(disk).await;
            let spec = format!("iscsi://{address}/{NAME}/0").parse().unwrap();
            let opened = open(&spec, &OpenOptions::default()).await.unwrap();
            Instance { keep: Box::new(server), ..Instance::plain(opened.device.clone()) }
        })
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_nbd_server_and_a_client_conform() {
    conforms(Subject::door("NBD: server and client", |device| {
        Box::pin(async move {
            let folder = tempfile::tempdir().unwrap();
            let address = NbdAddress::Unix(folder.path().join("nbd"));
            let export = Export { name: "disk".into(), description: String::new(), device, bitmaps: None };
            let server = NbdServer::bind(&address, export).await.unwrap();
            let (stop, stopped) = oneshot::channel::<()>();
            let served = tokio::spawn(server.serve(async {
                // Also when the other end is dropped.
                let _ = stopped.await;
            }));
            let spec = address.uri("disk").parse().unwrap();
            let opened = open(&spec, &OpenOptions::default()).await.unwrap();
            let close: Close = Box::new(move || {
                Box::pin(async move {
                    drop(stop);
                    served.await.unwrap()
                })
            });
            Instance {
                device: opened.device.clone(),
                close: Some(close),
                reopen: None,
                keep: Box::new((folder, opened)),
            }
        })
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mounted_file_conforms() {
    if !Path::new("/dev/fuse").exists() {
        return lunway_foreign::machine_lacks("/dev/fuse");
    }
    conforms(Subject::door("FUSE: a mounted file", |disk| {
        Box::pin(async move {
            let folder = tempfile::tempdir().unwrap();
            let mounted = Mounted::mount(disk, folder.path(), "disk").unwrap();
            let file = mounted.file().to_owned();
            let device = FileDevice::open_on_thread(file, FileOptions::default()).await.unwrap();
            Instance { keep: Box::new((mounted, folder)), ..Instance::plain(Arc::new(device)) }
        })
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vhdx_on_a_logical_unit_conforms() {
    conforms(Subject::format("VHDX on iSCSI, `vhdx:iscsi://…`", VHDX_ROOM, |disk| {
        Box::pin(async move {
            format_blank(&*disk).await;
            let (server, [address, _]) = serve(disk).await;
            let spec = format!("vhdx:iscsi://{address}/{NAME}/0").parse().unwrap();
            let opened = open(&spec, &OpenOptions::default()).await.unwrap_or_else(|error| panic!("{error}"));
            Instance { keep: Box::new(server), ..Instance::plain(opened.device.clone()) }
        })
    }))
    .await;
}
