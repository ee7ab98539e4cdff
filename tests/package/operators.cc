// A package of operators for tests/python/test_operator_packages.py: one that uses everything rows can say, and, where
// the environment variable FAULT asks for it, one that the engine has to refuse.
#include <cstdlib>
#include <stdexcept>

#include "thresher/operator_package.h"

namespace {

using namespace thresher::operators;
using thresher::DType;
using thresher::InvalidArgument;
using thresher::OutOfRange;
using thresher::Result;
using thresher::Status;
using thresher::View;

// ---- blend: where flag, x * factor + shift, else x; and which elements are above a limit ----

constexpr Attribute kBlendAttributes[] = {Bool("flag", "whether to compute", true), Int("shift", "added"),
                                          Float("factor", "multiplied", 2.0)};

Result<std::vector<Type>> InferBlend(const Call& call) {
  const View& x = call.in(0);
  if (call.has(1) && TypeOf(call.in(1)).shape != TypeOf(x).shape) {
    return InvalidArgument("expected y of x's shape " + thresher::ToString(TypeOf(x).shape) + ", got " +
                           thresher::ToString(TypeOf(call.in(1)).shape));
  }
  return std::vector<Type>{TypeOf(x), {DType::kBool, TypeOf(x).shape}};
}

Cost CostOfBlend(const Call& call) { return PerElement(call, 2); }

Status Blend(const Call& call) {
  const float* x = call.in(0).as<float>();
  const float* y = call.has(1) ? call.in(1).as<float>() : nullptr;
  const Range range = PartOf(call, call.in(0).size());
  for (int64_t i = range.begin; i < range.end; ++i) {
    const float scaled = x[i] * static_cast<float>(call.real(2)) + static_cast<float>(call.integer(1));
    call.out(0).as<float>()[i] = (call.flag(0) ? scaled : x[i]) + (y == nullptr ? 0.0F : y[i]);
    call.out(1).as<bool>()[i] = x[i] > 1;
  }
  return Status::Ok();
}

// ---- strides: sums rows wherever they lie, through scratch memory ----

Result<std::vector<Type>> InferRowSums(const Call& call) {
  if (call.in(0).rank != 2) throw std::invalid_argument("expected a matrix");
  return std::vector<Type>{{DType::kF32, {call.in(0).shape[0]}}};
}

Cost CostOfRowSums(const Call& call) { return {Bytes(call.in(0)) / 4, Bytes(call.in(0)), Bytes(call.out())}; }

size_t ScratchOfRowSums(const Call& call) { return static_cast<size_t>(call.in(0).shape[1]) * sizeof(float); }

Status RowSums(const Call& call) {
  const View& x = call.in(0);
  auto* const row = reinterpret_cast<float*>(call.scratch);
  const Range rows = PartOf(call, x.shape[0]);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t c = 0; c < x.shape[1]; ++c) row[c] = x.as<float>()[r * x.strides[0] + c * x.strides[1]];
    float sum = 0;
    for (int64_t c = 0; c < x.shape[1]; ++c) sum += row[c];
    call.out().as<float>()[r] = sum;
  }
  return Status::Ok();
}

// ---- picky: fails for data that it does not like ----

Result<std::vector<Type>> InferSame(const Call& call) { return std::vector<Type>{TypeOf(call.in(0))}; }

Status Picky(const Call& call) {
  const float first = call.in(0).as<float>()[0];
  if (first < 0) return OutOfRange("expected elements of at least 0, got " + std::to_string(first));
  if (first > 9) throw std::runtime_error("a library that this one uses gave up");
  std::copy_n(call.in(0).as<float>(), call.in(0).size(), call.out().as<float>());
  return Status::Ok();
}

// ---- what is wrong with a row ----

Result<std::vector<Type>> InferTooFew(const Call&) { return std::vector<Type>{}; }
Result<std::vector<Type>> InferHalf(const Call& call) {
  return std::vector<Type>{{DType::kF16, TypeOf(call.in(0)).shape}};
}

constexpr Row Plain(const char* name) {
  return {.name = name,
          .doc = "A test.",
          .operands = "x",
          .infer = Infer<InferSame>,
          .cost = CostOf<CostOfBlend>,
          .run = Run<Picky>};
}

const Package* PackageOf(const std::string& fault) {
  static Row rows[] = {{.name = "trial.blend",
                        .doc = "x * factor + shift + y, and where x is above 1.",
                        .operands = "x y?",
                        .num_results = 2,
                        .attributes = kBlendAttributes,
                        .num_attributes = 3,
                        .infer = Infer<InferBlend>,
                        .cost = CostOf<CostOfBlend>,
                        .run = Run<Blend>},
                       {.name = "trial.row_sums",
                        .doc = "Sums of rows.",
                        .operands = "x",
                        .infer = Infer<InferRowSums>,
                        .cost = CostOf<CostOfRowSums>,
                        .run = Run<RowSums>,
                        .scratch = Scratch<ScratchOfRowSums>,
                        .reads_strides = true},
                       Plain("trial.picky"),
                       Plain("trial.too_few"),
                       Plain("trial.half")};
  static Package package = {THRESHER_OPERATOR_RELEASE, "trial", "3", rows, 5};
  rows[3].infer = Infer<InferTooFew>;
  rows[4].infer = Infer<InferHalf>;
  if (fault == "release") package.engine_version = "0.0.9";
  if (fault == "name") rows[0].name = "other.blend";
  if (fault == "package") package.name = "a b";
  if (fault == "empty") package.num_rows = 0;
  if (fault == "doc") rows[0].doc = "";
  if (fault == "operands") rows[0].operands = "x y!";
  if (fault == "none") rows[0].operands = "";
  if (fault == "state") rows[0].operands = "state";
  if (fault == "results") rows[0].num_results = 5;
  if (fault == "attributes") rows[0].num_attributes = 9;
  if (fault == "kernel") rows[0].run = nullptr;
  if (fault == "twice") rows[1].name = rows[0].name;
  return &package;
}

}  // namespace

const Package* thresher_operator_package() {
  const char* const fault = std::getenv("FAULT");
  return PackageOf(fault == nullptr ? "" : fault);
}
