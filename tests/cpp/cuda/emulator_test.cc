// The emulator finds what it is there to find.
#include "cuda/emulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "thresher/cuda/halves.h"
#include "thresher/cuda/reduce.h"

namespace thresher::cuda::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

Shape OneBlock(int width, int height = 1, int shared_floats = 0) {
  Shape shape;
  shape.width = width;
  shape.height = height;
  shape.shared_floats = shared_floats;
  return shape;
}

template <class Kernel>
std::string Emulate(const Shape& shape, const Kernel& kernel, Order order = Order::kForward) {
  return RunBlocks(shape, sizeof kernel, order, [&](Thread& t) { kernel(t); });
}

TEST(Emulator, RunsEveryThreadOfEveryBlockOnce) {
  for (const Order order : {Order::kForward, Order::kBackward}) {
    Shape shape = OneBlock(64, 3);
    shape.blocks = 5;
    std::vector<int> count(static_cast<size_t>(5 * 64 * 3));
    EXPECT_THAT(Emulate(
                    shape,
                    [&](Thread& t) {
                      EXPECT_EQ(t.width(), 64);
                      EXPECT_EQ(t.height(), 3);
                      EXPECT_EQ(t.num_blocks(), 5);
                      ++count[static_cast<size_t>((t.block() * 3 + t.y()) * 64 + t.x())];
                    },
                    order),
                IsEmpty());
    EXPECT_EQ(count, std::vector<int>(count.size(), 1));
  }
}

TEST(Emulator, ShufflesStayInTheirWarp) {
  std::vector<float> got(128);
  EXPECT_THAT(Emulate(OneBlock(64, 2),
                      [&](Thread& t) {
                        const int number = t.y() * 64 + t.x();
                        got[static_cast<size_t>(number)] = t.ShuffleXor(static_cast<float>(number), 5);
                      }),
              IsEmpty());
  for (int i = 0; i < 128; ++i) EXPECT_EQ(got[static_cast<size_t>(i)], static_cast<float>(i ^ 5));
}

// A reversal of a block through shared memory, right only with the barrier between its halves.
std::string Reverse(bool barrier, Order order) {
  return Emulate(
      OneBlock(64, 1, 64),
      [&](Thread& t) {
        auto floats = t.shared();
        floats[t.x()] = static_cast<float>(t.x());
        if (barrier) t.Sync();
        const float other = floats[63 - t.x()];
        if (barrier) {
          EXPECT_EQ(other, static_cast<float>(63 - t.x()));
        }
      },
      order);
}

TEST(Emulator, FindsAMissingBarrier) {
  for (const Order order : {Order::kForward, Order::kBackward}) {
    EXPECT_THAT(Reverse(true, order), IsEmpty());
    EXPECT_THAT(Reverse(false, order), HasSubstr("shared word"));
  }
}

TEST(Emulator, FindsAWriteOverWhatOthersStillRead) {
  EXPECT_THAT(Emulate(OneBlock(32, 1, 1),
                      [](Thread& t) {
                        auto floats = t.shared();
                        if (t.x() == 0) floats[0] = 1;
                        t.Sync();
                        const float value = floats[0];
                        if (t.x() == 31) floats[0] = value + 1;
                      }),
              HasSubstr("without a barrier"));
}

// The kernels' own reduction without its first barrier would fail like this when it runs a second time.
TEST(Emulator, FindsAReductionThatReusesItsPartsTooEarly) {
  const auto reduce = [](Thread& t) {
    auto parts = t.shared();
    if (t.x() % kWarp == 0) parts[t.x() / kWarp] = 1;
    t.Sync();
    return static_cast<float>(parts[0]) + static_cast<float>(parts[1]);
  };
  EXPECT_THAT(Emulate(OneBlock(64, 1, 2), [&](Thread& t) { reduce(t); }), IsEmpty());
  EXPECT_THAT(Emulate(OneBlock(64, 1, 2),
                      [&](Thread& t) {
                        reduce(t);
                        reduce(t);
                      }),
              HasSubstr("without a barrier"));
  EXPECT_THAT(Emulate(OneBlock(64, 1, kReduceFloats),
                      [&](Thread& t) {
                        EXPECT_EQ((ReduceRow<false, Sum>(t, 1.0f)), 64.0f);
                        EXPECT_EQ((ReduceRow<false, Max>(t, static_cast<float>(t.x()))), 63.0f);
                      }),
              IsEmpty());
}

TEST(Emulator, FindsThreadsThatDoNotMeet) {
  EXPECT_THAT(Emulate(OneBlock(64),
                      [](Thread& t) {
                        if (t.x() != 3) t.Sync();
                      }),
              HasSubstr("63 wait at a barrier"));
  EXPECT_THAT(Emulate(OneBlock(64),
                      [](Thread& t) {
                        if (t.x() < 40) t.ShuffleXor(0, 1);
                      }),
              HasSubstr("8 in a shuffle"));
}

TEST(Emulator, FindsMisuseOfSharedMemory) {
  EXPECT_THAT(Emulate(OneBlock(32, 1, 4),
                      [](Thread& t) {
                        if (t.x() == 4) t.shared()[t.x()] = 1;
                      }),
              HasSubstr("of 4 that the launch asked for"));
  EXPECT_THAT(Emulate(OneBlock(32, 1, 4),
                      [](Thread& t) {
                        const float value = t.shared()[0];
                        EXPECT_NE(value, value);
                      }),
              HasSubstr("before anybody has written it"));
}

// A thread copies 16 bytes to its own place and reads its neighbour's.
std::string CopyAndRead(bool wait, bool barrier, Order order = Order::kForward) {
  alignas(16) static const float from[4] = {1, 2, 3, 4};
  return Emulate(
      OneBlock(32, 1, 128),
      [&](Thread& t) {
        t.CopyFour(4 * t.x(), from, 8);
        t.CommitCopies();
        if (wait) t.WaitCopies<>();
        if (barrier) t.Sync();
        const Four four = t.LoadFour(4 * (t.x() ^ 1));
        if (wait && barrier) {
          EXPECT_EQ(four.x, 1);
          EXPECT_EQ(four.y, 2);
          EXPECT_EQ(four.z, 0);
          EXPECT_EQ(four.w, 0);
        }
      },
      order);
}

TEST(Emulator, FindsCopiesThatAreNotWaitedFor) {
  for (const Order order : {Order::kForward, Order::kBackward}) {
    EXPECT_THAT(CopyAndRead(true, true, order), IsEmpty());
    EXPECT_THAT(CopyAndRead(false, true, order), HasSubstr("uses it while thread"));
    EXPECT_THAT(CopyAndRead(true, false, order), HasSubstr("shared word"));
  }
  EXPECT_THAT(Emulate(OneBlock(32, 1, 128),
                      [](Thread& t) {
                        alignas(16) const float from[4] = {};
                        t.CopyFour(4 * t.x(), from, 16);
                        t.CommitCopies();
                        t.CopyFour(4 * t.x(), from, 16);
                      }),
              HasSubstr("uses it while thread 0 copies to it"));
  EXPECT_THAT(Emulate(OneBlock(32, 1, 256),
                      [](Thread& t) {
                        alignas(16) const float from[4] = {};
                        t.CopyFour(8 * t.x(), from, 16);
                        t.CommitCopies();
                        t.CopyFour(8 * t.x() + 4, from, 16);
                        t.CommitCopies();
                        t.WaitCopies<1>();  // not for the second
                        EXPECT_EQ(t.LoadFour(8 * t.x()).x, 0);
                      }),
              HasSubstr("ends without having waited"));
}

// c = a b of 16 x 16 and 16 x 8, both loaded from shared memory, in rows of 12 words where `spread`.
template <class Half>
std::string Multiply(bool spread, std::vector<float>& c) {
  const int row_words = spread ? 12 : 8;
  return Emulate(OneBlock(32, 1, 32 * row_words), [&](Thread& t) {
    const int lane = t.x();
    auto words = t.shared_words();
    for (int k = 0; k < 16; k += 2) {  // row `lane` of a, then of b, which has 8 columns
      const auto at = [&](int i, int j) { return static_cast<float>(i < 16 ? i - j : i - 16 == j ? 2 : j % 3); };
      words[lane * row_words + k / 2] = Half::RoundTwo(at(lane, k), at(lane, k + 1));
    }
    t.Sync();
    const int matrix = lane / 8, i = lane % 8;
    uint32_t a[4], b[4];
    t.LoadMatrices<false>((matrix % 2 * 8 + i) * row_words + matrix / 2 * 4, a);
    t.LoadMatrices<true>((16 + matrix % 2 * 8 + i) * row_words, b);
    float sums[4] = {1, 1, 1, 1};
    t.MultiplyAdd<Half>(a, b[0], b[1], sums);
    for (int e = 0; e < 4; ++e) {
      c[static_cast<size_t>((lane / 4 + e / 2 * 8) * 8 + lane % 4 * 2 + e % 2)] = sums[e];
    }
  });
}

TEST(Emulator, MultipliesMatricesOfAWarp) {
  std::vector<float> expected(16 * 8), bf16(16 * 8), fp16(16 * 8);
  for (int row = 0; row < 16; ++row) {
    for (int col = 0; col < 8; ++col) {
      float sum = 1;
      for (int k = 0; k < 16; ++k) sum += static_cast<float>((row - k) * (k == col ? 2 : col % 3));
      expected[static_cast<size_t>(row * 8 + col)] = sum;
    }
  }
  EXPECT_THAT(Multiply<Bf16>(true, bf16), IsEmpty());
  EXPECT_EQ(bf16, expected);
  EXPECT_THAT(Multiply<Fp16>(true, fp16), IsEmpty());
  EXPECT_EQ(fp16, expected);
  EXPECT_THAT(Multiply<Fp16>(false, fp16), HasSubstr("in one bank"));
}

TEST(Emulator, RefusesWhatNoDeviceTakes) {
  const auto nothing = [](Thread&) {};
  EXPECT_THAT(Emulate(OneBlock(1024, 2), nothing), HasSubstr("1024 x 2 threads"));
  EXPECT_THAT(Emulate(OneBlock(33), nothing), HasSubstr("33 x 1 threads"));
  EXPECT_THAT(Emulate(OneBlock(32, 1, 30000), nothing), HasSubstr("30000 floats"));
  Shape shape;
  shape.blocks = int64_t{1} << 31;
  EXPECT_THAT(Emulate(shape, nothing), HasSubstr("a grid of"));
  EXPECT_THAT(RunBlocks(Shape{}, 5000, Order::kForward, nothing), HasSubstr("5000 bytes of parameters"));
}

}  // namespace
}  // namespace thresher::cuda::testing
