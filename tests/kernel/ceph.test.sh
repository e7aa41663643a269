# A LUN that lies on Ceph: fio, with the LUN's client fenced in the middle of it; ext4, and what fstrim gives back to Ceph.
. /host/tests/guest.sh

must "the host has a cluster with an image" host ceph 512M
serve <<TOML
[api]
socket = "lunway.sock"
[[target]]
name = "$IQN"
open = true
[[target.lun]]
id = 0
device = "rbd:rbd/disk?conf=ceph/ceph.conf"
TOML
# Longer than it takes to open the image with a new client.
initiator "node.session.timeo.replacement_timeout=120"
log_in 1
disk=$(disks | head -n 1)
check "fio verifies" verify "$disk" 10

load "$disk"
check "the cluster fences the client" host fence
check "I/O goes on" within 60 load_goes_on "$disk"
check "fio verified everything, over the old client and the new one" load_verified
check "the LUN has no fault" no shows "fenced" host lunway "lun list $IQN --socket lunway.sock"

modprobe ext4
must "blkdiscard" blkdiscard -f "$disk"
must "mkfs.ext4" mkfs.ext4 -q "$disk"
must "mount" mount "$disk" /mnt
must "write 32 MiB" dd if=/dev/urandom of=/mnt/data bs=1M count=32 conv=fsync
must "write what stays" dd if=/dev/urandom of=/mnt/stays bs=1M count=4 conv=fsync
sum=$(sha256sum /mnt/data /mnt/stays)
must "unmount" umount /mnt
check "e2fsck" e2fsck -f -n "$disk"
blockdev --flushbufs "$disk"
echo 3 >/proc/sys/vm/drop_caches
must "mount again" mount "$disk" /mnt
check "the data is what was written" [ "$(sha256sum /mnt/data /mnt/stays)" = "$sum" ]
used() { host rbd diff disk | awk '{ bytes += $2 } END { print int(bytes / 1048576) }'; } # MiB that the image occupies
full=$(used)
rm /mnt/data
sync
check "fstrim" fstrim -v /mnt
empty=$(used)
check "Ceph has back what was deleted: $full MiB, then $empty" [ $((full - empty)) -ge 30 ]
echo 3 >/proc/sys/vm/drop_caches
check "the rest is what was written" [ "$(sha256sum /mnt/stays)" = "$(grep stays <<<"$sum")" ]
must "unmount at the end" umount /mnt
check "e2fsck after fstrim" e2fsck -f -n "$disk"

# What another client of the cluster makes of the image's size is told to sessions that do nothing, by their next command.
must "the image grows" host rbd resize --no-progress --size 640M disk
told() {
    local one
    for one in $(disks); do dd if="$one" of=/dev/null bs=4096 count=1 iflag=direct; done
    [[ $(dmesg | grep -c "Capacity data has changed") == 2 ]]
}
check "both sessions are told" within 20 told
