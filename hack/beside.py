"""Runs one command beside another and shows what it has written when both are over.

    python hack/beside.py COMMAND OTHER

OTHER writes to the terminal as it goes. COMMAND has what processor time OTHER leaves (`nice`).
Fails when either does. A part of `make test` waits for processes, another one only computes.
"""

import contextlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

NICE = "5"
"""A third of a share where both want a processor: tests have a limit of time, so not much less."""


def main(command: str, other: str) -> int:
    """Run both; return an exit code that is 0 when both have ended well."""
    running: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, lambda *_: [each.terminate() for each in running])
    with tempfile.TemporaryFile() as written:
        quiet = ["nice", "-n", NICE, *shlex.split(command)]
        running.append(subprocess.Popen(quiet, stdout=written, stderr=subprocess.STDOUT))
        running.append(subprocess.Popen(shlex.split(other)))
        codes = [_end_of(each) for each in running]
        sys.stdout.write(f"\n== beside it: {command}\n")
        sys.stdout.flush()
        written.seek(0)
        shutil.copyfileobj(written, sys.stdout.buffer)
    return int(any(codes))


def _end_of(process: subprocess.Popen[bytes]) -> int:
    """Return the exit code of a process, also when this one is interrupted.

    An interrupt of the terminal has reached that one as well: it ends in order, and tells what was.
    """
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            return process.wait()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
