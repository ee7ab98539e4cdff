#include "thresher/run/mpi_communicator.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

namespace thresher {
namespace {

constexpr int64_t kMost = 1 << 28;  // numbers of one call: MPI counts them with an int

class MpiCommunicator : public Communicator {
 public:
  MpiCommunicator(const MpiLibrary& library, int rank, int size) : Communicator(rank, size), library_(library) {}

  Status AllReduce(const float* in, float* out, int64_t count) override {
    using Function = int (*)(const void*, void*, int, uintptr_t type, uintptr_t operation, uintptr_t group);
    const auto all_reduce = std::bit_cast<Function>(library_.all_reduce);
    for (int64_t i = 0; i < count; i += kMost) {
      const auto part = static_cast<int>(std::min(count - i, kMost));
      THRESHER_TRY(
          Checked("MPI_Allreduce", all_reduce(in + i, out + i, part, library_.type, library_.sum, library_.group)));
    }
    return Status::Ok();
  }

  Status AllGather(const float* in, float* out, int64_t count) override {
    using Function = int (*)(const void*, int, uintptr_t, void*, int, uintptr_t type, uintptr_t group);
    const auto all_gather = std::bit_cast<Function>(library_.all_gather);
    if (count > kMost) return Unsupported("expected at most 2^28 numbers of a rank, got " + std::to_string(count));
    const auto each = static_cast<int>(count);
    return Checked("MPI_Allgather", all_gather(in, each, library_.type, out, each, library_.type, library_.group));
  }

 private:
  Status Checked(const char* call, int code) const {
    if (code == 0) return Status::Ok();
    return Internal(std::string(call) + " of rank " + std::to_string(rank()) + " failed with code " +
                    std::to_string(code) + "; another rank may have ended");
  }

  const MpiLibrary library_;
};

}  // namespace

Result<std::unique_ptr<Communicator>> MakeMpiCommunicator(const MpiLibrary& library, int rank, int size) {
  if (size < 1 || rank < 0 || rank >= size) {
    return InvalidArgument("expected a rank below their number, got " + std::to_string(rank) + " of " +
                           std::to_string(size));
  }
  if (library.all_reduce == 0 || library.all_gather == 0) {
    return InvalidArgument("expected the addresses of MPI_Allreduce and MPI_Allgather, got none");
  }
  return std::unique_ptr<Communicator>(std::make_unique<MpiCommunicator>(library, rank, size));
}

}  // namespace thresher
