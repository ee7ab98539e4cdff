// The readable text form of a graph; graph/parser.h reads it back.
//
//   graph 1
//   input %0 "x" : f32[2, 8]
//   const %1 "scale" : f32[] = [0.5]
//   weight %2 "fc.weight" : f32[4, 8] digest 5b1c...
//   %3 = mul(%0, %1) : f32[2, 8] @ "model.py:7 in forward" in "encoder.fc"
//   %4 = linear(%3, %2, _, _) {activation = "relu", layout = "nk"} : f32[2, 4]
//   return %4
//
// Constants of a few elements stand in the text; of larger ones and of weights it holds the digest only. Two graphs are
// equal exactly when their texts are.
#pragma once

#include <cstdint>
#include <string>

#include "thresher/graph/graph.h"
#include "thresher/graph/hash.h"

namespace thresher {

inline constexpr int64_t kMaxInlineElements = 16;  // constants up to this size are printed by value

struct PrintOptions {
  bool digests = true;  // false: leave out the digests, and with them the reading of all weights
  DigestCache* digest_cache = nullptr;
};

std::string PrintGraph(const Graph& graph, const PrintOptions& options = {});

}  // namespace thresher
