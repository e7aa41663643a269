//! What outlives the daemon in `state_dir`.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lunway_block::BlockDevice;
use lunway_memory::RamDisk;
use lunway_target::{
    ChangeError, Config, LunConfig, OpenDevice, Server, SnapshotOrder, StartError, WarningKind,
};

use crate::support::*;

fn start(state_dir: &Path) -> Daemon {
    Daemon::start(&format!("state_dir = \"{}\"", state_dir.display()))
}

/// A PERSISTENT RESERVE OUT for LUN 0: service action, type, key, service action key, APTPL.
fn reserve_out(client: &mut Client, [action, kind, key, argument, aptpl]: [u8; 5]) -> u8 {
    let mut list = [0; 24];
    (list[7], list[15], list[20]) = (key, argument, aptpl);
    client.execute(0, &[0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0], &list, 0).status
}

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const WRITE_EXCLUSIVE: u8 = 1;
const CONFLICT: u8 = 0x18;

#[test]
fn a_reservation_with_aptpl_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    {
        let daemon = start(dir.path());
        let mut client = daemon.log_in_as(1).ready();
        assert_eq!(reserve_out(&mut client, [REGISTER, 0, 0, 7, 1]), 0);
        assert_eq!(reserve_out(&mut client, [RESERVE, WRITE_EXCLUSIVE, 7, 0, 0]), 0);
        // Not shut down: what was answered with GOOD is on the disk.
    }
    let daemon = start(dir.path());
    let (mut client, mut other) = (daemon.log_in_as(1).ready(), daemon.log_in_as(2).ready());
    client.write(0, 0, &pattern(1, 1));
    assert_eq!(other.execute(0, &cdb10(0x2a, 0, 1), &pattern(1, 2), 0).status, CONFLICT);
    let keys = client.execute(0, &[0x5E, 0, 0, 0, 0, 0, 0, 0, 16, 0], &[], 16);
    assert_eq!(keys.data_in[..16], [0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 7]);
}

#[test]
fn without_a_state_dir_aptpl_is_refused() {
    let daemon = Daemon::start("");
    assert_eq!(reserve_out(&mut daemon.log_in().ready(), [REGISTER, 0, 0, 7, 1]), 2);
}

#[test]
fn a_state_that_an_initiator_set_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    // REPORT TARGET PORT GROUPS: the state of the first group.
    let state = |client: &mut Client| {
        let report = client.execute(0, &[0xA3, 0x0A, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0], &[], 16);
        report.data_in[4] & 0xF
    };
    {
        let daemon = start(dir.path());
        let mut client = daemon.log_in().ready();
        assert_eq!(state(&mut client), 0);
        let list = [0, 0, 0, 0, 1, 0, 0, 1];
        let set = client.execute(0, &[0xA4, 0x0A, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0], &list, 0);
        assert_eq!(set.status, 0, "{:02x?}", set.sense);
    }
    let daemon = start(dir.path());
    assert_eq!(state(&mut daemon.log_in().ready()), 1);
}

#[test]
fn a_daemon_does_not_serve_a_disk_whose_reservations_are_damaged() {
    let dir = tempfile::tempdir().unwrap();
    {
        let daemon = start(dir.path());
        assert_eq!(reserve_out(&mut daemon.log_in().ready(), [REGISTER, 0, 0, 7, 1]), 0);
    }
    let file = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let file =
        file.into_iter().find(|path| path.extension().is_some_and(|item| item == "reservations")).unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\nstate_dir = \"{}\"\n[[target]]\nname = \"{TARGET}\"\nopen = true\n{}",
        dir.path().display(),
        luns()
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = Config::from_toml(&text, "test.toml").unwrap();
    let error = runtime.block_on(Server::start(config, opener(&Slow::new()))).err().unwrap();
    assert!(matches!(error, StartError::Open { lun: 0, .. }), "{error}");
    assert!(error.to_string().contains("reservations"), "{error}");
}

/// Longest time until a lost directory is seen, and as much again for a busy machine.
const SEEN_TIME: Duration = Duration::from_secs(20);

/// Lost was: a reservation that was answered with GOOD, while the directory was away.
#[test]
fn a_state_dir_that_is_gone_is_a_warning_and_nothing_that_it_is_needed_for_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let daemon = start(&path);
    let mut client = daemon.log_in_as(1).ready();
    std::fs::rename(&path, dir.path().join("aside")).unwrap();
    let lost = || {
        let warnings = daemon.server().warnings().into_iter();
        warnings.filter(|warning| warning.kind == WarningKind::LostStateDir).count()
    };
    let begun = Instant::now();
    while lost() == 0 {
        assert!(begun.elapsed() < SEEN_TIME, "nobody looks at it");
        std::thread::sleep(Duration::from_millis(50));
    }
    // A registration that need not be kept is none of its business; one that is to be kept is a HARDWARE ERROR.
    assert_eq!(reserve_out(&mut client, [REGISTER, 0, 0, 7, 0]), 0);
    assert_eq!(reserve_out(&mut client, [REGISTER, 0, 7, 8, 1]), 2);
    let order = SnapshotOrder { target: TARGET.to_owned(), lun: 0, name: "s".to_owned(), epoch: None };
    let refused = daemon.runtime.block_on(daemon.server().create_snapshots(vec![order], 1 << 20));
    let why = refused.unwrap_err().to_string();
    assert!(why.contains("state is lost"), "{why}");
    // Nor in another one that is in its place.
    std::fs::create_dir(&path).unwrap();
    assert_eq!(reserve_out(&mut client, [REGISTER, 0, 7, 8, 1]), 2);
    let unit = LunConfig::new(5, "ram:1M".parse().unwrap());
    let added = daemon.change(|config| config.targets[0].luns.push(unit)).map(|_| ());
    let why = added.expect_err("what it reserves is not known").to_string();
    assert!(why.contains("state is lost"), "{why}");
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0, "the other one stays empty");
    std::fs::remove_dir(&path).unwrap();
    std::fs::rename(dir.path().join("aside"), &path).unwrap();
    assert_eq!(reserve_out(&mut client, [REGISTER, 0, 7, 8, 1]), 0);
    assert_eq!(lost(), 0);
}

/// A server of a raw image of `size` bytes, asked what the image had before, twice: by its warnings, and by its list.
async fn with_image_of(state_dir: &Path, size: u64, work: impl AsyncFnOnce(&Server)) -> [Option<u64>; 2] {
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\nstate_dir = \"{}\"\n[[target]]\nname = \"{TARGET}\"\nopen = true\n\
         [[target.lun]]\nid = 0\ndevice = \"raw:/srv/disk.img\"\n",
        state_dir.display()
    );
    let open: OpenDevice = Arc::new(move |_, _| {
        let disk = Arc::new(RamDisk::new(size, 512).unwrap()) as Arc<dyn BlockDevice>;
        Box::pin(async { Ok(disk.into()) })
    });
    let server = Server::start(Config::from_toml(&text, "test.toml").unwrap(), open).await.unwrap();
    work(&server).await;
    let of_lun = server.targets()[0].luns[0].shrunk_from;
    let warned = server.warnings().iter().any(|warning| warning.kind == WarningKind::ShrunkLun);
    server.shutdown(Duration::ZERO).await.unwrap();
    [warned.then_some(of_lun).flatten(), of_lun]
}

/// Lost was: the end of an image that was cut while the daemon was down, without a word.
#[tokio::test]
async fn an_image_that_is_shorter_than_when_it_was_served_last_is_told_until_somebody_resizes_it() {
    const MIB: u64 = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let nothing = async |_: &Server| {};
    for (size, before) in
        [(8, None), (8, None), (9, None), (4, Some(9)), (5, Some(9)), (9, None), (4, Some(9))]
    {
        let found = with_image_of(dir.path(), size * MIB, nothing).await;
        assert_eq!(found, [before.map(|before| before * MIB); 2], "{size} MiB");
    }
    // What is lost would read as zeroes, and no warning would be left.
    let grow = async |server: &Server| {
        for size in [5, 9, 10] {
            let refused = server.resize_lun(TARGET, 0, size * MIB, false).await.unwrap_err();
            assert!(matches!(refused, ChangeError::LostEnd { before: 0x90_0000, .. }), "{refused}");
        }
    };
    assert_eq!(with_image_of(dir.path(), 4 * MIB, grow).await, [Some(9 * MIB); 2]);
    let confirm = async |server: &Server| server.resize_lun(TARGET, 0, 4 * MIB, false).await.unwrap();
    assert_eq!(with_image_of(dir.path(), 4 * MIB, confirm).await, [None; 2]);
    assert_eq!(with_image_of(dir.path(), 4 * MIB, nothing).await, [None; 2]);
    // Another disk under its number is no shorter one.
    let remove = async |server: &Server| {
        let remove = |config: &mut Config| {
            config.targets[0].luns.clear();
            Ok(())
        };
        server.change(remove, Default::default()).await.unwrap();
        let add = |config: &mut Config| {
            let (text, target) = ("raw:/srv/disk.img", &mut config.targets[0]);
            target.luns.push(LunConfig::new(0, text.parse().unwrap()));
            Ok(())
        };
        server.change(add, Default::default()).await.unwrap();
    };
    assert_eq!(with_image_of(dir.path(), 3 * MIB, remove).await, [None; 2]);
}
