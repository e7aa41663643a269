//! A logical unit on a file system that does not answer, beside one in memory, on one core.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lunway_block::BlockDevice;
use lunway_block::spec::DeviceSpec;
use lunway_file::{FileDevice, FileOptions};
use lunway_iscsi::initiator::InitiatorEvent;
use lunway_iscsi::pdu::{TaskManagementCode, TaskManagementResult};
use lunway_memory::RamDisk;
use lunway_target::{ChangeOptions, Config, LunConfig, OpenDevice, Server, WarningKind};

use crate::stopped::Stoppable;
use crate::support::*;

const HUNG: u8 = 2;
/// The status.
const BUSY: u8 = 8;
/// What a core may take at most for the answer of another logical unit. It is microseconds; the rest is for machines
/// that run other tests on the same cores.
const AT_ONCE: Duration = Duration::from_secs(2);

fn opener() -> OpenDevice {
    Arc::new(|name, options| {
        Box::pin(async move {
            let device: Arc<dyn BlockDevice> = match name.spec() {
                DeviceSpec::Ram { size } => {
                    Arc::new(RamDisk::new(*size, options.sector.unwrap_or(512)).unwrap())
                }
                DeviceSpec::File { path, .. } => {
                    let opening = FileDevice::open_on_thread(path.clone(), FileOptions::default());
                    Arc::new(opening.await?)
                }
                _ => return Err("no such device here".into()),
            };
            Ok(device.into())
        })
    })
}

struct Sent {
    name: &'static str,
    cdb: Vec<u8>,
    data_out: Vec<u8>,
    data_in: usize,
    /// The device must do something, instead of saying what it knows.
    waits: bool,
}

/// Each command that a file has to do with.
fn commands() -> Vec<Sent> {
    let inquiry = |page: u8| vec![0x12, 1, page, 0, 255, 0];
    let log_sense = |page: u8| vec![0x4d, 0, 0x40 | page, 0, 0, 0, 0, 0, 255, 0];
    let of_16 = |opcode: u8, action: u8| {
        let mut cdb = vec![0; 16];
        (cdb[0], cdb[1], cdb[13]) = (opcode, action, 64);
        cdb
    };
    let mut unmap = vec![0, 22, 0, 16, 0, 0, 0, 0];
    unmap.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0, 0]);
    let waits = |name, cdb: Vec<u8>, data_out, data_in| Sent { name, cdb, data_out, data_in, waits: true };
    let knows = |name, cdb: Vec<u8>, data_in| Sent { name, cdb, data_out: Vec::new(), data_in, waits: false };
    vec![
        waits("READ", cdb10(0x28, 0, 8).to_vec(), Vec::new(), 8 * BLOCK),
        waits("WRITE", cdb10(0x2a, 8, 8).to_vec(), pattern(8, 1), 0),
        waits("UNMAP", vec![0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], unmap, 0),
        waits("GET LBA STATUS", of_16(0x9e, 0x12), Vec::new(), 64),
        waits("SYNCHRONIZE CACHE", cdb10(0x35, 0, 0).to_vec(), Vec::new(), 0),
        knows("READ CAPACITY (10)", cdb10(0x25, 0, 0).to_vec(), 8),
        knows("READ CAPACITY (16)", of_16(0x9e, 0x10), 64),
        knows("INQUIRY B0h", inquiry(0xb0), 255),
        knows("INQUIRY B1h", inquiry(0xb1), 255),
        knows("INQUIRY B2h", inquiry(0xb2), 255),
        knows("LOG SENSE 0Ch", log_sense(0x0c), 255),
        knows("LOG SENSE 00h", log_sense(0), 255),
        knows("MODE SENSE", vec![0x5a, 0, 0x3f, 0, 0, 0, 0, 0, 255, 0], 255),
    ]
}

/// The longest of some commands to the logical unit in memory.
fn longest(client: &mut Client, count: usize) -> Duration {
    (0..count).map(|_| timed(client)).max().unwrap()
}

fn timed(client: &mut Client) -> Duration {
    let begun = Instant::now();
    // A change of the logical units is told once, as a unit attention.
    assert!((0..4).any(|_| client.execute(0, &cdb10(0x28, 0, 8), &[], 8 * BLOCK).status == 0));
    assert!((0..4).any(|_| client.execute(0, &[0; 6], &[], 0).status == 0));
    begun.elapsed()
}

/// Lost was: the end of a LUN, cut off when its device answered again, long after `lun resize --shrink` had failed.
#[test]
fn a_resize_that_is_not_begun_in_time_is_never_made_and_others_are_refused_until_the_device_answers() {
    let Some(mount) = Stoppable::mount("stopped") else { return };
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\ncores = 1\n[[target]]\nname = \"{TARGET}\"\nopen = true\n\
         [[target.lun]]\nid = {HUNG}\ndevice = \"{}\"\n",
        mount.file().display()
    );
    let config = Config::from_toml(&text, "test.toml").unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = runtime.block_on(Server::start(config, opener())).unwrap();
    let size = || server.targets()[0].luns[0].size;
    let unsettled = || server.warnings().iter().any(|warning| warning.kind == WarningKind::UnsettledLun);
    let resize = |size: u64| runtime.block_on(server.resize_lun(TARGET, u16::from(HUNG), size, false));
    let before = size();
    mount.stop();
    let late = resize(before / 2).unwrap_err().to_string();
    assert!(late.contains("was not begun and will not be made"), "{late}");
    assert!(unsettled());
    let begun = Instant::now();
    let behind = resize(before / 4).unwrap_err().to_string();
    assert!(behind.contains("has not ended and will not be made"), "{behind}");
    assert!(begun.elapsed() < AT_ONCE, "it is refused, and not waited for");
    mount.go_on();
    until("the device has answered", || !unsettled());
    assert_eq!(size(), before);
    resize(before / 2).unwrap();
    assert_eq!(size(), before / 2);
}

/// Lost was: an acknowledged write. A host's older one to the same block hung in the device, another host reset the
/// logical unit, and the newer one went to the device beside it.
#[test]
fn a_write_that_a_reset_left_in_the_device_does_not_overwrite_a_newer_one() {
    let Some(mount) = Stoppable::mount("stopped") else { return };
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\ncores = 2\n[[target]]\nname = \"{TARGET}\"\nopen = true\n\
         [[target.lun]]\nid = {HUNG}\ndevice = \"{}\"\n",
        mount.file().display()
    );
    let config = Config::from_toml(&text, "test.toml").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime.block_on(Server::start(config, opener())).unwrap();
    let log_in = |isid: u8| {
        let mut client = Client::log_in(server.addresses()[0], login(isid)).unwrap();
        client.stream.set_read_timeout(Some(3 * PATIENCE)).unwrap();
        assert!((0..4).any(|_| client.execute(HUNG, &[0; 6], &[], 0).status == 0));
        client
    };
    let (mut host, mut other) = (log_in(1), log_in(2));
    let write = cdb10(0x2a, 8, 1);
    mount.stop();
    let older = host.submit(HUNG, &write, &pattern(1, 7), 0);
    thread::sleep(Duration::from_millis(300));
    let unit = [0, HUNG, 0, 0, 0, 0, 0, 0];
    other.core.manage_task(900, TaskManagementCode::LOGICAL_UNIT_RESET, unit, None);
    match other.other_event() {
        Some(InitiatorEvent::TaskManagementDone { response, .. }) => {
            assert_eq!(response, TaskManagementResult::REJECTED);
        }
        event => panic!("instead of a response: {event:?}"),
    }
    assert_eq!(host.execute(HUNG, &[0; 6], &[], 0).status, 2, "told of the reset");
    for _ in 0..3 {
        assert_eq!(host.execute(HUNG, &write, &pattern(1, 8), 0).status, BUSY);
    }
    mount.go_on();
    until("the device has ended the older write", || {
        host.execute(HUNG, &write, &pattern(1, 8), 0).status != BUSY
    });
    assert_eq!(host.read(HUNG, 8, 1), pattern(1, 8));
    thread::sleep(Duration::from_millis(300));
    assert_eq!(host.read(HUNG, 8, 1), pattern(1, 8));
    let unanswered: Vec<_> = host.core.take_unanswered().iter().map(|submission| submission.token).collect();
    assert_eq!(unanswered, [older]);
}

#[test]
fn a_logical_unit_that_hangs_is_noticed_by_no_other_on_its_core_and_can_be_removed() {
    let Some(mount) = Stoppable::mount("stopped") else { return };
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\ncores = 1\n[[target]]\nname = \"{TARGET}\"\nopen = true\n\
         [[target.lun]]\nid = 0\ndevice = \"ram:1M\"\n[[target.lun]]\nid = {HUNG}\ndevice = \"{}\"\n",
        mount.file().display()
    );
    let config = Config::from_toml(&text, "test.toml").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime.block_on(Server::start(config, opener())).unwrap();
    let log_in = |isid: u8| {
        let mut client = Client::log_in(server.addresses()[0], login(isid)).unwrap();
        for lun in [0, HUNG] {
            assert!((0..4).any(|_| client.execute(lun, &[0; 6], &[], 0).status == 0), "LUN {lun}");
        }
        client
    };
    let (mut same, mut other) = (log_in(1), log_in(2));
    same.write(HUNG, 0, &pattern(8, 3));
    assert_eq!(same.read(HUNG, 0, 8), pattern(8, 3));

    mount.stop();
    // So that nothing that was known a moment ago will do.
    thread::sleep(Duration::from_millis(1100));
    let mut hanging = Vec::new();
    for _ in 0..3 {
        for Sent { name, cdb, data_out, data_in, waits } in commands() {
            let begun = Instant::now();
            let token = same.submit(HUNG, &cdb, &data_out, data_in);
            if waits {
                hanging.push((name, token));
            } else {
                assert_eq!(same.wait(token).status, 0, "{name}");
                assert!(begun.elapsed() < AT_ONCE, "{name} took {:?}", begun.elapsed());
            }
            assert!(longest(&mut same, 3) < AT_ONCE, "the same session waits behind {name}");
            assert!(longest(&mut other, 3) < AT_ONCE, "another session waits behind {name}");
        }
    }
    // More reads than there are threads.
    hanging.extend((0..40).map(|block| ("READ", same.submit_read(HUNG, block, 1))));
    assert!(longest(&mut same, 50) < AT_ONCE);
    assert!(longest(&mut other, 50) < AT_ONCE);

    // Removed, and put back, while it hangs: neither stops the daemon.
    let (server, runtime) = (&server, &runtime);
    let changed = thread::scope(|scope| {
        let changing = scope.spawn(move || {
            let edit = |change: fn(&mut Config, &str), file: String| {
                let begun = Instant::now();
                let edit = |config: &mut Config| {
                    change(config, &file);
                    Ok(())
                };
                let changed = runtime
                    .block_on(server.change(edit, ChangeOptions { force: true, ..ChangeOptions::default() }));
                (changed.map(|changed| changed.generation), begun.elapsed())
            };
            let file = mount.file().display().to_string();
            let remove = |config: &mut Config, _: &str| config.targets[0].luns.retain(|lun| lun.id == 0);
            let add = |config: &mut Config, file: &str| {
                config.targets[0].luns.push(LunConfig::new(7, file.parse().unwrap()));
            };
            let changes = (edit(remove, file.clone()), edit(add, file));
            mount.go_on();
            (changes, mount)
        });
        while !changing.is_finished() {
            assert!(timed(&mut other) < AT_ONCE, "a change waits on the core");
            thread::sleep(Duration::from_millis(20));
        }
        changing.join().unwrap()
    });
    let ((removed, added), mount) = changed;
    assert_eq!(removed.0.unwrap(), 2);
    assert!(removed.1 < Duration::from_secs(30), "{:?}", removed.1);
    assert!(added.0.unwrap_err().to_string().contains("has not answered"));
    assert!(added.1 < Duration::from_secs(60), "{:?}", added.1);
    // What had begun ends when the file system answers.
    for (name, token) in hanging {
        assert_eq!(same.wait(token).status, 0, "{name}");
    }
    drop(mount);
}
