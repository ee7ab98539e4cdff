"""The file that THRESHER_TUNING_SPEC names."""

from __future__ import annotations

import os

from fuzz_targets import as_file

from thresher import _engine
from thresher.tuning import table


def run(data: bytes) -> None:
    with as_file(data, "spec.json") as path:
        os.environ["THRESHER_TUNING_SPEC"] = str(path)
        try:
            table.forget()
            table.apply()
            _engine.tuned()
        except ValueError as error:
            assert "THRESHER_TUNING_SPEC" in str(error), error
        finally:
            del os.environ["THRESHER_TUNING_SPEC"]
            table.forget()
