"""The parts of `scripts/stage_test.py`: what is run (plan), how (runner, stage), what it means (verdict, render)."""
