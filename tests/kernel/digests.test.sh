# Header and data digests, and data that comes back as it was written.
. /host/tests/guest.sh

serve <<TOML
[[target]]
name = "$IQN"
open = true
[[target.lun]]
id = 0
device = "ram:64M"
TOML
initiator "node.conn[0].iscsi.HeaderDigest=CRC32C" "node.conn[0].iscsi.DataDigest=CRC32C"
log_in 1
check "header digests are on" sessions_show HeaderDigest CRC32C
check "data digests are on" sessions_show DataDigest CRC32C
disk=$(disks | head -n 1)
check "fio verifies with digests" verify "$disk" 10
check "reads of many sizes verify" fio --name=sizes --filename="$disk" --direct=1 --rw=write --bsrange=512-1M --bs_unaligned=0 --size=16M \
    --verify=crc32c --verify_fatal=1 --ioengine=libaio --iodepth=4 --eta=never
check "the kernel logged no error" no_errors_in_the_log
