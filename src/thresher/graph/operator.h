// An operator is one row: name, schema, shape inference, cost model, lowering to kernels.
//
// Rows stand in src/thresher/ops/, one family a file; graph/operator.cc lists the families. The documentation table,
// the profiler's names and the importer's list of what is supported all come from these rows.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "thresher/graph/graph.h"

namespace thresher {

class Lowering;  // plan/lowering.h
struct OpDef;
namespace operators {
struct Row;  // operator_package.h
}

// Which section of the operator report a row's time belongs to.
enum class Section : uint8_t { kForward, kReshape, kAlloc };

enum class AttrType : uint8_t { kBool, kInt, kFloat, kString, kInts };

struct AttrSpec {
  std::string_view name;
  AttrType type;
  bool required = false;
  std::string_view doc;
};

struct TensorType {
  DType dtype = DType::kF32;
  Dims shape;
};

// What shape inference sees: one entry per declared operand; `present` is false for an absent optional one.
struct OperandType : TensorType {
  bool present = false;
  std::optional<Encoding> blocks = {};  // of a constant that is stored so
};

struct InferContext {
  std::span<const OperandType> inputs;
  const Attrs& attrs;
  const OpDef* op = nullptr;  // the row, for functions that several rows share
};

// Work of one execution. `flops` < 0: not modelled.
struct Cost {
  double flops = -1;
  double bytes_read = 0;
  double bytes_written = 0;
};

// What passes ask of an operator, so that a new row is known to all of them.
enum class Trait : uint8_t {
  kNone = 0,
  kView = 1,          // rearranges its first operand without computing; most often no memory is moved
  kUnary = 2,         // f(x), element by element
  kBinary = 4,        // f(a, b), element by element, with broadcasting
  kFuses = 8,         // may be a step of `pointwise`
  kProduct = 16,      // multiplies matrices
  kMoves = 32,        // its results are elements of its operands, of any type, as they are
  kJumps = 64,        // its result jumps where an operand changes a little
  kWritesState = 128  // writes to its operand "state" in place; its one result is the new version
};
constexpr Trait operator|(Trait a, Trait b) {
  // Any of them together are a value. NOLINTNEXTLINE(clang-analyzer-optin.core.EnumCastOutOfRange)
  return static_cast<Trait>(static_cast<uint8_t>(a) | static_cast<uint8_t>(b));
}

struct OpDef {
  std::string_view name;
  std::string_view doc;                    // one sentence
  std::vector<std::string_view> operands;  // "x", "bias?" (optional), "xs*" (any number, last only)
  std::vector<AttrSpec> attrs;
  Section section = Section::kForward;
  // Output types, or an error that names what was wanted and found.
  Result<std::vector<TensorType>> (*infer)(const InferContext&) = nullptr;
  Cost (*cost)(const InferContext&, std::span<const TensorType> outputs) = nullptr;
  // Emits the steps of one node into a plan.
  Status (*lower)(const Graph&, const Node&, Lowering&) = nullptr;
  Trait traits = Trait::kNone;
  // Whether it copies a first operand whose rows lie apart, as in a window of a wider matrix, and reads what lies
  // without gaps as it is. Null: never.
  bool (*copies_rows)(const InferContext&, std::span<const TensorType> outputs) = nullptr;
  // Of a product, the operands [first, last) that are weights: they may be stored in 16 bits where they are constants.
  // Null: none.
  std::pair<size_t, size_t> (*weights)(const Attrs&, size_t num_operands) = nullptr;
  // The operands [first, last) that may be constants or states in blocks. Null: none.
  std::pair<size_t, size_t> (*blocked)(const Attrs&, size_t num_operands) = nullptr;
  // Of a package outside this repository: its own row. Null: the engine's.
  const operators::Row* outside = nullptr;

  bool Has(Trait trait) const { return (static_cast<uint8_t>(traits) & static_cast<uint8_t>(trait)) != 0; }
};

// What the functions of a row are asked with.
struct NodeTypes {
  NodeTypes(const Graph& graph, const Node& node);

  std::vector<OperandType> inputs;
  std::vector<TensorType> outputs;
};

// Whether the operand is a weight of a product, and a constant.
bool IsConstantWeight(const Graph& graph, const Node& node, size_t operand);

// All rows, sorted by name. What is handed out stays as it is; AddOps changes what is handed out next.
std::span<const OpDef* const> AllOps();

// Adds rows of a package, all or, where a name is taken, none of them. May be called while graphs are made.
Status AddOps(std::vector<OpDef> rows);

// The row of that name, or nullptr.
const OpDef* FindOp(std::string_view name);

// Whether there is such an operator and it has the trait.
bool HasTrait(std::string_view op, Trait trait);

// One function per family file in src/thresher/ops/.
std::span<const OpDef> LinearOps();
std::span<const OpDef> LinearsOps();
std::span<const OpDef> GroupedLinearOps();
std::span<const OpDef> ConvolutionOps();
std::span<const OpDef> ResampleOps();
std::span<const OpDef> AttentionOps();
std::span<const OpDef> PagedAttentionOps();
std::span<const OpDef> RotaryOps();
std::span<const OpDef> NormOps();
std::span<const OpDef> PointwiseOps();
std::span<const OpDef> PointwiseChainOps();
std::span<const OpDef> ReduceOps();
std::span<const OpDef> IndexOps();
std::span<const OpDef> SortOps();
std::span<const OpDef> ShapeOps();
std::span<const OpDef> CreateOps();
std::span<const OpDef> CommunicationOps();

}  // namespace thresher
