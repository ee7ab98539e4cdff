"""The bill of materials (SBOM) of a wheel, as CycloneDX 1.6 says it in JSON.

It travels in the wheel, under .dist-info/sboms, and the release session writes it beside the wheel with the wheel's own
hash. Both are the same for the same wheel: their time is SOURCE_DATE_EPOCH, their number comes from what they say.
"""

from __future__ import annotations

import email
import json
import re
import uuid
import zipfile
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .archives import sha256_of
from .components import Component, Contents
from .layout import REQUIREMENTS
from .process import ToolchainError
from .wheel_file import dist_info

# PEP 770
FOLDER = "sboms"
SCHEMA = "http://cyclonedx.org/schema/bom-1.6.schema.json"
HOW = "thresher:how"
UNKNOWN = "thresher:unknown"


def name_of(wheel: Path) -> str:
    """Returns the member of a wheel's .dist-info folder that holds the SBOM."""
    return f"{FOLDER}/{wheel.name.partition('-')[0]}.cdx.json"


def make(wheel: Path, inside: Contents, epoch: int) -> dict[str, Any]:
    """Makes the sbom that goes into a wheel.

    Args:
        wheel: the wheel, of which only name and metadata are read.
        inside: what was found in the build.
        epoch: the time it bears, in seconds since 1970, UTC.
    """
    metadata = _metadata(wheel)
    name, version = metadata["Name"], metadata["Version"]
    root = f"pkg:pypi/{name}@{version}"
    components = [_entry(component) for component in inside.components]
    sbom = {
        "$schema": SCHEMA,
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "lifecycles": [{"phase": "build"}],
            "tools": {"components": _tools()},
            "component": {
                "type": "library",
                "bom-ref": root,
                "name": name,
                "version": version,
                "purl": root,
                "licenses": [{"license": {"id": metadata["License-Expression"]}}],
            },
        },
        "components": components,
        "dependencies": [{"ref": root, "dependsOn": [entry["bom-ref"] for entry in components]}],
    }
    if inside.unknown:
        sbom["properties"] = [{"name": UNKNOWN, "value": name} for name in inside.unknown]
    return _numbered(sbom, json.dumps(sbom, sort_keys=True))


def _numbered(sbom: dict[str, Any], identity: str) -> dict[str, Any]:
    return {**sbom, "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, identity)}"}


def _metadata(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"{dist_info(archive.namelist())}/METADATA").decode()
    return dict(email.message_from_string(text).items())


def _entry(component: Component) -> dict[str, Any]:
    expression = component.licence.expression
    if " OR " in expression or " WITH " in expression:
        licence: dict[str, Any] = {"expression": expression}
    else:
        licence = {"license": {"name" if " " in expression else "id": expression}}
    entry = {
        "type": "library",
        "bom-ref": component.name,
        "name": component.name,
        "version": component.version,
        "purl": component.purl,
        "licenses": [licence],
        "properties": [{"name": HOW, "value": "linked" if component.linked else "headers"}],
    }
    if component.sha256:
        entry["hashes"] = [{"alg": "SHA-256", "content": component.sha256}]
    return entry


def _tools() -> list[dict[str, str]]:
    """Lists the pinned programs that build the wheel."""
    text = (REQUIREMENTS / "build.txt").read_text(encoding="utf-8")
    pins = sorted(re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE))
    return [
        {"type": "application", "name": name, "version": version, "purl": f"pkg:pypi/{name}@{version}"}
        for name, version in pins
    ]


def serialise(sbom: dict[str, Any]) -> bytes:
    """Returns the bytes of an SBOM."""
    return (json.dumps(sbom, indent=2, sort_keys=True) + "\n").encode()


def read(wheel: Path) -> dict[str, Any]:
    """Returns the sbom that a wheel holds.

    Raises:
        ToolchainError: it holds none.
    """
    with zipfile.ZipFile(wheel) as archive:
        member = f"{dist_info(archive.namelist())}/{name_of(wheel)}"
        try:
            content: dict[str, Any] = json.loads(archive.read(member))
        except (KeyError, ValueError) as error:
            raise ToolchainError(
                f"{wheel.name}: expected a bill of materials, {member}; {error}. Build it anew."
            ) from error
    return content


def write_beside(wheel: Path) -> Path:
    """Writes the sbom of a wheel beside it, with the wheel's hash in it.

    Returns:
        NAME.cdx.json, where the wheel is NAME.whl.

    Raises:
        ToolchainError: the wheel holds no SBOM.
    """
    sbom = read(wheel)
    digest = sha256_of(wheel)
    sbom["metadata"]["component"]["hashes"] = [{"alg": "SHA-256", "content": digest}]
    sbom["metadata"]["component"]["properties"] = [{"name": "thresher:file", "value": wheel.name}]
    path = wheel.with_suffix(".cdx.json")
    path.write_bytes(serialise(_numbered(sbom, digest)))
    return path


def names(sbom: dict[str, Any]) -> Sequence[str]:
    """Lists the components of an SBOM."""
    return [component["name"] for component in sbom["components"]]
