# `lunway backup run` onto a Samba share and an NFS export that the kernel has mounted, while things happen to the server,
# the network, the room on the share, the clock, and `lunway` itself. After each incident nothing is deleted by hand:
# the command is given again if it failed, and then every point is restored and compared with what the disk was.
#
# INCIDENTS on each of SHARES, of all kinds in turn, at random moments. SEED makes the same moments again.
. /host/tests/guest.sh
. /host/tests/shares.sh
cp /host/lunway /tmp/lunway
SEED=${SEED:-$$}
RANDOM=$SEED
say "seed $SEED"

disk_ranges=16 # of 512 KiB: 8 MiB, since an emulated processor hashes slowly
changed_ranges=6
# So that a run takes 20 s, and is under way at any moment of the first 15 s.
rate_kb=150
# What an incident has sent twice: the 5 s since the last checkpoint, and the unit that is under way. (The kernel's
# NFS client sends again by itself what a server that is started again had not made durable.)
sent_twice=$((rate_kb * 1000 * 5 + 1048576))
declare -A holds # what each point must hold: kind/point -> SHA-256
kind='' folder='' run=0

# As much each time, so that undisturbed runs send as much.
change_disk() {
    local range first=$RANDOM
    for ((range = 0; range < changed_ranges; range++)); do
        # Five and 16 have no factor in common: no range is met twice.
        dd if=/dev/urandom of=/tmp/disk bs=512k count=1 seek=$(((first + range * 5) % disk_ranges)) conv=notrunc status=none
    done
}
sum_of() { sha256sum <"$1" | cut -d' ' -f1; }

backup() { as_client client /tmp/lunway backup run /tmp/disk "$folder" --json "$@"; }
begin_run() {
    as_client client /tmp/lunway backup run /tmp/disk "$folder" --json --limit "${rate_kb}kB/s" >/tmp/run 2>&1 &
    run=$!
}
# What the server has in its own file system is what counts: the client's cache may hold more.
points() { /tmp/lunway backup list "/srv/share/$kind/db" --json | grep -oE '"point": *"[0-9a-f]{16}"' | grep -oE '[0-9a-f]{16}'; }
restores() { # POINT
    rm -f /tmp/restored
    /tmp/lunway backup restore "/srv/share/$kind/db" /tmp/restored --point "$1" || return
    [[ $(sum_of /tmp/restored) == "${holds[$kind/$1]}" ]] || { echo "$1 holds something else than the disk did" && return 1; }
}
# The points that are new belong to the disk as it is, as nothing has changed it since they were begun.
note_points() {
    local point sum
    sum=$(sum_of /tmp/disk)
    for point in $(points); do
        : "${holds[$kind/$point]:=$sum}"
    done
}
all_restore() {
    local point
    for point in $(points); do restores "$point" || return; done
}
ends() { ! kill -0 "$run" 2>/dev/null; }
# A stall of the share is no reason for a process that cannot be ended.
can_be_killed() { kill -KILL "$run"; within 10 ends; }

# Incidents. Each begins with a run under way, and leaves everything but that run as it was.
lunway_is_killed() { check "kill -9 ends it" can_be_killed; }
server_is_killed() {
    "kill_$kind"
    sleep $((RANDOM % 8))
    must "the server starts again" "start_$kind"
}
network_is_a_black_hole() {
    must "no packet comes or goes" drop_packets_of client
    sleep 60
    let_packets_pass
}
network_is_a_black_hole_and_lunway_is_killed() {
    must "no packet comes or goes" drop_packets_of client
    sleep 12
    check "kill -9 ends it within seconds, although the share hangs" can_be_killed
    let_packets_pass
}
connections_are_reset() {
    must "connections are reset" reset_connections_of client
    sleep $((RANDOM % 4 + 1))
    let_packets_pass
}
share_is_full() {
    # The last blocks go to the map of the file's own.
    fallocate -l "$(df --output=avail -B1 /srv/share | tail -n 1)" /srv/share/filler 2>/dev/null
    must_end
    rm /srv/share/filler
}
quota_is_used_up() {
    must "a quota is set" setquota -u "$owner" 0 $(($(du -sk /srv/share | cut -f1) + 256)) 0 0 /srv/share
    must_end
    setquota -u "$owner" 0 0 0 0 /srv/share
}
share_is_read_only() {
    must "the share becomes read-only" "read_only_$kind" yes
    must_end
    must "it can be written again" "read_only_$kind" no
}
# A second machine, with its own mount of the share, begins while the first one is at it.
another_client_writes() {
    nsenter --net=/run/netns/other unshare --mount --uts bash -c 'hostname other
        mount --bind /tmp/other-boot /proc/sys/kernel/random/boot_id && mount --bind /tmp/other-machine /etc/machine-id &&
        exec timeout -s KILL 120 /tmp/lunway backup run /tmp/disk "$0" --json' "/mnt/other/$kind/db" >/tmp/other 2>&1
    local status=$?
    # Either it was refused, or the first one had finished.
    ((status != 0)) || ends || check "one of two writers is refused" false
    must_end
}
clock_is_ten_years_off() {
    local sign=+ before after
    ((RANDOM % 2)) || sign=-
    before=$(date +%s) after=$(cut -d. -f1 /proc/uptime)
    date -s "@$((before ${sign} 315360000))" >/dev/null
    # The server's clock may be another one than the client's.
    find "/srv/share/$kind/db" -exec touch -c -d "@$((before ${sign} 157680000))" {} +
    must_end
    date -s "@$((before + $(cut -d. -f1 /proc/uptime) - after))" >/dev/null
}
must_end() { must "the run comes to an end" ends_in_time; }
# Without `SECONDS`, which go by the clock that is changed here.
ends_in_time() {
    local looks
    for ((looks = 0; looks < 240 * PATIENCE; looks++)); do
        ends && return
        sleep 1
    done
    return 1
}

incidents=(lunway_is_killed server_is_killed network_is_a_black_hole_and_lunway_is_killed share_is_full another_client_writes
    connections_are_reset quota_is_used_up clock_is_ten_years_off share_is_read_only network_is_a_black_hole)

# Nothing but points, and what says that they are whole. A server keeps a file that was removed for as long as a connection
# that was cut has it open: no client can read it any more.
nothing_is_left() {
    local path left=()
    while read -r path; do
        ! as_client other cat "/mnt/other/$kind/db/${path##*/}" >/dev/null 2>&1 || left+=("$path")
    done < <(find "/srv/share/$kind/db" -name '*incomplete*' -o -name 'lease-*' -o -name 'mount-*')
    ((!${#left[@]})) || { printf '%s\n' "${left[@]}" && return 1; }
}

suffer() { # KIND FIRST: of the incidents
    local number incident status before calm sent=0 stopped=0
    kind=$1 folder=/mnt/client/$1/db
    head -c $((disk_ranges << 19)) /dev/urandom >/tmp/disk
    must "$kind: a client has mounted the share" within 60 mount_share "$kind" client
    must "$kind: another one, too" within 60 mount_share "$kind" other
    must "$kind: the folder is made" mkdir "$folder"
    must "$kind: a full backup" backup
    note_points
    change_disk
    before=$(sent_by client)
    must "$kind: an increment that nothing disturbs" backup
    note_points
    calm=$(($(sent_by client) - before))
    host reached shares
    for ((number = 0; number < INCIDENTS; number++)); do
        incident=${incidents[(number + $2) % ${#incidents[@]}]}
        change_disk
        before=$(sent_by client)
        begin_run
        must "it writes" within 120 eval 'ends || compgen -G "/srv/share/$kind/db/*.journal.incomplete"'
        sleep "$((RANDOM % 14)).$((RANDOM % 10))"
        say "     $kind, incident $number: ${incident//_/ }$(ends && echo ', too late')"
        "$incident"
        must_end
        wait "$run"
        status=$?
        say "     it said, status $status: $(tail -n 1 /tmp/run | cut -c1-300)"
        if ((status != 0)); then
            check "the command, given again, makes a point" within 120 backup
            ((stopped++))
        fi
        sent=$((sent + $(sent_by client) - before))
        note_points
        check "nothing is left of it" nothing_is_left
        check "the newest point is restored bit for bit" restores "$(points | tail -n 1)"
        if ((number % 8 == 7)); then check "older points are pruned" as_client client /tmp/lunway backup prune "$folder" --keep-last 3; fi
        # Says that the guest is alive.
        host reached shares
    done
    say "     $kind: $((sent >> 10)) KiB were sent, undisturbed runs send $((calm * INCIDENTS >> 10)) KiB; $stopped of $INCIDENTS runs were stopped"
    check "$kind: nothing is sent again but the last seconds" test "$sent" -le $((calm * INCIDENTS * 105 / 100 + INCIDENTS * sent_twice))
    check "$kind: every point is restored bit for bit" all_restore
    check "$kind: what the server holds is verified" /tmp/lunway backup verify "/srv/share/$kind/db"
}

trap 'unmake_shares >/dev/null 2>&1; put_back' EXIT
make_shares
first=0
for share in $SHARES; do
    suffer "$share" "$first"
    # The kinds that the first share has not had, where there are few.
    first=$((first + INCIDENTS))
done
