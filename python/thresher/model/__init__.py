"""Models that thresher.export wrote to files: loaded and run with numpy, without PyTorch."""

from thresher.model.loading import Model, ModelStats, Port, load

__all__ = ["Model", "ModelStats", "Port", "load"]
