// Makes THRESHER_ISA hold for every test, as it does for users. A name that it cannot have fails the run.
#include <gtest/gtest.h>

#include "thresher/base/isa.h"

namespace thresher::isa {
namespace {

class ForcedIsa : public ::testing::Environment {
 public:
  void SetUp() override {
    const Result<Isa> selected = Select();
    ASSERT_TRUE(selected.ok()) << selected.status().message();
  }
};

[[maybe_unused]] const ::testing::Environment* const kRegistered = ::testing::AddGlobalTestEnvironment(new ForcedIsa);

}  // namespace
}  // namespace thresher::isa
