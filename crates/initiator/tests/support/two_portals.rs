//! A RAM disk that a target serves on two portals.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use lunway_block::BlockDevice;
use lunway_memory::RamDisk;
use lunway_target::{Config, OpenDevice, Server};

/// Serves `size` bytes as LUN 0 of the target `name`, on portals that are each a portal group of its own if `apart`.
/// Whatever device is configured in its place is another RAM disk of that size.
pub(crate) async fn serve(name: &str, size: u64, apart: bool) -> (Server, [SocketAddr; 2]) {
    let portals = match apart {
        true => {
            "listen = [\"127.0.0.1:0\"]\ncores = 1\n[[portal_group]]\ntag = 2\nlisten = [\"127.0.0.2:0\"]\n"
        }
        false => "listen = [\"127.0.0.1:0\", \"127.0.0.2:0\"]\ncores = 1\n",
    };
    let config = format!(
        "{portals}[[target]]\nname = \"{name}\"\nopen = true\n[[target.lun]]\nid = 0\ndevice = \"ram:64M\"\n"
    );
    let open: OpenDevice = Arc::new(move |_, _| {
        Box::pin(async move {
            let disk = RamDisk::new(size, 512).map_err(|error| error.to_string())?;
            Ok((Arc::new(disk) as Arc<dyn BlockDevice>).into())
        })
    });
    let server = Server::start(Config::from_toml(&config, "test").unwrap(), open).await.unwrap();
    let portals = [1, 2].map(|last| {
        let ip = IpAddr::from([127, 0, 0, last]);
        server.addresses().iter().copied().find(|address| address.ip() == ip).unwrap()
    });
    (server, portals)
}
