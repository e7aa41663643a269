# `lun compact` under fio that verifies what it wrote, with a daemon that is killed while blocks move. KERNEL_KILLS says
# how often (script/test-kernel).
. /host/tests/guest.sh

must "a disk is made" host lunway disk create compact.vhdx --size 256M --block-size 1M
serve <<TOML
[api]
socket = "lunway.sock"
[[target]]
name = "$IQN"
open = true
[[target.lun]]
id = 0
device = "compact.vhdx"
TOML
# The kernel waits for a daemon that comes again, and sends what was under way once more.
initiator node.session.timeo.replacement_timeout=60
must "SendTargets answers" iscsiadm -m discovery -t sendtargets -p "$PORTAL_1"
must "login" iscsiadm -m node -p "$PORTAL_1" --login
must "the disk is there" within 20 disks_are 1
disk=$(readlink -f "/dev/disk/by-path/ip-$PORTAL_1-iscsi-$IQN-lun-0")

compact() { host lunway lun compact "$IQN" 0 --socket lunway.sock "$@"; }
length() { stat -c %s /host/compact.vhdx; }
# Blocks that will not be needed lie in front of those that fio writes: 40 MiB of holes once they are discarded.
dead=(-o $((64 << 20)) -l $((40 << 20)))
begin_round() {
    must "the disk is emptied" blkdiscard -f "$disk"
    must "what will be dead is written" dd if=/dev/urandom of="$disk" bs=1M seek=64 count=40 oflag=direct
    rm -f /tmp/enough
    # Each write is durable when it is acknowledged: one that a kill has met is sent again whole.
    { until [[ -e /tmp/enough ]]; do verify "$disk" 3 --sync=dsync || exit; done; } >/tmp/load 2>&1 &
    load=$!
    must "I/O runs" load_goes_on "$disk"
    must "the rest is discarded" blkdiscard -f "${dead[@]}" "$disk"
    full=$(length)
}

cut=0
for ((kill = 1; kill <= KILLS; kill++)); do
    begin_round
    must "blocks begin to move" compact --rate 64M --background
    sleep "0.$((RANDOM % 10))$((RANDOM % 10))"
    must "the daemon is killed, $kill of $KILLS" host kill
    (($(length) == full)) || cut=$((cut + 1))
    must "it serves again" host start
    must "I/O goes on" load_goes_on "$disk"
    must "everything that was acknowledged is there" load_verified
done
say "of $KILLS kills $cut came when the file had been cut"
begin_round
check "a compaction that is not interrupted ends" shows "done" compact --rate 1G
check "the file is shorter by most of what was dead" [ $((full - $(length))) -gt $((32 << 20)) ]
check "everything that was acknowledged is there" load_verified
iscsiadm -m node --logout >/dev/null
must "the daemon ends" host terminate
check "the file is sound" host lunway disk check compact.vhdx
