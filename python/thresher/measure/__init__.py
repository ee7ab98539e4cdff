"""Measuring models: how fast beside other engines, where the time goes, how much memory."""
