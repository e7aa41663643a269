# Persistent reservations: two I_T nexuses by sg_persist, a whole map by mpathpersist against another host, and APTPL.
. /host/tests/guest.sh

truncate -s 64M /host/reserved.img
serve <<TOML
state_dir = "state"
[[target]]
name = "$IQN"
open = true
[[target.lun]]
id = 0
device = "reserved.img"
TOML
initiator
log_in 1
read -r a b < <(disks | xargs)

out() { sg_persist --no-inquiry --out "$@"; }
keys_are() { # KEYS: through either path
    [[ $(sg_persist --no-inquiry --in --read-keys "$1" | grep -oE '^ +0x[0-9a-f]+' | sort | xargs) == "$2" ]]
}
writes() { dd if=/dev/zero of="$1" bs=64k count=1 oflag=direct; }
reads() { dd if="$1" of=/dev/null bs=64k count=1 iflag=direct; }
# Whoever is told of what others did takes that once, so that it is not in the way of the next command.
settle() { sg_turs "$a"; sg_turs "$b"; sg_turs "$a" && sg_turs "$b"; }

say "sg_persist over two nexuses"
must "A registers" out --register --param-sark=0xa1 "$a"
must "B registers" out --register --param-sark=0xb2 "$b"
check "both keys are there" keys_are "$a" "0xa1 0xb2"
check "a wrong key is refused" ends_with 24 out --reserve --param-rk=0xbad --prout-type=1 "$a"
check "A reserves, write exclusive" out --reserve --param-rk=0xa1 --prout-type=1 "$a"
check "READ RESERVATION tells it" shows "Write Exclusive" sg_persist --no-inquiry --in --read-reservation "$b"
check "READ FULL STATUS tells the guest's name" shows "iqn.2026-11.com.example:guest" sg_persist --no-inquiry --in --read-full-status "$b"
check "REPORT CAPABILITIES" shows "Persist Through Power Loss Capable\(PTPL_C\): 1" sg_persist --no-inquiry --in --report-capabilities "$a"
check "A writes" writes "$a"
check "B may not write" no writes "$b"
check "B reads" reads "$b"
check "B preempts A" out --preempt --param-rk=0xb2 --param-sark=0xa1 --prout-type=3 "$b"
check "A is told" settle
check "A may not write" no writes "$a"
check "nor read, under exclusive access" no reads "$a"
check "B writes" writes "$b"
check "B clears" out --clear --param-rk=0xb2 "$b"
check "no key is left" keys_are "$a" ""
check "all write again" settle
check "A writes again" writes "$a"

say "a reservation that outlives the target"
must "A registers with APTPL" out --register --param-sark=0xa1 --param-aptpl "$a"
must "A reserves, write exclusive, registrants only" out --reserve --param-rk=0xa1 --prout-type=5 "$a"
must "the target is killed" host kill
must "and started" host start
check "the sessions come back" within 60 settle
check "the key is still there" keys_are "$b" "0xa1"
check "so is the reservation" shows "Write Exclusive, registrants only" sg_persist --no-inquiry --in --read-reservation "$b"
check "B may not write" no writes "$b"
check "A writes" writes "$a"
check "A clears" out --clear --param-rk=0xa1 "$a"
settle

say "mpathpersist over a map of both"
multipath_up 2 "path_grouping_policy multibus" "reservation_key 0xc3"
check "register" mpathpersist --out --register --param-sark=0xc3 "$map"
check "all paths have the key" keys_are "$a" "0xc3 0xc3"
check "reserve" mpathpersist --out --reserve --param-rk=0xc3 --prout-type=5 "$map"
check "it is told" shows "Write Exclusive, registrants only" mpathpersist --in --read-reservation "$map"
check "the map is written to" verify "$map" 3
truncate -s 64M /host/foreign.img
refused() { ! host lunway copy foreign.img "iscsi://$PORTAL_1/$IQN/0" --overwrite && grep -i reserv /host/answer; }
check "another host may not, and is told why" refused

check "release" mpathpersist --out --release --param-rk=0xc3 --prout-type=5 "$map"
check "unregister" mpathpersist --out --register --param-rk=0xc3 --param-sark=0 "$map"
check "no key is left" keys_are "$a" ""
