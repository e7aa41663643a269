//! The pages: what each takes for granted, and what of it is not run, with the reason.

/// What a page needs to be read.
pub(crate) struct Page {
    pub(crate) file: &'static str,
    /// The test that runs its commands, if that is not this one.
    pub(crate) elsewhere: &'static str,
    /// Makes what the page takes for granted.
    pub(crate) before: &'static str,
    /// What runs besides, as `net serve` does.
    pub(crate) beside: &'static str,
    /// What the daemon serves that its commands ask; empty: none runs.
    pub(crate) daemon: &'static str,
    /// Files whose text the book has: name, page, and the kind of block.
    pub(crate) files: &'static [(&'static str, &'static str, &'static str)],
    /// Parts of the lines that are not run, with the reason.
    pub(crate) left_out: &'static [(&'static str, &'static str)],
    /// Parts of the lines that end otherwise than with 0, and how.
    pub(crate) ends: &'static [(&'static str, &'static [i32])],
    /// Names that each machine has of its own, and the command that prints those of this one.
    pub(crate) names: &'static [(&'static str, &'static str)],
}

const PAGE: Page = Page {
    file: "",
    elsewhere: "",
    before: "",
    beside: "",
    daemon: "",
    files: &[],
    left_out: &[],
    ends: &[],
    names: &[],
};

/// The target of the examples, with one LUN.
const DISKS: &str = "[[target]]\nname = \"iqn.2026-11.com.example:disks\"\nopen = true\n\
                     [[target.lun]]\nid = 0\ndevice = \"ram:64M\"\n";
const DISK: &str = "truncate -s 64M disk.img; ";
/// What `doctor` finds is not what is tested here.
const VERDICTS: (&str, &[i32]) = ("lunway doctor", &[0, 3, 4, 5]);
/// The faults are those that were asked for.
const READ_FAULTS: (&str, &[i32]) = ("fault:read=0.01", &[1]);
const WRITE_FAULTS: (&str, &[i32]) = ("fault:write@1M-2M", &[1]);
const LAB: (&str, &str) = ("lab run", "takes a minute: lab.rs");

pub(crate) const PAGES: &[Page] = &[
    Page { file: "README.md", daemon: DISKS, left_out: &[LAB], ends: &[VERDICTS], ..PAGE },
    Page { file: "access.md", daemon: "[[target]]\nname = \"iqn.2026-11.com.example:scratch\"\n", ..PAGE },
    Page {
        file: "alua.md",
        daemon: concat!(
            "listen = [\"192.0.2.1\"]\n[[portal_group]]\ntag = 2\nlisten = [\"198.51.100.1\"]\n",
            "[[target]]\nname = \"iqn.2026-11.com.example:disks\"\nopen = true\n",
            "[[target.lun]]\nid = 0\ndevice = \"ram:64M\"\n"
        ),
        ..PAGE
    },
    Page {
        file: "attach.md",
        before: "lunway disk create disk.vhdx --size 64M; mkdir /mnt/disk",
        daemon: DISKS,
        left_out: &[("--fuse", "needs the machine's /dev/fuse: fuse.rs")],
        ..PAGE
    },
    Page {
        file: "backup.md",
        before: "mkdir /mnt/share; truncate -s 64M disk.img /srv/db.img; \
                 mkfs.ext4 -q disk.img; lunway disk create server.vhdx --from disk.img",
        daemon: concat!(
            "[[target]]\nname = \"iqn.2026-11.com.example:disks\"\nopen = true\n",
            "[[target]]\nname = \"iqn.2026-11.com.example:db\"\nopen = true\n",
            "[[target.lun]]\nid = 0\ndevice = \"ram:64M\"\n[[target.lun]]\nid = 1\ndevice = \"ram:64M\"\n"
        ),
        left_out: &[
            ("/dev/sdb", "a disk of the reader's"),
            ("schedule run", "the daemon of this page has no [[backup]]: scheduled_backup.rs"),
            ("nbd+unix:///vm", "a disk that QEMU uses: exports.rs"),
            ("--fuse", "needs the machine's /dev/fuse: backup_mount"),
            ("--files", "needs the machine's /dev/fuse: backup_mount"),
        ],
        names: &[
            ("3f2a91c07be4", "lunway snapshot list --json | jq -r '.snapshots[0].snapshot.name'"),
            ("a05c", "lunway backup list /mnt/share/server1 --json | jq -r '.[-1].point'"),
        ],
        ..PAGE
    },
    Page {
        file: "repository.md",
        left_out: &[("s3://", "needs an object store: object_store.rs")],
        before: "mkdir /mnt/share; truncate -s 64M disk.img; mkfs.ext4 -q disk.img; \
                 lunway disk create server1.vhdx --from disk.img; lunway disk create server2.vhdx --from disk.img",
        names: &[
            (
                "lunway-recipient-43784cd35d90005146e94dc877f59a08798bec0506ec7afdd4bb9e1999b0b518",
                "lunway backup key show ann.key",
            ),
            (
                "lunway-recipient-9cedcd4f47e3e1a9a90c6ce58a906a90a4a807e9c507b89770dc1c7cad145b5a",
                "lunway backup key show ben.key",
            ),
        ],
        ..PAGE
    },
    Page {
        file: "bench.md",
        before: DISK,
        daemon: DISKS,
        files: &[("oltp.fio", "jobs.md", "ini")],
        ends: &[("--job", &[0])],
        ..PAGE
    },
    Page { file: "ceph.md", elsewhere: "by hand: it needs a cluster of Ceph", ..PAGE },
    Page {
        file: "clients.md",
        daemon: DISKS,
        left_out: &[(
            "--chap alice:",
            "optional on the page, and the commands at its end are without: manage.md has it",
        )],
        ..PAGE
    },
    Page {
        file: "compare.md",
        before: "truncate -s 64M a.img b.img c.img old.img new.img",
        daemon: DISKS,
        files: &[("mail.fio", "jobs.md", "ini")],
        ..PAGE
    },
    Page {
        file: "configuration.md",
        before: "for name in host-1 disks; do (umask 077; openssl rand -base64 12 > /etc/lunway/$name.secret); done",
        files: &[("lunway.toml", "configuration.md", "toml")],
        ..PAGE
    },
    Page {
        file: "copy.md",
        before: "truncate -s 64M disk.img source.img; mkfs.ext4 -q disk.img; mkfs.ext4 -q source.img; \
                 lunway disk create server.vhdx --from source.img",
        daemon: DISKS,
        left_out: &[("/dev/disk/by-id", "a disk of the reader's")],
        ..PAGE
    },
    Page {
        file: "devices.md",
        before: "truncate -s 64M disk.img; lunway disk create disk.vhdx --size 64M; \
                 qemu-img create -q -f qcow2 vm.qcow2 64M; qemu-img create -q -f vdi vm.vdi 64M",
        daemon: DISKS,
        left_out: &[("nbd", "exports of QEMU: exports.rs")],
        ends: &[("vm.vdi", &[1]), READ_FAULTS, WRITE_FAULTS],
        ..PAGE
    },
    Page {
        file: "disk.md",
        before: "truncate -s 64M trimmed.img; mkfs.ext4 -q trimmed.img; lunway disk create lun.vhdx --size 64M; \
                 qemu-img create -q -f qcow2 vm.qcow2 64M; qemu-img create -q -f vpc old.vhd 64M; \
                 lunway disk create disk.vhdx --size 64M; mv trimmed.img lun.vhdx /srv",
        daemon: concat!(
            "[[target]]\nname = \"iqn.2026-11.com.example:disks\"\nopen = true\n",
            "[[target.lun]]\nid = 0\ndevice = \"/srv/trimmed.img\"\n",
            "[[target.lun]]\nid = 5\ndevice = \"/srv/lun.vhdx\"\n"
        ),
        left_out: &[("--freeze", "a guest of the reader's: compaction.rs")],
        ..PAGE
    },
    Page {
        file: "doctor.md",
        daemon: DISKS,
        left_out: &[("windows.json", "facts of a Windows machine")],
        ends: &[("--facts", &[0]), VERDICTS],
        ..PAGE
    },
    Page { file: "experiments.md", left_out: &[LAB], ..PAGE },
    Page { file: "failover.md", daemon: DISKS, left_out: &[LAB], ..PAGE },
    Page { file: "install.md", elsewhere: "tests/kernel/units.test.sh", ..PAGE },
    Page { file: "isolation.md", daemon: DISKS, ..PAGE },
    Page {
        file: "jobs.md",
        before: DISK,
        daemon: DISKS,
        files: &[("oltp.fio", "jobs.md", "ini"), ("nightly.fio", "jobs.md", "ini")],
        ..PAGE
    },
    Page { file: "lab.md", left_out: &[("lab run control", "takes a minute: lab.rs")], ..PAGE },
    Page {
        file: "limits.md",
        daemon: concat!(
            "[[target]]\nname = \"iqn.2026-11.com.example:disks\"\nopen = true\n",
            "[[target.lun]]\nid = 3\ndevice = \"ram:64M\"\n"
        ),
        ..PAGE
    },
    Page {
        file: "manage.md",
        before: "truncate -s 64M other.img; mkdir -p /srv/lunway; lunway disk create /srv/lunway/db.vhdx --size 64M; \
                 truncate -s 64M /srv/disk.img; \
                 (umask 077; openssl rand -hex 32 > /etc/lunway/api.token); ln -s /etc/lunway/api.token api.token",
        daemon: concat!(
            "listen = [\"192.0.2.10\"]\n",
            "[api]\nsocket = \"/run/lunway/lunway.sock\"\nlisten = \"192.0.2.10:3290\"\n",
            "token_file = \"/etc/lunway/api.token\"\n",
            "[[target]]\nname = \"iqn.2026-11.com.example:disks\"\nopen = true\n",
            "[[target.lun]]\nid = 0\ndevice = \"ram:64M\"\n",
            "[[target.lun]]\nid = 5\ndevice = \"/srv/lunway/db.vhdx\"\n"
        ),
        left_out: &[("lab.sock", "another daemon: manage.rs")],
        names: &[(
            "5ad28a1ae1b10d1b",
            "lunway lun list iqn.2026-11.com.example:disks --json | jq -r '.luns[] | select(.config.id == 5) | .status.serial'",
        )],
        ..PAGE
    },
    Page { file: "metrics.md", daemon: DISKS, ..PAGE },
    Page {
        file: "multipath.md",
        // Nobody asks for a secret here.
        before: "sed -i -e '/^user/d' -e '/^secret_file/d' san/paths.toml",
        daemon: DISKS,
        files: &[("san/paths.toml", "multipath.md", "toml")],
        left_out: &[("com.array:node-a", "an array with a name for each node: against_targets")],
        ..PAGE
    },
    Page { file: "net.md", ..PAGE },
    Page {
        file: "policies.md",
        daemon: concat!(
            "listen = [\"0.0.0.0:3260\", \"127.0.0.1:3261\"]\n",
            "[[target]]\nname = \"iqn.2026-11.com.example:disks\"\nopen = true\n",
            "[[target.lun]]\nid = 0\ndevice = \"ram:64M\"\n"
        ),
        ..PAGE
    },
    Page {
        file: "portals.md",
        daemon: "listen = [\"192.0.2.10\"]\n[[target]]\nname = \"iqn.2026-11.com.example:disks\"\nopen = true\n",
        ..PAGE
    },
    Page {
        file: "profiles.md",
        before: DISK,
        daemon: DISKS,
        left_out: &[("/dev/sdX", "a disk of the reader's"), ("/dev/nvme0n1", "a disk of the reader's")],
        ..PAGE
    },
    Page {
        file: "report.md",
        before: "truncate -s 64M disk.img a.img b.img old.img new.img; \
                 lunway bench ram:4M --rw read --time 30ms --json-file fio.json; \
                 lunway bench ram:4M --rw read --time 30ms --html-file after.html",
        beside: "lunway net serve --listen 192.0.2.10",
        left_out: &[LAB],
        ..PAGE
    },
    Page {
        file: "reservations.md",
        daemon: concat!(
            "[[target]]\nname = \"iqn.2026-11.com.example:disks\"\nopen = true\n",
            "[[target.lun]]\nid = 3\ndevice = \"ram:64M\"\n"
        ),
        ..PAGE
    },
    Page { file: "serve.md", ..PAGE },
    Page {
        file: "track.md",
        before: "truncate -s 64M db.img",
        daemon: "[[target]]\nname = \"iqn.2026-11.com.example:disks\"\nopen = true\n",
        names: &[(
            "9d1c2f0b6a7e4c5f8e3b2a1d0c9f8e7d",
            "lunway lun epoch list iqn.2026-11.com.example:disks 6 --json | jq -r '.epochs[-1].epoch'",
        )],
        ..PAGE
    },
    Page { file: "vhdx.md", before: "lunway disk create server.vhdx --size 100M", ..PAGE },
];
