# SPDX-License-Identifier: MIT
# Sourced by tests that need packages of another release of Debian or Ubuntu. `find_mirror SUITE` sets `mirror` to the one
# that apt uses on this machine, and `keyring` to the keys of its packages; QV_MIRROR=URL overrides the mirror.
skip() { echo "$*: skipped"; exit 77; }
find_mirror() {
    id=debian
    [ "$1" != noble ] || id=ubuntu
    keyring=/usr/share/keyrings/$id-archive-keyring.gpg
    [ -e "$keyring" ] || skip "no keys of $id's packages in $keyring"
    mirror=${QV_MIRROR:-$(
        . /etc/os-release
        [ "$ID" != $id ] || apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(SITE)' 'Created-By: Packages' |
            sed -nE "s/^(${VERSION_CODENAME:-sid}|(old)*stable|testing|unstable) main //p" | head -n 1
    )}
    [ -n "$mirror" ] || skip "this machine's apt has no mirror of $id's packages; QV_MIRROR=URL names one"
}
