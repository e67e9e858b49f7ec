#!/bin/sh
# Builds the limits of Flight's servers for the pyarrow of a Python, and puts them beside its own
# libraries: build.sh PYTHON. Needs g++ and the headers that pyarrow's package has.
set -eu
here=$(dirname "$0")
pyarrow=$("$1" -c 'import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec("pyarrow").origin).parent)')
# Beside it, as a rename within a file system is seen as a whole.
made=$(mktemp -d "$pyarrow/.limits.XXXXXX")
trap 'rm -rf "$made"' EXIT
flags="-std=c++20 -O2 -fPIC -fvisibility=hidden -Wall -Wextra -Werror -isystem $pyarrow/include"
g++ $flags -c "$here/server.cc" -o "$made/server.o"
g++ $flags -fno-rtti -c "$here/unpacking.cc" -o "$made/unpacking.o"
# Whatever it needs of Arrow it looks up when it runs: nothing may be left for the loader.
g++ -shared -Wl,-z,defs -Wl,-z,now -o "$made/librezone_limits.so" "$made/server.o" "$made/unpacking.o"
# What this pyarrow does not heed, or dies of, is not installed.
"$1" "$here/try.py" "$made/librezone_limits.so" || {
  echo "rezone: the limits of what Flight receives do not hold with this pyarrow; there are none" >&2
  rm -f "$pyarrow/librezone_limits.so"
  exit 1
}
mv "$made/librezone_limits.so" "$pyarrow/librezone_limits.so"
