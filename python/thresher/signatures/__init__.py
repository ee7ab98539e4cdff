"""Kernels launched from signatures: what is to be computed, at which shapes, layouts and types.

signature = thresher.signatures.command_to_signature("convbfp16 -n 1 -c 64 -H 56 -W 56 -k 64 -p 1 -q 1")
kernel = thresher.signatures.get_launchable(signature)
result = kernel(*signature.sample_args())
"""

from thresher.signatures.aten import AtenSignature
from thresher.signatures.attention import SdpaSignature
from thresher.signatures.convolution import ConvSignature, Mode
from thresher.signatures.driver import command_to_signature
from thresher.signatures.flags import CommandError
from thresher.signatures.gemm import GemmSignature
from thresher.signatures.launchable import Launchable, NotCachedError, explain, get_launchable
from thresher.signatures.normalization import BatchNormSignature, LayerNormSignature
from thresher.signatures.operator import conv
from thresher.signatures.preload import CachePopulator, Populated, Status
from thresher.signatures.signature import Argument, Signature
from thresher.signatures.timing import Timing, Work, time_signature
from thresher.signatures.verification import Check, Errors, Verification, verify

__all__ = [
    "Argument",
    "AtenSignature",
    "BatchNormSignature",
    "CachePopulator",
    "Check",
    "CommandError",
    "ConvSignature",
    "Errors",
    "GemmSignature",
    "Launchable",
    "LayerNormSignature",
    "Mode",
    "NotCachedError",
    "Populated",
    "SdpaSignature",
    "Signature",
    "Status",
    "Timing",
    "Verification",
    "Work",
    "command_to_signature",
    "conv",
    "explain",
    "get_launchable",
    "time_signature",
    "verify",
]
