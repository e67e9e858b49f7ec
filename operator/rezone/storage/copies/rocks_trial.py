"""A process of its own that opens an engine's files and reads all of them, to see what they do.

    python -m rezone.storage.copies.rocks_trial DIRECTORY MEMORY_BYTES CPU_SECONDS

RocksDB trusts what it reads: a file that was made to hurt can end its process. Files that somebody
else has made are opened here first (`copies.trial`), and not to be written to; opening leaves a log
and a file of options, as the node's own would. Prints how many entries there are; ends with 1 and a
line on stderr when they cannot be read. It pulls little, because it begins with each copy.
"""

import os
import resource
import sys

_DESCRIPTORS = 256
_READAHEAD_BYTES = 2 << 20
_WRITTEN_BYTES = 1 << 20


def limit(memory_bytes: int, cpu_seconds: int) -> None:
    """Take from this process what it does not need."""
    for which, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_NOFILE, _DESCRIPTORS),
        (resource.RLIMIT_FSIZE, _WRITTEN_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(which, (most, most))


def entries(directory: str) -> int:
    """Read all entries, with the checksums of all blocks; return how many there are.

    Raises Exception, as rocksdict does, for what RocksDB finds to be damaged.
    """
    import rocksdict  # noqa: PLC0415 - under the limits

    options = rocksdict.Options(raw_mode=True)
    options.set_paranoid_checks(True)
    options.set_max_open_files(_DESCRIPTORS // 2)
    access = rocksdict.AccessType.read_only()
    reading = rocksdict.ReadOptions()
    reading.fill_cache(False)  # noqa: FBT003 - RocksDB's signature
    reading.set_verify_checksums(True)
    reading.set_readahead_size(_READAHEAD_BYTES)
    database = rocksdict.Rdict(directory, options, access_type=access)
    count, last = 0, None
    for key in database.keys(read_opt=reading):
        count, last = count + 1, key
    # An iterator over items ends at a damaged block as it does at the end, and says nothing.
    cursor = database.iter(reading)
    if last is None:
        cursor.seek_to_first()
    else:
        cursor.seek(last)
        cursor.next()
    cursor.status()
    if cursor.valid():
        raise Exception(f"entries after {last!r} cannot be read")  # noqa: TRY002
    return count


def main() -> None:
    """Read the directory that is named."""
    directory, memory_bytes, cpu_seconds = sys.argv[1:]
    limit(int(memory_bytes), int(cpu_seconds))
    try:
        count = entries(directory)
    except Exception as error:  # noqa: BLE001 - rocksdict raises bare Exception
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.write(f"{count}\n")
    sys.stdout.flush()
    os._exit(0)  # what is left is the system's to free


if __name__ == "__main__":
    main()
