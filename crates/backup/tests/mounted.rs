//! What a folder on a mounted share demands of its locks.

use std::fs::File;

use lunway_backup::{Folder, Holder, HostFolder, Lease};
use lunway_occupancy::try_lock_byte;

/// CIFS keeps locked bytes from every other open file, the holder's own, too: no run got past its lease on a share of
/// Samba.
#[test]
fn a_lease_is_locked_beside_its_bytes() {
    let place = tempfile::tempdir().unwrap();
    let folder = HostFolder::open(place.path()).unwrap();
    let holder = Holder {
        machine: "m".into(),
        lasting: String::new(),
        host: "h".into(),
        process: 1,
        nonce: 1,
        ..Holder::default()
    };
    let lease = Lease::take(&folder, holder, &|| false).unwrap();
    let file = File::options().write(true).open(place.path().join("lease-000001")).unwrap();
    file.try_lock().unwrap();
    assert!((0..1 << 12).all(|at| try_lock_byte(&file, at).unwrap()));
    assert!(folder.lock("lease-000001").unwrap().is_none(), "it keeps others out all the same");
    drop(lease);
}
