"""Results that take long to make, kept in files between processes.

A result is found again by its kind, its key, the machine and the engine's version. Nothing here fails because of the
file system: what cannot be read is missing, what cannot be written is not kept, and a warning says so once.

    value = thresher.cache.load("peaks", key)
    if value is None:
        value = measure()
        thresher.cache.store("peaks", key, value)
"""

from thresher.cache.entry import Entry, State
from thresher.cache.explanation import Explanation, explain
from thresher.cache.files import clear, entries, load, load_parts, prune, store, store_parts
from thresher.cache.location import CacheWarning, disabled, enabled, folder, set_dir
from thresher.cache.parts import Parts

__all__ = [
    "CacheWarning",
    "Entry",
    "Explanation",
    "Parts",
    "State",
    "clear",
    "disabled",
    "enabled",
    "entries",
    "explain",
    "folder",
    "load",
    "load_parts",
    "prune",
    "set_dir",
    "store",
    "store_parts",
]
