# shellcheck shell=bash
# Two file servers in this guest, their clients, and what happens to them. Sourced by shares.test.sh.
#
#   init's namespaces    smbd and nfsd, which both show /srv/share: an ext4 of its own, with quotas, on a loop device
#   namespace `client`   10.9.1.2: the kernel's mounts below /mnt/client, and `lunway`
#   namespace `other`    10.9.2.2: the same for a second machine, with another name, machine id and boot id
#
# What a client sends crosses its pair of virtual cards, `client` or `other` on the servers' side. Clients of the
# kernel belong to a network namespace: two of them share neither connections nor caches.

share_mib=256
# Debian's user of that name and number: whom both servers act as. Only its quota is changed.
owner=backup owner_id=34

make_shares() {
    must "two machines for clients" make_clients
    must "a file system with quotas" make_room
    must "Samba serves it" start_cifs
    must "the kernel's NFS server does" start_nfs
}
make_clients() {
    local host number=1
    modprobe -a veth cifs nfs nfsv4 nft_reject_ipv4 tcp_diag || return
    for host in client other; do
        ip netns add "$host" &&
            ip link add "$host" type veth peer name card netns "$host" &&
            ip address add "10.9.$number.1/24" dev "$host" && ip link set "$host" up &&
            as_client "$host" ip address add "10.9.$number.2/24" dev card &&
            as_client "$host" ip link set card up && as_client "$host" ip link set lo up || return
        # By default an NFS client is called as its machine, and two of one name take each other's state away.
        ip netns exec "$host" bash -c "echo $host >/sys/fs/nfs/net/nfs_client/identifier" || return
        mkdir -p "/mnt/$host/cifs" "/mnt/$host/nfs"
        ((number++))
    done
    # What a second machine is told apart by.
    echo 00000000-0000-4000-8000-000000000001 >/tmp/other-boot
    echo 00000000000000000000000000000001 >/tmp/other-machine
}
make_room() {
    modprobe -a loop ext4 quota_v2 nfsd || return
    truncate -s "${share_mib}M" /tmp/share.img && mke2fs -q -t ext4 -O quota -m 0 /tmp/share.img || return
    mkdir -p /srv/share && mount -o loop,usrquota /tmp/share.img /srv/share || return
    mkdir -p /srv/share/{cifs,nfs} && chown "$owner" /srv/share/{cifs,nfs}
    configure_cifs && configure_nfs
}
unmake_shares() {
    umount -f -l /mnt/{client,other}/{cifs,nfs} 2>/dev/null
    kill_cifs
    kill_nfs
    umount -l /srv/share
    ip netns delete client
    ip netns delete other
}
as_client() { nsenter --net="/run/netns/$1" "${@:2}"; } # HOST COMMAND...

configure_cifs() {
    mkdir -p /tmp/samba/{state,log}
    share_of_cifs no
}
share_of_cifs() { # READ_ONLY
    cat >/tmp/samba/smb.conf <<CONF
[global]
server role = standalone server
map to guest = bad user
disable netbios = yes
disable spoolss = yes
load printers = no
smb ports = 445
log file = /tmp/samba/log/smbd
private dir = /tmp/samba/state
state directory = /tmp/samba/state
cache directory = /tmp/samba/state
lock directory = /tmp/samba/state
pid directory = /tmp/samba/state
ncalrpc dir = /tmp/samba/state/ncalrpc
[share]
path = /srv/share/cifs
guest ok = yes
force user = $owner
read only = $1
CONF
}
start_cifs() { smbd -D -s /tmp/samba/smb.conf && within 20 eval 'ss -tlnH sport = 445 | grep -q .'; }
kill_cifs() { pkill -KILL -x smbd; within 10 no pidof smbd; }
# A share that has become read-only is so for whoever connects to it from then on.
read_only_cifs() { share_of_cifs "$1" && kill_cifs && start_cifs; } # yes|no

configure_nfs() {
    touch /etc/exports /var/lib/nfs/{etab,rmtab}
    mkdir -p /var/lib/nfs/{rpc_pipefs,v4recovery}
    mountpoint -q /var/lib/nfs/rpc_pipefs || mount -t rpc_pipefs pipefs /var/lib/nfs/rpc_pipefs || return
    mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
}
export_nfs() { # rw|ro
    exportfs -i -o "$1,sync,all_squash,anonuid=$owner_id,anongid=$owner_id,no_subtree_check,fsid=1" 10.9.0.0/16:/srv/share/nfs && exportfs -f
}
# NFSv4 alone, whose clients need no rpcbind. After a start they have 10 s to say what they had open, not 90.
start_nfs() {
    export_nfs rw && rpc.mountd -N 3 && rpc.nfsd -N 3 -V 4 --no-udp -G 10 -L 10 4 && within 20 eval 'ss -tlnH sport = 2049 | grep -q .'
}
kill_nfs() {
    rpc.nfsd 0
    pkill -KILL -x rpc.mountd
    within 10 eval '! ss -tlnH sport = 2049 | grep -q .'
}
read_only_nfs() { [[ $1 == yes ]] && export_nfs ro || export_nfs rw; } # yes|no

# By the client's defaults: what an administrator has who gave no thought to it.
mount_share() { # KIND HOST
    local number=1
    [[ $2 == client ]] || number=2
    case $1 in
    cifs) as_client "$2" mount -t cifs "//10.9.$number.1/share" "/mnt/$2/cifs" -o guest ;;
    nfs) as_client "$2" mount -t nfs "10.9.$number.1:/srv/share/nfs" "/mnt/$2/nfs" ;;
    esac
}

drop_packets_of() { # HOST
    nft "add table ip cut; add chain ip cut in { type filter hook input priority 0; }; add rule ip cut in iifname $1 drop;
        add chain ip cut out { type filter hook output priority 0; }; add rule ip cut out oifname $1 drop"
}
let_packets_pass() { nft delete table ip cut; }
# Whatever the client sends is answered by a reset.
reset_connections_of() { # HOST
    nft "add table ip cut; add chain ip cut in { type filter hook input priority 0; };
        add rule ip cut in iifname $1 meta l4proto tcp reject with tcp reset"
}
sent_by() { cat "/sys/class/net/$1/statistics/rx_bytes"; } # HOST: bytes, as the servers' card counts them
