#!/usr/bin/env bash
# Makes .venv from uv.lock; brings uv along when the machine has none.
#
# Certificates are checked by the system's authorities: pip and uv bring lists of their own, in which a
# proxy's authority is not. What the caller has set stays.
set -euo pipefail
cd "$(dirname "$0")/.."
export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-true}"
export UV_NATIVE_TLS="${UV_NATIVE_TLS:-$UV_SYSTEM_CERTS}" # the name in older versions of uv

pip_authorities() { # sets PIP_CERT, unless pip has been told already
  [ -z "${PIP_CERT:-}${REQUESTS_CA_BUNDLE:-}${CURL_CA_BUNDLE:-}" ] || return 0
  ! .venv/bin/python -m pip config get global.cert >/dev/null 2>&1 || return 0
  for file in "${SSL_CERT_FILE:-}" /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt; do
    [ ! -f "$file" ] || { export PIP_CERT="$file"; return 0; }
  done
}

uv=$(command -v uv || true)
if [ -z "$uv" ]; then
  echo "rezone: making an environment for uv ..."
  [ -x .venv/bin/python ] || python3 -m venv .venv
  pip_authorities
  .venv/bin/python -m pip install --quiet --disable-pip-version-check uv
  uv=.venv/bin/uv
fi
echo "rezone: installing the locked environment (PySpark is 450 MB the first time) ..."
# Compiled once: tests start some thousand processes, which else compile what they import each time.
"$uv" sync --frozen --all-extras --inexact --compile-bytecode
if command -v g++ >/dev/null 2>&1; then
  operator/native/build.sh .venv/bin/python
else
  echo "rezone: g++ is missing (Debian: apt-get install g++): data nodes run without limits of what they receive" >&2
fi
