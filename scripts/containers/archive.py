"""Image archives made of a root file system, in the form that `docker save` writes and every engine loads.

The form is the "combined image JSON and file system changeset" of the Docker image specification 1.2.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

BLOCK = 1 << 20


def write_image_archive(root: Path, out: Path, tag: str, architecture: str, labels: dict[str, str]) -> None:
    """Writes an image of one layer.

    Args:
        root: uncompressed tar archive of a root file system.
        out: where the image archive goes.
        tag: name of the image.
        architecture: amd64 or arm64.
        labels: labels of the image.
    """
    digest = hashlib.sha256()
    with root.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    layer = digest.hexdigest()
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Cmd": ["/bin/bash"], "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
        "history": [{"created_by": "root file system"}],
    }
    config["config"]["Labels"] = labels  # type: ignore[index]
    text = json.dumps(config).encode()
    name = f"{hashlib.sha256(text).hexdigest()}.json"
    manifest = json.dumps([{"Config": name, "RepoTags": [tag], "Layers": [f"{layer}/layer.tar"]}]).encode()
    with tarfile.open(out, "w") as archive:
        for member, content in ((name, text), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(member)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        archive.add(root, f"{layer}/layer.tar")
