// The loop that every kernel test runs in.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "thresher/base/isa.h"

namespace thresher::kernels {

// Runs `body` once with every instruction set that this machine has.
template <class Body>
void ForEachIsa(Body&& body) {
  for (const isa::Isa isa : isa::Available()) {
    SCOPED_TRACE("instruction set " + std::string(isa::Name(isa)));
    const Status forced = isa::Force(isa::Name(isa));
    ASSERT_TRUE(forced.ok()) << forced.message();
    body();
    if (::testing::Test::HasFatalFailure()) break;
  }
  isa::UseBest();
}

}  // namespace thresher::kernels
