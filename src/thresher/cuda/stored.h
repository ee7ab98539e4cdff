// Elements as they lie in memory, and as kernels compute with them: floats of every width and bool as float, integers
// as int64_t. A run is some neighbouring elements that a thread reads or writes with one instruction.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "thresher/base/dtype.h"
#include "thresher/base/half.h"
#include "thresher/cuda/thread.h"

namespace thresher::cuda {

THRESHER_DEVICE uint32_t BitsOf(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

THRESHER_DEVICE float FloatOf(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

THRESHER_DEVICE float FloatOfBF16(uint32_t bits) { return FloatOf(bits << 16); }

// bf16 and f16 as base/half.h has them; of a NaN devices keep no more than that it is one.
THRESHER_DEVICE float FloatOfF16(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<uint16_t>(bits)));
  return x;
#else
  return ToFloat(F16{static_cast<uint16_t>(bits)});
#endif
}

// Two elements as they lie in a word.
THRESHER_DEVICE uint32_t BF16Pair(float low, float high) {
#if defined(__CUDA_ARCH__)
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return static_cast<uint32_t>(ToBF16(high).bits) << 16 | ToBF16(low).bits;
#endif
}

THRESHER_DEVICE uint32_t F16Pair(float low, float high) {
#if defined(__CUDA_ARCH__)
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return static_cast<uint32_t>(ToF16(high).bits) << 16 | ToF16(low).bits;
#endif
}

template <class T>
inline constexpr T kLeast = std::numeric_limits<T>::min();

// As kernels::Cast has it: truncates, and what does not fit, NaN too, gives the least value.
template <class T, class Real>
THRESHER_DEVICE int64_t Truncated(Real x) {
  constexpr T least = kLeast<T>;
  constexpr auto edge = static_cast<Real>(least);
  return x >= edge && x < -edge ? static_cast<int64_t>(x) : static_cast<int64_t>(least);
}

// kCount words that lie in memory as one aligned piece.
template <int kCount>
struct alignas(4 * kCount) Words {
  uint32_t word[kCount];
};

template <int kCount>
THRESHER_DEVICE void LoadWords(const void* from, int64_t piece, uint32_t* to) {
  const Words<kCount> words = static_cast<const Words<kCount>*>(from)[piece];
  THRESHER_UNROLL
  for (int i = 0; i < kCount; ++i) to[i] = words.word[i];
}

template <int kCount>
THRESHER_DEVICE void StoreWords(const uint32_t* from, void* to, int64_t piece) {
  Words<kCount> words;
  THRESHER_UNROLL
  for (int i = 0; i < kCount; ++i) words.word[i] = from[i];
  static_cast<Words<kCount>*>(to)[piece] = words;
}

// What kernels compute with where elements are floats or bool. A run has 4 elements, or 1; `Raw` is what memory holds
// of each, so that several loads can be on their way before the first result is used.
struct Floats {
  using Value = float;
  using Raw = uint32_t;

  // The run at `offset`, a multiple of kRun, into raw[0 .. kRun); `repeated`: kRun times the one element there.
  template <int kRun>
  THRESHER_DEVICE static void Load(DType dtype, const void* from, int64_t offset, bool repeated, Raw* raw) {
    const int bytes = dtype == DType::kF32 ? 4 : dtype == DType::kBool ? 1 : 2;
    if (kRun == 1 || repeated) {
      uint32_t bits;
      if (bytes == 4) {
        bits = static_cast<const uint32_t*>(from)[offset];
      } else if (bytes == 2) {
        bits = static_cast<const uint16_t*>(from)[offset] * 0x10001u;
      } else {
        bits = static_cast<const uint8_t*>(from)[offset] * 0x1010101u;
      }
      THRESHER_UNROLL
      for (int i = 0; i < kRun; ++i) raw[i] = bits;
    } else if (bytes == 4) {
      LoadWords<4>(from, offset / 4, raw);
    } else if (bytes == 2) {
      LoadWords<2>(from, offset / 4, raw);
    } else {
      LoadWords<1>(from, offset / 4, raw);
    }
  }

  // What Load() left, as numbers.
  template <int kRun>
  THRESHER_DEVICE static void Widen(DType dtype, const Raw* raw, Value* to) {
    switch (dtype) {
      case DType::kBF16:
        return Each<kRun>([&](int i) { return FloatOfBF16(raw[i / 2] >> (i % 2 * 16) & 0xffffu); }, to);
      case DType::kF16:
        return Each<kRun>([&](int i) { return FloatOfF16(raw[i / 2] >> (i % 2 * 16) & 0xffffu); }, to);
      case DType::kBool:
        return Each<kRun>([&](int i) { return (raw[0] >> (i * 8) & 0xffu) != 0 ? 1.0f : 0.0f; }, to);
      default:
        return Each<kRun>([&](int i) { return FloatOf(raw[i]); }, to);
    }
  }

  // The type may be any.
  template <int kRun>
  THRESHER_DEVICE static void Store(DType dtype, const Value* from, void* to, int64_t offset) {
    switch (dtype) {
      case DType::kF32: {
        uint32_t words[kRun];
        THRESHER_UNROLL
        for (int i = 0; i < kRun; ++i) words[i] = BitsOf(from[i]);
        StoreWords<kRun>(words, to, offset / kRun);
        return;
      }
      case DType::kBF16:
        return StoreHalves<kRun>([](float low, float high) { return BF16Pair(low, high); }, from, to, offset);
      case DType::kF16:
        return StoreHalves<kRun>([](float low, float high) { return F16Pair(low, high); }, from, to, offset);
      case DType::kBool:
        return StoreTruths<kRun>([&](int i) { return from[i] != 0; }, to, offset);
      case DType::kI32:
        THRESHER_UNROLL
        for (int i = 0; i < kRun; ++i) {
          static_cast<int32_t*>(to)[offset + i] = static_cast<int32_t>(Truncated<int32_t>(from[i]));
        }
        return;
      case DType::kI64:
        THRESHER_UNROLL
        for (int i = 0; i < kRun; ++i) static_cast<int64_t*>(to)[offset + i] = Truncated<int64_t>(from[i]);
        return;
    }
  }

  template <int kRun, class F>
  THRESHER_DEVICE static void Each(F f, Value* to) {
    THRESHER_UNROLL
    for (int i = 0; i < kRun; ++i) to[i] = f(i);
  }

  template <int kRun, class Pair>
  THRESHER_DEVICE static void StoreHalves(Pair pair, const Value* from, void* to, int64_t offset) {
    if constexpr (kRun == 1) {
      static_cast<uint16_t*>(to)[offset] = static_cast<uint16_t>(pair(from[0], 0.0f));
    } else {
      const uint32_t words[2] = {pair(from[0], from[1]), pair(from[2], from[3])};
      StoreWords<2>(words, to, offset / kRun);
    }
  }

  template <int kRun, class Truth>
  THRESHER_DEVICE static void StoreTruths(Truth truth, void* to, int64_t offset) {
    if constexpr (kRun == 1) {
      static_cast<uint8_t*>(to)[offset] = truth(0) ? 1 : 0;
    } else {
      uint32_t word = 0;
      THRESHER_UNROLL
      for (int i = 0; i < kRun; ++i) word |= (truth(i) ? 1u : 0u) << (i * 8);
      StoreWords<1>(&word, to, offset / kRun);
    }
  }
};

// The same where elements are i64, i32, or bool beside them: in 64 bits, of which a store keeps the lower ones.
struct Integers {
  using Value = int64_t;
  using Raw = int64_t;

  template <int kRun>
  THRESHER_DEVICE static void Load(DType dtype, const void* from, int64_t offset, bool repeated, Raw* raw) {
    switch (dtype) {
      case DType::kI64:
        return LoadFrom<kRun>(static_cast<const int64_t*>(from) + offset, repeated, raw);
      case DType::kI32:
        return LoadFrom<kRun>(static_cast<const int32_t*>(from) + offset, repeated, raw);
      default:
        LoadFrom<kRun>(static_cast<const uint8_t*>(from) + offset, repeated, raw);
        THRESHER_UNROLL
        for (int i = 0; i < kRun; ++i) raw[i] = raw[i] != 0;
    }
  }

  template <int kRun, class T>
  THRESHER_DEVICE static void LoadFrom(const T* from, bool repeated, Raw* raw) {
    THRESHER_UNROLL
    for (int i = 0; i < kRun; ++i) raw[i] = from[repeated ? 0 : i];
  }

  template <int kRun>
  THRESHER_DEVICE static void Widen(DType, const Raw* raw, Value* to) {
    THRESHER_UNROLL
    for (int i = 0; i < kRun; ++i) to[i] = raw[i];
  }

  template <int kRun>
  THRESHER_DEVICE static void Store(DType dtype, const Value* from, void* to, int64_t offset) {
    switch (dtype) {
      case DType::kI64:
        THRESHER_UNROLL
        for (int i = 0; i < kRun; ++i) static_cast<int64_t*>(to)[offset + i] = from[i];
        return;
      case DType::kI32:
        THRESHER_UNROLL
        for (int i = 0; i < kRun; ++i) static_cast<int32_t*>(to)[offset + i] = static_cast<int32_t>(from[i]);
        return;
      case DType::kBool:
        return Floats::StoreTruths<kRun>([&](int i) { return from[i] != 0; }, to, offset);
      default: {
        float wide[kRun];
        THRESHER_UNROLL
        for (int i = 0; i < kRun; ++i) wide[i] = static_cast<float>(from[i]);
        return Floats::Store<kRun>(dtype, wide, to, offset);
      }
    }
  }
};

}  // namespace thresher::cuda
