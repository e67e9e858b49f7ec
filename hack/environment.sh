#!/usr/bin/env bash
# Makes .venv from uv.lock; brings uv along when the machine has none.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$(command -v uv || true)
if [ -z "$uv" ]; then
  echo "rezone: making an environment for uv ..."
  [ -x .venv/bin/python ] || python3 -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check uv
  uv=.venv/bin/uv
fi
echo "rezone: installing the locked environment (PySpark is 450 MB the first time) ..."
"$uv" sync --frozen --all-extras --inexact
