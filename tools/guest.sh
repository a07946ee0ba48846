# Sourced by what runs a small virtual machine (tests/zoned/run, tests/power_cuts/run): QEMU without hardware support, Debian's kernel and
# busybox, and an initramfs of the programs under test. Whoever sources it defines `skip`, which ends the script, and `root` and `work`,
# the folders in which the initramfs and all else is made.

# Where the kernel is kept, unpacked and not installed.
cache=$(realpath -m "${CARGO_TARGET_DIR:-target}")/guest

# What `skip` says and does: WHAT the script calls itself, and why.
guest_skip() {
    local what=$1
    shift
    echo "$what: SKIPPED: $*"
    [ "${PUMICE_NO_SKIPS:-0}" = 1 ] || exit 0
    echo "$what: 0 passed, 1 failed"
    exit 1
}

guest_needs() { # TOOLS…
    [ "$(uname -m)" = x86_64 ] || skip "the machine is made for x86_64, this is $(uname -m)"
    local tool
    for tool in "$@"; do
        command -v "$tool" >/dev/null ||
            skip "$tool is missing (Debian: qemu-system-x86, cpio, dpkg, apt, libc-bin, binutils, e2fsprogs, python3)"
    done
}

guest_fetch() {
    mkdir -p "$cache/deb" && cd "$cache/deb" || return
    local kernel package
    kernel=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[^ ]*\)$/\1/p')
    [ -n "$kernel" ] || return
    apt-get download "$kernel" busybox-static 2>&1 || return
    for package in ./*.deb; do dpkg-deb -x "$package" "$cache/system" || return; done
}

guest_kernel() {
    local said
    ls "$cache"/system/boot/vmlinuz-* >/dev/null 2>&1 && [ -x "$cache/system/bin/busybox" ] && return
    rm -rf "$cache"
    said=$( (guest_fetch) 2>&1) || skip "Debian's linux-image-cloud-amd64 and busybox-static cannot be fetched: ${said##*$'\n'}"
}

# A program of the machine, with the libraries that it wants.
guest_program() { # NAME FILE
    local library
    strip -o "$root/bin/$1" "$2"
    for library in $(ldd "$2" | grep -o '/[^ :]*\.so[^ :]*' | sort -u); do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done
}

guest_initramfs() {
    cp "$cache/system/bin/busybox" "$root/bin/"
    (cd "$root" && find . | cpio -o -H newc --quiet) >"$work/initramfs"
}
