# The same in a guest whose root file system is on an image of Ceph, behind a LUN.
. /host/tests/boot.test.sh
