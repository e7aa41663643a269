# Runs in a guest whose root file system is on a LUN; script/test-kernel looks at the LUN afterwards.
. /host/tests/guest.sh

check "the root file system is on the LUN" [ "$(findmnt --noheadings --output SOURCE /)" = /dev/vda ]
check "all its files can be read" eval "tar -c --one-file-system /usr | cat >/dev/null"
must "it can be written to" dd if=/dev/urandom of=/root/written bs=1M count=16 conv=fsync
sha256sum </root/written >/host/written.sum
