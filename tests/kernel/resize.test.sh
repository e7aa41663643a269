# A LUN that grows and shrinks while it is mounted: the target says so, the kernel, the map and the file system follow.
. /host/tests/guest.sh

serve <<TOML
[api]
socket = "lunway.sock"
[[target]]
name = "$IQN"
open = true
[[target.lun]]
id = 0
device = "ram:64M"
TOML
initiator
log_in 1
multipath_up 2 "path_grouping_policy multibus"
modprobe ext4
read -r first second < <(disks | xargs)

size_is() { [[ $(blockdev --getsize64 "$1") == $(($2 << 20)) ]]; }
changes() { dmesg | grep -c "Capacity data has changed"; }
follow() { # what udev and multipathd do where systemd runs; the guest has only the kernel's part
    local disk
    for disk in "$first" "$second"; do echo 1 >"/sys/block/${disk#/dev/}/device/rescan"; done
    multipathd resize map "$(map_name)"
}
resize() { host lunway lun resize "$IQN" 0 "$@" --socket lunway.sock; }

must "mkfs.ext4" mkfs.ext4 -q "$map"
must "mount" mount "$map" /mnt
must "write" dd if=/dev/urandom of=/mnt/data bs=1M count=16 conv=fsync
sum=$(sha256sum </mnt/data)
must "the LUN grows under I/O" resize 160M
sg_turs "$first" && sg_turs "$second"
check "both sessions are told" within 20 eval '[ "$(changes)" -ge 2 ]'
must "rescan" follow
for device in "$first" "$second" "$map"; do check "$device has 160 MiB" within 10 size_is "$device" 160; done
must "resize2fs" resize2fs "$map"
must "write behind the old end" dd if=/dev/urandom of=/mnt/more bs=1M count=80 conv=fsync
check "the data is what was written" [ "$(sha256sum </mnt/data)" = "$sum" ]
must "unmount" umount /mnt
check "e2fsck" e2fsck -f -n "$map"
check "the file system is not cut without its word" no resize 32M --shrink
must "the LUN shrinks" resize 32M --shrink --force
must "rescan" follow
for device in "$first" "$second"; do check "$device has 32 MiB" within 10 size_is "$device" 32; done
check "behind the new end is nothing" no sg_dd if="$first" of=/dev/null bs=512 skip=65536 count=8 blk_sgio=1
