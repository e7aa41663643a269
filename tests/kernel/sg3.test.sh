# sg3-utils against a thin LUN over two nexuses: every tool that has something to ask of a disk.
. /host/tests/guest.sh

serve <<TOML
state_dir = "state"
[[target]]
name = "$IQN"
open = true
[[target.lun]]
id = 0
device = "ram:64M"
[[target.lun]]
id = 5
device = "ram:16M"
sector = 4096
TOML
initiator
log_in 2
read -r a b < <(disks | xargs)
cmp_zero() { cmp -n $(($2 * 512)) <(dd if="$1" bs=$(($2 * 512)) count=1 iflag=direct) /dev/zero; }
random() { dd if=/dev/urandom of="$a" bs=1M count=1 oflag=direct; }

say "what it is"
check "sg_inq" shows "Vendor identification: LUNWAY" sg_inq "$a"
for page in $(sg_vpd --page=sv --raw "$a" | tail -c +5 | od -An -v -tx1); do
    check "sg_vpd page $page" sg_vpd --page="0x$page" "$a"
done
check "both paths lead to the same unit" [ "$(/lib/udev/scsi_id -g -u -d "$a")" = "$(/lib/udev/scsi_id -g -u -d "$b")" ]
check "sg_readcap" shows "Last LBA=131071" sg_readcap "$a"
check "sg_readcap --16 tells thin provisioning" shows "lbpme=1, lbprz=1" sg_readcap --16 "$a"
check "sg_luns" shows "Lun list length = 16" sg_luns "$a"
check "sg_turs" sg_turs "$a"
check "sg_requests" sg_requests "$a"
check "sg_modes --all" sg_modes --all "$a"
check "sg_modes: caching" shows "Caching" sg_modes --page=8 "$a"
check "sg_wr_mode is understood" sg_modes --page=0xa --control=1 "$a"
check "sg_logs: supported pages" sg_logs "$a"
check "sg_logs --all" sg_logs --all "$a"
check "sg_opcodes" shows "Compare and write" sg_opcodes "$a"
check "sg_opcodes for one" sg_opcodes --opcode=0x28 --rctd "$a"
check "sg_rtpg" shows "target port group id : 0x1" sg_rtpg "$a"
check "sg_rtpg, extended header" sg_rtpg --extended "$a"
check "sg_senddiag: self-test" sg_senddiag --test "$a"
check "sg_prevent" eval "sg_prevent '$a' && sg_prevent --allow '$a'"
check "sg_start" sg_start --start "$a"
check "sg_raw: TEST UNIT READY" sg_raw "$a" 00 00 00 00 00 00
check "sg_raw: an unknown opcode is refused" ends_with 9 sg_raw "$a" ff 00 00 00 00 00
check "sg_rep_zones is refused as a disk without zones does" no sg_rep_zones "$a"

say "what it does with data"
must "random data" random
dd if="$a" of=/tmp/data bs=1M count=1 iflag=direct status=none
check "written over A, read over B" cmp /tmp/data <(dd if="$b" bs=1M count=1 iflag=direct)
check "sg_dd reads and writes" eval "sg_dd if='$a' of='$b' bs=512 count=256 seek=65536 blk_sgio=1 oflag=fua && cmp -n 131072 /tmp/data <(dd if='$b' bs=512 skip=65536 count=256)"
check "sg_read" sg_read if="$a" bs=512 count=64 mmap=0
check "sg_sync" sg_sync "$a"
check "sg_seek: PRE-FETCH" sg_seek --pre-fetch --lba=100 --num-blocks=8 "$a"
check "sg_seek: PRE-FETCH(10)" sg_seek --pre-fetch --10 --lba=100 --num-blocks=8 "$a"
check "sg_verify" sg_verify --lba=0 --count=128 "$a"
check "sg_verify compares" sg_verify --lba=0 --count=8 --ebytchk=1 --in=/tmp/data --ndo=4096 "$a"
check "sg_verify finds a difference" ends_with 14 sg_verify --lba=8 --count=8 --ebytchk=1 --in=/tmp/data --ndo=4096 "$a"
check "sg_write_verify" sg_write_verify --lba=64 --num=8 --in=/tmp/data --ilen=4096 "$a"
head -c 4096 /tmp/data >/tmp/swap
head -c 4096 /dev/urandom >>/tmp/swap
check "sg_compare_and_write writes where it is equal" sg_compare_and_write --in=/tmp/swap --lba=0 --num=8 --xferlen=8192 "$a"
check "its data is there" cmp <(tail -c 4096 /tmp/swap) <(dd if="$b" bs=4096 count=1 iflag=direct)
check "and does not where it is not" ends_with 14 sg_compare_and_write --in=/tmp/swap --lba=0 --num=8 --xferlen=8192 "$a"
check "sg_write_x --or" sg_write_x --or --in=/dev/zero --lba=0 --num=8 --bs=512 "$a"
head -c 512 /tmp/data >/tmp/block
check "sg_write_same" sg_write_same --16 --in=/tmp/block --lba=1024 --num=64 --xferlen=512 "$a"
check "each block is that one" cmp <(for ((n = 0; n < 64; n++)); do cat /tmp/block; done) <(blockdev --flushbufs "$b"; dd if="$b" bs=512 skip=1024 count=64)
check "sg_write_same --10" sg_write_same --10 --in=/tmp/block --lba=2048 --num=8 --xferlen=512 "$a"
check "sg_write_same without data" sg_write_same --16 --ndob --lba=0 --num=128 "$a"
check "it is zero" cmp_zero "$b" 128

say "thin provisioning"
must "random data" random
check "sg_get_lba_status: mapped" shows "mapped" sg_get_lba_status --lba=0 "$a"
check "sg_unmap" sg_unmap --force --lba=0 --num=2048 "$a"
check "it reads as zero" cmp_zero "$b" 2048
check "sg_get_lba_status: deallocated" shows "deallocated" sg_get_lba_status --lba=0 "$a"
must "random data" random
check "sg_write_same --unmap" sg_write_same --16 --unmap --lba=0 --num=1024 "$a"
check "it reads as zero" cmp_zero "$b" 1024
check "blkdiscard" blkdiscard --length 8M "$a"
check "blkdiscard --zeroout" blkdiscard --zeroout --length 1M "$a"
check "blkdiscard of the 4Kn disk" blkdiscard "$(disks 5 | head -n 1)"

say "sanitize"
for way in --overwrite\ --zero --block; do
    must "random data" random
    # shellcheck disable=SC2086 # two words
    check "sg_sanitize $way" sg_sanitize $way --quick --wait "$a"
    sg_turs "$b"
    check "nothing is left" cmp_zero "$b" 2048
done

say "resets under I/O"
load "$a"
check "LOGICAL UNIT RESET" sg_reset --device "$a"
check "I/O goes on" load_goes_on "$a"
check "TARGET RESET" sg_reset --target "$a"
check "I/O goes on" load_goes_on "$a"
check "fio verified everything" load_verified
