"""Where a node of a graph comes from: the user's line, and the module and names of the model."""

from __future__ import annotations

import re

from torch import fx

# What TorchDynamo calls the variable that holds the model, such as L['self'] or G['model'].
_ROOT = re.compile(r"""^(?:[LG]\[(?:'[^']*'|"[^"]*")\]|L__self__)(?=[._\[]|$)""")
_GETATTR = re.compile(r"""getattr\(([^()]*), ?['"]([^'"]*)['"]\)""")
_ITEM = re.compile(r"""(?:\._modules|\._parameters|\._buffers)?\[(?:'([^']*)'|"([^"]*)"|(\d+))\]""")


def source_of(node: fx.Node) -> str:
    """The user's line: "file.py:12 in forward", or "" where PyTorch does not say."""
    found = node.meta.get("thresher_source")
    if found is None:
        found = _source(node.meta.get("stack_trace"))
        node.meta["thresher_source"] = found
    return str(found)


def module_of(node: fx.Node) -> str:
    """The nn.Module that made a node, by its name in model.named_modules(); "" for the model itself and for none."""
    found = node.meta.get("thresher_module")
    if found is None:
        stack = node.meta.get("nn_module_stack")
        found = module_path(str(next(reversed(stack.values()))[0])) if stack else ""
        node.meta["thresher_module"] = found
    return str(found)


def module_path(name: str) -> str:
    """L['self'].layer.0.query, getattr(L['self'].layer, '0').query or L['self']._modules['layer']... in plain dots."""
    while (flat := _GETATTR.sub(r"\1.\2", name)) != name:
        name = flat
    path = re.sub(r"@\d+$", "", _in_dots(_ROOT.sub("", name)))
    return ".".join(part for part in path.split(".") if part != "_orig_mod")


def _in_dots(name: str) -> str:
    return _ITEM.sub(lambda match: "." + next(part for part in match.groups() if part is not None), name).strip(".")


def argument_name(name: str) -> str:
    """An argument of a model, from TorchDynamo's name: L['input_ids'] or L['kwargs']['input_ids'] is "input_ids"."""
    return _in_dots(name.removeprefix("L").removeprefix("G")).removeprefix("kwargs.")


def _source(trace: str | None) -> str:
    if not trace:
        return ""
    last = ""
    for line in trace.splitlines():
        line = line.strip()
        if line.startswith('File "'):
            path, _, rest = line[6:].partition('", line ')
            number, _, function = rest.partition(", in ")
            last = f"{path.rsplit('/', 1)[-1]}:{number} in {function}" if function else f"{path}:{number}"
    return last
