# The shipped systemd units, installed as their first lines and the page "Install" say, under a real systemd, over a restart of the machine: what
# the management interface changed is served again, and a file system on an attached disk is mounted again from fstab. Run twice: before the restart,
# and after it.
. /host/tests/guest.sh

lun() { echo "iscsi://127.0.0.1/$IQN/$1"; }
active() { systemctl is-active --quiet "$1"; }
# The commands that a unit's first lines give: those that are indented. `$EDITOR` is whoever installs it.
installed_as_documented() { # UNIT
    local script
    script=$(sed -n '/^$/q; s/^#   //p' "/host/tree/contrib/$1" | grep -E '^(install|useradd|systemctl)')
    grep -q systemctl <<<"$script" && (cd /host/tree && EDITOR=/host/editor bash -exc "$script")
}

# The blocks of a kind in a section of a page.
block() { # PAGE SECTION KIND
    sed -n "/^##* $2\$/,/^## /p" "/host/tree/docs/src/$1.md" | sed -n "/^\`\`\`$3\$/,/^\`\`\`\$/{/^\`\`\`/!p}"
}
if [[ ! -e /root/before ]]; then
    cat >/host/lunway.toml <<TOML
listen = ["$PORTAL_1"]
[[target]]
name = "$IQN"
open = true
[[target.lun]]
id = 0
device = "ram:64M"
[[target.lun]]
id = 1
device = "ram:64M"
TOML
    served=1
    must "the host serves the disk that is attached" host serve
    # What an administrator writes into the files that the steps open.
    cat >/host/editor <<EDITOR
#!/bin/bash
case \$1 in
*/lunway.toml) printf 'listen = ["127.0.0.1:3260"]\n[[target]]\nname = "%s"\nopen = true\n' "$IQN" >"\$1" ;;
*/backup/db) printf 'SOURCE=lun:%s/3\nDESTINATION=/srv/backups\nKEEP=--keep-last 2\n' "$IQN" >"\$1" ;;
*/attach/data) printf 'DEVICE=iscsi://%s/%s/0\nWAY=--fuse /run/lunway-attach/data/mnt\n' "$PORTAL_1" "$IQN" >"\$1" ;;
esac
EDITOR
    chmod 755 /host/editor
    mkdir -p /usr/local/bin /srv
    must "the daemon is installed by the lines at the top of its unit" installed_as_documented lunway.service
    check "systemd has heard that it serves" active lunway.service
    # The same by the page, on a machine without it.
    systemctl disable --now lunway.service lunway.socket
    userdel lunway
    rm -rf /etc/lunway /var/lib/lunway /etc/systemd/system/lunway.s* /usr/local/bin/lunway
    block install "As a service" toml >/host/tree/lunway.toml
    page_installs() {
        cd /host/tree && bash -exc "$(block install "Install, start, upgrade" sh | sed -n 's/^sudo //p' | grep .)" &&
            bash -exc "$(block install "As a service" sh | sed '/^systemctl enable/q' | grep .)"
    }
    must "the daemon is installed by the page" page_installs
    check "systemd has heard that it serves again" active lunway.service
    check "systemd holds the portal" active lunway.socket
    must "a target is added" lunway target add "$IQN" --open
    at_once() { for _ in 1 2 3; do systemctl restart lunway && lunway discover 127.0.0.1 || return; done; }
    check "who comes just after a restart is served" at_once
    while_stopped() { systemctl stop lunway.service && lunway discover 127.0.0.1; }
    check "who comes while it is stopped waits for it" while_stopped
    must "it has a folder for disks" install -d -o lunway -g lunway -m 750 /var/lib/lunway/disks
    must "a LUN is added and its file made" lunway lun add "$IQN" 3 /var/lib/lunway/disks/disk.img --create 64M
    check "the file belongs to the daemon's user" [ "$(stat -c %U /var/lib/lunway/disks/disk.img)" = lunway ]
    check "the change is in the file" grep -q 'id = 3' /etc/lunway/lunway.toml
    check "the daemon is spared when memory is short" [ "$(cat "/proc/$(systemctl show -P MainPID lunway)/oom_score_adj")" = -500 ]
    echo "from before" >/tmp/mark && truncate -s 4096 /tmp/mark
    must "data are written to it" lunway copy /tmp/mark "$(lun 3)" --overwrite

    must "the backup is installed by the lines at the top of its unit" installed_as_documented lunway-backup@.service
    mkdir -p /srv/backups
    check "its timer waits" active lunway-backup@db.timer
    backs_up() { systemctl start lunway-backup@db.service || { journalctl -u lunway-backup@db.service --no-pager -o cat | tail -n 14 && false; }; }
    check "it is run once" backs_up
    check "there is one point" shows ' sealed$' lunway backup list /srv/backups
    check "the point is intact" lunway backup verify /srv/backups

    block clients Firewall text >/tmp/lunway.nft
    check "nftables reads the rule of the page Clients" eval '[ -s /tmp/lunway.nft ] && nft -c -f /tmp/lunway.nft'

    must "the attachment is installed by the lines at the top of its unit" installed_as_documented lunway-attach@.service
    must "it is there" active lunway-attach@data.service
    must "mkfs.ext4" mkfs.ext4 -q /run/lunway-attach/data/mnt/disk
    # The line of the page "Attach".
    grep -h '^/run/lunway-attach/data/mnt/disk /srv/data ' /host/tree/docs/src/attach.md >>/etc/fstab
    mkdir -p /srv/data
    systemctl daemon-reload
    must "it is mounted by fstab" mount /srv/data
    echo "from before" >/srv/data/file

    # The kernel's initiator by the lines of the page "Clients", whose portal is the host's here.
    page_initiator() { # SECTION [LINES]: those, or all
        bash -exc "$(block clients "$1" sh | grep -v '^systemctl' | sed "s/192\.0\.2\.10/${PORTAL_1%:*}/g" | sed -n "${2:-p}")"
    }
    # The guest's image leaves these out, and what would tell System V scripts about them.
    rm -f /etc/systemd/system/{multipathd.service,open-iscsi.service,iscsid.socket} /etc/init.d/{iscsid,open-iscsi,multipath-tools}
    systemctl daemon-reload
    echo "InitiatorName=iqn.2026-11.com.example:guest" >/etc/iscsi/initiatorname.iscsi
    modprobe -a iscsi_tcp sd_mod sg crc32c_intel
    check "the page's lines discover, log in and log out" shows LUNWAY page_initiator 'Linux (open-iscsi)' '/discovery\|login\|lsblk\|logout/p'
    check "no session is left" no iscsiadm -m session
    must "the page's line logs in" page_initiator 'Linux (open-iscsi)' '/login/p'
    disk=/dev/disk/by-path/ip-$PORTAL_1-iscsi-$IQN-lun-1
    must "the disk is there" within 20 test -b "$disk"
    # The line of the page, and the file system that it names.
    line=$(block clients 'At boot' text | grep '^UUID=')
    must "mkfs.ext4 on the disk" mkfs.ext4 -q -U "$(expr "$line" : 'UUID=\([^ ]*\) /srv/disk ext4 ')" "$disk"
    echo "$line" >>/etc/fstab
    mkdir -p /srv/disk
    udevadm settle
    must "it is mounted by the page's line" mount /srv/disk
    echo "from before" >/srv/disk/file
    check "it is logged in at boot from now on" page_initiator 'At boot'
    check "the services are enabled" bash -exc "$(block clients 'At boot' sh | grep '^systemctl')"

    ((failures)) && exit 1
    touch /root/before
    sync
    must "it restarts" host reached restart
    trap - EXIT
    # Without D-Bus it says that it found nobody to ask first.
    systemctl reboot 2>/dev/null
    sleep infinity
fi

served=1
must "the daemon runs again" within 30 active lunway.service
check "it serves what the management interface added" shows ' 3 .*/var/lib/lunway/disks/disk.img' lunway lun list
check "with the data" eval 'lunway copy "$(lun 3)" /tmp/read && head -c 11 /tmp/read | grep -q "from before"'
check "the file system is mounted again" within 60 mountpoint -q /srv/data
check "with its data" grep -q "from before" /srv/data/file
check "the disk of the kernel's initiator is mounted again" within 60 mountpoint -q /srv/disk
check "with its data" grep -q "from before" /srv/disk/file
check "the timer of the backup waits again" active lunway-backup@db.timer
units=(lunway.service lunway-attach@data.service lunway-backup@db.timer srv-data.mount iscsid.service open-iscsi.service srv-disk.mount)
check "nothing has failed" no systemctl --quiet is-failed "${units[@]}"
journalctl -b "${units[@]/#/-u}" --no-pager -o cat | tail -n $((failures ? 30 : 0))
umount /srv/data /srv/disk
systemctl stop lunway-attach@data.service
