// Many requests at once over the operators of language models: prompts in chunks, answers, cancels, pages that run out
// and are taken from others. Every answer has to be what its request gives alone.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "run/test_graphs.h"
#include "thresher/kernels/block_format.h"
#include "thresher/kernels/paged_attention.h"
#include "thresher/run/compile.h"

namespace thresher {
namespace {

constexpr int64_t kWidth = 64, kDepth = 32, kPageTokens = 16, kTableWidth = 8, kBatch = 6, kMostTokens = 12;
constexpr int kVocabulary = kWidth;

// One layer with two query heads, one head of keys and a residual. Weights are in blocks, so that a row has the same
// bits in every batch.
class Model {
 public:
  explicit Model(Encoding cache) : cache_(cache) {
    for (int i = 0; i < 4; ++i) {
      const int64_t rows = i == 1 || i == 2 ? kDepth : kWidth;
      const std::vector<float> numbers = RandomFloats(rows * kWidth, 20 + static_cast<uint32_t>(i), 0.4f);
      auto blocks =
          std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(EncodedBytes(Encoding::kQ4_0, rows * kWidth)));
      EXPECT_TRUE(kernels::EncodeNumbers(Encoding::kQ4_0, numbers.data(), rows * kWidth, 32, blocks->data()).ok());
      weights_[i] = std::move(blocks);
    }
    table_ = RandomFloats(kVocabulary * kWidth, 7);
  }

  size_t state_bytes(int64_t pages) const {
    return static_cast<size_t>(EncodedBytes(cache_, pages * 2 * kPageTokens * kDepth));
  }

  struct Batch {
    std::vector<int32_t> tokens, positions, slots;
    std::vector<int32_t> starts = std::vector<int32_t>(kBatch + 1), lengths = std::vector<int32_t>(kBatch),
                         tables = std::vector<int32_t>(kBatch * kTableWidth);
  };

  // The token behind each one of a batch.
  std::vector<int32_t> Next(Batch& batch, std::vector<std::byte>& state, int64_t pages) {
    const auto count = static_cast<int64_t>(batch.tokens.size());
    std::vector<float> x, cos, sin, out(static_cast<size_t>(count * kWidth));
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<size_t>(i);
      const auto row = table_.begin() + batch.tokens[at] * kWidth;
      x.insert(x.end(), row, row + kWidth);
      for (int64_t j = 0; j < kDepth / 2; ++j) {
        const float angle = static_cast<float>(batch.positions[at]) * std::pow(100.0f, -static_cast<float>(j) / 16.0f);
        cos.push_back(std::cos(angle));
        sin.push_back(std::sin(angle));
      }
    }
    const DType kept = IsBlocked(cache_) ? DType::kF32 : cache_ == Encoding::kBf16 ? DType::kBF16 : DType::kF32;
    const std::vector<View> inputs = {
        MakeView(x.data(), DType::kF32, {count, kWidth}),
        MakeView(cos.data(), DType::kF32, {count, kDepth / 2}),
        MakeView(sin.data(), DType::kF32, {count, kDepth / 2}),
        MakeView(batch.slots.data(), DType::kI32, {count}),
        MakeView(batch.starts.data(), DType::kI32, {kBatch + 1}),
        MakeView(batch.lengths.data(), DType::kI32, {kBatch}),
        MakeView(batch.tables.data(), DType::kI32, {kBatch, kTableWidth}),
        MakeView(state.data(), kept, {pages, 1, 2, kPageTokens, kDepth}),
    };
    const Status status =
        SessionFor(count, pages).Run(inputs, std::vector<View>{MakeView(out.data(), DType::kF32, {count, kWidth})});
    EXPECT_TRUE(status.ok()) << status.message();
    std::vector<int32_t> next;
    for (int64_t i = 0; i < count; ++i) {
      const auto row = out.begin() + i * kWidth;
      next.push_back(static_cast<int32_t>(std::max_element(row, row + kWidth) - row));
    }
    return next;
  }

 private:
  // All threads share sessions and packed weights.
  Session& SessionFor(int64_t tokens, int64_t pages) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::unique_ptr<Session>& session = sessions_[{tokens, pages}];
    if (session != nullptr) return *session;
    Graph graph;
    const ValueId x = graph.AddInput("x", DType::kF32, {tokens, kWidth});
    const ValueId cos = graph.AddInput("cos", DType::kF32, {tokens, kDepth / 2});
    const ValueId sin = graph.AddInput("sin", DType::kF32, {tokens, kDepth / 2});
    const ValueId slots = graph.AddInput("slots", DType::kI32, {tokens});
    const ValueId starts = graph.AddInput("starts", DType::kI32, {kBatch + 1});
    const ValueId lengths = graph.AddInput("lengths", DType::kI32, {kBatch});
    const ValueId tables = graph.AddInput("tables", DType::kI32, {kBatch, kTableWidth});
    const DType kept = cache_ == Encoding::kBf16 ? DType::kBF16 : DType::kF32;
    const ValueId state = graph.AddInput("kv", kept, {pages, 1, 2, kPageTokens, kDepth}, Value::Kind::kState,
                                         IsBlocked(cache_) ? std::optional<Encoding>(cache_) : std::nullopt);
    const auto product = [&](ValueId a, int weight, int64_t rows) {
      Constant constant;
      constant.data = weights_[weight]->data();
      constant.owner = weights_[weight];
      constant.is_weight = true;
      constant.blocks = Encoding::kQ4_0;
      const ValueId w = graph.AddConstant("w" + std::to_string(weight), DType::kF32, {rows, kWidth}, constant);
      return Must(graph.Add1("linear", {a, w}));
    };
    const auto heads = [&](ValueId a, int64_t count) {
      return Must(graph.Add1("reshape", {a}, {{"shape", Dims{tokens, count, kDepth}}}));
    };
    const ValueId q = Must(graph.Add1("rotary", {heads(product(x, 0, kWidth), 2), cos, sin}));
    const ValueId k = Must(graph.Add1("rotary", {heads(product(x, 1, kDepth), 1), cos, sin}));
    const ValueId written = Must(graph.Add1("kv_write", {state, k, heads(product(x, 2, kDepth), 1), slots}));
    const ValueId y =
        Must(graph.Add1("paged_attention", {written, q, starts, lengths, tables}, {{"scale", 1.0 / std::sqrt(32.0)}}));
    const ValueId flat = Must(graph.Add1("reshape", {y}, {{"shape", Dims{tokens, kWidth}}}));
    graph.SetOutputs({Must(graph.Add1("add", {x, product(flat, 3, kWidth)}))});
    CompileOptions options;
    options.plan.num_threads = 2;
    session = Must(Compile(graph, store_, options));
    return *session;
  }

  Encoding cache_;
  std::shared_ptr<std::vector<uint8_t>> weights_[4];
  std::vector<float> table_;
  std::mutex mutex_;
  WeightStore store_;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Session>> sessions_;
};

struct Request {
  std::vector<int32_t> tokens;  // prompt and answer
  size_t prompt = 0, wanted = 0;
  int cancel_after = -1;  // steps; below 0: never
  std::vector<int32_t> pages = {};
  size_t computed = 0;
};

Request RandomRequest(std::mt19937& random) {
  const auto number = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
  // Around the sizes of pages.
  static constexpr int kLengths[] = {1, 2, 15, 16, 17, 31, 32, 33, 48, 60};
  Request request;
  request.prompt = static_cast<size_t>(kLengths[number(0, 9)]);
  for (size_t i = 0; i < request.prompt; ++i) request.tokens.push_back(number(0, kVocabulary - 1));
  request.wanted = static_cast<size_t>(number(1, 40));
  if (number(0, 4) == 0) request.cancel_after = number(0, 20);
  return request;
}

// Runs requests until all are answered or cancelled; gives the answers, of cancelled ones what there was.
class Engine {
 public:
  Engine(Model& model, int64_t pages)
      : model_(model), pages_(pages), state_(model.state_bytes(pages), std::byte{0xff}) {
    for (int64_t page = pages; page-- > 0;) free_.push_back(static_cast<int32_t>(page));
  }

  std::vector<std::vector<int32_t>> Run(std::vector<Request> requests) {
    size_t next = 0;
    std::vector<size_t> running;
    while (next < requests.size() || !running.empty()) {
      while (running.size() < kBatch && next < requests.size()) running.push_back(next++);
      Step(requests, running);
      std::erase_if(running, [&](size_t i) {
        Request& r = requests[i];
        const bool cancelled = r.cancel_after == 0;
        if (r.cancel_after > 0) --r.cancel_after;
        if (!cancelled && r.tokens.size() < r.prompt + r.wanted) return false;
        GiveBack(r);
        return true;
      });
    }
    EXPECT_EQ(free_.size(), static_cast<size_t>(pages_));
    std::vector<std::vector<int32_t>> answers;
    for (const Request& r : requests)
      answers.emplace_back(r.tokens.begin() + static_cast<int64_t>(r.prompt), r.tokens.end());
    return answers;
  }

  int preemptions() const { return preemptions_; }

 private:
  void GiveBack(Request& request) {
    free_.insert(free_.end(), request.pages.begin(), request.pages.end());
    request.pages.clear();
    request.computed = 0;
  }

  // The first request that runs always gets its pages, from the last one if need be.
  bool Grow(std::vector<Request>& requests, const std::vector<size_t>& running, Request& request, size_t length) {
    while (request.pages.size() * kPageTokens < length) {
      if (free_.empty()) {
        const auto victim = std::find_if(running.rbegin(), running.rend(), [&](size_t i) {
          return !requests[i].pages.empty() || &requests[i] == &request;
        });
        if (&requests[*victim] == &request) return false;
        GiveBack(requests[*victim]);
        ++preemptions_;
        continue;
      }
      request.pages.push_back(free_.back());
      free_.pop_back();
    }
    return true;
  }

  void Step(std::vector<Request>& requests, const std::vector<size_t>& running) {
    size_t room = kMostTokens;
    std::vector<std::pair<Request*, size_t>> work;
    for (const size_t i : running) {
      Request& r = requests[i];
      const size_t count = std::min(room, r.tokens.size() - r.computed);
      if (count == 0 || !Grow(requests, running, r, r.computed + count)) continue;
      work.emplace_back(&r, count);
      room -= count;
    }
    ASSERT_FALSE(work.empty());
    Model::Batch batch;
    for (size_t s = 0; s < work.size(); ++s) {
      const auto& [r, count] = work[s];
      for (size_t i = r->computed; i < r->computed + count; ++i) {
        batch.tokens.push_back(r->tokens[i]);
        batch.positions.push_back(static_cast<int32_t>(i));
        batch.slots.push_back(r->pages[i / kPageTokens] * static_cast<int32_t>(kPageTokens) +
                              static_cast<int32_t>(i % kPageTokens));
      }
      batch.starts[s + 1] = static_cast<int32_t>(batch.tokens.size());
      batch.lengths[s] = static_cast<int32_t>(r->computed + count);
      std::copy(r->pages.begin(), r->pages.end(), batch.tables.begin() + static_cast<int64_t>(s * kTableWidth));
    }
    for (size_t s = work.size(); s < kBatch; ++s) batch.starts[s + 1] = static_cast<int32_t>(batch.tokens.size());
    const std::vector<int32_t> next = model_.Next(batch, state_, pages_);
    for (size_t s = 0; s < work.size(); ++s) {
      const auto& [r, count] = work[s];
      r->computed += count;
      if (r->computed == r->tokens.size()) r->tokens.push_back(next[static_cast<size_t>(batch.starts[s + 1]) - 1]);
    }
  }

  Model& model_;
  int64_t pages_;
  std::vector<std::byte> state_;
  std::vector<int32_t> free_;
  int preemptions_ = 0;
};

TEST(PagedStress, EveryAnswerIsThatOfItsRequestAlone) {
  constexpr int kThreads = 3, kRequests = 60;
  for (const Encoding cache : {Encoding::kF32, Encoding::kBf16, Encoding::kQ8_0, Encoding::kQ4_0}) {
    Model model(cache);
    std::atomic<int> preemptions{0}, cancelled{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937 random(static_cast<uint32_t>(100 * t) + static_cast<uint32_t>(cache));
        std::vector<Request> requests;
        for (int i = 0; i < kRequests; ++i) requests.push_back(RandomRequest(random));
        Engine together(model, kTableWidth + t);  // room for one of the longest, and hardly more
        const std::vector<std::vector<int32_t>> answers = together.Run(requests);
        preemptions += together.preemptions();
        for (size_t i = 0; i < requests.size(); ++i) {
          Request one = requests[i];
          const bool cut = one.cancel_after >= 0;
          one.cancel_after = -1;
          const std::vector<int32_t> alone = Engine(model, kTableWidth).Run({one}).front();
          const std::vector<int32_t>& found = answers[i];
          cancelled += cut && found.size() < alone.size();
          ASSERT_TRUE(cut || found.size() == alone.size());
          ASSERT_TRUE(std::equal(found.begin(), found.end(), alone.begin())) << "request " << i << " of " << t;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_GT(preemptions.load(), 0);
    EXPECT_GT(cancelled.load(), 0);
  }
}

}  // namespace
}  // namespace thresher
