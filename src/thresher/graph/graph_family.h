// One program for many sizes: what a front end builds at every size of a call, told from a few of them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "thresher/base/polynomial.h"
#include "thresher/base/status.h"
#include "thresher/base/view.h"
#include "thresher/graph/graph.h"

namespace thresher {

class GraphFamily {
 public:
  static constexpr int kMaxDegree = 2;
  static constexpr int64_t kLeastSize = 2;  // at 1, strides and broadcasting follow other rules

  struct Sample {
    Dims sizes;
    const Graph* graph = nullptr;
  };
  struct Number {  // of a node's attribute
    std::string attr;
    size_t element = 0;  // of a list
    Polynomial value;
    friend bool operator==(const Number&, const Number&) = default;
  };
  struct NodeNumbers {
    std::vector<Number> numbers;  // those that depend on sizes
    bool varies = false;          // an attribute or the shape of a result does
    friend bool operator==(const NodeNumbers&, const NodeNumbers&) = default;
  };
  // What of the graphs follows the sizes.
  struct Rules {
    std::vector<std::string> names;               // of the sizes
    int degree = 1;                               // the highest exponent of a size
    std::vector<std::vector<Polynomial>> inputs;  // their shapes
    std::vector<NodeNumbers> nodes;
  };

  // Graphs of the same nodes in which shapes and attributes are polynomials in the sizes called `names`: products in
  // which no size has an exponent above `degree`. More samples than those polynomials need serve as a check.
  // Errors: the graphs differ in more than numbers, a number is no such polynomial, too few samples.
  static Result<GraphFamily> Fit(std::vector<std::string> names, int degree, std::span<const Sample> samples);

  // The family of a graph at some sizes. Fit for hostile rules. Errors: they do not fit the graph, a size is no
  // dimension of an input, a number overflows at the sizes `largest` or at smaller ones.
  static Result<GraphFamily> Make(Graph graph, Rules rules, std::span<const int64_t> largest);

  // The graph at these sizes, one a name. What depends on sizes and constants alone stands behind a "barrier", so that
  // no pass computes it ahead: passes then do the same at all sizes.
  Result<Graph> At(std::span<const int64_t> sizes) const;

  // The shapes of the inputs at these sizes.
  std::vector<Dims> InputsAt(std::span<const int64_t> sizes) const;

  // The sizes of a call with these inputs, from kLeastSize to `largest`; nullopt where it is none of the family.
  std::optional<Dims> SizesOf(std::span<const View> inputs, std::span<const int64_t> largest) const;

  const std::vector<std::string>& names() const { return rules_.names; }
  const Rules& rules() const { return rules_; }
  const Graph& graph() const { return base_; }  // at some sizes

 private:
  struct Place {  // of a size: it alone is that dimension of the input
    size_t input = 0;
    size_t dim = 0;
  };

  GraphFamily(Graph base, Rules rules, Monomials monomials);
  std::optional<Place> PlaceOf(size_t size) const;
  // The first node without operands that is the same as node i at all sizes.
  std::optional<size_t> SameSource(size_t i) const;

  Graph base_;
  Rules rules_;
  Monomials monomials_;
  std::vector<uint8_t> from_constants_;  // per node: it has no other operands
};

}  // namespace thresher
