"""Language models: load, generate, chat.

llm = thresher.llm.LLM("path/to/model")
print(llm.chat([{"role": "user", "content": "What is the capital of France?"}]).text)
"""

from thresher.llm.api import LLM, Completion, Output, Stream
from thresher.llm.async_stream import AsyncStream
from thresher.llm.engine import EngineClosedError, EngineStats, QueueFullError
from thresher.llm.models import UnsupportedModelError
from thresher.llm.rank_group import RankError, RankGroup
from thresher.llm.request import Delta, RequestStats
from thresher.llm.runner_order import follow
from thresher.llm.sampling import Logprobs, SamplingParams
from thresher.llm.text_encoder import TextEncoder
from thresher.llm.tokenizer import ChatTemplateError, Tokenizer

__all__ = [
    "LLM",
    "AsyncStream",
    "ChatTemplateError",
    "Completion",
    "Delta",
    "EngineClosedError",
    "EngineStats",
    "Logprobs",
    "Output",
    "QueueFullError",
    "RankError",
    "RankGroup",
    "RequestStats",
    "SamplingParams",
    "Stream",
    "TextEncoder",
    "Tokenizer",
    "UnsupportedModelError",
    "follow",
]
