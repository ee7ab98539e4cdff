// Ranks that MPI has started. The engine is not linked to an MPI library: the program's own says where its functions
// are.
#pragma once

#include <cstdint>
#include <memory>

#include "thresher/base/communicator.h"

namespace thresher {

// Addresses of functions of the MPI library that is loaded, and its handles as they are passed: an int in MPICH and
// what has its ABI, a pointer in Open MPI, which calls take in registers of the same size.
struct MpiLibrary {
  uintptr_t all_reduce = 0;  // MPI_Allreduce
  uintptr_t all_gather = 0;  // MPI_Allgather
  uintptr_t type = 0;        // MPI_FLOAT
  uintptr_t sum = 0;         // MPI_SUM
  uintptr_t group = 0;       // an MPI_Comm of the engine's own, with MPI_ERRORS_RETURN
};

// Errors: no such rank. MPI was initialised for calls from any thread, and stays so as long as the communicator lives.
Result<std::unique_ptr<Communicator>> MakeMpiCommunicator(const MpiLibrary& library, int rank, int size);

}  // namespace thresher
