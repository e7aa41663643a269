//! The source of a run, told from another one of the same name.

use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use lunway_backup::{Holder, SourceId};
use lunway_block::spec::{DeviceSpec, NbdEndpoint};
use lunway_block::{BlockDevice, Identity, Layer};

use super::store::Past;
use crate::report_file::file_of;

/// A source, whose manifest says what it is told by.
pub(super) struct IdentifiedSource {
    inner: Arc<dyn BlockDevice>,
    id: SourceId,
}

impl IdentifiedSource {
    pub(super) fn new(inner: Arc<dyn BlockDevice>, id: &SourceId) -> Self {
        Self { inner, id: id.clone() }
    }
}

impl Layer for IdentifiedSource {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn identity(&self) -> Identity {
        Identity { content: self.id.to_text(), ..self.inner.identity() }
    }
}

/// What a device is told by that this process, or a daemon on this machine, has opened.
pub(super) fn of_device(spec: &DeviceSpec, device: &dyn BlockDevice) -> SourceId {
    let id = SourceId { content: device.identity().content, ..SourceId::default() };
    if is_of_this_machine(spec) { in_file(on_this_machine(id), spec) } else { id }
}

/// What a logical unit is told by, whose daemon has this device.
pub(super) fn of_lun(spec: Option<&DeviceSpec>) -> SourceId {
    let id = on_this_machine(SourceId::default());
    match spec {
        // The folder that a relative name is found from is the daemon's.
        Some(spec) if file_of(spec).is_some_and(Path::is_absolute) => in_file(id, spec),
        _ => id,
    }
}

/// Why the newest point of a destination does not show this source; `None`: nothing says so.
pub(super) fn doubt(id: &SourceId, past: &[Past]) -> Option<String> {
    let newest = past.last()?;
    let before = newest.source_id.as_deref().map(SourceId::parse).unwrap_or_default();
    let doubt = id.doubt(&before);
    doubt.map(|why| format!("this source is not the one that point {} shows: {why}", newest.point))
}

fn on_this_machine(id: SourceId) -> SourceId {
    let machine = Holder::this_process(0).lasting;
    if machine.is_empty() { id } else { id.on_machine(&machine) }
}

/// Returns `true` if the name of a device means another one on another machine.
fn is_of_this_machine(spec: &DeviceSpec) -> bool {
    match spec.leaf() {
        DeviceSpec::File { .. } | DeviceSpec::Vhdx { .. } | DeviceSpec::Image { .. } => true,
        DeviceSpec::Nbd { uri } => match &uri.endpoint {
            NbdEndpoint::Unix(_) => true,
            NbdEndpoint::Tcp { host, .. } => {
                host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
            }
        },
        _ => false,
    }
}

/// Of a raw file that says when it was made. What a snapshot of a VHDX goes on in is another file, and the same disk.
fn in_file(id: SourceId, spec: &DeviceSpec) -> SourceId {
    let DeviceSpec::File { path, .. } = spec.leaf() else { return id };
    match path.metadata() {
        Ok(file) if file.is_file() => match file.created() {
            Ok(made) => id.in_file(file.ino(), made),
            Err(_) => id,
        },
        _ => id,
    }
}
