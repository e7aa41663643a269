# The kernel's own target, LIO, with two portal groups of different access states, and lunway on the host as its initiator over
# both: it takes the optimized lane, follows when the states change, and survives the loss of a portal in mid-write.
. /host/tests/guest.sh

modprobe -a configfs target_core_mod target_core_file iscsi_target_mod
mountpoint -q /sys/kernel/config || mount -t configfs config /sys/kernel/config
target=/sys/kernel/config/target
disk=$target/core/fileio_0/disk
mkdir -p /etc/target/{pr,alua} /var/target/{pr,alua} "$disk" "$target/iscsi/$IQN"
truncate -s 64M /tmp/disk.img
echo "fd_dev_name=/tmp/disk.img,fd_dev_size=$((64 << 20)),fd_buffered_io=1" >"$disk/control"
echo a11ce000-0000-4000-8000-000000000001 >"$disk/wwn/vpd_unit_serial"
echo 1 >"$disk/enable"
for group in 1 2; do
    portals=$target/iscsi/$IQN/tpgt_$group
    mkdir -p "$disk/alua/group$group" "$portals/np/10.0.$((group + 1)).15:3260" "$portals/lun/lun_0"
    echo "$group" >"$disk/alua/group$group/tg_pt_gp_id"
    ln -s "$disk" "$portals/lun/lun_0/disk"
    echo "group$group" >"$portals/lun/lun_0/alua_tg_pt_gp"
    echo 0 >"$portals/attrib/authentication"
    echo 0 >"$portals/attrib/demo_mode_write_protect"
    echo 1 >"$portals/attrib/generate_node_acls"
    echo 1 >"$portals/enable"
done

# SPC-4's numbers: 0 active/optimized, 1 active/non-optimized, 2 standby.
state() { echo "$2" >"$disk/alua/group$1/alua_access_state"; }
state 1 0
state 2 1
device="iscsi://$GUEST_1/$IQN/0?lane=127.0.0.3>$GUEST_1&lane=127.0.0.4>$GUEST_2"

# What the guest has received over a card, bytes.
carried() { cat "/sys/class/net/eth$1/statistics/rx_bytes"; }
only_over() { # CARD, OTHER CARD: writes of the host come over the one and not over the other
    local one other
    one=$(carried "$1") other=$(carried "$2")
    host lunway bench "$device" --destroy --rw randwrite --bs 64K --qd 4 --time 2s --verify || return
    one=$(($(carried "$1") - one)) other=$(($(carried "$2") - other))
    echo "$one and $other bytes"
    ((one > 10 * other && one > 1000000))
}
states_are() { # OF THE FIRST LANE, OF THE SECOND
    local seen
    seen=$(host lunway paths "$device" --json)
    echo "$seen"
    [[ $(grep -oE '"access": ?"[a-z-]+"' <<<"$seen" | cut -d'"' -f4 | xargs) == "$1 $2" ]]
}
# Takes a portal group out of service, which ends its sessions and refuses new ones, and back.
in_service() { echo "$2" >"$target/iscsi/$IQN/tpgt_$1/enable"; }

must "lunway reads both states" states_are optimized non-optimized
check "I/O takes the optimized lane" only_over 0 1
must "the states are turned round" eval "state 1 1 && state 2 0"
check "I/O takes the other lane" only_over 1 0

must "a long run begins" host begin bench "$device" --destroy --rw randrw --bs 16K --qd 8 --time $((20 * PATIENCE))s --verify --json-file long.json
sleep 3
before=$(carried 0)
must "the states are turned back under load" eval "state 2 1 && state 1 0"
check "I/O follows" within 10 eval '(($(carried 0) > before + 1000000))'
must "the first portal group goes out of service" in_service 1 0
before=$(carried 1)
check "I/O goes on over the other" within 10 eval '(($(carried 1) > before + 1000000))'
must "it is put back into service" in_service 1 1
before=$(carried 0)
check "I/O comes back to it" within 15 eval '(($(carried 0) > before + 1000000))'
check "no I/O failed, and everything that was written was read back" host finish
cat /tmp/said

# Put back what this test made in the kernel.
for group in 1 2; do
    portals=$target/iscsi/$IQN/tpgt_$group
    echo 0 >"$portals/enable"
    rm "$portals/lun/lun_0/disk"
    rmdir "$portals/lun/lun_0" "$portals/np/"* "$portals"
done
rmdir "$target/iscsi/$IQN" "$disk/alua/group"* "$disk"
