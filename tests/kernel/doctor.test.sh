# open-iscsi and dm-multipath with one setting wrong at a time: `lunway doctor` tells that one, its fix turns the verdict,
# its undo brings the fault back. Then both ends of the sessions are judged together.
. /host/tests/guest.sh

cp /host/lunway /tmp/lunway
export XDG_STATE_HOME=/tmp/state
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

# What QEMU's network is like, and this guest without systemd: nothing of it is judged here.
elsewhere="port-duplex port-pause port-energy port-offload route-router host-clock"
doctor() { /tmp/lunway doctor $(printf ' --mute %s' $elsewhere "$@") >/tmp/doctor 2>&1 || [[ $? -ge 3 ]]; }
# The rules that are broken, apart from those that belong to the stage of the test.
broken() { doctor $stage && awk '$1 == "warn" || $1 == "bad" { print $2 }' /tmp/doctor | sort -u | xargs; }
tells() { # RULE...
    local said
    said=$(broken) || { cat /tmp/doctor && return 1; }
    [[ $said == "$*" ]] || { echo "told: $said" && cat /tmp/doctor && return 1; }
}
# The commands for a rule as doctor has printed them, for each place.
commands() { # RULE do|undo
    awk -v rule="$1" -v kind="$2" '$1 == "warn" || $1 == "bad" { of_rule = $2 == rule }
        of_rule && $1 == kind && !($2 == "none" && NF == 2) { sub(/^ *(do|undo) +/, ""); print }' /tmp/doctor
}
logged_in_again() { iscsiadm -m node --logout >/dev/null && iscsiadm -m node --login >/dev/null && within 20 disks_are 2; }
update() { iscsiadm -m node -T "$IQN" -o update -n "$1" -v "$2"; } # SETTING VALUE
conf() { sed -i "s/^$1 *=.*/$1 = $2/" /etc/iscsi/iscsid.conf; }    # SETTING VALUE
multipath_told() { # LINE...: besides what it is told already
    mkdir -p /etc/multipath/conf.d
    printf '%s\n' "$@" >/etc/multipath/conf.d/a-fault.conf
    multipathd reconfigure
}

# One run of doctor for each fault: it also shows that the fix of the one before has turned its verdict. Each fix and undo is
# kept for `all_undone`. `again` is what a fix's comment asks for besides.
told=() fixes='' undos=''
rule() { # RULE FAULT [AGAIN]
    local again=${3:-true} fix undo
    must "$1 is planted" eval "$2"$'\n'"$again"
    check "$1 is told, and nothing else" within 8 tells "$1"
    fix=$(commands "$1" do) undo=$(commands "$1" undo)
    eval "$fix"$'\n'"$again" >/tmp/fix 2>&1 || cat /tmp/fix
    told+=("$1") fixes+=$fix$'\n' undos=$undo$'\n'$undos
}
# A fix that is no command: it says what to do, and FIX does it. That it has turned the verdict the next fault shows.
by_hand() { # RULE FAULT FIX
    must "$1 is planted" eval "$2"
    check "$1 is told, and nothing else" within 8 tells "$1"
    must "$1 is fixed by hand" eval "$3"
}
# The last fix has turned its verdict too; all undos bring all faults back, and all fixes take them away.
all_undone() { # [AGAIN]
    check "every fix has turned its verdict" within 8 tells
    eval "$undos${1:-true}" >/dev/null 2>&1
    check "every undo has brought its fault back" within 8 tells "$(printf '%s\n' "${told[@]}" | sort | xargs)"
    # That every fix takes it away again is seen by what is told next, and by nothing else being told.
    eval "$fixes${1:-true}" >/dev/null 2>&1
    told=() fixes='' undos=''
}

# A node of Kubernetes, before anything has loaded the kernel's initiator.
mkdir -p /var/lib/kubelet/plugins/iscsi.csi.k8s.io /etc/modules-load.d
stage="kubernetes-initiator kubernetes-mounts kubernetes-multipath"
rule kubernetes-module true
all_undone
rm -r /var/lib/kubelet

# Limits of a process, which root alone may raise.
limit_of() { # RULE LIMIT
    verdict_under() { # VERDICT LIMITS
        bash -c "$2; exec /tmp/lunway doctor --all" >/tmp/doctor 2>&1
        [[ $(awk -v rule="$rule" '$2 == rule { print $1 }' /tmp/doctor) == "$1" ]] || { cat /tmp/doctor && return 1; }
    }
    local rule=$1 fix
    check "$1 is told" verdict_under warn "$2"
    # "… in the unit, or: a command".
    fix=$(commands "$1" do)
    check "$1 is fixed by its command" verdict_under ok "$2; ${fix##*or: }"
}
limit_of host-open-files "ulimit -n 1024"
limit_of host-locked-memory "ulimit -l 64"

# The initiator alone: that two sessions have no map, and multipath no settings, are faults of this stage.
initiator node.startup=automatic node.session.timeo.replacement_timeout=15 'node.conn[0].timeo.noop_out_interval=5' \
    'node.conn[0].timeo.noop_out_timeout=5' node.session.cmds_max=128 node.session.queue_depth=32 node.session.nr_sessions=1 \
    node.session.auth.password=fourteen-bytes node.session.auth.chap_algs=SHA3-256,SHA256,SHA1,MD5
chmod 600 /etc/iscsi/iscsid.conf
log_in 1
# By the disk's name of now, which the stage does not ask about: without udev there is no other before there is a map.
disk=$(basename "$(disks | awk '{ print $1 }')")
echo "/dev/$disk /mnt ext4 _netdev 0 0" >/etc/fstab
stage="fstab-name multipath-running multipath-policy multipath-all-lost"
must "a sound initiator raises no alarm" tells
by_hand chap-length "conf node.session.auth.password short" "conf node.session.auth.password fourteen-bytes"
by_hand chap-mutual "echo node.session.auth.password_in = fourteen-bytes >>/etc/iscsi/iscsid.conf" \
    "conf node.session.auth.password_in another-fourteen"
rule session-record "update node.session.timeo.replacement_timeout 20"
all_undone
update node.session.timeo.replacement_timeout 15
for session in /sys/class/iscsi_session/session*; do echo 15 >"$session/recovery_tmo"; done
rule initiator-depth "conf node.session.cmds_max 32"
rule initiator-sessions "conf node.session.nr_sessions 2"
rule initiator-startup "update node.startup manual"
rule chap-files "chmod 644 /etc/iscsi/iscsid.conf"
rule chap-algorithm "sed -i '/^node.session.auth.chap_algs/d' /etc/iscsi/iscsid.conf; update node.session.auth.chap_algs MD5"
all_undone
rule session-timeout "update node.session.timeo.replacement_timeout 120" logged_in_again
rule session-ping "update 'node.conn[0].timeo.noop_out_interval' 0; update 'node.conn[0].timeo.noop_out_timeout' 0" logged_in_again
rule session-segment "update 'node.conn[0].iscsi.MaxRecvDataSegmentLength' 8192" logged_in_again
all_undone logged_in_again
disk=$(basename "$(disks | awk '{ print $1 }')")
rule disk-timeout "echo 5 >/sys/block/$disk/device/timeout"
rule disk-request "echo 64 >/sys/block/$disk/queue/max_sectors_kb"
rule disk-random "echo 1 >/sys/block/$disk/queue/add_random"
rule disk-affinity "echo 0 >/sys/block/$disk/queue/rq_affinity"
rule disk-queue "echo 8 >/sys/block/$disk/queue/nr_requests"
rule disk-read-ahead "echo 16 >/sys/block/$disk/queue/read_ahead_kb"
rule initiator-name "echo InitiatorName=guest >/etc/iscsi/initiatorname.iscsi"
all_undone
echo "InitiatorName=iqn.2026-11.com.example:guest" >/etc/iscsi/initiatorname.iscsi
: >/etc/fstab

# The same with a map over both paths, whose I/O waits for ever when both are lost.
stage=
multipath_up 2 "path_grouping_policy group_by_prio" "prio alua" "fast_io_fail_tmo 5"
rule multipath-all-lost true
rule multipath-policy "multipath_told 'defaults {' 'path_selector \"round-robin 0\"' '}'"
rule multipath-fast-fail "multipath_told 'defaults {' 'path_selector \"round-robin 0\"' 'fast_io_fail_tmo 60' '}'"
rule multipath-device-loss "multipath_told 'defaults {' 'path_selector \"round-robin 0\"' 'fast_io_fail_tmo 60' 'dev_loss_tmo 10' '}'"
rule multipath-find "multipath_told 'defaults {' 'path_selector \"round-robin 0\"' 'fast_io_fail_tmo 60' 'dev_loss_tmo 10' \
    'find_multipaths smart' '}'"
all_undone
multipath_told
# A path that was logged out comes back by the fix, which has no undo.
rule map-paths "iscsiadm -m node -p $PORTAL_2 --logout; within 20 map_has 1"
check "map-paths is fixed by its command" within 20 tells
told=() fixes='' undos=''

# A file system on the map, and swap.
must "a file system is made" mkfs.ext4 -q "$map"
stage=mount-trim
echo "$map /mnt ext4 defaults,_netdev 0 0" >/etc/fstab
must "it is mounted" mount /mnt
rule mount-time "mount -o remount,strictatime /mnt"
rule mount-sync "mount -o remount,barrier=0 /mnt"
rule fstab-netdev "sed -i s/,_netdev// /etc/fstab"
# What a path has cached of the disk is older than the file system, which was made through the map.
rule fstab-name "blockdev --flushbufs /dev/$disk; sed -i 's|^$map|/dev/$disk|' /etc/fstab"
rule disk-scheduler "modprobe bfq; echo bfq >/sys/block/$disk/queue/scheduler"
all_undone
check "fstab has the UUID of the file system" grep -q "^UUID=$(blkid -p -s UUID -o value "$map")[[:space:]]" /etc/fstab
# Writes that an error has ended: Linux 6.1 shows that by the error alone.
must "an error ends all writes" eval 'mount -o remount,errors=remount-ro /mnt && echo 1 >"/sys/fs/ext4/$(dmsetup info -c --noheadings -o blkdevname "$map")/trigger_fs_error"'
check "a file that is written is refused" no touch /mnt/new
check "mount-read-only is told, and nothing else" within 8 tells mount-read-only
eval "$(commands mount-read-only do)" >/tmp/fix 2>&1 || cat /tmp/fix
check "mount-read-only is fixed by its command" within 8 tells
check "a file is written again" eval "mountpoint -q /mnt && touch /mnt/new"
umount /mnt
: >/etc/fstab
mkswap "$map" >/dev/null 2>&1
rule swap-iscsi "swapon $map"
check "swap-iscsi is fixed by its command" within 8 tells

# A target of this guest's own, whose file lies in a folder with a quota.
modprobe -a loop xfs
truncate -s 400M /tmp/xfs.img
must "an XFS with quotas is mounted" eval 'mkfs.xfs -q /tmp/xfs.img && mkdir -p /srv && mount -o loop,prjquota /tmp/xfs.img /srv && mkdir /srv/q'
quota() { xfs_quota -x -c 'project -s -p /srv/q 7' -c "limit -p bhard=$1 7" /srv; } # SIZE
quota 200m
dd if=/dev/zero of=/srv/q/disk.img bs=1M count=58 status=none
/tmp/lunway serve --listen 127.0.0.1:3261 --lun 0=/srv/q/disk.img --socket /tmp/own.sock >/dev/null 2>&1 &
within 20 test -S /tmp/own.sock
tells_of_quota() { # VERDICT
    /tmp/lunway doctor --socket /tmp/own.sock --all >/tmp/doctor 2>&1
    [[ $(awk '$2 == "store-quota" { print $1 }' /tmp/doctor) == "$1" ]] || { cat /tmp/doctor && return 1; }
}
check "a quota with room is ok" within 20 tells_of_quota ok
quota 64m
check "a quota that is nearly used up is told" within 8 tells_of_quota warn
quota 200m
check "store-quota is fixed by hand" within 8 tells_of_quota ok
kill %1
umount /srv

# Both ends.
ends() { # RULE...: what is told of both ends together
    local said
    said=$(/tmp/lunway doctor --facts >/host/guest.json && host lunway doctor --from guest.json --socket lunway.sock --all)
    said=$(awk '$2 ~ /^ends-/ && ($1 == "warn" || $1 == "bad") { print $2 }' /host/answer | sort -u | xargs)
    [[ $said == "$*" ]] && grep -q 'ok *ends-login\|bad *ends-login' /host/answer || { cat /host/answer && return 1; }
}
# Runs what is printed for a rule to be done on this host.
ends_fix() { # RULE
    eval "$(awk -v rule="$1" '$1 == "warn" || $1 == "bad" { of_rule = $2 == rule }
        of_rule && $1 == "do" { sub(/^ *do +on [^:]*: /, ""); print }' /host/answer)"
}
check "both ends have the same sessions" ends
update 'node.conn[0].iscsi.HeaderDigest' CRC32C
check "a digest that a record asks for and a session lacks is told" ends ends-digest
must "the sessions get it by the fix" ends_fix ends-digest
check "ends-digest is fixed by its command" within 20 ends
update 'node.conn[0].iscsi.HeaderDigest' None
# The host still takes itself for logged in where the target has forgotten it: another daemon in its place, over a path that
# is silent for less than a ping waits. The map would notice sooner.
pkill -x multipathd
within 10 no pidof multipathd
dmsetup remove --retry "$map"
update 'node.conn[0].timeo.noop_out_interval' 30
update 'node.conn[0].timeo.noop_out_timeout' 30
must "it logs in again" logged_in_again
pkill -STOP -x iscsid
drop_sessions() { nft "add table inet cut; add chain inet cut in { type filter hook input priority 0; }; add rule inet cut in iifname eth1 drop;
    add chain inet cut out { type filter hook output priority 0; }; add rule inet cut out oifname eth1 drop"; }
modprobe nf_tables
drop_sessions
must "it is served anew" host serve
check "a session that one end alone has is told" ends ends-login
nft delete table inet cut
pkill -CONT -x iscsid
ends_fix ends-login >/dev/null 2>&1
check "ends-login is fixed by its command" within 20 ends
