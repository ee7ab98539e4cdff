"""Files of numpy, as `thresher run --input` reads them."""

from __future__ import annotations

from fuzz_targets import as_file

from thresher.cli.run import read_array


def run(data: bytes) -> None:
    with as_file(data, "input.npy") as path:
        try:
            read_array(path).tobytes()
        except ValueError:
            return
