"""Files of weights: GGUF and safetensors, read where they lie.

tensors = read_gguf("model.gguf")
tensors["token_embd.weight"].dequantized()  # float32 [tokens, width]
tensors.metadata["general.architecture"]
"""

from thresher.llm.formats.gguf_file import read_gguf
from thresher.llm.formats.gptq import unpack_linears
from thresher.llm.formats.mapped_file import MappedFile
from thresher.llm.formats.quantize import quantize
from thresher.llm.formats.safetensors_file import read_safetensors
from thresher.llm.formats.tensors import StoredTensor, Tensors

__all__ = ["MappedFile", "StoredTensor", "Tensors", "quantize", "read_gguf", "read_safetensors", "unpack_linears"]
