"""Language models: their configurations and the engine's graphs of them."""

from thresher.llm.models.config import ModelConfig, Rope, UnsupportedModelError
from thresher.llm.models.decoder import Decoder

__all__ = ["Decoder", "ModelConfig", "Rope", "UnsupportedModelError"]
