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

// What RunAt() can give a graph: `hidden` to the head alone, and states that the body has.
Status WantKnownInputs(const Graph& graph, bool takes_hidden, const std::map<std::string, View>& states) {
  static constexpr std::string_view kKnown[] = {"tokens",  "positions",    "slots", "starts",
                                                "lengths", "prompts_from", "tables"};
  for (const ValueId id : graph.inputs()) {
    const Value& input = graph.value(id);
    bool known = std::find(std::begin(kKnown), std::end(kKnown), input.name) != std::end(kKnown) ||
                 (takes_hidden && input.name == "hidden");
    if (graph.is_state(id)) {
      const auto state = states.find(input.name);
      known = state != states.end() && state->second.dtype == input.dtype &&
              std::equal(input.shape.begin(), input.shape.end(), state->second.shape);
    }
    if (!known) {
      return InvalidArgument("expected inputs of a decoder in the recorded graph, got '" + input.name +
                             "' among them; record the load again");
    }
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
    states_[state.name] = MakeView(memory.get(), state.dtype, state.shape);
    state_memory_.push_back(std::move(memory));
  }
  THRESHER_TRY(WantKnownInputs(body.one, false, states_));
  THRESHER_TRY(WantKnownInputs(head.one, true, states_));
  if (states_.empty() || sequences_ < 1 || step_tokens_ < sequences_) {
    return InvalidArgument("expected a recording of a model with pages, and steps of a token a sequence at least");
  }
  body_ = {&body, recording_.model + ".body", step_tokens_, {}, {}, {}};
  head_ = {&head, recording_.model + ".head", sequences_, {}, {}, {}};
  const auto sequences = static_cast<size_t>(sequences_);
  for (std::vector<int32_t>* each : {&tokens_, &all_.positions, &slots_}) {
    each->resize(static_cast<size_t>(step_tokens_));
  }
  scored_.positions.resize(sequences);
  for (Rows* rows : {&all_, &scored_}) rows->starts.resize(sequences + 1);
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

Status PagedDecoder::RunAt(Plans& plans, Rows& rows, float* hidden, const View& output) {
  THRESHER_ASSIGN(const Plans::Sized sized, At(plans, rows.count));
  const auto ints = [](std::vector<int32_t>& own, const Dims& shape) {
    return MakeView(own.data(), DType::kI32, shape);
  };
  std::vector<View> inputs;
  const Graph& graph = plans.graphs->one;
  for (const ValueId id : graph.inputs()) {
    const std::string& name = graph.value(id).name;
    if (graph.is_state(id)) {
      inputs.push_back(states_.at(name));
    } else if (name == "hidden") {
      inputs.push_back(MakeView(hidden, DType::kF32, {rows.count, hidden_size_}));
    } else if (name == "tokens" || name == "slots") {
      inputs.push_back(ints(name == "tokens" ? tokens_ : slots_, {rows.count}));
    } else if (name == "positions") {
      inputs.push_back(ints(rows.positions, {rows.count}));
    } else if (name == "starts") {
      inputs.push_back(ints(rows.starts, {sequences_ + 1}));
    } else if (name == "prompts_from") {
      inputs.push_back(MakeView(&rows.prompts_from, DType::kI32, {1}));
    } else {
      inputs.push_back(name == "lengths" ? ints(lengths_, {sequences_}) : ints(tables_, {sequences_, table_width_}));
    }
  }
  const std::vector<int64_t> sizes = sized.many ? std::vector<int64_t>{rows.count} : std::vector<int64_t>{};
  return sized.session->Run(inputs, std::vector<View>{output}, sizes);
}

Result<std::span<const float>> PagedDecoder::Run(std::span<const Work> work) {
  all_.count = scored_.count = 0;
  all_.prompts_from = scored_.prompts_from = 0;
  std::vector<int64_t> last;  // token of each sequence that wants scores
  for (size_t i = 0; i < work.size(); ++i) {
    const Work& item = work[i];
    int32_t* const table = tables_.data() + i * static_cast<size_t>(table_width_);
    std::copy(item.pages.begin(), item.pages.end(), table);
    for (size_t t = 0; t < item.tokens.size(); ++t, ++all_.count) {
      const int64_t position = item.position + static_cast<int64_t>(t);
      const auto at = static_cast<size_t>(all_.count);
      tokens_[at] = item.tokens[t];
      all_.positions[at] = static_cast<int32_t>(position);
      slots_[at] = static_cast<int32_t>(table[position / page_tokens_] * page_tokens_ + position % page_tokens_);
    }
    lengths_[i] = static_cast<int32_t>(item.position + static_cast<int64_t>(item.tokens.size()));
    if (item.scored) {
      scored_.positions[last.size()] = lengths_[i] - 1;
      last.push_back(all_.count - 1);
      ++scored_.count;
    }
    for (Rows* rows : {&all_, &scored_}) {
      rows->starts[i + 1] = static_cast<int32_t>(rows->count);
      if (item.answering) rows->prompts_from = static_cast<int32_t>(rows->count);
    }
  }
  for (Rows* rows : {&all_, &scored_}) {
    std::fill(rows->starts.begin() + static_cast<int64_t>(work.size()) + 1, rows->starts.end(),
              static_cast<int32_t>(rows->count));
  }
  THRESHER_TRY(RunAt(body_, all_, nullptr, MakeView(hidden_.data(), DType::kF32, {all_.count, hidden_size_})));
  if (scored_.count == 0) return std::span<const float>();
  for (size_t i = 0; i < last.size(); ++i) {
    std::copy_n(hidden_.data() + last[i] * hidden_size_, hidden_size_,
                rows_.data() + static_cast<int64_t>(i) * hidden_size_);
  }
  THRESHER_TRY(
      RunAt(head_, scored_, rows_.data(), MakeView(scores_.data(), DType::kF32, {scored_.count, vocabulary_})));
  return std::span<const float>(scores_.data(), static_cast<size_t>(scored_.count * vocabulary_));
}

}  // namespace thresher
