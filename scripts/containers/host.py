"""What of this machine's configuration has to reach into a container: pip's settings and certificates."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from toolchain.process import ToolchainError

from .engine import Mount

# Inside a container.
CERTIFICATES = "/run/host/certificates.pem"
WHEELS = "/run/host/wheels"

CERTIFICATE_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
# Options of pip that hold a list of places, and the variable of each.
PLACES = {"find-links": "PIP_FIND_LINKS", "extra-index-url": "PIP_EXTRA_INDEX_URL", "index-url": "PIP_INDEX_URL"}


@dataclass(frozen=True)
class HostConfiguration:
    """What a container gets of the host's configuration.

    Attributes:
        certificates: a file of CA certificates that pip and friends must trust; None: the image's own.
        environment: variables inside the container.
        mounts: folders of wheels and the certificates.
    """

    certificates: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()


def pip_options(text: str) -> dict[str, str]:
    """Reads `pip config list`: options without their section; what stands later wins, the environment last."""
    options: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and "." in key:
            options[key.rpartition(".")[2]] = value.strip().strip("'\"")
    return options


def read_pip_options() -> dict[str, str]:
    """Asks pip for its configuration on this machine; empty where there is no pip."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    options = pip_options(done.stdout)
    # Variables win over files, whatever the order of the list.
    options |= {name: os.environ[v] for name, v in (*PLACES.items(), ("cert", "PIP_CERT")) if os.environ.get(v)}
    return options


def find_certificates(options: Mapping[str, str], chosen: Path | None = None) -> Path | None:
    """Returns the CA certificates that downloads on this machine need beyond a distribution's own.

    Args:
        options: of pip.
        chosen: a file named by the user; default: $THRESHER_CA_FILE.

    Raises:
        ToolchainError: the named file is not there.
    """
    named = chosen or (Path(os.environ["THRESHER_CA_FILE"]) if os.environ.get("THRESHER_CA_FILE") else None)
    if named:
        if not named.is_file():
            raise ToolchainError(f"Expected a file of CA certificates; got none at {named}.")
        return named.resolve()
    for value in (options.get("cert", ""), *(os.environ.get(name, "") for name in CERTIFICATE_VARIABLES)):
        if value and Path(value).is_file():
            return Path(value).resolve()
    return None


def translate_places(options: Mapping[str, str]) -> tuple[dict[str, str], list[Mount]]:
    """Turns pip's places into variables for a container; folders of this machine become mounts.

    Returns:
        The variables, and the mounts they refer to.
    """
    environment: dict[str, str] = {}
    mounts: list[Mount] = []
    for option, variable in PLACES.items():
        places = []
        for place in options.get(option, "").split():
            parts = urllib.parse.urlsplit(place)
            if parts.scheme not in ("", "file"):
                places.append(place)
                continue
            folder = Path(parts.path)
            if not folder.is_dir():
                continue
            target = f"{WHEELS}/{len(mounts)}"
            if option != "find-links":
                # The pages of an index may point at files beside its folder.
                mounts.append(Mount(str(folder.resolve().parent), target, read_only=True))
                target = f"{target}/{folder.resolve().name}"
            else:
                mounts.append(Mount(str(folder.resolve()), target, read_only=True))
            places.append(f"file://{target}" if parts.scheme else target)
        if places:
            environment[variable] = " ".join(places)
    return environment, mounts


def host_configuration(certificates: Path | None = None) -> HostConfiguration:
    """Collects what a container needs to download as this machine does.

    Args:
        certificates: CA certificates named by the user.

    Raises:
        ToolchainError: `certificates` is not there.
    """
    options = read_pip_options()
    found = find_certificates(options, certificates)
    environment, mounts = translate_places(options)
    environment |= {name: os.environ[name] for name in PROXY_VARIABLES if os.environ.get(name)}
    if found:
        mounts.append(Mount(str(found), CERTIFICATES, read_only=True))
        environment |= dict.fromkeys(CERTIFICATE_VARIABLES, CERTIFICATES)
    return HostConfiguration(found, environment, tuple(mounts))
