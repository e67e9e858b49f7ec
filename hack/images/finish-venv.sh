#!/bin/sh
# Moves the environment $1 below $2, small and all of one date: without the tests and C headers that
# packages bring along, and without uv's note about when it read the project.
set -eu
find "$1" -type d \( -name tests -o -path '*/pyarrow/include' \) -prune -exec rm -r {} +
find "$1" -name uv_cache.json -delete
find "$1" -name RECORD -exec sed -i '/uv_cache\.json/d' {} +
mkdir -p "$2$(dirname "$1")"
mv "$1" "$2$1"
find "$2" -exec touch --no-dereference --date="@${SOURCE_DATE_EPOCH}" {} +
