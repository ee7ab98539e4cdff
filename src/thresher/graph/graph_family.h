// One program for many sizes: what a front end builds at every size of a call, told from a few of them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "thresher/base/polynomial.h"
#include "thresher/base/status.h"
#include "thresher/graph/graph.h"

namespace thresher {

class GraphFamily {
 public:
  struct Sample {
    Dims sizes;
    const Graph* graph = nullptr;
  };

  // Graphs of the same nodes in which shapes and attributes are polynomials in the sizes called `names`: products in
  // which no size has an exponent above `degree`. More samples than those polynomials need serve as a check.
  // Errors: the graphs differ in more than numbers, a number is no such polynomial, too few samples.
  static Result<GraphFamily> Fit(std::vector<std::string> names, int degree, std::span<const Sample> samples);

  // The graph at these sizes, one a name. What depends on sizes and constants alone stands behind a "barrier", so that
  // no pass computes it ahead: passes then do the same at all sizes.
  Result<Graph> At(std::span<const int64_t> sizes) const;

  const std::vector<std::string>& names() const { return names_; }

 private:
  struct Number {  // of a node's attribute
    std::string attr;
    size_t element = 0;  // of a list
    Polynomial value;
  };
  struct NodeNumbers {
    std::vector<Number> numbers;  // those that depend on sizes
    bool varies = false;          // an attribute or the shape of a result does
    bool from_constants = false;  // it has no other operands
  };

  std::vector<std::string> names_;
  Monomials monomials_;
  Graph base_;
  std::vector<std::vector<Polynomial>> inputs_;  // shapes
  std::vector<NodeNumbers> nodes_;
};

}  // namespace thresher
