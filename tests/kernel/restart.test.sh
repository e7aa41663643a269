# The target is killed and started anew under load, and ends in order and is started anew; nothing acknowledged is lost.
. /host/tests/guest.sh

truncate -s 64M /host/disk.img
serve <<TOML
[[target]]
name = "$IQN"
open = true
[[target.lun]]
id = 0
device = "disk.img"
TOML
initiator
log_in 1
multipath_up 2 "path_grouping_policy multibus" 'path_selector "round-robin 0"'

load "$map"
for way in kill terminate; do
    must "$way it" host "$way"
    check "all paths fail, I/O waits" within 30 map_has 0
    must "start it" host start
    check "all paths come back" within 60 map_has 2
    check "I/O goes on" load_goes_on "$map"
done
check "fio verified everything" load_verified
