# ext4 and XFS over two cards: made, written, checked, read back after caches are gone, trimmed.
. /host/tests/guest.sh

serve <<TOML
[[target]]
name = "$IQN"
open = true
[[target.lun]]
id = 0
device = "ram:400M"
TOML
initiator
log_in 1
multipath_up 2 "path_grouping_policy multibus" 'path_selector "round-robin 0"'

forget() { # every cache of what is on the disk
    local device
    for device in "$map" $(disks); do blockdev --flushbufs "$device"; done
    echo 3 >/proc/sys/vm/drop_caches
}
trims() { (($(fstrim -v /mnt | sed -E 's/.*\(([0-9]+) bytes.*/\1/') > 32 << 20)); }
round() { # FILE SYSTEM, ITS CHECK...
    local kind=$1 sum
    modprobe "$kind"
    must "blkdiscard" blkdiscard -f "$map"
    must "mkfs.$kind" "mkfs.$kind" -q "$map"
    must "mount $kind" mount "$map" /mnt
    must "write 32 MiB" dd if=/dev/urandom of=/mnt/data bs=1M count=32 conv=fsync
    sum=$(sha256sum </mnt/data)
    mkdir /mnt/many
    for file in {1..50}; do echo "file $file" >"/mnt/many/$file"; done
    must "unmount" umount /mnt
    check "${*:2}" "${@:2}" "$map"
    forget
    must "mount $kind again" mount "$map" /mnt
    check "the data is what was written" [ "$(sha256sum </mnt/data)" = "$sum" ]
    check "the small files, too" [ "$(cat /mnt/many/* | sha256sum)" = "$(for file in /mnt/many/*; do echo "file ${file##*/}"; done | sha256sum)" ]
    rm /mnt/data
    sync
    check "fstrim gives back more than that file" trims
    check "the rest is still there" [ "$(cat /mnt/many/* | wc -l)" = 50 ]
    must "unmount again" umount /mnt
    check "${*:2} after fstrim" "${@:2}" "$map"
}
round ext4 e2fsck -f -n
round xfs xfs_repair -n
for disk in $(disks); do check "I/O went over $disk" [ "$(completed "$disk")" -gt 100 ]; done
check "the kernel logged no error" no_errors_in_the_log
