"""Tools shared by `scripts/stage_test.py` and `bench/run.py`: timed work in separate processes, statistics, tables.

The driver's half (`worker`, `statistics`, `table`, `progress`) needs only the standard library. The half that runs
inside an environment under test (`service`, `environment`, `minilm`) imports what is installed there, never Thresher.
"""
