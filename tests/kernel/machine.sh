# shellcheck shell=bash
# The guest's kernel, initramfs and root image, made of Debian's own packages and kept in a cache. Sourced by script/test-kernel.
#
# Nothing is installed in the guest: packages are unpacked as they are, and what their maintainer scripts would have done
# is at the end of `unpack`. That takes half a minute where debootstrap and an initramfs generator take three.

packages=(bash coreutils grep sed mawk findutils diffutils util-linux mount iproute2 kmod udev dmsetup busybox-static procps
    libc-bin base-files base-passwd systemd login passwd open-iscsi multipath-tools e2fsprogs xfsprogs fio sg3-utils ddpt lsscsi nftables
    samba cifs-utils nfs-kernel-server quota)
# Trees of the kernel's modules that are kept; the rest is ten times as much.
modules=(crypto arch lib block fs/{ext4,jbd2,mbcache.ko,xfs,9p,fscache,netfs,nls,configfs,fuse,autofs,cifs,smb,nfs,nfsd,nfs_common,lockd,quota}
    net/{9p,core,netfilter,ipv4,sched,sunrpc,dns_resolver} drivers/virtio
    drivers/{scsi,target,uio,md,nvdimm,dax,block/virtio_blk.ko,block/loop.ko,net/virtio_net.ko,net/net_failover.ko,net/veth.ko,char/virtio_console.ko,char/hw_random})
# In the order of their dependences, with those.
boot_modules=(virtio_pci virtio_blk crc32c_generic ext4)

# Makes `$machine` with `kernel`, `initramfs`, `root.img` and `release` if it is not there, or was made by another version of this file.
build_machine() { # CACHE
    local cache=$1 package made_by
    package=$(apt-cache depends linux-image-amd64 | awk '/Depends:/ { print $2; exit }')
    [[ -n $package ]] || { apt-get update -qq; package=$(apt-cache depends linux-image-amd64 | awk '/Depends:/ { print $2; exit }'); }
    machine=$cache/$package
    made_by=$(cat "$here/tests/kernel/"{machine.sh,init,units-init,initramfs} | sha256sum)
    [[ $(cat "$machine/made-by" 2>/dev/null) != "$made_by" ]] || return 0
    echo "building a guest with $package in $machine"
    local root=$cache/root
    rm -rf "$machine" "$root"
    mkdir -p "$machine" "$root" "$cache/packages/partial"
    download "$cache" "${packages[@]}" "$package"
    unpack "$cache" "$root" "$package"
    place_kernel "$root"
    # No journal and no checksums: the image is written by nobody but a snapshot that is thrown away.
    # Room for three programs of 90 MiB: what is installed over one that runs lies beside it.
    local mib=$(($(du -sm "$root" | cut -f1) * 12 / 10 + 64 + 3 * 90))
    mke2fs -q -t ext4 -O ^has_journal,^metadata_csum -E lazy_itable_init=0 -m 0 -d "$root" "$machine/root.img" "${mib}M"
    rm -rf "$root"
    echo "$made_by" >"$machine/made-by"
}

# Fetches packages and all that they depend on, as if this system had none.
download() { # CACHE PACKAGE...
    local cache=$1
    shift
    : >"$cache/status"
    local get=(apt-get install --download-only -qq -y --no-install-recommends -o Dir::State::status="$cache/status"
        -o Dir::Cache::archives="$cache/packages" -o APT::Sandbox::User=root -o Debug::NoLocking=1)
    "${get[@]}" "$@" >/dev/null || { apt-get update -qq && "${get[@]}" "$@" >/dev/null; }
    # Versions that there are no longer, of an earlier build.
    apt-get autoclean -qq -o Dir::Cache::archives="$cache/packages" -o Debug::NoLocking=1 >/dev/null
}

# Unpacks what was downloaded, and of the kernels that the cache may have the one that is wanted.
unpack() { # CACHE ROOT KERNEL
    local cache=$1 root=$2 kernel=$3 deb folder keep=() tree
    mkdir -p "$root"/usr/{bin,sbin,lib,lib64}
    for folder in bin sbin lib lib64; do ln -s "usr/$folder" "$root/$folder"; done
    for tree in "${modules[@]}"; do keep+=("./lib/modules/*/kernel/$tree" "./usr/lib/modules/*/kernel/$tree"); done
    for deb in "$cache"/packages/*.deb; do
        case ${deb##*/} in
        linux-image-*)
            [[ ${deb##*/} == "$kernel"_* ]] || continue
            dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$root" --keep-directory-symlink --wildcards ./boot '*/modules.builtin*' '*/modules.order' "${keep[@]}" \
                2>/dev/null || true # a kernel has not all of those trees
            ;;
        perl* | libperl* | python3* | libpython3* | initramfs-tools* | linux-base* | tzdata*) ;;
        *)
            dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$root" --keep-directory-symlink \
                --exclude='./usr/share/'{doc,man,locale,info,bash-completion,zoneinfo,i18n} --exclude='./usr/lib/*/gconv'
            ;;
        esac
    done
    cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
    cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
    local id=200 group
    for group in kvm render sgx input; do echo "$group:x:$((id++)):" >>"$root/etc/group"; done # udev's rules name them
    ln -sf mawk "$root/usr/bin/awk"
    [[ -e $root/bin/sh ]] || ln -s bash "$root/usr/bin/sh" # dash's package makes it in its script
    ln -sf ../proc/self/mounts "$root/etc/mtab"
    ln -sfn /run "$root/var/run"
    : >"$root/etc/fstab"
    mkdir -p "$root"/{proc,sys,dev,run,tmp,host,mnt} "$root"/etc/{iscsi,multipath} "$root/var/lib/iscsi"
    cp "$here/tests/kernel/init" "$root/usr/sbin/test-init"
    cp "$here/tests/kernel/units-init" "$root/usr/sbin/units-init"
    chmod 755 "$root/usr/sbin/test-init" "$root/usr/sbin/units-init"
    local unit=$root/etc/systemd/system
    mkdir -p "$unit"/{network-online.target.wants,multi-user.target.wants}
    printf '%s\n' '[Unit]' DefaultDependencies=no 'After=systemd-udevd.service systemd-udev-trigger.service systemd-remount-fs.service' \
        'Before=network.target network-online.target' '[Service]' Type=oneshot RemainAfterExit=yes \
        'ExecStart=/usr/sbin/units-init network' >"$unit/units-network.service"
    # Last: what is enabled during the test is started at the next boot before it looks.
    printf '%s\n' '[Unit]' 'Requires=units-network.service' 'After=units-network.service remote-fs.target' '[Service]' Type=simple \
        'ExecStart=/usr/sbin/units-init test' >"$unit/units-test.service"
    ln -s ../units-network.service ../units-test.service "$unit/multi-user.target.wants/"
    ln -s ../units-network.service "$unit/network-online.target.wants/"
    # As the package's own script does.
    ln -s /lib/systemd/system/remote-fs.target "$unit/multi-user.target.wants/"
    local masked
    for masked in systemd-logind.service getty.target systemd-networkd-wait-online.service systemd-firstboot.service systemd-timesyncd.service \
        multipathd.service open-iscsi.service iscsid.socket; do
        ln -sf /dev/null "$unit/$masked"
    done
    : >"$root/etc/machine-id"
    chroot "$root" /sbin/ldconfig
}

# The kernel as it is, and an initramfs that mounts the root image and no more.
place_kernel() { # ROOT
    local root=$1 release early=$1/early module number=10
    release=$(ls "$root/lib/modules")
    echo "$release" >"$machine/release"
    mv "$root/boot/vmlinuz-$release" "$machine/kernel"
    rm -rf "$root/boot"
    chroot "$root" depmod "$release"
    mkdir -p "$early"/{bin,modules,dev,root}
    cp "$root/bin/busybox" "$early/bin/"
    cp "$here/tests/kernel/initramfs" "$early/init"
    chmod 755 "$early/init"
    for module in "${boot_modules[@]}"; do
        chroot "$root" modprobe -S "$release" --show-depends -q "$module"
    done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r module; do
        cp "$root$module" "$early/modules/$((number++))-${module##*/}"
    done
    (cd "$early" && find . | "$root/bin/busybox" cpio -o -H newc 2>/dev/null) >"$machine/initramfs"
    rm -rf "$early"
}
