# shellcheck shell=bash
# The words that tests in the guest are written in. Sourced by each of them.
#
# A test says with `serve` what the host's lunway serves, logs in with `log_in`, and then `check`s sentences; `must` is for
# those without which there is no point in going on. Its status is 0 if all of them were true. Everything is put back
# when it ends, so that the next one finds a fresh guest.
# shellcheck source=/dev/null
. /host/environment
IQN=iqn.2026-11.com.example:disks
failures=0 served=0

say() { printf '[%7.2f] %s\n' "$(cut -d' ' -f1 /proc/uptime)" "$*"; }
check() { # SENTENCE COMMAND...
    local sentence=$1
    shift
    if "$@" >/tmp/said 2>&1; then
        say "ok   $sentence"
    else
        say "FAIL $sentence (status $?: $*)"
        tail -n 15 /tmp/said | sed 's/^/    /'
        failures=$((failures + 1))
        return 1
    fi
}
must() { check "$@" || exit 1; }
no() { ! "$@"; }
# The command ends with that status: sg3-utils tell sense keys by it.
ends_with() { # STATUS COMMAND...
    local status=0
    "${@:2}" || status=$?
    [[ $status == "$1" ]]
}
# The command succeeds and prints a line that matches.
shows() { # PATTERN COMMAND...
    local said
    said=$("${@:2}" 2>&1) && grep -E -- "$1" <<<"$said" || { echo "$said" && return 1; }
}
# Runs a command until it succeeds.
within() { # SECONDS COMMAND...
    local end=$((SECONDS + $1 * PATIENCE))
    shift
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || { "$@"; return; }
        sleep 0.3
    done
}

# Has the host do something (the verbs are in script/test-kernel); prints what it said.
host() {
    local status
    echo "$*" >&3
    read -r status <&3
    cat /host/answer
    return "$status"
}
# (Re)starts lunway with this configuration. Without a `listen` of its own it listens on both portals.
serve() { # <TOML
    local toml
    toml=$(cat)
    [[ $toml == listen* ]] || toml="listen = [\"$PORTAL_1\", \"$PORTAL_2\"]"$'\n'"$toml"
    echo "$toml" >/host/lunway.toml
    served=1
    must "the host serves" host serve
}

# Writes what open-iscsi takes for new records. The times make a broken path fail in seconds.
initiator() { # [SETTING=VALUE...]
    local setting
    for setting in node.startup=manual node.conn[0].timeo.noop_out_interval=2 node.conn[0].timeo.noop_out_timeout=3 \
        node.session.timeo.replacement_timeout=4 node.conn[0].timeo.login_timeout=15 node.session.initial_login_retry_max=3 "$@"; do
        echo "${setting/=/ = }"
    done >/etc/iscsi/iscsid.conf
    echo "InitiatorName=iqn.2026-11.com.example:guest" >/etc/iscsi/initiatorname.iscsi
    if [[ ! -e /run/iscsid.pid ]]; then
        modprobe -a iscsi_tcp sd_mod sg crc32c_intel
        iscsid
    fi
    rm -rf /etc/iscsi/{nodes,send_targets}
}
# Discovers over the first card and logs in over each portal that was named.
log_in() { # LUNS [PORTALS=2]
    must "SendTargets answers" iscsiadm -m discovery -t sendtargets -p "$PORTAL_1"
    must "login over all portals" iscsiadm -m node --login
    must "$1 LUNs over ${2:-2} portals" within 20 disks_are $(($1 * ${2:-2}))
}
# The kernel's names of the disks of one LUN, that over the first portal first.
disks() { # [LUN=0]
    readlink -f "/dev/disk/by-path/ip-$PORTAL_1-iscsi-$IQN-lun-${1:-0}" "/dev/disk/by-path/ip-$PORTAL_2-iscsi-$IQN-lun-${1:-0}"
}
disks_are() { udevadm settle && [[ $(find /dev/disk/by-path/ -name "*iscsi*-lun-*" | grep -vc part) == "$1" ]]; }
sessions_show() { # PARAMETER VALUE: all sessions negotiated that
    iscsiadm -m session -P 2 | awk -F': *' -v name="$1" -v value="$2" \
        '{ gsub(/^[ \t]+/, "", $1) } $1 == name { n++; if ($2 != value) bad = 1 } END { exit bad || !n }'
}

# dm-multipath over all disks; sets `map` to its device.
multipath_up() { # PATHS [LINE OF ITS CONFIGURATION...]
    cat >/etc/multipath.conf <<CONF
defaults {
    find_multipaths no
    user_friendly_names yes
    polling_interval 1
    max_polling_interval 2
    $(printf '%s\n' "path_checker tur" "failback immediate" "no_path_retry queue" "${@:2}")
}
blacklist {
    devnode "^vd"
}
CONF
    modprobe -a dm_multipath dm_round_robin dm_service_time scsi_dh_alua
    multipathd
    must "multipathd makes a map" within 30 map_has "$1"
    map=/dev/mapper/$(map_name)
    # The node comes a moment after the map.
    must "the map has a node" within 10 test -b "$map"
}
map_name() { dmsetup ls --target multipath | awk '$1 != "No" { print $1; exit }'; }
# The map has as many active paths as that.
map_has() { [[ $(dmsetup status --target multipath | grep -oE ' [0-9]+:[0-9]+ A ' | wc -l) == "$1" ]]; }

# Reads and writes that were completed by a block device.
completed() { awk '{ print $1 + $5 }' "/sys/block/$(basename "$(readlink -f "$1")")/stat"; }
# fio writes for so long, and reads back and compares all of it.
verify() { # DEVICE SECONDS [FIO'S ARGUMENTS...]
    fio --name=verify --filename="$1" --time_based --runtime="$2" --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bs=16k --size=32M \
        --verify=crc32c --verify_fatal=1 --verify_backlog=128 --do_verify=1 --eta=never "${@:3}"
}
# The same without an end in the background, until `load_verified`.
load() { # DEVICE
    rm -f /tmp/enough
    { until [[ -e /tmp/enough ]]; do verify "$1" 5 || exit; done; } >/tmp/load 2>&1 &
    load=$!
    must "I/O runs" load_goes_on "$1"
}
load_goes_on() { # DEVICE: it completes more while we look
    local before
    before=$(completed "$1")
    within 30 eval "[ \$(completed $1) -gt $((before + 50)) ]"
}
load_verified() {
    touch /tmp/enough
    wait "$load" || { cat /tmp/load && return 1; }
}
no_errors_in_the_log() { no grep -iE 'I/O error|digest|conn(ection)? ?error|critical|call trace' <(dmesg); }

put_back() {
    local status=$?
    kill $(jobs -p) $(pidof fio) 2>/dev/null
    mountpoint -q /mnt && umount -l /mnt
    if pidof multipathd >/dev/null; then
        for name in $(dmsetup ls --target multipath | awk '$1 != "No" { print $1 }'); do
            dmsetup message "$name" 0 fail_if_no_path
            dmsetup remove --retry "$name"
        done
        pkill -x multipathd
        within 10 no pidof multipathd
    fi
    if ((served)); then
        timeout -s KILL 60 iscsiadm -m node --logout >/dev/null 2>&1
        check "no session is left" no iscsiadm -m session
        host terminate
    fi
    dmesg | tail -n $((status || failures ? 15 : 0)) | sed 's/^/    /'
    dmesg -C
    exit $((status || failures))
}
trap put_back EXIT
