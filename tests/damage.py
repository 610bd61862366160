"""Damage to checkpoints of which their files know nothing."""

import json


def flip_bytes(folder):
    """Change some bytes of the largest data file, which Orbax may or may not notice."""
    files = [p for p in folder.rglob("*") if p.is_file() and p.parent.name == "d"]
    path = max(files, key=lambda p: p.stat().st_size)
    data = bytearray(path.read_bytes())
    for at in range(len(data) // 3, len(data) // 3 + 4):
        data[at] ^= 0x40
    path.write_bytes(bytes(data))


def other_numbers(folder):
    """Let the last part of an array be another one than was saved, to its checksum."""
    path = folder / "meta" / "metadata"
    meta = json.loads(path.read_text())
    sums = next(s for s in reversed(meta["crc32"].values()) if len(s) > 1)
    sums[list(sums)[-1]] ^= 1
    path.write_text(json.dumps(meta))


def part_of_process_1(folder):
    """Let only process 1 of two not read what it needs."""
    for path in (folder / "state" / "ocdbt.process_1" / "d").iterdir():
        path.write_bytes(path.read_bytes()[:20])
