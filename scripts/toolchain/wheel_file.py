"""The file of a wheel, written so that its bytes depend on nothing but its content and one time.

auditwheel sorts the members, but the folders among them have the modes of the builder's umask.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import stat
import zipfile
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

# What a zip archive can say: it starts in 1980.
EARLIEST = 315532800


def dist_info(names: list[str]) -> str:
    """Returns the name of a wheel's .dist-info folder."""
    return next(name.partition("/")[0] for name in names if name.partition("/")[0].endswith(".dist-info"))


def rewrite(wheel: Path, epoch: int, additions: Mapping[str, bytes] | None = None) -> None:
    """Writes a wheel anew, in place: members in the order they have, plain modes, one time, RECORD made again.

    Args:
        wheel: the file.
        epoch: time of every member, in seconds since 1970, UTC.
        additions: content by name, below the .dist-info folder; replaces what is there.
    """
    with zipfile.ZipFile(wheel) as archive:
        infos = [info for info in archive.infolist() if not info.is_dir()]
        members = {info.filename: archive.read(info) for info in infos}
        programs = {info.filename for info in infos if (info.external_attr >> 16) & stat.S_IXUSR}
    folder = dist_info(list(members))
    record = f"{folder}/RECORD"
    members.pop(record, None)
    members.update({f"{folder}/{name}": content for name, content in (additions or {}).items()})
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    for name, content in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        writer.writerow((name, f"sha256={digest}", len(content)))
    writer.writerow((record, "", ""))
    members[record] = lines.getvalue().encode()

    date = datetime.fromtimestamp(max(epoch, EARLIEST), tz=timezone.utc).timetuple()[:6]
    partial = wheel.with_name(f"{wheel.name}.partial")
    with zipfile.ZipFile(partial, "w") as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name, date)
            info.create_system = 3  # Unix, whose modes follow
            info.external_attr = (stat.S_IFREG | (0o755 if name in programs else 0o644)) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    partial.replace(wheel)
