#include "thresher/plan/lowering.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "thresher/plan/weight_store.h"

namespace thresher {
namespace {

Dims ShapeOf(const View& view) { return Dims(view.shape, view.shape + view.rank); }

}  // namespace

void ChooseBlocking(const Target& target, const TuningTable* tuning, PlannedProduct& product) {
  product.blocking = {};
  product.tuned_m = 0;
  if (tuning != nullptr) {
    if (const std::optional<TunedProduct> found = tuning->Find(product.key)) {
      product.blocking = found->blocking;
      product.tuned_m = found->key.m;
    }
  }
  product.form = target.RowsFor(product.key.precision, product.key.m, product.blocking.variant);
}

Lowering::Lowering(const Graph& graph, WeightStore& weights, LoweringOptions options)
    : graph_(graph), weights_(weights), options_(std::move(options)), refs_(graph.values().size()) {
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    const Value& value = graph.value(graph.inputs()[i]);
    TensorRef ref;
    ref.view = MakeView(nullptr, value.dtype, value.shape);
    const bool state = value.kind == Value::Kind::kState;
    ref.buffer = NewBuffer(state ? Buffer::Kind::kState : Buffer::Kind::kInput,
                           ref.view.size() * static_cast<int64_t>(SizeOf(value.dtype)));
    buffers_.back().index = static_cast<int>(i);
    buffers_.back().blocked = value.constant.blocks.has_value();
    refs_[static_cast<size_t>(graph.inputs()[i])] = ref;
  }
}

int Lowering::NewBuffer(Buffer::Kind kind, int64_t bytes) {
  Buffer buffer;
  buffer.kind = kind;
  buffer.bytes = bytes;
  buffers_.push_back(std::move(buffer));
  return static_cast<int>(buffers_.size()) - 1;
}

TensorRef Lowering::Ref(ValueId id) {
  if (id == kNoValue) return {};
  TensorRef& ref = refs_[static_cast<size_t>(id)];
  const Value& value = graph_.value(id);
  if (ref.buffer < 0 && value.kind == Value::Kind::kConstant) {
    ref.view = MakeView(nullptr, value.dtype, value.shape);
    ref.buffer = NewBuffer(Buffer::Kind::kConstant, ConstantBytes(value));
    // What the device has in its own memory it reads there.
    const ConstantSource* const source = value.constant.source.get();
    const bool placed = source != nullptr && source->placed_for() == options_.target.get();
    Result<std::shared_ptr<const void>> held = placed ? value.constant.owner : Hold(value.constant);
    if (!held.ok()) {
      if (status_.ok()) status_ = held.status();
      return ref;
    }
    buffers_.back().blocked = value.constant.blocks.has_value();
    buffers_.back().data = value.constant.data;
    buffers_.back().owner = std::move(held).value();
    buffers_.back().origin = value.constant.is_weight ? Buffer::Origin::kCaller : Buffer::Origin::kEngine;
  }
  return ref;
}

TensorRef Lowering::Allocate(ValueId id) {
  const Value& value = graph_.value(id);
  TensorRef ref = AllocateTemporary(value.dtype, value.shape);
  Bind(id, ref);
  return ref;
}

TensorRef Lowering::AllocateTemporary(DType dtype, const Dims& shape) {
  TensorRef ref;
  ref.view = MakeView(nullptr, dtype, shape);
  ref.buffer = NewBuffer(Buffer::Kind::kArena, ref.view.size() * static_cast<int64_t>(SizeOf(dtype)));
  return ref;
}

void Lowering::AddCopy(const TensorRef& from, const TensorRef& to) {
  Step& step = AddStep(KernelId::kCopy, {from}, {to});
  const double bytes = static_cast<double>(to.view.size()) * static_cast<double>(SizeOf(to.view.dtype));
  step.name = "copy";
  step.section = Section::kReshape;
  step.flops = 0;
  step.bytes = 2 * bytes;
}

TensorRef Lowering::Contiguous(const TensorRef& ref) {
  if (ref.buffer < 0 || ref.view.contiguous()) return ref;
  TensorRef copy = AllocateTemporary(ref.view.dtype, ShapeOf(ref.view));
  AddCopy(ref, copy);
  return copy;
}

TensorRef Lowering::InnerContiguous(const TensorRef& ref) {
  const View& v = ref.view;
  if (ref.buffer < 0 || v.rank == 0 || v.strides[v.rank - 1] == 1 || v.shape[v.rank - 1] == 1) return ref;
  return Contiguous(ref);
}

Step& Lowering::AddStepBytes(KernelId kernel, std::vector<TensorRef> inputs, const std::vector<TensorRef>& outputs,
                             const void* params, size_t size) {
  Step step;
  step.kernel = kernel;
  step.num_inputs = static_cast<int>(inputs.size());
  step.operands = std::move(inputs);
  step.operands.insert(step.operands.end(), outputs.begin(), outputs.end());
  step.params.resize((size + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t));
  std::memcpy(step.params.data(), params, size);
  if (node_ != nullptr) {
    step.name = node_->op->name;
    step.source = node_->source;
    step.module = node_->module;
    step.section = node_->op->section;
  }
  steps_.push_back(std::move(step));
  return steps_.back();
}

TensorRef Lowering::AddConstantBytes(DType dtype, const Dims& shape, std::shared_ptr<const void> data) {
  TensorRef ref;
  ref.view = MakeView(nullptr, dtype, shape);
  ref.buffer = NewBuffer(Buffer::Kind::kConstant, ref.view.size() * static_cast<int64_t>(SizeOf(dtype)));
  buffers_.back().data = data.get();
  buffers_.back().owner = std::move(data);
  return ref;
}

TensorRef Lowering::PackedWeight(const std::vector<ValueId>& ids, bool transposed, Precision precision) {
  std::vector<WeightStore::Matrix> matrices;
  matrices.reserve(ids.size());
  for (const ValueId id : ids) matrices.push_back(WeightStore::MatrixOf(graph_.value(id), transposed));
  const int64_t k = graph_.value(ids.front()).shape[transposed ? 1 : 0];
  return AddPacked(weights_.GetPacked(matrices, k, transposed, precision, options_.num_threads));
}

TensorRef Lowering::PackedParts(ValueId id, const std::vector<int64_t>& offsets, const Weight& layout,
                                Precision precision) {
  return AddPacked(weights_.GetPackedParts(graph_.value(id), offsets, layout, precision, options_.num_threads));
}

TensorRef Lowering::PackedNumbers(std::vector<float> numbers, int64_t k, int64_t n, int64_t count,
                                  Precision precision) {
  Value value;
  value.shape = {count * n, k};
  value.kind = Value::Kind::kConstant;
  const auto owner = std::make_shared<const std::vector<float>>(std::move(numbers));
  value.constant.data = owner->data();
  value.constant.owner = owner;
  std::vector<int64_t> offsets;
  offsets.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) offsets.push_back(i * n * k);
  const Weight layout = DenseWeight(nullptr, k, n, true);
  return AddPacked(weights_.GetPackedParts(value, offsets, layout, precision, options_.num_threads));
}

TensorRef Lowering::AddPacked(const Result<WeightStore::Packed>& result) {
  if (!result.ok() && status_.ok()) status_ = result.status();
  const WeightStore::Packed packed = result.ok() ? result.value() : WeightStore::Packed{};
  TensorRef ref;
  ref.view = MakeView(nullptr, DType::kF32, {packed.bytes / static_cast<int64_t>(sizeof(float))});
  ref.buffer = NewBuffer(Buffer::Kind::kConstant, packed.bytes);
  buffers_.back().data = packed.data;
  buffers_.back().owner = packed.owner;
  buffers_.back().origin = Buffer::Origin::kPacked;
  return ref;
}

TensorRef Lowering::StoredWeight(const std::vector<ValueId>& ids, bool transposed, Encoding encoding, int64_t group) {
  if (ids.size() == 1 && transposed && StoredAs(graph_.value(ids[0])) == encoding) return Ref(ids[0]);
  std::vector<WeightStore::Matrix> matrices;
  int64_t n = 0;
  for (const ValueId id : ids) n += matrices.emplace_back(WeightStore::MatrixOf(graph_.value(id), transposed)).n;
  const int64_t k = graph_.value(ids.front()).shape[transposed ? 1 : 0];
  return AddRows(weights_.GetRows(matrices, k, transposed, encoding, group, options_.num_threads), encoding, {n, k});
}

TensorRef Lowering::StoredParts(ValueId id, const std::vector<int64_t>& offsets, const Weight& layout,
                                Encoding encoding) {
  const int64_t per_piece = 16 / std::max<int64_t>(1, EncodedBytes(encoding, 1));
  const int64_t row = (layout.k + per_piece - 1) / per_piece * per_piece;
  TensorRef ref =
      AddRows(weights_.GetRowsOfParts(graph_.value(id), offsets, layout, encoding, row, options_.num_threads), encoding,
              {static_cast<int64_t>(offsets.size()) * layout.n, row});
  ref.view.shape[1] = layout.k;
  return ref;
}

TensorRef Lowering::AddRows(const Result<WeightStore::Packed>& result, Encoding encoding, const Dims& shape) {
  if (!result.ok() && status_.ok()) status_ = result.status();
  TensorRef ref;
  // Blocks have no type.
  DType dtype = DType::kF32;
  if (encoding == Encoding::kBf16) dtype = DType::kBF16;
  if (encoding == Encoding::kF16) dtype = DType::kF16;
  ref.view = MakeView(nullptr, dtype, shape);
  ref.buffer = NewBuffer(Buffer::Kind::kConstant, EncodedBytes(encoding, NumElements(shape)));
  buffers_.back().blocked = IsBlocked(encoding);
  if (result.ok()) {
    buffers_.back().data = result.value().data;
    buffers_.back().owner = result.value().owner;
  }
  buffers_.back().origin = Buffer::Origin::kPacked;
  return ref;
}

int Lowering::AddProduct(Precision precision, int64_t m, int64_t n, int64_t k) {
  PlannedProduct product;
  product.key = {isa::Current(), precision, n, k, options_.num_threads, m};
  ChooseBlocking(target(), options_.tuning, product);
  products_.push_back(product);
  return static_cast<int>(products_.size()) - 1;
}

Plan Lowering::Take(std::vector<TensorRef> outputs) {
  node_ = nullptr;
  Plan plan;
  plan.target = options_.target;
  plan.num_threads = options_.num_threads;
  for (const ValueId id : graph_.inputs()) {
    const Value& value = graph_.value(id);
    plan.inputs.push_back({value.name, value.dtype, value.shape, value.kind == Value::Kind::kState});
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const TensorRef& ref = outputs[i];
    plan.outputs.push_back({{}, ref.view.dtype, ShapeOf(ref.view)});
    Buffer& buffer = buffers_[static_cast<size_t>(ref.buffer)];
    const int64_t bytes = ref.view.size() * static_cast<int64_t>(SizeOf(ref.view.dtype));
    // A value that fills a buffer of its own is computed straight into the caller's memory.
    if (buffer.kind == Buffer::Kind::kArena && ref.offset == 0 && ref.view.contiguous() && buffer.bytes == bytes) {
      buffer.kind = Buffer::Kind::kOutput;
      buffer.index = static_cast<int>(i);
      continue;
    }
    TensorRef target;
    target.view = MakeView(nullptr, ref.view.dtype, plan.outputs.back().shape);
    target.buffer = NewBuffer(Buffer::Kind::kOutput, bytes);
    buffers_.back().index = static_cast<int>(i);
    AddCopy(ref, target);
  }
  plan.buffers = std::move(buffers_);
  plan.steps = std::move(steps_);
  plan.products = std::move(products_);
  return plan;
}

}  // namespace thresher
