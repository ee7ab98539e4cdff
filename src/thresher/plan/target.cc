#include "thresher/plan/target.h"

#include "thresher/base/isa.h"
#include "thresher/plan/cpu_kernel.h"
#include "thresher/plan/plan.h"

namespace thresher {
namespace {

class Cpu : public Target {
 public:
  std::string variant() const override { return std::string(isa::Name(isa::Current())); }
  bool packs_weights() const override { return true; }
  bool takes_halves() const override { return false; }
  bool chains_take_halves() const override { return true; }
  kernels::RowForm RowsFor(Precision precision, int64_t m, kernels::Variant variant) const override {
    return kernels::RowsFor(precision, m, variant);
  }
  int Parts(int num_threads) const override { return num_threads; }
  Result<size_t> ScratchBytes(const Step& step, const View* operands, const void* params) const override {
    const CpuKernel& kernel = CpuKernelOf(step.kernel);
    if (kernel.run == nullptr) return Unsupported("the CPU has no kernel " + std::string(Name(step.kernel)));
    if (kernel.scratch == nullptr) return size_t{0};
    StepContext context;
    context.operands = operands;
    context.num_inputs = step.num_inputs;
    context.params = params;
    return kernel.scratch(context);
  }
  int ReplacedOperand(const Step& step) const override {
    const int operand = CpuKernelOf(step.kernel).replaced;
    return operand < step.num_inputs ? operand : -1;
  }
  bool StoresRows(Step& writer, StoredRows& rows) const override {
    const StoreRowsFn stores = CpuKernelOf(writer.kernel).stores_rows;
    return stores != nullptr && kernels::StoresRows(kernels::RowForm::kBF16) && stores(writer, rows);
  }
  Taken TakesRows(Step& reader, int buffer, StoredRows& rows) const override {
    const TakeRowsFn takes = CpuKernelOf(reader.kernel).takes_rows;
    return takes == nullptr ? Taken::kNot : takes(reader, buffer, rows);
  }
  bool TakesGate(Step& product, const GatedResult& gated) const override {
    const TakeGateFn takes = CpuKernelOf(product.kernel).takes_gate;
    return takes != nullptr && takes(product, gated);
  }
  bool TakesConversion(Step& product, const Step& conversion) const override {
    const TakeConversionFn takes = CpuKernelOf(product.kernel).takes_conversion;
    return takes != nullptr && takes(product, conversion);
  }
  bool LinesOf(const Step& step, StepLines& lines) const override {
    const LinesFn found = CpuKernelOf(step.kernel).lines;
    return found != nullptr && found(step, lines);
  }
};

}  // namespace

std::shared_ptr<const Target> CpuTarget() {
  static const auto target = std::make_shared<const Cpu>();
  return target;
}

}  // namespace thresher
