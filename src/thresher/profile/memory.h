// Memory that the engine holds: counted always, recorded while anybody wants records.
#pragma once

#include <cstdint>

#include "thresher/profile/record.h"

namespace thresher::profile {

// Counts `bytes` at `address` of a device (events.h) as obtained or given back. Cheap, but not meant for what happens
// at every run.
void NoteAllocation(const void* address, int64_t bytes, uint8_t device = 0);
void NoteRelease(const void* address, int64_t bytes, uint8_t device = 0);

// Bytes held now.
int64_t AllocatedBytes(uint8_t device = 0);

// Called at once, on the thread that obtains or gives back memory, with the record of it.
using MemoryObserver = void (*)(const Record& record, void* data);
// Null: nobody. Takes effect for changes that begin after it.
void SetMemoryObserver(MemoryObserver observer, void* data);

}  // namespace thresher::profile
