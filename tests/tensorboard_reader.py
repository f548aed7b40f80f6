"""Read TensorBoard files without TensorBoard."""

import struct

from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c


def records(path):
    """Yield the records of a file: length, its checksum, data, its checksum."""
    content, place = path.read_bytes(), 0
    while place < len(content):
        head = content[place : place + 8]
        (size,) = struct.unpack("<Q", head)
        (check,) = struct.unpack_from("<I", content, place + 8)
        assert check == masked_crc32c(head)
        data = content[place + 12 : place + 12 + size]
        (check,) = struct.unpack_from("<I", content, place + 12 + size)
        assert check == masked_crc32c(data)
        yield Event.FromString(data)
        place += size + 16


def scalars(folder):
    """Return what TensorBoard shows of a folder: (step, name, value)."""
    (path,) = folder.iterdir()
    assert path.name.startswith("events.out.tfevents.")
    first, *events = records(path)
    assert first.file_version == "brain.Event:2"
    # After a resume, the first event makes an open TensorBoard discard old data.
    if events and events[0].HasField("session_log"):
        assert events[0].session_log.status == events[0].session_log.START
        assert events.pop(0).step == 0
    assert all(event.wall_time > 1.7e9 for event in events)
    return [
        (event.step, value.tag, value.simple_value)
        for event in events
        for value in event.summary.value
    ]
