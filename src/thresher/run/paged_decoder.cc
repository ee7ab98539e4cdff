#include "thresher/run/paged_decoder.h"

#include <algorithm>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "thresher/base/thread_pool.h"
#include "thresher/plan/extent.h"
#include "thresher/run/compile.h"
#include "thresher/run/initialize.h"

namespace thresher {
namespace {

constexpr int64_t kLeastRoom = 8;  // a plan for many sizes is looked for with at least so many rows more
constexpr std::align_val_t kAlignment{64};

const Value* InputOf(const Graph& graph, std::string_view name) {
  for (const ValueId id : graph.inputs()) {
    if (graph.value(id).name == name) return &graph.value(id);
  }
  return nullptr;
}

Status WantInput(const Graph& graph, const char* name, DType dtype, size_t rank, const Value** found) {
  *found = InputOf(graph, name);
  if (*found == nullptr || (*found)->dtype != dtype || (*found)->shape.size() != rank) {
    return InvalidArgument(std::string("expected an input ") + name + " of " + std::to_string(rank) +
                           " dimensions in the recorded graph, got none; record the load again");
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<PagedDecoder>> PagedDecoder::Create(const Recording& recording, int num_threads) {
  THRESHER_TRY(Initialize());
  const int threads = num_threads > 0 ? num_threads : ThreadPool::Global().num_threads();
  std::unique_ptr<PagedDecoder> decoder(new PagedDecoder(recording, threads));
  THRESHER_TRY(decoder->Prepare());
  return decoder;
}

Status PagedDecoder::Prepare() {
  for (const Recording::Source& source : recording_.sources) {
    weights_.AddSource(source.bytes.data.data(), static_cast<int64_t>(source.bytes.data.size()), source.digest,
                       source.bytes.owner);
  }
  for (const Recording::Part& part : recording_.parts) {
    weights_.AddPart(part.name,
                     {part.bytes.owner, part.bytes.data.data(), static_cast<int64_t>(part.bytes.data.size())});
  }
  const Recording::Rows& body = recording_.graphs.at("body");
  const Recording::Rows& head = recording_.graphs.at("head");
  const Value *starts = nullptr, *tables = nullptr, *hidden = nullptr;
  for (const char* name : {"tokens", "positions", "slots", "lengths"}) {
    const Value* found = nullptr;
    THRESHER_TRY(WantInput(body.one, name, DType::kI32, 1, &found));
  }
  THRESHER_TRY(WantInput(body.one, "starts", DType::kI32, 1, &starts));
  THRESHER_TRY(WantInput(body.one, "tables", DType::kI32, 2, &tables));
  THRESHER_TRY(WantInput(head.one, "hidden", DType::kF32, 2, &hidden));
  step_tokens_ = recording_.step_tokens;
  sequences_ = starts->shape[0] - 1;
  table_width_ = tables->shape[1];
  hidden_size_ = hidden->shape[1];
  vocabulary_ = head.one.value(head.one.outputs().at(0)).shape.back();
  for (const ValueId id : body.one.inputs()) {
    if (!body.one.is_state(id)) continue;
    const Value& state = body.one.value(id);
    if (state.shape.size() != 5) return InvalidArgument("expected states of pages [n, heads, 2, tokens, size]");
    num_pages_ = state.shape[0];
    page_tokens_ = state.shape[3];
    const auto bytes = static_cast<size_t>(ConstantBytes(state));
    // Pages take memory when they are first written to.
    std::shared_ptr<void> memory(::operator new(bytes, kAlignment, std::nothrow),
                                 [](void* p) { ::operator delete(p, kAlignment); });
    if (memory == nullptr) return ResourceExhausted("expected " + std::to_string(bytes) + " bytes for keys and values");
    states_.push_back(MakeView(memory.get(), state.dtype, state.shape));
    state_memory_.push_back(std::move(memory));
  }
  if (states_.empty() || sequences_ < 1 || step_tokens_ < sequences_) {
    return InvalidArgument("expected a recording of a model with pages, and steps of a token a sequence at least");
  }
  body_ = {&body, recording_.model + ".body", step_tokens_, {}, {}, {}};
  head_ = {&head, recording_.model + ".head", sequences_, {}, {}, {}};
  const auto sequences = static_cast<size_t>(sequences_);
  for (std::vector<int32_t>* each : {&tokens_, &positions_, &slots_}) each->resize(static_cast<size_t>(step_tokens_));
  starts_.resize(sequences + 1);
  lengths_.resize(sequences);
  tables_.resize(sequences * static_cast<size_t>(table_width_));
  hidden_.resize(static_cast<size_t>(step_tokens_ * hidden_size_));
  rows_.resize(static_cast<size_t>(sequences_ * hidden_size_));
  scores_.resize(static_cast<size_t>(sequences_ * vocabulary_));
  for (Plans* plans : {&body_, &head_}) THRESHER_TRY(At(*plans, 1).status());
  return Status::Ok();
}

Result<PagedDecoder::Plans::Sized> PagedDecoder::At(Plans& plans, int64_t rows) {
  if (const auto known = plans.known.find(rows); known != plans.known.end()) return known->second;
  for (Session* session : plans.many) {
    if (CheckSizes(session->plan(), std::vector<int64_t>{rows}).ok()) return plans.known[rows] = {session, true};
  }
  CompileOptions options;
  options.precision.precision = recording_.precision;
  options.plan.name = plans.name;
  options.plan.num_threads = num_threads_;
  options.plan.tuning = &TuningTable::Global();
  std::unique_ptr<Session> session;
  bool many = false;
  if (rows > 1) {
    Result<std::unique_ptr<Session>> made =
        CompileExtent(plans.graphs->family, weights_, options, {rows}, {std::max(plans.most, rows + kLeastRoom)});
    many = made.ok();
    if (made.ok()) session = std::move(made).value();
  }
  if (session == nullptr) {
    if (rows == 1) {
      THRESHER_ASSIGN(session, Compile(plans.graphs->one, weights_, options));
    } else {
      THRESHER_ASSIGN(const Graph graph, plans.graphs->family.At(std::vector<int64_t>{rows}));
      THRESHER_ASSIGN(session, Compile(graph, weights_, options));
    }
  }
  plans.sessions.push_back(std::move(session));
  Session* const made = plans.sessions.back().get();
  if (many) plans.many.push_back(made);
  return plans.known[rows] = {made, many};
}

Status PagedDecoder::RunAt(Plans& plans, int64_t rows, std::span<const View> inputs, const View& output) {
  THRESHER_ASSIGN(const Plans::Sized sized, At(plans, rows));
  const std::vector<int64_t> sizes = sized.many ? std::vector<int64_t>{rows} : std::vector<int64_t>{};
  return sized.session->Run(inputs, std::vector<View>{output}, sizes);
}

Result<std::span<const float>> PagedDecoder::Run(std::span<const Work> work) {
  int64_t count = 0, scored = 0;
  prompts_from_ = 0;
  std::vector<int64_t> last;  // token of each sequence that wants scores
  for (size_t i = 0; i < work.size(); ++i) {
    const Work& item = work[i];
    int32_t* const table = tables_.data() + i * static_cast<size_t>(table_width_);
    std::copy(item.pages.begin(), item.pages.end(), table);
    for (size_t t = 0; t < item.tokens.size(); ++t, ++count) {
      const int64_t position = item.position + static_cast<int64_t>(t);
      const auto at = static_cast<size_t>(count);
      tokens_[at] = item.tokens[t];
      positions_[at] = static_cast<int32_t>(position);
      slots_[at] = static_cast<int32_t>(table[position / page_tokens_] * page_tokens_ + position % page_tokens_);
    }
    starts_[i + 1] = static_cast<int32_t>(count);
    lengths_[i] = static_cast<int32_t>(item.position + static_cast<int64_t>(item.tokens.size()));
    if (item.scored) last.push_back(count - 1);
    if (item.answering) prompts_from_ = static_cast<int32_t>(count);
  }
  std::fill(starts_.begin() + static_cast<int64_t>(work.size()) + 1, starts_.end(), static_cast<int32_t>(count));

  std::vector<View> inputs;
  size_t state = 0;
  const Graph& body = body_.graphs->one;
  for (const ValueId id : body.inputs()) {
    if (body.is_state(id)) {
      inputs.push_back(states_[state++]);
      continue;
    }
    const std::string& name = body.value(id).name;
    if (name == "starts") {
      inputs.push_back(MakeView(starts_.data(), DType::kI32, {sequences_ + 1}));
    } else if (name == "lengths") {
      inputs.push_back(MakeView(lengths_.data(), DType::kI32, {sequences_}));
    } else if (name == "prompts_from") {
      inputs.push_back(MakeView(&prompts_from_, DType::kI32, {1}));
    } else if (name == "tables") {
      inputs.push_back(MakeView(tables_.data(), DType::kI32, {sequences_, table_width_}));
    } else {
      std::vector<int32_t>& own = name == "tokens" ? tokens_ : name == "positions" ? positions_ : slots_;
      inputs.push_back(MakeView(own.data(), DType::kI32, {count}));
    }
  }
  THRESHER_TRY(RunAt(body_, count, inputs, MakeView(hidden_.data(), DType::kF32, {count, hidden_size_})));
  scored = static_cast<int64_t>(last.size());
  if (scored == 0) return std::span<const float>();
  for (size_t i = 0; i < last.size(); ++i) {
    std::copy_n(hidden_.data() + last[i] * hidden_size_, hidden_size_,
                rows_.data() + static_cast<int64_t>(i) * hidden_size_);
  }
  THRESHER_TRY(RunAt(head_, scored, std::vector<View>{MakeView(rows_.data(), DType::kF32, {scored, hidden_size_})},
                     MakeView(scores_.data(), DType::kF32, {scored, vocabulary_})));
  return std::span<const float>(scores_.data(), static_cast<size_t>(scored * vocabulary_));
}

}  // namespace thresher
