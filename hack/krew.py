"""Makes `kubectl rezone` for krew: the plugin's archive and its manifest, of the version at hand.

A krew plugin is an archive with a program. Ours is a script that runs the wheel next to it in an
environment that uv or pipx makes at the first call and keeps: Python packages have no single
file that runs on all machines. The archive is the same, to the byte, for the same wheel.
"""

import argparse
import gzip
import hashlib
import io
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
API_VERSION: Final = "krew.googlecontainertools.github.com/v1alpha2"
NAME: Final = "rezone"
SYSTEMS: Final = ("darwin", "linux")
SHORT_DESCRIPTION: Final = "Watch and move partitions of Rezone tables"
DESCRIPTION: Final = """\
Shows the zones of the operator Rezone, their partition maps and the progress of
rebalances, live or as JSON and YAML, says why a task waits, and moves leaders.
"""
CAVEATS: Final = """\
Needs Python 3.11 or newer and uv or pipx on the PATH. The first call makes the
plugin's environment, which takes the packages it depends on from your index.
"""
SCRIPT: Final = """\
#!/bin/sh
# Runs the wheel next to this script. krew calls it by a symbolic link.
set -eu
self=$0
while [ -L "$self" ]; do
  target=$(readlink "$self")
  case $target in
    /*) self=$target ;;
    *) self=$(dirname "$self")/$target ;;
  esac
done
spec="rezone[operator] @ file://$(cd "$(dirname "$self")" && pwd -P)/{wheel}"
if command -v uv >/dev/null 2>&1; then
  exec uv tool run --quiet --from "$spec" kubectl-rezone "$@"
elif command -v pipx >/dev/null 2>&1; then
  exec pipx run --quiet --spec "$spec" kubectl-rezone "$@"
fi
echo "kubectl rezone needs uv (https://docs.astral.sh/uv) or pipx on the PATH" >&2
exit 127
"""


def version() -> str:
    """Return the version of the package."""
    found: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return found


def archive(wheel: Path) -> bytes:
    """Return the plugin's archive. Raises ValueError when the wheel is of another version."""
    if not wheel.name.startswith(f"{NAME}-{version()}-"):
        raise ValueError(f"{wheel.name} is no wheel of {NAME} {version()}")
    script = SCRIPT.replace("{wheel}", wheel.name).encode()
    members = [
        ("LICENSE", 0o644, (ROOT / "LICENSE").read_bytes()),
        (f"kubectl-{NAME}", 0o755, script),
        (wheel.name, 0o644, wheel.read_bytes()),
    ]
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, filename="") as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for name, mode, content in members:
            entry = tarfile.TarInfo(name)
            entry.mode, entry.size = mode, len(content)
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def archive_name() -> str:
    """Return the file name of the archive."""
    return f"kubectl-{NAME}-{version()}.tar.gz"


def manifest(packed: bytes, base_url: str, homepage: str) -> dict[str, Any]:
    """Return the plugin's manifest; the archive is to be had below `base_url`."""
    platform = {
        "selector": {
            "matchExpressions": [{"key": "os", "operator": "In", "values": list(SYSTEMS)}]
        },
        "uri": f"{base_url.rstrip('/')}/{archive_name()}",
        "sha256": hashlib.sha256(packed).hexdigest(),
        "bin": f"kubectl-{NAME}",
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "Plugin",
        "metadata": {"name": NAME},
        "spec": {
            "version": f"v{version()}",
            "homepage": homepage,
            "shortDescription": SHORT_DESCRIPTION,
            "description": DESCRIPTION,
            "caveats": CAVEATS,
            "platforms": [platform],
        },
    }


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as people do in manifests, behind a bar."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def written_form(document: dict[str, Any]) -> str:
    """Return the manifest as its file holds it."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False)


def main() -> int:
    """Write archive and manifest into a directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path, required=True, help="as `uv build --wheel` makes it")
    parser.add_argument("--base-url", required=True, help="where the archive will be")
    parser.add_argument("--homepage", required=True)
    parser.add_argument("--output", type=Path, default=Path("dist"))
    chosen = parser.parse_args()
    try:
        packed = archive(chosen.wheel)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    chosen.output.mkdir(parents=True, exist_ok=True)
    (chosen.output / archive_name()).write_bytes(packed)
    written = written_form(manifest(packed, chosen.base_url, chosen.homepage))
    (chosen.output / f"{NAME}.yaml").write_text(written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
