// The loop that every kernel test runs in.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "thresher/base/isa.h"

namespace thresher::kernels {

// Runs `body` once with every instruction set that this machine has, or with the one that THRESHER_ISA names.
template <class Body>
void ForEachIsa(Body&& body) {
  const char* only = std::getenv("THRESHER_ISA");
  for (const isa::Isa isa : isa::Available()) {
    if (only != nullptr && *only != '\0' && isa::Name(isa) != only) continue;
    SCOPED_TRACE("instruction set " + std::string(isa::Name(isa)));
    const Status forced = isa::Force(isa::Name(isa));
    ASSERT_TRUE(forced.ok()) << forced.message();
    body();
    if (::testing::Test::HasFatalFailure()) break;
  }
  ASSERT_TRUE(isa::Select().ok());
}

// ForEachIsa, and once more with plain code for the tile instructions, on machines that could run all else of kAmx.
template <class Body>
void ForEachIsaAndPlainTiles(Body&& body) {
  ForEachIsa(body);
  const char* only = std::getenv("THRESHER_ISA");
  const bool wanted = only == nullptr || *only == '\0' || std::string(only).starts_with("amx");
  if (::testing::Test::HasFatalFailure() || !wanted) return;
  if (!isa::ForcePlainTiles()) return;
  {
    SCOPED_TRACE("plain tiles");
    body();
  }
  ASSERT_TRUE(isa::Select().ok());
}

}  // namespace thresher::kernels
