//! Images of Ceph: on a library in memory that reorders, in every run, and on a cluster where Ceph is installed.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lunway_block::conformance::{Instance, Local, Reopen, SIZE_MIN, Subject};
use lunway_block::spec::{DeviceSpec, RbdName};
use lunway_foreign::ceph::{Ceph, Store};
use lunway_rbd::{RbdDevice, RbdOptions};

use super::conforms;

fn name(text: &str) -> RbdName {
    match DeviceSpec::parse(text).unwrap() {
        DeviceSpec::Rbd { name } => name,
        other => panic!("{other}"),
    }
}

/// `keep` lives as long as the image.
fn opened(image: RbdName, options: RbdOptions, keep: Arc<dyn Send + Sync>) -> Local<'static, Instance> {
    Box::pin(async move {
        let device = RbdDevice::open(&image, &options).await.unwrap_or_else(|error| panic!("{error}"));
        let kept = Arc::clone(&keep);
        let reopen: Reopen = Box::new(move || opened(image, options, keep));
        Instance { device: Arc::new(device), close: None, reopen: Some(reopen), keep: Box::new(kept) }
    })
}

/// The shared object, which cargo has put beside the test.
fn fake() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    folder.join("liblunway_fake_rbd.so")
}

fn on_fake(title: &'static str, sector: u32, read_only: bool) -> Subject {
    Subject::device(title, move || {
        let folder = tempfile::tempdir().unwrap();
        let conf = folder.path().join("ceph.conf");
        fs::write(&conf, format!("image rbd/disk {SIZE_MIN}\nreorder\n")).unwrap();
        let image = name(&format!("rbd:rbd/disk?conf={}", conf.display()));
        opened(image, RbdOptions { read_only, sector, renew: true, library: Some(fake()) }, Arc::new(folder))
    })
}

#[tokio::test]
async fn an_image_of_a_library_in_memory_conforms() {
    conforms(on_fake("`rbd:`, a library that reorders", 512, false)).await;
    conforms(on_fake("`rbd:`, sectors of 4 KiB", 4096, false)).await;
    conforms(on_fake("`rbd:`, read-only", 512, true)).await;
}

#[tokio::test]
async fn an_image_of_a_cluster_conforms() {
    let Some(ceph) = Ceph::start(Store::Memory) else { return };
    let (ceph, next) = (Arc::new(ceph), AtomicUsize::new(0));
    conforms(Subject::device("`rbd:`, an image of Ceph", move || {
        let image = format!("disk{}", next.fetch_add(1, Ordering::Relaxed));
        ceph.run("rbd", &["create", "--size", &format!("{SIZE_MIN}B"), "--object-size", "1M", &image]);
        opened(name(&ceph.device(&image)), RbdOptions::default(), Arc::clone(&ceph) as Arc<_>)
    }))
    .await;
}
