# The machine of a `lunway attach` loses its power with writes on a dead path, one of two, then the only one: this guest
# ends in the middle of things, and script/test-kernel starts another one with the next stage, three in all. What that
# one writes and syncs is not overwritten.
. /host/tests/guest.sh
. /host/tests/attached.sh

stage=$(cat /host/stage)
[[ $stage == 0 ]] || nothing_lands_on_c
# The host hears that it has come to this; then without a word to anybody, at once.
lose_power() {
    ((failures)) && exit 1
    must "writes are under way when its power goes" host reached "stage $stage"
    echo b >/proc/sysrq-trigger
    sleep infinity
}
case $stage in
0)
    # shellcheck disable=SC2086 # these are words
    die_with_writes_on 1 0 $over_both
    lose_power
    ;;
1)
    die_with_writes_on 0 0 "$over_one"
    lose_power
    ;;
esac
