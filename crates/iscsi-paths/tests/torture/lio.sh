#!/bin/bash
# Process 1 of a Linux kernel that is a process (User Mode Linux): LIO with one LUN, which is either of two disks, and a
# portal for each lane. Its root is the host's, read only; the disks are files of the host's in $TORTURE_FOLDER, and what
# was written and not flushed is in this kernel's page cache, which its death empties.
#
# Says where it serves, then does what comes as lines: `disk` and `other` put that disk under the number, `disable` and
# `enable` are about the portal group.
set -e
stty raw -echo
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs run /run
mount -t tmpfs var /var
# LIO keeps registrations (APTPL) in the last two, and refuses them without.
mkdir -p /run/lib /run/disks /var/target/pr /var/target/alua
ln -s /usr/lib/uml/modules /run/lib/modules
modprobe -d /run -a configfs target_core_mod target_core_file iscsi_target_mod 2>/dev/null
mount -t configfs config /sys/kernel/config
mount -t hostfs disks /run/disks -o "$TORTURE_FOLDER"
cat /dev/kmsg >>/run/disks/kernel.log &
ip link set lo up
ip address add "$TORTURE_ADDRESS/30" dev vec0
ip link set vec0 up

target=/sys/kernel/config/target
group=$target/iscsi/$TORTURE_NAME/tpgt_1
number=0
for disk in disk other; do
    # An array's disks differ by their serial numbers, in those of their digits that are part of the name (NAA), too.
    store=$target/core/fileio_$number/$disk
    mkdir -p "$store"
    echo "fd_dev_name=/run/disks/$disk,fd_dev_size=$(stat -c %s "/run/disks/$disk"),fd_buffered_io=1" >"$store/control"
    echo "7027100$number-0000-4000-8000-000000000000" >"$store/wwn/vpd_unit_serial"
    echo 1 >"$store/enable"
    number=$((number + 1))
done
mkdir -p "$group/lun/lun_0"
# Whoever comes may write, and keeps its registrations while it has no session.
echo 0 >"$group/attrib/authentication"
echo 0 >"$group/attrib/demo_mode_write_protect"
echo 1 >"$group/attrib/generate_node_acls"
echo 1 >"$group/attrib/cache_dynamic_acls"
# A login that does not come on holds up its portal and no other.
for ((port = TORTURE_PORT; port < TORTURE_PORT + TORTURE_LANES; port++)); do
    mkdir "$group/np/$TORTURE_ADDRESS:$port"
done
served=
serve() { # DISK
    if [[ -n $served ]]; then
        rm "$group/lun/lun_0/store"
        sync "/run/disks/$served"
        # Whoever is logged in is not told of another disk under the same number (there is a unit attention for the other
        # numbers alone), but sees that there is none, for as long as a person takes to put another one there: longer
        # than the lanes of a session may all be silent (1.2 s in a black hole), else nobody could see it.
        sleep 3
    fi
    ln -s "$target/core/"fileio_*/"$1" "$group/lun/lun_0/store"
    served=$1
}
serve "$TORTURE_DISK"
echo 1 >"$group/enable"
echo "serving at $TORTURE_ADDRESS:$TORTURE_PORT"
while read -r what; do
    case $what in
    # It is an error where it is so already, after a power cut in between.
    disable) echo 0 >"$group/enable" || true ;;
    enable) echo 1 >"$group/enable" || true ;;
    *) serve "$what" ;;
    esac
    echo "done"
done
# Whoever started it has ended.
poweroff -f || echo o >/proc/sysrq-trigger
