#!/bin/sh
# Writes this root file system to $1 such that it differs by nothing but its inputs: without what apt
# and dpkg leave behind and without what only people read, bytecode valid by itself, all of one date.
set -eu
root=$1
# The builder mounts over some files, which then cannot be dated: so it is a copy.
mkdir "$root"
tar --directory=/ --one-file-system --exclude=".$root" --exclude=./finish-root.sh --create . \
  | tar --directory="$root" --extract --preserve-permissions
cd "$root"
for file in etc/hostname etc/hosts etc/resolv.conf; do : > "$file"; done
rm -rf proc/* sys/* dev/* run/* tmp/* root/.[!.]* etc/*-
rm -rf var/lib/apt/lists/* var/lib/dpkg/*-old var/log/* var/cache/*
rm -rf usr/share/man usr/share/info usr/share/locale usr/share/lintian
find usr/share/doc -type f ! -name copyright -delete
find usr/share/doc -mindepth 1 -type d -empty -delete
# Debian's bytecode goes by the date of its source, which is about to change.
find usr/lib/python3 usr/lib/python3.11 -name __pycache__ -prune -exec rm -r {} +
python3 -m compileall -q --invalidation-mode unchecked-hash -s "$root" -p / \
  "$root/usr/lib/python3" "$root/usr/lib/python3.11"
if [ -e etc/ssl/certs/java/cacerts ]; then
  # Java's trust store by the tool that dates its entries SOURCE_DATE_EPOCH.
  trust extract --format=java-cacerts --filter=ca-anchors --purpose=server-auth --overwrite \
    "$root/etc/ssl/certs/java/cacerts"
fi
find . -exec touch --no-dereference --date="@${SOURCE_DATE_EPOCH}" {} +
