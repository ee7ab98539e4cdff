#include "thresher/kernels/pointwise_chain.h"

#include <algorithm>

#include "thresher/kernels/iterate.h"
#include "thresher/kernels/pointwise_rows.h"
#include "thresher/kernels/row_source.h"

namespace thresher::kernels {
namespace {

// Elements of a tile: the few tiles of a chain fit in L1 together, and the calls of the row functions do not count.
constexpr int64_t kTile = 1024;
// Rows at least this long are read where they lie, shorter ones are collected into tiles.
constexpr int64_t kMinRow = 128;

using Kind = ChainArg::Kind;

// A row function with what stays the same for all tiles.
struct Call {
  UnaryRow unary = nullptr;
  BinaryRow binary = nullptr;
  WhereRow where = nullptr;
  Broadcast broadcast = Broadcast::kNone;
};

class Runner {
 public:
  Runner(const Chain& chain, const View* operands, const View& out, std::byte* scratch)
      : chain_(chain), operands_(operands), out_(out), scratch_(reinterpret_cast<float*>(scratch)) {
    for (int d = 0; d < out.rank; ++d) {
      int64_t strides[kMaxChainOperands] = {};
      for (int i = 0; i < chain.num_operands; ++i) strides[i] = operands[i].strides[d];
      loop_.Push(out.shape[d], strides);
    }
    loop_.Collapse();
    by_rows_ = loop_.rank == 1 || loop_.inner() >= kMinRow;
    for (int i = 0; i < chain.num_operands; ++i) {
      by_rows_ = by_rows_ && (loop_.inner_stride(i) == 0 || loop_.inner_stride(i) == 1);
    }
    for (int i = 0; i < chain.num_operands; ++i) {
      one_[i] = by_rows_ ? loop_.inner_stride(i) == 0 : loop_.Constant(i);
      element_size_[i] = static_cast<int64_t>(SizeOf(operands[i].dtype));
      if (IsHalf(operands[i].dtype)) widen_[i] = FindCastRow(operands[i].dtype, DType::kF32);
    }
    if (IsHalf(out.dtype)) narrow_ = FindCastRow(DType::kF32, out.dtype);
    for (int s = 0; s < chain.num_steps; ++s) ResolveRow(s);
    for (int s = 0; s < chain.num_steps; ++s) WriteOut(s);
    // An operand that one step wants written out is so for all of them, also those that were looked at before.
    for (int s = 0; s < chain.num_steps; ++s) calls_[s].broadcast = BroadcastOf(s);
  }

  void Run(Range range) const {
    const auto out_size = static_cast<int64_t>(SizeOf(out_.dtype));
    auto* to = out_.as<uint8_t>() + range.begin * out_size;
    const float* from[kMaxChainOperands];
    if (by_rows_) {
      ForRows(loop_, range, [&](const int64_t* offsets, int64_t length) {
        for (int64_t begin = 0; begin < length; begin += kTile) {
          const int64_t n = std::min(kTile, length - begin);
          for (int i = 0; i < chain_.num_operands; ++i) {
            const bool one = one_[i] || written_out_[i];
            const int64_t offset = offsets[i] + (one ? 0 : begin);
            const float* data = Wide(i, operands_[i].as<const uint8_t>() + offset * element_size_[i], one ? 1 : n);
            if (written_out_[i]) std::fill_n(Buffer(i), n, *data);
            from[i] = written_out_[i] ? Buffer(i) : data;
          }
          RunTile(from, to, n);
          to += n * out_size;
        }
      });
      return;
    }
    RowSource sources[kMaxChainOperands];
    for (int i = 0; i < chain_.num_operands; ++i) sources[i] = RowSource(operands_[i]);
    for (int64_t begin = range.begin; begin < range.end; begin += kTile) {
      const Range tile = {begin, std::min(begin + kTile, range.end)};
      for (int i = 0; i < chain_.num_operands; ++i) {
        const bool stored = widen_[i] != nullptr;
        from[i] = one_[i] ? Wide(i, operands_[i].data, 1)
                          : Wide(i, sources[i].Read(tile, stored ? Stored() : Buffer(i)), tile.size());
      }
      RunTile(from, to, tile.size());
      to += tile.size() * out_size;
    }
  }

 private:
  float* Buffer(int operand) const { return scratch_ + operand * kTile; }
  float* Slot(int slot) const { return scratch_ + (chain_.num_operands + slot) * kTile; }
  // Where elements of 16 bits are collected before they are widened, and results wait that are stored in 16 bits.
  float* Stored() const { return Slot(chain_.num_slots); }

  // n elements of the operand as f32: themselves, or widened in its buffer.
  const float* Wide(int operand, const void* elements, int64_t n) const {
    if (widen_[operand] == nullptr) return static_cast<const float*>(elements);
    widen_[operand](elements, Buffer(operand), n);
    return Buffer(operand);
  }

  // Known exponents take the same short cuts as in Binary.
  void ResolveRow(int s) {
    const ChainStep& step = chain_.steps[s];
    Call& call = calls_[s];
    switch (step.kind) {
      case ChainStep::Kind::kUnary:
        call.unary = FindUnaryRow(step.unary, step.operand_dtype);
        return;
      case ChainStep::Kind::kWhere:
        call.where = FindWhereRow(step.operand_dtype);
        return;
      case ChainStep::Kind::kBinary:
        break;
    }
    call.binary = FindBinaryRow(step.binary, step.operand_dtype);
    if (step.binary != BinaryOp::kPow) return;
    const ChainArg& b = step.args[1];
    BinaryRow power = nullptr;
    if (b.kind == Kind::kNumber) power = FindPowerRow(b.number);
    if (b.kind == Kind::kOperand && IsOneValue(operands_[b.index])) {
      power = FindPowerRow(*Wide(b.index, operands_[b.index].data, 1));
    }
    if (power == nullptr) return;
    call.binary = power;
    power_[s] = true;
  }

  bool IsOne(const ChainArg& arg) const {
    return arg.kind == Kind::kNumber || (arg.kind == Kind::kOperand && one_[arg.index]);
  }

  // Rows take one argument as a single element, and only in some places. Where an operand is one elsewhere, it is
  // written out.
  void WriteOut(int s) {
    const ChainStep& step = chain_.steps[s];
    const int first = step.kind == ChainStep::Kind::kWhere ? 1 : 0;
    const int takes_one = step.kind == ChainStep::Kind::kUnary ? 0 : 2;
    bool taken = power_[s];
    for (int a = first; a < first + takes_one; ++a) taken |= step.args[a].kind == Kind::kNumber;
    for (int a = 0; a < step.num_args(); ++a) {
      const ChainArg& arg = step.args[a];
      if (arg.kind != Kind::kOperand || !one_[arg.index] || (power_[s] && a == 1)) continue;
      if (!taken && a >= first && a < first + takes_one) {
        taken = true;
        continue;
      }
      one_[arg.index] = false;
      written_out_[arg.index] = true;
    }
  }

  Broadcast BroadcastOf(int s) const {
    const ChainStep& step = chain_.steps[s];
    if (step.kind == ChainStep::Kind::kUnary) return Broadcast::kNone;
    const int first = step.kind == ChainStep::Kind::kWhere ? 1 : 0;
    if (power_[s] || IsOne(step.args[first + 1])) return Broadcast::kB;
    return IsOne(step.args[first]) ? Broadcast::kA : Broadcast::kNone;
  }

  void RunTile(const float* const* from, uint8_t* to, int64_t n) const {
    const auto at = [&](const ChainArg& arg) -> const void* {
      switch (arg.kind) {
        case Kind::kOperand:
          return from[arg.index];
        case Kind::kStep:
          return Slot(chain_.steps[arg.index].slot);
        case Kind::kNumber:
          return &arg.number;
      }
      return nullptr;
    };
    for (int s = 0; s < chain_.num_steps; ++s) {
      const ChainStep& step = chain_.steps[s];
      const Call& call = calls_[s];
      const bool last = s + 1 == chain_.num_steps;
      float* const result = !last ? Slot(step.slot) : narrow_ != nullptr ? Stored() : reinterpret_cast<float*>(to);
      switch (step.kind) {
        case ChainStep::Kind::kUnary:
          call.unary(at(step.args[0]), result, n);
          break;
        case ChainStep::Kind::kBinary: {
          BinaryRow row = call.binary;
          // Where the whole result is one element, so is an exponent that was computed.
          if (step.binary == BinaryOp::kPow && step.args[1].kind == Kind::kStep && out_.size() == 1) {
            const BinaryRow power = FindPowerRow(*static_cast<const float*>(at(step.args[1])));
            if (power != nullptr) row = power;
          }
          row(at(step.args[0]), at(step.args[1]), result, n, call.broadcast);
          break;
        }
        case ChainStep::Kind::kWhere:
          call.where(at(step.args[0]), at(step.args[1]), at(step.args[2]), result, n, call.broadcast);
          break;
      }
    }
    if (narrow_ != nullptr) narrow_(Stored(), to, n);
  }

  const Chain& chain_;
  const View* operands_;
  const View& out_;
  float* scratch_;
  Loop<kMaxChainOperands> loop_;
  bool by_rows_ = false;
  int64_t element_size_[kMaxChainOperands] = {};
  UnaryRow widen_[kMaxChainOperands] = {};    // of operands of 16 bits
  UnaryRow narrow_ = nullptr;                 // where the result has 16 bits
  bool one_[kMaxChainOperands] = {};          // a tile of the operand is one element
  bool written_out_[kMaxChainOperands] = {};  // it was, and is repeated in the operand's buffer
  bool power_[kMaxChainSteps] = {};           // a power with a known exponent, which is not read
  Call calls_[kMaxChainSteps];
};

}  // namespace

void AssignSlots(Chain& chain) {
  int last_use[kMaxChainSteps] = {};
  for (int s = 0; s < chain.num_steps; ++s) {
    for (int a = 0; a < chain.steps[s].num_args(); ++a) {
      const ChainArg& arg = chain.steps[s].args[a];
      if (arg.kind == Kind::kStep) last_use[arg.index] = s;
    }
  }
  const auto assign = [&](bool late, int first) {
    bool busy[kMaxChainSteps] = {};
    int slots = 0;
    const auto release = [&](int s, bool before_writing) {
      for (int i = 0; i < s; ++i) {
        // A row function may write over an argument of its result's type, not of another.
        const bool in_place = chain.steps[i].dtype == chain.steps[s].dtype;
        if (last_use[i] == s && in_place == before_writing && (last_use[i] > i + 1) == late) {
          busy[chain.steps[i].slot - first] = false;
        }
      }
    };
    // The last step writes to the output.
    for (int s = 0; s + 1 < chain.num_steps; ++s) {
      release(s, true);
      const auto free = static_cast<int>(std::find(std::begin(busy), std::end(busy), false) - std::begin(busy));
      release(s, false);
      if ((last_use[s] > s + 1) != late) continue;
      busy[free] = true;
      chain.steps[s].slot = static_cast<uint8_t>(first + free);
      slots = std::max(slots, free + 1);
    }
    return slots;
  };
  chain.num_late_slots = assign(true, 0);
  chain.num_slots = chain.num_late_slots + assign(false, chain.num_late_slots);
}

size_t ChainScratchBytes(const Chain& chain) {
  return static_cast<size_t>(chain.num_operands + chain.num_slots + 1) * static_cast<size_t>(kTile) * sizeof(float);
}

void RunChain(const Chain& chain, const View* operands, const View& out, std::byte* scratch, int part, int num_parts) {
  const Range range = PartRange(out.size(), part, num_parts, kPartGranule);
  if (range.size() == 0) return;
  Runner(chain, operands, out, scratch).Run(range);
}

}  // namespace thresher::kernels
