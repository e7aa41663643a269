# Asymmetric access: the kernel orders the paths by their states and follows when these change.
. /host/tests/guest.sh

serve <<TOML
listen = ["$PORTAL_1"]
[[portal_group]]
tag = 2
listen = ["$PORTAL_2"]
[[target]]
name = "$IQN"
open = true
[[target.portal_group]]
tag = 1
state = "active-optimized"
[[target.portal_group]]
tag = 2
state = "active-non-optimized"
[[target.lun]]
id = 0
device = "ram:64M"
TOML
initiator
log_in 1
# By default multipath reads what the kernel found; told so it asks the target itself.
multipath_up 2 "path_grouping_policy group_by_prio" "detect_prio no" "prio alua"
read -r first second < <(disks | xargs)

state_is() { [[ $(cat "/sys/block/${1#/dev/}/device/access_state") == "$2" ]]; }
# The groups of the map in the order in which they are used, as `multipath -ll` has them: their priorities.
priorities_are() { [[ $(multipath -ll | grep -oE 'prio=[0-9]+' | xargs) == "$1" ]]; }
only_moves() { # DISK, OTHER DISK: I/O runs over the one and not over the other
    local before
    before=$(completed "$2")
    verify "$map" 4 >/dev/null && (($(completed "$1") > 100 && $(completed "$2") - before < 20))
}
swap() { # STATE OF GROUP 1, STATE OF GROUP 2
    # The first command may bear the unit attention of the last change.
    sg_turs "$first" >/dev/null || true
    sg_stpg --tp=1,2 --state="$1,$2" "$first"
}

check "the kernel attached its ALUA handler" [ "$(cat "/sys/block/${first#/dev/}/device/dh_state")" = alua ]
check "portal group 1 is active/optimized" state_is "$first" active/optimized
check "portal group 2 is active/non-optimized" state_is "$second" active/non-optimized
check "multipath gives the map that handler" shows "hwhandler='1 alua'" multipath -ll
check "multipath asks the target for its priorities" shows "prio = alua" multipath -v3 -d "$first"
check "two priority groups: 50 and 10" within 20 priorities_are "prio=50 prio=10"
multipath -ll
check "sg_rtpg tells both groups" shows "target port group id : 0x2" sg_rtpg --decode "$first"
check "I/O takes the optimized path" only_moves "$first" "$second"
check "SET TARGET PORT GROUPS turns them round" swap an ao
check "the kernel sees it on the first" within 20 state_is "$first" active/non-optimized
check "and on the second" within 20 state_is "$second" active/optimized
check "I/O takes the other path" within 20 only_moves "$second" "$first"
check "a group goes to standby" swap sb ao
check "the kernel sees standby" within 20 state_is "$first" standby
check "I/O goes on without it" verify "$map" 4
check "reads are refused in standby" no dd if="$first" of=/dev/null bs=4096 count=1 iflag=direct
check "it comes back" sg_stpg --tp=1,2 --state=ao,an "$second"
check "the kernel sees it" within 20 state_is "$first" active/optimized
check "two priority groups again" within 20 priorities_are "prio=50 prio=10"
