# EXTENDED COPY: the target copies from one of its LUNs to another, asked by sg_xcopy and ddpt.
. /host/tests/guest.sh

serve <<TOML
[[target]]
name = "$IQN"
open = true
[[target.lun]]
id = 0
device = "ram:16M"
[[target.lun]]
id = 1
device = "ram:16M"
TOML
initiator
log_in 2
from=$(disks 0 | head -n 1)
to=$(disks 1 | head -n 1)
head -c 4M /dev/urandom >/tmp/data

place() { # fresh data in the one, nothing in the other
    blkdiscard "$from" && blkdiscard "$to" && dd if=/tmp/data of="$from" bs=1M oflag=direct
}
arrived() { # AT BLOCK, FROM BLOCK, BLOCKS
    blockdev --flushbufs "$to"
    cmp <(dd if="$to" bs=512 skip="$1" count="$3") <(dd if=/tmp/data bs=512 skip="$2" count="$3")
}
must "place data" place
check "sg_xcopy copies all of it" sg_xcopy if="$from" of="$to" bs=512 count=8192
check "it arrived" arrived 0 0 8192
check "sg_xcopy copies within one LUN" sg_xcopy if="$to" of="$to" bs=512 skip=0 seek=16384 count=2048
check "it arrived" arrived 16384 0 2048
check "RECEIVE COPY RESULTS tells what is possible" shows "Receive copy results .*operating parameters" sg_copy_results --params "$from"
must "place data" place
check "ddpt copies a part" ddpt if="$from" iflag=xcopy of="$to" bs=512 skip=1000 seek=77 count=3000
check "it arrived" arrived 77 1000 3000
check "nothing else did" cmp -n $((77 * 512)) "$to" /dev/zero
check "a copy past the end is refused" no sg_xcopy if="$from" of="$to" bs=512 seek=32000 count=2048
