#include "thresher/plan/extent.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <map>
#include <utility>

#include "thresher/plan/builder.h"
#include "thresher/plan/in_place.h"
#include "thresher/plan/lowering.h"
#include "thresher/plan/memory_planner.h"

namespace thresher {
namespace {

constexpr double kMaxExactInteger = 9007199254740992.0;
constexpr size_t kMoreSamples = 2;  // than the polynomials need, as a check

// What a number of a plan is.
struct Role {
  enum class Kind : uint8_t { kInput, kOutput, kBuffer, kOffset, kShape, kStride, kParam, kCost, kShown, kProduct };
  Kind kind;
  size_t owner;  // the port, buffer, step or product
  size_t operand = 0;
  size_t index = 0;  // the dimension, the offset in the params, or which of several
};

std::byte* ParamsOf(Step& step) { return reinterpret_cast<std::byte*>(step.params.data()); }
const std::byte* ParamsOf(const Step& step) { return reinterpret_cast<const std::byte*>(step.params.data()); }

// Calls visit(role, number) for every number that may follow the sizes of a call, in a fixed order. Numbers are int64_t
// or double, const where the plan is.
template <class AnyPlan, class Visit>
void VisitNumbers(AnyPlan& plan, const Visit& visit) {
  using Kind = Role::Kind;
  constexpr bool kConst = std::is_const_v<AnyPlan>;
  using Size = std::conditional_t<kConst, const int64_t, int64_t>;
  using Real = std::conditional_t<kConst, const double, double>;
  const auto dims = [&visit](Kind kind, size_t owner, size_t operand, auto& shape) {
    for (size_t d = 0; d < shape.size(); ++d) visit(Role{kind, owner, operand, d}, shape[d]);
  };
  for (size_t i = 0; i < plan.inputs.size(); ++i) dims(Kind::kInput, i, 0, plan.inputs[i].shape);
  for (size_t i = 0; i < plan.outputs.size(); ++i) dims(Kind::kOutput, i, 0, plan.outputs[i].shape);
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    if (plan.buffers[b].kind != Buffer::Kind::kConstant) visit(Role{Kind::kBuffer, b}, plan.buffers[b].bytes);
  }
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    auto& step = plan.steps[s];
    for (size_t o = 0; o < step.operands.size(); ++o) {
      auto& ref = step.operands[o];
      visit(Role{Kind::kOffset, s, o}, ref.offset);
      for (size_t d = 0; d < static_cast<size_t>(ref.view.rank); ++d) {
        visit(Role{Kind::kShape, s, o, d}, ref.view.shape[d]);
        visit(Role{Kind::kStride, s, o, d}, ref.view.strides[d]);
      }
    }
    for (const size_t at : step.params_type->sizes) {
      visit(Role{Kind::kParam, s, 0, at}, *reinterpret_cast<Size*>(ParamsOf(step) + at));
    }
    for (const size_t at : step.params_type->numbers) {
      visit(Role{Kind::kParam, s, 0, at}, *reinterpret_cast<Real*>(ParamsOf(step) + at));
    }
    visit(Role{Kind::kCost, s, 0, 0}, step.flops);
    visit(Role{Kind::kCost, s, 0, 1}, step.bytes);
    for (size_t i = 0; i < step.shown.inputs.size(); ++i) dims(Kind::kShown, s, i, step.shown.inputs[i]);
    for (size_t i = 0; i < step.shown.outputs.size(); ++i) dims(Kind::kShown, s, i, step.shown.outputs[i]);
  }
  for (size_t p = 0; p < plan.products.size(); ++p) {
    visit(Role{Kind::kProduct, p, 0, 0}, plan.products[p].key.m);
    visit(Role{Kind::kProduct, p, 0, 1}, plan.products[p].key.n);
    visit(Role{Kind::kProduct, p, 0, 2}, plan.products[p].key.k);
  }
}

// A number of a plan as an integer.
struct Number {
  enum class Form : uint8_t { kInteger, kWhole, kBits };  // int64_t; a whole double; the bits of any other
  int64_t value = 0;
  Form form = Form::kInteger;
};

Number ToNumber(int64_t number) { return {number, Number::Form::kInteger}; }

Number ToNumber(double number) {
  if (std::abs(number) <= kMaxExactInteger && std::trunc(number) == number && !(number == 0 && std::signbit(number))) {
    return {static_cast<int64_t>(number), Number::Form::kWhole};
  }
  Number bits{0, Number::Form::kBits};
  std::memcpy(&bits.value, &number, sizeof(number));
  return bits;
}

std::vector<Number> Collect(const Plan& plan) {
  std::vector<Number> numbers;
  VisitNumbers(plan, [&](const Role&, auto& number) { numbers.push_back(ToNumber(number)); });
  return numbers;
}

std::string Describe(const Plan& plan, const Role& role) {
  static constexpr const char* kNames[] = {
      "the shape of input ",   "the shape of output ", "the bytes of buffer ", "the offset of operand ",
      "the shape of operand ", "a stride of operand ", "a parameter",          "the cost",
      "a shape shown",         "the size of product "};
  std::string text = kNames[static_cast<size_t>(role.kind)];
  switch (role.kind) {
    case Role::Kind::kInput:
    case Role::Kind::kOutput:
    case Role::Kind::kBuffer:
    case Role::Kind::kProduct:
      return text + std::to_string(role.owner);
    case Role::Kind::kOffset:
    case Role::Kind::kShape:
    case Role::Kind::kStride:
      text += std::to_string(role.operand);
      break;
    default:
      break;
  }
  return text + " of step " + std::to_string(role.owner) + ", " + plan.steps[role.owner].name;
}

Status Differ(const std::string& what) { return Unsupported("plans at different sizes differ in " + what); }

Status CheckSameBuffers(const Plan& a, const Plan& b) {
  if (a.buffers.size() != b.buffers.size()) return Differ("the number of buffers");
  for (size_t i = 0; i < a.buffers.size(); ++i) {
    const Buffer& x = a.buffers[i];
    const Buffer& y = b.buffers[i];
    const bool constant = x.kind == Buffer::Kind::kConstant;
    if (x.kind != y.kind || x.origin != y.origin || x.index != y.index || x.first_step != y.first_step ||
        x.last_step != y.last_step || (constant && x.bytes != y.bytes)) {
      return Differ("buffer " + std::to_string(i));
    }
    if (!constant || x.data == y.data) continue;
    if (x.data == nullptr || y.data == nullptr || x.origin != Buffer::Origin::kEngine ||
        std::memcmp(x.data, y.data, static_cast<size_t>(x.bytes)) != 0) {
      return Differ("the contents of constant " + std::to_string(i));
    }
  }
  return Status::Ok();
}

Status CheckSameStep(const Step& x, const Step& y, const std::string& name) {
  bool same = x.name == y.name && x.source == y.source && x.module == y.module && x.section == y.section &&
              x.kernel == y.kernel && x.num_inputs == y.num_inputs && x.operands.size() == y.operands.size() &&
              x.params_type == y.params_type && x.params.size() == y.params.size() && x.product == y.product &&
              x.shown.dtypes == y.shown.dtypes && x.shown.precision == y.shown.precision &&
              x.shown.kernel == y.shown.kernel;
  if (!same) return Differ(name);
  if (!x.params_type->same(x.params.data(), y.params.data())) return Differ("the parameters of " + name);
  for (size_t o = 0; o < x.operands.size(); ++o) {
    const TensorRef& p = x.operands[o];
    const TensorRef& q = y.operands[o];
    same &= p.buffer == q.buffer && p.view.dtype == q.view.dtype && p.view.rank == q.view.rank;
  }
  const auto same_ranks = [](const std::vector<Dims>& p, const std::vector<Dims>& q) {
    return std::equal(p.begin(), p.end(), q.begin(), q.end(),
                      [](const Dims& s, const Dims& t) { return s.size() == t.size(); });
  };
  same &= same_ranks(x.shown.inputs, y.shown.inputs) && same_ranks(x.shown.outputs, y.shown.outputs);
  return same ? Status::Ok() : Differ("the operands of " + name);
}

bool SamePorts(const std::vector<PortType>& a, const std::vector<PortType>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const PortType& x, const PortType& y) {
    return x.name == y.name && x.dtype == y.dtype && x.shape.size() == y.shape.size();
  });
}

// The values of the extent's polynomials; `monomials` and `values` have room.
void Evaluate(const Extent& extent, std::span<const int64_t> sizes, int64_t* monomials, int64_t* values) {
  extent.monomials.At(sizes, monomials);
  for (size_t i = 0; i < extent.polynomials.size(); ++i) values[i] = extent.polynomials[i].At(monomials);
}

// Sorts the polynomials of numbers by what a run does with them.
void AddPatches(const Plan& plan, Extent& extent) {
  std::vector<uint32_t> first_operand;  // per step
  uint32_t operands = 0;
  for (const Step& step : plan.steps) {
    first_operand.push_back(operands);
    operands += static_cast<uint32_t>(step.operands.size());
  }
  std::vector<uint32_t> first_size;  // per port
  uint32_t sizes = 0;
  for (const std::vector<PortType>* ports : {&plan.inputs, &plan.outputs}) {
    for (const PortType& port : *ports) {
      first_size.push_back(sizes);
      sizes += static_cast<uint32_t>(port.shape.size());
    }
  }
  size_t next = 0;
  VisitNumbers(plan, [&](const Role& role, const auto& number) {
    const int32_t found = extent.numbers[next++];
    if (found == Extent::kConstant) return;
    const auto polynomial = static_cast<uint32_t>(found);
    const auto owner = static_cast<uint32_t>(role.owner);
    const auto index = static_cast<uint32_t>(role.index);
    const auto operand = [&] { return first_operand[role.owner] + static_cast<uint32_t>(role.operand); };
    const auto in_view = [&](size_t member) {
      return static_cast<uint32_t>(operand() * sizeof(View) + member + role.index * sizeof(int64_t));
    };
    switch (role.kind) {
      case Role::Kind::kInput:
        extent.ports.push_back({first_size[role.owner] + index, polynomial});
        break;
      case Role::Kind::kOutput:
        extent.ports.push_back({first_size[plan.inputs.size() + role.owner] + index, polynomial});
        break;
      case Role::Kind::kBuffer:
        extent.buffers.push_back({owner, polynomial});
        break;
      case Role::Kind::kOffset:
        extent.offsets.push_back({operand(), polynomial});
        break;
      case Role::Kind::kShape:
        extent.views.push_back({in_view(offsetof(View, shape)), polynomial});
        break;
      case Role::Kind::kStride:
        extent.views.push_back({in_view(offsetof(View, strides)), polynomial});
        break;
      case Role::Kind::kParam:
        extent.params.push_back({owner, index, polynomial, std::is_same_v<decltype(number), const double&>});
        break;
      case Role::Kind::kCost:
        extent.costs.push_back({2 * owner + index, polynomial});
        break;
      case Role::Kind::kShown:
        break;  // only a profile asks
      case Role::Kind::kProduct:
        extent.products.push_back({3 * owner + index, polynomial});
        break;
    }
  });
}

// Results lie in the places of operands only where they do in all samples and may at the plan's sizes, too.
void KeepReplaced(std::span<const ExtentSample> samples, Plan& plan) {
  const std::vector<int> replaced = ReplacedBuffers(plan);
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    int& kept = plan.buffers[b].replaces;
    const auto same = [&](const ExtentSample& sample) { return sample.plan->buffers[b].replaces == kept; };
    if (replaced[b] != kept || !std::all_of(samples.begin(), samples.end(), same)) kept = -1;
  }
}

// Which buffers of the arena lie on which, as they were placed.
void StackBuffers(const Plan& plan, bool share_memory, Extent& extent) {
  const std::vector<Lifetime> places = LifetimesOfPlaces(plan);
  const auto meet = [&](uint32_t x, uint32_t y) {  // whether both are alive at some step
    const Lifetime& a = places[x];
    const Lifetime& b = places[y];
    return !share_memory || (a.first <= b.last && b.first <= a.last);
  };
  std::vector<uint32_t> order;
  for (uint32_t b = 0; b < plan.buffers.size(); ++b) {
    const Buffer& buffer = plan.buffers[b];
    if (buffer.kind != Buffer::Kind::kArena || buffer.first_step < 0) continue;
    if (buffer.replaces < 0) {
      order.push_back(b);
    } else {
      extent.replaced.push_back({b, static_cast<uint32_t>(PlaceOf(plan, static_cast<int>(b)))});
    }
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return plan.buffers[a].arena_offset < plan.buffers[b].arena_offset; });
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t begin = extent.below.size();
    for (size_t j = i; j-- > 0;) {
      if (!meet(order[i], order[j])) continue;
      // One that lies on it already keeps this one above it, too.
      const bool held = std::any_of(extent.below.begin() + static_cast<std::ptrdiff_t>(begin), extent.below.end(),
                                    [&](uint32_t nearer) { return meet(nearer, order[j]); });
      if (!held) extent.below.push_back(order[j]);
    }
    extent.stack.push_back({order[i], static_cast<uint32_t>(extent.below.size())});
  }
}

// Whether the products at these sizes take their rows in the form that the plan's steps are made for.
Status CheckForms(const Plan& plan, std::span<const PlannedProduct> products) {
  for (size_t p = 0; p < products.size(); ++p) {
    if (products[p].form == plan.products[p].form) continue;
    return InvalidArgument("a product of " + std::to_string(products[p].key.m) +
                           " rows is computed in another way than the plan's");
  }
  return Status::Ok();
}

void SetKey(ProductKey& key, uint32_t which, int64_t value) {
  (which == 0 ? key.m : which == 1 ? key.n : key.k) = value;
}

Status CheckRange(const Extent& extent, std::span<const int64_t> sizes) {
  if (sizes.size() != extent.names.size()) {
    return InvalidArgument("expected " + std::to_string(extent.names.size()) + " sizes, got " +
                           std::to_string(sizes.size()));
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] >= extent.least[i] && sizes[i] <= extent.capacity[i]) continue;
    return InvalidArgument("size " + extent.names[i] + ": expected " + std::to_string(extent.least[i]) + " to " +
                           std::to_string(extent.capacity[i]) + ", which the plan is for, got " +
                           std::to_string(sizes[i]));
  }
  return Status::Ok();
}

// The plan with the numbers of these sizes, which are in range.
Result<Plan> Instantiate(const Plan& plan, const Extent& extent, std::span<const int64_t> sizes) {
  Plan made = plan;
  made.extent = nullptr;
  std::vector<int64_t> monomials(extent.monomials.count());
  std::vector<int64_t> values(extent.polynomials.size());
  Evaluate(extent, sizes, monomials.data(), values.data());
  size_t next = 0;
  VisitNumbers(made, [&](const Role&, auto& number) {
    const int32_t polynomial = extent.numbers[next++];
    if (polynomial == Extent::kConstant) return;
    number = static_cast<std::remove_reference_t<decltype(number)>>(values[static_cast<size_t>(polynomial)]);
  });
  for (PlannedProduct& product : made.products) ChooseBlocking(*made.target, extent.tuning.get(), product);
  for (Step& step : made.steps) {
    step.parts = PartsOf(step, step.flops, step.bytes, made.num_threads);
    if (step.product >= 0) {
      std::memcpy(ParamsOf(step) + step.params_type->blocking,
                  &made.products[static_cast<size_t>(step.product)].blocking, sizeof(kernels::Blocking));
    }
    std::vector<View> operands;
    operands.reserve(step.operands.size());
    for (const TensorRef& ref : step.operands) operands.push_back(ref.view);
    THRESHER_ASSIGN(step.scratch_bytes, made.target->ScratchBytes(step, operands.data(), step.params.data()));
  }
  return made;
}

}  // namespace

Status CheckSameStructure(const Plan& a, const Plan& b) {
  if (a.target != b.target || a.num_threads != b.num_threads) return Differ("the device or the number of threads");
  if (!SamePorts(a.inputs, b.inputs) || !SamePorts(a.outputs, b.outputs)) return Differ("inputs or outputs");
  THRESHER_TRY(CheckSameBuffers(a, b));
  if (a.steps.size() != b.steps.size()) return Differ("the number of steps");
  for (size_t s = 0; s < a.steps.size(); ++s) {
    THRESHER_TRY(CheckSameStep(a.steps[s], b.steps[s], "step " + std::to_string(s) + ", " + a.steps[s].name));
  }
  if (a.products.size() != b.products.size()) return Differ("the number of products");
  for (size_t p = 0; p < a.products.size(); ++p) {
    const PlannedProduct& x = a.products[p];
    const PlannedProduct& y = b.products[p];
    if (x.key.isa != y.key.isa || x.key.precision != y.key.precision || x.form != y.form) {
      return Differ("product " + std::to_string(p));
    }
  }
  return Status::Ok();
}

Result<std::shared_ptr<Plan>> FitPlan(std::vector<std::string> names, Dims least, Dims capacity,
                                      std::span<const ExtentSample> samples, std::shared_ptr<const TuningTable> tuning,
                                      bool share_memory) {
  auto extent = std::make_shared<Extent>();
  extent->monomials = Monomials(names.size(), 2, 3);
  if (samples.size() < extent->monomials.count() + kMoreSamples) {
    return InvalidArgument("expected at least " + std::to_string(extent->monomials.count() + kMoreSamples) +
                           " plans of one structure, got " + std::to_string(samples.size()));
  }
  const Plan& first = *samples[0].plan;
  std::vector<Dims> points;
  std::vector<std::vector<Number>> numbers;
  for (const ExtentSample& sample : samples) {
    THRESHER_TRY(CheckSameStructure(first, *sample.plan));
    points.push_back(sample.sizes);
    numbers.push_back(Collect(*sample.plan));
  }
  THRESHER_ASSIGN(const PolynomialFitter fitter, PolynomialFitter::Make(extent->monomials, std::move(points)));
  extent->names = std::move(names);
  extent->least = std::move(least);
  extent->capacity = std::move(capacity);
  extent->tuning = std::move(tuning);
  std::map<std::vector<int64_t>, int32_t> known;  // polynomials by their values at the samples
  Status status;
  std::vector<int64_t> values(samples.size());
  size_t next = 0;
  VisitNumbers(first, [&](const Role& role, const auto&) {
    const size_t i = next++;
    bool constant = true, usable = true;
    for (size_t s = 0; s < samples.size(); ++s) {
      const Number& number = numbers[s][i];
      values[s] = number.value;
      constant &= number.value == values[0] && number.form == numbers[0][i].form;
      usable &= number.form == numbers[0][i].form && number.form != Number::Form::kBits;
    }
    if (constant) {
      extent->numbers.push_back(Extent::kConstant);
      return;
    }
    auto [at, added] = known.try_emplace(values, Extent::kConstant);
    if (added && usable) {
      std::optional<Polynomial> polynomial = fitter.Fit(values);
      usable = polynomial && polynomial->Fits(extent->monomials, extent->capacity);
      if (usable) {
        at->second = static_cast<int32_t>(extent->polynomials.size());
        extent->polynomials.push_back(*std::move(polynomial));
      }
    }
    extent->numbers.push_back(at->second);
    if (at->second == Extent::kConstant && status.ok()) {
      status = Unsupported(Describe(first, role) + " is no polynomial of the sizes");
    }
  });
  THRESHER_TRY(status);
  AddPatches(first, *extent);
  extent->chooses = extent->tuning != nullptr;
  for (const PlannedProduct& product : first.products) {
    extent->chooses |= product.key.precision == Precision::kInt4Weight;  // whose form of rows follows their number
  }
  THRESHER_ASSIGN(Plan made, Instantiate(first, *extent, extent->capacity));
  auto plan = std::make_shared<Plan>(std::move(made));
  for (size_t p = 0; p < plan->products.size(); ++p) plan->products[p].form = first.products[p].form;
  for (size_t s = 0; s < plan->steps.size(); ++s) {
    for (const ExtentSample& sample : samples) {
      plan->steps[s].scratch_bytes = std::max(plan->steps[s].scratch_bytes, sample.plan->steps[s].scratch_bytes);
    }
  }
  KeepReplaced(samples, *plan);
  THRESHER_TRY(PlanMemory(*plan, share_memory));
  StackBuffers(*plan, share_memory, *extent);
  plan->extent = std::move(extent);
  return plan;
}

Status CheckSizes(const Plan& plan, std::span<const int64_t> sizes) {
  const Extent& extent = *plan.extent;
  THRESHER_TRY(CheckRange(extent, sizes));
  if (!extent.chooses) return Status::Ok();
  std::vector<int64_t> monomials(extent.monomials.count());
  extent.monomials.At(sizes, monomials.data());
  std::vector<PlannedProduct> products = plan.products;
  for (const Extent::Patch& patch : extent.products) {
    SetKey(products[patch.at / 3].key, patch.at % 3, extent.polynomials[patch.polynomial].At(monomials.data()));
  }
  for (PlannedProduct& product : products) ChooseBlocking(*plan.target, extent.tuning.get(), product);
  return CheckForms(plan, products);
}

std::vector<PortType> OutputsAt(const Plan& plan, std::span<const int64_t> sizes) {
  const Extent& extent = *plan.extent;
  std::vector<int64_t> monomials(extent.monomials.count());
  extent.monomials.At(sizes, monomials.data());
  std::vector<PortType> outputs = plan.outputs;
  std::vector<int64_t*> ports;
  for (const PortType& port : plan.inputs) ports.insert(ports.end(), port.shape.size(), nullptr);
  for (PortType& port : outputs) {
    for (int64_t& size : port.shape) ports.push_back(&size);
  }
  for (const Extent::Patch& patch : extent.ports) {
    if (ports[patch.at] != nullptr) *ports[patch.at] = extent.polynomials[patch.polynomial].At(monomials.data());
  }
  return outputs;
}

Result<Plan> PlanAt(const Plan& plan, std::span<const int64_t> sizes) {
  THRESHER_TRY(CheckSizes(plan, sizes));
  return Instantiate(plan, *plan.extent, sizes);
}

std::vector<int64_t> NumbersOf(const Plan& plan) {
  std::vector<int64_t> numbers;
  for (const Number& number : Collect(plan)) numbers.push_back(number.value);
  for (const Step& step : plan.steps) {
    numbers.push_back(step.parts);
    numbers.push_back(static_cast<int64_t>(step.scratch_bytes));
  }
  return numbers;
}

SizedPlan::SizedPlan(std::shared_ptr<const Plan> plan)
    : inputs(plan->inputs), outputs(plan->outputs), scratch_bytes(plan->scratch_bytes), plan_(std::move(plan)) {
  for (const Buffer& buffer : plan_->buffers) arena_offsets.push_back(buffer.arena_offset);
  for (const Step& step : plan_->steps) {
    first_operand.push_back(operands.size());
    for (const TensorRef& ref : step.operands) {
      operands.push_back(ref.view);
      offsets.push_back(ref.offset * static_cast<int64_t>(SizeOf(ref.view.dtype)));
    }
    parts.push_back(step.parts);
    params.push_back(step.params.data());
    costs_.insert(costs_.end(), {step.flops, step.bytes});
    param_start_.push_back(param_memory_.size());
    if (plan_->extent != nullptr) param_memory_.insert(param_memory_.end(), step.params.begin(), step.params.end());
  }
  if (plan_->extent == nullptr) return;
  for (size_t s = 0; s < params.size(); ++s) params[s] = param_memory_.data() + param_start_[s];
  for (std::vector<PortType>* ports : {&inputs, &outputs}) {
    for (PortType& port : *ports) {
      for (int64_t& size : port.shape) port_sizes_.push_back(&size);
    }
  }
  for (const Buffer& buffer : plan_->buffers) buffer_bytes_.push_back(buffer.bytes);
  place_bytes_ = buffer_bytes_;
  monomials_.resize(plan_->extent->monomials.count());
  values_.resize(plan_->extent->polynomials.size());
  products_ = plan_->products;
  sizes_.reserve(plan_->extent->names.size());
}

Status SizedPlan::Set(std::span<const int64_t> sizes) {
  const Extent& extent = *plan_->extent;
  sizes_.clear();
  THRESHER_TRY(CheckRange(extent, sizes));
  Evaluate(extent, sizes, monomials_.data(), values_.data());
  if (extent.chooses) {
    for (const Extent::Patch& patch : extent.products) {
      SetKey(products_[patch.at / 3].key, patch.at % 3, values_[patch.polynomial]);
    }
    for (PlannedProduct& product : products_) ChooseBlocking(*plan_->target, extent.tuning.get(), product);
    THRESHER_TRY(CheckForms(*plan_, products_));
  }
  auto* views = reinterpret_cast<std::byte*>(operands.data());
  for (const Extent::Patch& patch : extent.views) {
    std::memcpy(views + patch.at, &values_[patch.polynomial], sizeof(int64_t));
  }
  for (const Extent::Patch& patch : extent.offsets) {
    offsets[patch.at] = values_[patch.polynomial] * static_cast<int64_t>(SizeOf(operands[patch.at].dtype));
  }
  const auto param = [&](size_t step, size_t offset) {
    return reinterpret_cast<std::byte*>(param_memory_.data() + param_start_[step]) + offset;
  };
  for (const Extent::ParamPatch& patch : extent.params) {
    const int64_t value = values_[patch.polynomial];
    const auto real = static_cast<double>(value);
    static_assert(sizeof(real) == sizeof(value));
    std::memcpy(param(patch.step, patch.offset), patch.real ? static_cast<const void*>(&real) : &value, sizeof(value));
  }
  for (const Extent::Patch& patch : extent.ports) *port_sizes_[patch.at] = values_[patch.polynomial];
  for (const Extent::Patch& patch : extent.buffers) buffer_bytes_[patch.at] = values_[patch.polynomial];
  for (const Extent::Patch& patch : extent.costs) costs_[patch.at] = static_cast<double>(values_[patch.polynomial]);
  scratch_bytes = 0;
  for (size_t s = 0; s < plan_->steps.size(); ++s) {
    const Step& step = plan_->steps[s];
    parts[s] = PartsOf(step, costs_[2 * s], costs_[2 * s + 1], plan_->num_threads);
    if (extent.chooses && step.product >= 0) {
      std::memcpy(param(s, static_cast<size_t>(step.params_type->blocking)),
                  &products_[static_cast<size_t>(step.product)].blocking, sizeof(kernels::Blocking));
    }
    THRESHER_ASSIGN(const size_t scratch,
                    plan_->target->ScratchBytes(step, operands.data() + first_operand[s], params[s]));
    scratch_bytes = std::max(scratch_bytes, AlignUp(static_cast<int64_t>(scratch)));
  }
  THRESHER_TRY(Check());
  PlaceBuffers();
  sizes_.assign(sizes.begin(), sizes.end());
  return Status::Ok();
}

// Buffers are no larger than planned, so none comes to lie higher than planned.
void SizedPlan::PlaceBuffers() {
  const Extent& extent = *plan_->extent;
  place_bytes_ = buffer_bytes_;
  for (const Extent::Replaced& one : extent.replaced) {
    place_bytes_[one.place] = std::max(place_bytes_[one.place], buffer_bytes_[one.buffer]);
  }
  size_t next = 0;
  for (const Extent::Stacked& entry : extent.stack) {
    int64_t offset = 0;
    for (; next < entry.end; ++next) {
      const uint32_t other = extent.below[next];
      offset = std::max(offset, arena_offsets[other] + AlignUp(place_bytes_[other]));
    }
    arena_offsets[entry.buffer] = offset;
  }
  for (const Extent::Replaced& one : extent.replaced) arena_offsets[one.buffer] = arena_offsets[one.place];
}

// That no step reaches beyond its buffers, whatever the polynomials gave.
Status SizedPlan::Check() const {
  const auto fail = [this](const std::string& what) {
    std::string text = "the plan at sizes";
    for (size_t i = 0; i < plan_->extent->names.size(); ++i) text += " " + plan_->extent->names[i];
    return Internal(text + ": " + what);
  };
  for (size_t b = 0; b < buffer_bytes_.size(); ++b) {
    if (plan_->buffers[b].kind == Buffer::Kind::kArena && buffer_bytes_[b] > plan_->buffers[b].bytes) {
      return fail("buffer " + std::to_string(b) + " is larger than planned");
    }
  }
  size_t next = 0;
  for (const Step& step : plan_->steps) {
    for (const TensorRef& ref : step.operands) {
      const View& view = operands[next];
      const auto element = static_cast<int64_t>(SizeOf(view.dtype));
      int64_t end = offsets[next] + element;
      bool legal = offsets[next] >= 0;
      for (int d = 0; d < view.rank; ++d) {
        legal &= view.shape[d] >= 1 && view.strides[d] >= 0;
        end += (view.shape[d] - 1) * view.strides[d] * element;
      }
      const bool blocked = ref.buffer >= 0 && plan_->buffers[static_cast<size_t>(ref.buffer)].blocked;
      if (ref.buffer >= 0 && !blocked && (!legal || end > buffer_bytes_[static_cast<size_t>(ref.buffer)])) {
        return fail("an operand of " + step.name + " reaches beyond its buffer");
      }
      ++next;
    }
  }
  return Status::Ok();
}

}  // namespace thresher
