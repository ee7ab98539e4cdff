// Rows, lowering and kernels of operators that packages outside this repository bring.
#include "thresher/ops/outside.h"

#include <array>
#include <utility>

#include "thresher/ops/common.h"

namespace thresher {
namespace {

using operators::Attribute;
using operators::AttributeType;
using operators::Call;
using operators::Number;
using operators::Row;

using Numbers = std::array<Number, operators::kMaxAttributes>;

struct OutsideParams {
  const Row* row = nullptr;
  uint32_t absent = 0;
  Numbers attributes = {};

  bool operator==(const OutsideParams& other) const {
    bool same = row == other.row && absent == other.absent;
    for (size_t i = 0; i < attributes.size(); ++i) {
      same &= attributes[i].integer == other.attributes[i].integer && attributes[i].real == other.attributes[i].real;
    }
    return same;
  }
};

Numbers NumbersOf(const Row& row, const Attrs& attrs) {
  Numbers numbers;
  for (size_t i = 0; i < static_cast<size_t>(row.num_attributes); ++i) {
    const Attribute& attribute = row.attributes[i];
    numbers[i] = attribute.value;
    const auto found = attrs.find(attribute.name);
    if (found == attrs.end()) continue;
    switch (attribute.type) {
      case AttributeType::kBool:
        numbers[i].integer = std::get<bool>(found->second) ? 1 : 0;
        break;
      case AttributeType::kInt:
        numbers[i].integer = std::get<int64_t>(found->second);
        break;
      case AttributeType::kFloat:
        numbers[i].real = std::get<double>(found->second);
        break;
    }
  }
  return numbers;
}

// What a row's function is asked with before there are plans.
class Question {
 public:
  Question(const InferContext& c, std::span<const TensorType> outputs) : numbers_(NumbersOf(*c.op->outside, c.attrs)) {
    for (size_t i = 0; i < c.inputs.size(); ++i) {
      views_.push_back(MakeView(nullptr, ComputeType(c.inputs[i].dtype), c.inputs[i].shape));
      if (!c.inputs[i].present) call_.absent |= 1u << i;
    }
    for (const TensorType& type : outputs) views_.push_back(MakeView(nullptr, type.dtype, type.shape));
    call_.num_operands = static_cast<int32_t>(c.inputs.size());
    call_.num_results = c.op->outside->num_results;
    call_.operands = views_.data();
    call_.attributes = numbers_.data();
  }
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;

  const Call& call() const { return call_; }

 private:
  Numbers numbers_;
  std::vector<View> views_;
  Call call_;
};

// What a result of f32 is in a model: of 16 bits where the first operand of floats is.
DType FloatOf(const InferContext& c) {
  for (const OperandType& type : c.inputs) {
    if (type.present && IsFloat(type.dtype)) return type.dtype;
  }
  return DType::kF32;
}

Result<std::vector<TensorType>> InferOutside(const InferContext& c) {
  const Row& row = *c.op->outside;
  for (const OperandType& type : c.inputs) {
    if (type.shape.size() > kMaxRank) {
      return Unsupported("expected at most " + std::to_string(kMaxRank) + " dimensions, got " +
                         thresher::ToString(type.shape));
    }
  }
  const Question question(c, {});
  View results[operators::kMaxResults];
  operators::Error error;
  if (const Code code = row.infer(question.call(), results, error); code != Code::kOk) return Status(code, error.text);
  std::vector<TensorType> types;
  for (int i = 0; i < row.num_results; ++i) {
    const DType dtype = results[i].dtype;
    if (static_cast<int>(dtype) >= kNumDTypes || IsHalf(dtype)) {
      return Internal(
          "expected results of f32, i64, i32 or bool from its package, got another type; f32 is rounded "
          "where a model has 16 bits");
    }
    types.push_back({dtype == DType::kF32 ? FloatOf(c) : dtype, ops::ShapeOf(results[i])});
  }
  return types;
}

Cost CostOutside(const InferContext& c, std::span<const TensorType> outputs) {
  const Question question(c, outputs);
  operators::Cost cost;
  c.op->outside->cost(question.call(), cost);
  return {cost.flops, cost.bytes_read, cost.bytes_written};
}

Status LowerOutside(const Graph&, const Node& node, Lowering& lowering) {
  const Row& row = *node.op->outside;
  std::vector<TensorRef> operands, results;
  uint32_t absent = 0;
  bool empty = true;
  for (const ValueId id : node.outputs) {
    results.push_back(lowering.Allocate(id));
    empty &= ops::Empty(results.back());
  }
  if (empty) return Status::Ok();
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const TensorRef ref = lowering.Ref(node.inputs[i]);
    operands.push_back(row.reads_strides ? ref : lowering.Contiguous(ref));
    if (node.inputs[i] == kNoValue) absent |= 1u << i;
  }
  lowering.AddStep(KernelId::kOutside, std::move(operands), results,
                   OutsideParams{&row, absent, NumbersOf(row, node.attrs)});
  return Status::Ok();
}

Call CallOf(const StepContext& c) {
  const auto& params = c.as<OutsideParams>();
  Call call;
  call.operands = c.operands;
  call.num_operands = c.num_inputs;
  call.num_results = params.row->num_results;
  call.absent = params.absent;
  call.attributes = params.attributes.data();
  call.scratch = c.scratch;
  call.part = c.part;
  call.num_parts = c.num_parts;
  return call;
}

Status OutsideStep(const StepContext& c) {
  const Row& row = *c.as<OutsideParams>().row;
  operators::Error error;
  const Code code = row.run(CallOf(c), error);
  return code == Code::kOk ? Status::Ok() : Status(code, std::string(row.name) + ": " + error.text);
}

size_t OutsideScratch(const StepContext& c) {
  const Row& row = *c.as<OutsideParams>().row;
  return row.scratch == nullptr ? 0 : row.scratch(CallOf(c));
}

// ---- rows ----

bool IsName(std::string_view text) {
  for (const char c : text) {
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_')) return false;
  }
  return !text.empty();
}

std::string_view TextOf(const char* text) { return text == nullptr ? std::string_view() : text; }

// "x weight bias?" as its names.
std::vector<std::string_view> OperandsOf(std::string_view text) {
  std::vector<std::string_view> names;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (end > 0) names.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return names;
}

Status CheckOperands(const std::vector<std::string_view>& names) {
  if (names.empty() || names.size() > operators::kMaxOperands) {
    return InvalidArgument("expected 1 to " + std::to_string(operators::kMaxOperands) + " operands, got " +
                           std::to_string(names.size()));
  }
  for (std::string_view name : names) {
    if (name.ends_with('?')) name.remove_suffix(1);
    if (!IsName(name) || name == "state") {
      return InvalidArgument("expected names of operands, each with ? behind it if it is optional, got '" +
                             std::string(name) + "'; \"x weight bias?\" would be three");
    }
  }
  return Status::Ok();
}

Status CheckRow(const Row& row, std::string_view package) {
  const std::string_view name = TextOf(row.name);
  if (!name.starts_with(package) || name.size() <= package.size() || name[package.size()] != '.' ||
      !IsName(name.substr(package.size() + 1))) {
    return InvalidArgument("expected a name of the form " + std::string(package) + ".operator, got '" +
                           std::string(name) + "'");
  }
  if (TextOf(row.doc).empty()) return InvalidArgument("expected a sentence that says what it does, got none");
  THRESHER_TRY(CheckOperands(OperandsOf(TextOf(row.operands))));
  if (row.num_results < 1 || row.num_results > operators::kMaxResults) {
    return InvalidArgument("expected 1 to " + std::to_string(operators::kMaxResults) + " results, got " +
                           std::to_string(row.num_results));
  }
  if (row.num_attributes < 0 || row.num_attributes > operators::kMaxAttributes ||
      (row.num_attributes > 0 && row.attributes == nullptr)) {
    return InvalidArgument("expected at most " + std::to_string(operators::kMaxAttributes) + " attributes, got " +
                           std::to_string(row.num_attributes));
  }
  for (int i = 0; i < row.num_attributes; ++i) {
    if (!IsName(TextOf(row.attributes[i].name))) return InvalidArgument("expected attributes with a name");
  }
  if (row.infer == nullptr || row.cost == nullptr || row.run == nullptr) {
    return InvalidArgument("expected infer, cost and run, got a row without one of them");
  }
  return Status::Ok();
}

AttrType AttrTypeOf(AttributeType type) {
  if (type == AttributeType::kBool) return AttrType::kBool;
  return type == AttributeType::kInt ? AttrType::kInt : AttrType::kFloat;
}

}  // namespace

Result<std::vector<OpDef>> OutsideRows(const operators::Package& package) {
  if (!IsName(TextOf(package.name))) {
    return InvalidArgument("expected a package whose name has letters, digits and _ only, got '" +
                           std::string(TextOf(package.name)) + "'");
  }
  if (package.rows == nullptr || package.num_rows < 1) {
    return InvalidArgument("expected a package with operators, got none in '" + std::string(package.name) + "'");
  }
  std::vector<OpDef> rows;
  for (const Row& row : std::span(package.rows, static_cast<size_t>(package.num_rows))) {
    if (const Status status = CheckRow(row, package.name); !status.ok()) {
      return Status(status.code(), "operator '" + std::string(TextOf(row.name)) + "': " + status.message());
    }
    OpDef op;
    op.name = row.name;
    op.doc = row.doc;
    op.operands = OperandsOf(row.operands);
    for (const Attribute& attribute : std::span(row.attributes, static_cast<size_t>(row.num_attributes))) {
      op.attrs.push_back({attribute.name, AttrTypeOf(attribute.type), attribute.required, TextOf(attribute.doc)});
    }
    op.infer = InferOutside;
    op.cost = CostOutside;
    op.lower = LowerOutside;
    op.outside = &row;
    rows.push_back(std::move(op));
  }
  return rows;
}

std::span<const CpuKernel> OutsideKernels() {
  static const CpuKernel kernels[] = {{KernelId::kOutside, OutsideStep, OutsideScratch}};
  return kernels;
}

}  // namespace thresher
