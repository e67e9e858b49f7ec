"""Audits what the lock file brings, without a network.

    python hack/audit.py

It fails on a package that is not of PyPI, on a file without a SHA-256 digest or that is not had by
HTTPS, and on a licence that is unknown or not on the list of allowed ones. Known
vulnerabilities need a network: `make audit ONLINE=1` asks OSV by `uv audit`.
"""

import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PROJECT: Final = "rezone"
INDEX: Final = "https://pypi.org/simple"
ALLOWED: Final = frozenset(
    {
        *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0"),
        *("MPL-2.0", "PSF-2.0", "Zlib"),
    }
)
"""SPDX identifiers of licences that software under Apache-2.0 may depend on."""
SAID: Final = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "BSD 2-Clause License": "BSD-2-Clause",
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
"""What packages say that have no SPDX expression, where it means one licence."""
READ: Final = {
    "colorama": "BSD-3-Clause",  # installed on Windows alone
    "jinja2": "BSD-3-Clause",
    "lupa": "MIT",
    "pandas": "BSD-3-Clause",
    "py4j": "BSD-3-Clause",
    "pysocks": "BSD-3-Clause",
}
"""Set by hand: the package is not installed here, or its metadata do not tell which licence."""
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


def dependencies(lock: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the packages of a lock file without the project itself."""
    return [package for package in lock["package"] if package["name"] != PROJECT]


def file_problems(lock: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each package whose files cannot be checked when they are fetched."""
    for package in dependencies(lock):
        name = f"{package['name']} {package.get('version', '')}".rstrip()
        if package["source"] != {"registry": INDEX}:
            yield f"{name}: is not of {INDEX}"
        files = [*package.get("wheels", []), *filter(None, [package.get("sdist")])]
        if not files:
            yield f"{name}: has no file"
        for file in files:
            url = file.get("url", "")
            if not url.startswith("https://"):
                yield f"{name}: {url or 'a file'} is not had by HTTPS"
            if not _DIGEST.fullmatch(file.get("hash", "")):
                yield f"{name}: {url or 'a file'} has no SHA-256 digest"


def licence(package: str) -> str | None:
    """Return the SPDX expression of a package's licence; None when nobody knows it."""
    if package in READ:
        return READ[package]
    try:
        found = importlib.metadata.metadata(package)
    except importlib.metadata.PackageNotFoundError:
        return None
    if expression := found.get("License-Expression"):
        return str(expression)
    text = (found.get("License") or "").strip()
    if text in SAID or is_allowed(text):
        return SAID.get(text, text)
    named = [c for c in found.get_all("Classifier") or [] if c.startswith("License :: OSI")]
    return SAID.get(named[0]) if len(named) == 1 else None


def is_allowed(expression: str) -> bool:
    """Return whether a licence of SPDX may be used; False for one with parentheses."""
    return any(
        all(term.strip() in ALLOWED for term in choice.split(" AND "))
        for choice in expression.split(" OR ")
    )


def licence_problems(
    lock: Mapping[str, Any], licence_of: Callable[[str], str | None] = licence
) -> Iterator[str]:
    """Yield a line for each package whose licence is unknown or not allowed."""
    for name in sorted({package["name"] for package in dependencies(lock)}):
        found = licence_of(name)
        if found is None:
            yield f"{name}: its licence is unknown; read it, and add it to READ in hack/audit.py"
        elif not is_allowed(found):
            yield f"{name}: {found} is not on the list of allowed licences"


def main() -> int:
    """Say what is wrong with the lock file; 1 when there is anything."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    found = [*file_problems(lock), *licence_problems(lock)]
    sys.stderr.writelines(f"{line}\n" for line in found)
    if not found:
        sys.stderr.write(f"{len(dependencies(lock))} packages: digests and licences are known\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
