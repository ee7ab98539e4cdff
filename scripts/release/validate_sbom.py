"""Compares a CycloneDX file with the schema that its authors publish. Run in the environment `release`."""

from __future__ import annotations

import sys
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(Path(sys.argv[1]).read_text(encoding="utf-8"))
if error:
    sys.exit(f"{sys.argv[1]}: {str(error)[:600]}")
