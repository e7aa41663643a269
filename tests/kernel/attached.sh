# shellcheck shell=bash
# A disk that `lunway attach` makes of a LUN in this guest, and paths to it that die. Sourced by the tests in which its
# process or its machine ends.
cp /host/lunway /tmp/lunway
mkdir -p /tmp/disk
modprobe -a fuse nf_tables
blocks=512 # of 4 KiB each: what is written in each turn, in a second
over_both="10.0.2.15>$PORTAL_1 10.0.3.15>$PORTAL_2"
over_one="10.0.2.15>$PORTAL_1"

# Nothing comes or goes over this card any more.
drop_packets() { # CARD
    nft "add table inet cut; add chain inet cut in { type filter hook input priority 0; }; add rule inet cut in iifname eth$1 drop;
        add chain inet cut out { type filter hook output priority 0; }; add rule inet cut out oifname eth$1 drop"
}
let_packets_pass() { nft delete table inet cut; }

attached=
is_attached() { test -e /tmp/disk/disk; }
# Attaches over these lanes. Its first score is what the kernel goes by when memory is short; with -1000 it would never
# be chosen. A second to connect may be too little in a guest that is emulated: it is tried again.
attach() { # SCORE LANE...
    local score=$1 lanes tries
    shift
    lanes=$(printf '&lane=%s' "$@")
    for tries in 1 2 3 4 5; do
        # shellcheck disable=SC2016 # the inner shell's own
        bash -c 'echo "$0" >/proc/self/oom_score_adj; exec /tmp/lunway attach "$1" --fuse /tmp/disk' "$score" \
            "iscsi://$PORTAL_1/$IQN/0?policy=round-robin${lanes}" >/tmp/attached 2>&1 &
        attached=$!
        until is_attached || ! kill -0 "$attached" 2>/dev/null; do sleep 0.1; done
        ! is_attached || return 0
        echo "attempt $tries: $(cat /tmp/attached)"
    done
    return 1
}
detach() { kill "$attached" && wait "$attached"; }

letter() { head -c $((blocks * 4096)) /dev/zero | tr '\0' "$1" >"/tmp/$1"; } # LETTER
# Writes the letter everywhere, and syncs.
fill() { # LETTER
    letter "$1"
    dd if="/tmp/$1" of=/tmp/disk/disk bs=64k conv=notrunc,fsync
}
holds() { # LETTER
    cmp -n $((blocks * 4096)) "/tmp/$1" /tmp/disk/disk
}
# Several at once, again and again until the file is gone, so that a path has its share of them at the moment when it
# dies.
write_on_and_on() { # LETTER
    local job
    letter "$1"
    for job in 0 1 2 3; do
        while dd if="/tmp/$1" of=/tmp/disk/disk bs=64k conv=notrunc,nocreat seek=$((job * 8)) skip=$((job * 8)) count=8 2>/dev/null; do :; done &
    done
}
# The kernel has data for the dead path that nobody acknowledges: part of a write, at least.
is_stuck() { ss -tnH src "10.0.$(($1 + 2)).15" | awk '$3 > 4000 { stuck = 1 } END { exit !stuck }'; } # CARD

# Lets a path die in mid-write. The process stands still from then on, as it would notice within a second and reset the
# connection by itself: that may come before we look, or there may have been nothing under way, and then it is done
# again.
cut_in_mid_write() { # CARD
    local tries look
    for tries in 1 2 3 4 5 6 7 8; do
        drop_packets "$1"
        for look in 1 2 3 4 5 6 7 8; do
            if is_stuck "$1"; then
                kill -STOP "$attached"
                is_stuck "$1" && return
                kill -CONT "$attached"
            fi
            sleep 0.05
        done
        let_packets_pass
        sleep 3
    done
    echo "in none of $tries attempts was there anything under way after $look looks"
    return 1
}
# Attached over these lanes, the disk holds A, and writes of B are stuck on the path over that card.
die_with_writes_on() { # CARD SCORE LANE...
    must "it is attached over $(($# - 2)) of the paths" attach "${@:2}"
    must "A is written and synced" fill A
    if [[ $2 == 0 ]]; then check "it is protected against want of memory" is_protected -1000; fi
    write_on_and_on B
    sleep 1
    must "a path dies with writes on it" cut_in_mid_write "$1"
    dead_since=$SECONDS
}
# PF_MEMALLOC_NOIO (0x80000) among the flags of each thread (proc_pid_stat(5), field 9), which PR_SET_IO_FLUSHER sets;
# the score; locked memory.
is_protected() {
    local thread flags
    for thread in /proc/$attached/task/*; do
        flags=$(sed 's/.*) //' "$thread/stat" | cut -d' ' -f7)
        ((flags & 0x80000)) || { echo "$thread: flags $flags" && return 1; }
    done
    [[ $(cat "/proc/$attached/oom_score_adj") == "$1" ]] && no grep -E 'VmLck:\s+0 kB' "/proc/$attached/status"
}
# The path is well again. What is written now is not overwritten by what was stuck.
nothing_lands_on_c() {
    must "it is attached again" attach 0 "$over_one"
    must "C is written and synced" fill C
    ! nft list table inet cut >/dev/null 2>&1 || must "the path heals" let_packets_pass
    # The kernel sends again what nobody acknowledged after 0.2 s, 0.4 s and so on: a path that was dead for so long is
    # tried within as long again.
    sleep $((SECONDS - ${dead_since:-$SECONDS} + 3))
    check "C is what the disk holds" holds C
    must "it ends as it should" detach
}
