"""Writes what another program reads in a VHDX file to a raw image, sparse: libvhdi|dissect IMAGE FILE [PARENT...]."""

import pathlib
import sys

# A multiple of all sectors, and a divisor of all blocks.
STEP = 1 << 20


def libvhdi(paths):
    import pyvhdi

    files = []
    for path in paths:
        file = pyvhdi.file()
        file.open(path)
        files.append(file)
    for child, parent in zip(files, files[1:]):
        child.set_parent(parent)
    # All of them are needed as long as the first is read.
    return files[0].get_media_size(), lambda at, count, files=files: files[0].read_buffer_at_offset(count, at)


def dissect(paths):
    from dissect.hypervisor.disk.vhdx import VHDX

    # It finds the parents itself.
    disk = VHDX(pathlib.Path(paths[0]))

    def read(at, count):
        disk.seek(at)
        return disk.read(count)

    return disk.size, read


reader, image, *paths = sys.argv[1:]
size, read = {"libvhdi": libvhdi, "dissect": dissect}[reader](paths)
zeroes = bytes(STEP)
with open(image, "wb") as out:
    out.truncate(size)
    for at in range(0, size, STEP):
        count = min(STEP, size - at)
        data = read(at, count)
        assert len(data) == count, f"{len(data)} of {count} bytes at {at}"
        if data != zeroes[:count]:
            out.seek(at)
            out.write(data)
