//! Quotas of the user and the group that a LUN's file belongs to, on an XFS that keeps them.

use std::process::{Child, Stdio};

use crate::ended::Disk;
use crate::support::{PATIENCE, finish, lunway, until};
use crate::{doctor, findings, verdicts};

/// A daemon in the namespace of a disk.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_quota_of_a_files_owner_that_is_nearly_used_up_is_told_and_a_larger_one_turns_the_verdict() {
    for program in ["mkfs.xfs", "xfs_quota"] {
        if lunway_foreign::program(program).is_none() {
            return;
        }
    }
    let Some(disk) = Disk::new("xfs", "-o uquota,gquota") else {
        return lunway_foreign::machine_lacks("loop devices with xfs for root");
    };
    let made = disk.run(
        "dd if=/dev/zero of=$mnt/disk.img bs=1M count=16 2>&1; chown 4242:4343 $mnt/disk.img; sync -f $mnt",
    );
    assert!(made.status.success(), "{made:?}");
    let (file, socket) = (disk.point().join("disk.img"), disk.folder().join("own.sock"));
    let (lun, socket) = (format!("0={}", file.display()), socket.to_str().unwrap());
    let own = lunway(&["serve", "--listen", "127.0.0.1:0", "--lun", &lun, "--socket", socket]);
    let mut command = disk.entered(&own);
    let daemon = Daemon(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    until(|| std::path::Path::new(socket).exists());
    let verdict = || {
        let own = doctor(&["--socket", socket, "--all"], disk.folder());
        verdicts(&findings(&finish(disk.entered(&own), PATIENCE)), "store-owner-quota")
    };
    assert_eq!(verdict(), ["ok"], "without a limit");
    for (limit, expected) in [
        ("-u bhard=100m 4242", "ok"),
        ("-u bhard=18m 4242", "warn"),
        ("-u bhard=0 bsoft=17m 4242", "warn"),
        // The fix, and then the group's.
        ("-u bhard=100m bsoft=0 4242", "ok"),
        ("-g bhard=16500k 4343", "bad"),
        ("-g bhard=100m 4343", "ok"),
    ] {
        let set = disk.run(&format!("xfs_quota -x -c 'limit {limit}' $mnt"));
        assert!(set.status.success(), "{set:?}");
        assert_eq!(verdict(), [expected], "{limit}");
    }
    drop(daemon);
}
