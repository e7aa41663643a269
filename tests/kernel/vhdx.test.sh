# A VHDX file as a LUN: ext4 on it, what fstrim gives back to the host, and a daemon that is killed under verified
# writes: of what it has acknowledged with FUA nothing is lost. KERNEL_KILLS says how often (script/test-kernel).
. /host/tests/guest.sh

must "a disk is made" host lunway disk create disk.vhdx --size $((TRIM_MIB + 224))M --block-size 1M
serve <<TOML
[[target]]
name = "$IQN"
open = true
[[target.lun]]
id = 0
device = "disk.vhdx"
TOML
# The kernel waits for a daemon that comes again, and sends what was under way once more.
initiator node.session.timeo.replacement_timeout=60
must "SendTargets answers" iscsiadm -m discovery -t sendtargets -p "$PORTAL_1"
must "login" iscsiadm -m node -p "$PORTAL_1" --login
must "the disk is there" within 20 disks_are 1
disk=$(readlink -f "/dev/disk/by-path/ip-$PORTAL_1-iscsi-$IQN-lun-0")
modprobe ext4

allocated() { echo $(($(stat -c %b /host/disk.vhdx) / 2)); } # KiB of the host
must "mkfs.ext4" mkfs.ext4 -q "$disk"
must "mount" mount "$disk" /mnt
must "write $TRIM_MIB MiB" dd if=/dev/urandom of=/mnt/data bs=1M count="$TRIM_MIB" conv=fsync
must "write what stays" dd if=/dev/urandom of=/mnt/stays bs=1M count=4 conv=fsync
sum=$(sha256sum </mnt/stays)
full=$(allocated)
check "the host has allocated what was written" [ "$full" -ge $(((TRIM_MIB + 4) << 10)) ]
rm /mnt/data
sync
must "fstrim" fstrim /mnt
back() { echo $((full - $(allocated))); }
has_shrunk() { say "$(back) KiB of $TRIM_MIB MiB are back" && [ "$(back)" -ge $((TRIM_MIB * 1024 * 95 / 100)) ]; }
check "the host has back 95 % of what was deleted within a second" within 1 has_shrunk
say "$(back) KiB of $TRIM_MIB MiB are back"
echo 3 >/proc/sys/vm/drop_caches
check "the rest is what was written" [ "$(sha256sum </mnt/stays)" = "$sum" ]
must "unmount" umount /mnt
check "e2fsck" e2fsck -f -n "$disk"

# Each write is durable when it is acknowledged: one that a kill has met is sent again whole. Each round begins with an
# empty disk, so that blocks are allocated again.
check "writes are sent with FUA" [ "$(cat "/sys/block/${disk#/dev/}/queue/fua")" = 1 ]
rm -f /tmp/enough
{ until [[ -e /tmp/enough ]]; do blkdiscard -f "$disk" && verify "$disk" 3 --sync=dsync --size=240M || exit; done; } >/tmp/load 2>&1 &
load=$!
for ((kill = 1; kill <= KILLS; kill++)); do
    must "I/O runs" load_goes_on "$disk"
    sleep "$((RANDOM % 2)).$((RANDOM % 10))"
    must "the daemon is killed, $kill of $KILLS" host kill
    must "it serves again" host start
done
must "I/O runs" load_goes_on "$disk"
check "everything that was acknowledged is there" load_verified
iscsiadm -m node --logout >/dev/null
must "the daemon ends" host terminate
check "the file is sound" host lunway disk check disk.vhdx
