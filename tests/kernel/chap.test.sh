# CHAP and mutual CHAP: who knows the secrets gets in, and nobody else; and the kernel finds out a false target.
. /host/tests/guest.sh

echo "correct horse 12" >/host/initiator.secret
echo "battery staple 12" >/host/target.secret
serve <<TOML
[[target]]
name = "$IQN"
open = true
[[target.chap]]
user = "guest"
secret_file = "initiator.secret"
[target.mutual_chap]
user = "disks"
secret_file = "target.secret"
[[target.lun]]
id = 0
device = "ram:64M"
TOML

login_as() { # USER SECRET [TARGET'S USER, TARGET'S SECRET]
    local settings=()
    [[ -z $1 ]] || settings+=(node.session.auth.authmethod=CHAP "node.session.auth.username=$1" "node.session.auth.password=$2")
    [[ -z ${3:-} ]] || settings+=("node.session.auth.username_in=$3" "node.session.auth.password_in=$4")
    initiator "${settings[@]}"
    iscsiadm -m discovery -t sendtargets -p "$PORTAL_1" && iscsiadm -m node -p "$PORTAL_1" --login || return
    local status=0
    within 20 disks_are 1 && dd if="$(disks | head -n 1)" of=/dev/null bs=1M count=4 iflag=direct || status=1
    iscsiadm -m node -p "$PORTAL_1" --logout && return $status
}
check "the right secret logs in" login_as guest "correct horse 12"
check "both secrets log in" login_as guest "correct horse 12" disks "battery staple 12"
check "a wrong secret is refused" no login_as guest "incorrect horse"
check "an unknown user is refused" no login_as stranger "correct horse 12"
check "nobody is refused" no login_as "" ""
check "the kernel refuses a target without the secret" no login_as guest "correct horse 12" disks "battery stapled"
check "the right secrets still log in" login_as guest "correct horse 12" disks "battery staple 12"
