# `lunway attach` in this guest is killed with writes on a dead path, the only one or one of two: by kill -9 and by the
# kernel for want of memory. What the next one writes and syncs is there when the path heals: the kernel of the dead
# process sends nothing more.
. /host/tests/guest.sh
. /host/tests/attached.sh

serve <<TOML
[[target]]
name = "$IQN"
open = true
[[target.lun]]
id = 0
device = "ram:64M"
TOML

gone() { ! kill -0 "$attached" 2>/dev/null; }
kill_it() { kill -9 "$attached"; }
# As the kernel does when memory is short (sysrq-f): it takes the process with the highest score.
let_the_kernel_choose() { echo f >/proc/sysrq-trigger; }

for way in "kill_it 0" "let_the_kernel_choose 1000"; do
    read -r end score <<<"$way"
    for lanes in "$over_both" "$over_one"; do
        card=0
        [[ $lanes == "$over_one" ]] || card=1
        # shellcheck disable=SC2086 # these are words
        die_with_writes_on "$card" "$score" $lanes
        must "$end" "$end"
        must "the process is gone" within 20 gone
        wait 2>/dev/null
        umount -l /tmp/disk
        # Over a path that is dead nothing can be attached.
        ((card)) || must "the path heals" let_packets_pass
        nothing_lands_on_c
    done
done
