# One of two paths is cut under load, in two ways, and comes back; nothing that fio wrote is lost.
. /host/tests/guest.sh

serve <<TOML
[[target]]
name = "$IQN"
open = true
[[target.lun]]
id = 0
device = "ram:64M"
TOML
initiator
log_in 1
multipath_up 2 "path_grouping_policy multibus" 'path_selector "round-robin 0"'

pull_the_plug() { ip link set eth1 down; }
plug_it_in() { ip link set eth1 up && ip route add "${PORTAL_2%:*}/32" via 10.0.3.2 src 10.0.3.15; }
drop_packets() { nft "add table inet cut; add chain inet cut in { type filter hook input priority 0; }; add rule inet cut in iifname eth1 drop;
    add chain inet cut out { type filter hook output priority 0; }; add rule inet cut out oifname eth1 drop"; }
let_packets_pass() { nft delete table inet cut; }

modprobe nf_tables
load "$map"
for way in "pull_the_plug plug_it_in" "drop_packets let_packets_pass"; do
    read -r cut mend <<<"$way"
    must "$cut" "$cut"
    check "the kernel fails the path" within 30 map_has 1
    check "I/O goes on over the other" load_goes_on "$map"
    must "$mend" "$mend"
    check "the path comes back" within 40 map_has 2
    check "I/O goes on" load_goes_on "$map"
done
check "fio verified everything" load_verified
