// The device's copies, on the emulator, against the CPU's.
#include "thresher/cuda/copy_kernel.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/emulator.h"
#include "kernels/tensor_testing.h"
#include "thresher/kernels/copy.h"

namespace thresher::cuda::testing {
namespace {

using kernels::FillRandom;
using kernels::Layout;
using kernels::Tensor;

struct Case {
  Dims shape;
  Layout from, to;
};

TEST(CopyKernel, CopiesEveryTypeBetweenAnyStrides) {
  const Case cases[] = {
      {{1}, {}, {}},
      {{}, {}, {}},
      {{1025}, {}, {}},
      {{3000}, {.step = 2}, {}},
      {{5, 64}, {.order = {1, 0}}, {.order = {1, 0}}},
      {{40, 33}, {.order = {1, 0}}, {}},
      {{40, 33}, {}, {.order = {1, 0}}},
      {{7, 130}, {.broadcast = 1}, {}},
      {{7, 130}, {.broadcast = 3}, {.step = 2}},
      {{3, 4, 5, 30}, {.order = {2, 0, 3, 1}}, {.order = {1, 0, 2, 3}}},
  };
  std::mt19937 random(1);
  for (const Case& c : cases) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI64, DType::kI32, DType::kBool}) {
      SCOPED_TRACE(ToString(c.shape) + " " + std::string(Name(dtype)));
      Tensor from(dtype, c.shape, c.from);
      FillRandom(from, random);
      Tensor want(dtype, c.shape, c.to);
      kernels::Copy(from.view, want.view);
      for (const Order order : {Order::kForward, Order::kBackward}) {
        Tensor got(dtype, c.shape, c.to);
        ASSERT_EQ(LaunchCopy(Launcher{order}, from.view, got.view), "");
        EXPECT_TRUE(got.GuardIntact());
        EXPECT_EQ(std::memcmp(got.memory<std::byte>(), want.memory<std::byte>(), got.num_bytes()), 0);
      }
    }
  }
}

TEST(CopyKernel, JoinsSeveralTensors) {
  std::mt19937 random(2);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI64, DType::kBool}) {
    // More than one launch takes, some of them empty, some that allow larger units than others.
    std::vector<std::unique_ptr<Tensor>> parts;
    std::vector<View> views;
    const int64_t widths[] = {16, 1, 0, 8, 3, 64, 32, 16, 5, 16, 0};
    int64_t total = 0;
    for (const int64_t width : widths) total += width;
    Tensor got(dtype, {6, total}), want(dtype, {6, total});
    std::vector<View> windows;
    int64_t at = 0;
    for (const int64_t width : widths) {
      parts.push_back(std::make_unique<Tensor>(dtype, Dims{6, width}));
      if (width != 0) FillRandom(*parts.back(), random);
      views.push_back(parts.back()->view);
      for (Tensor* to : {&got, &want}) {
        View window = to->view;
        window.data = window.as<std::byte>() + at * static_cast<int64_t>(SizeOf(dtype));
        window.shape[1] = width;
        (to == &got ? windows : views).push_back(window);
      }
      kernels::Copy(parts.back()->view, views.back());
      views.pop_back();
      at += width;
    }
    views.insert(views.end(), windows.begin(), windows.end());
    const Call call{static_cast<uint32_t>(KernelId::kCat), nullptr, sizeof(NoParams), views.data(),
                    static_cast<int32_t>(views.size())};
    ASSERT_TRUE(CopyFamily::Check(call).ok());
    ASSERT_EQ(CopyFamily::Launch(Launcher{}, call), "");
    EXPECT_TRUE(got.GuardIntact());
    EXPECT_EQ(std::memcmp(got.memory<std::byte>(), want.memory<std::byte>(), got.num_bytes()), 0);
  }
}

}  // namespace
}  // namespace thresher::cuda::testing
