// A language model whose keys and values lie in pages: the plans of a recording, and the memory that they share.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "thresher/base/status.h"
#include "thresher/base/view.h"
#include "thresher/plan/weight_store.h"
#include "thresher/run/recording.h"
#include "thresher/run/session.h"

namespace thresher {

// Belongs to one thread.
class PagedDecoder {
 public:
  // `recording` outlives the decoder. num_threads 0: as many as the process has.
  static Result<std::unique_ptr<PagedDecoder>> Create(const Recording& recording, int num_threads);

  // What a sequence computes in a step: some tokens from a position on; keys and values of those before are in pages.
  struct Work {
    std::span<const int32_t> tokens;
    int64_t position = 0;
    std::span<const int32_t> pages;
    bool scored = false;     // what may follow the last of them is wanted
    bool answering = false;  // they lie behind the sequence's prompt; none of a prompt come before such
  };
  // One step of at most step_tokens() tokens and sequences() sequences. Scores of those that want some, a row each.
  Result<std::span<const float>> Run(std::span<const Work> work);

  int64_t step_tokens() const { return step_tokens_; }
  int64_t sequences() const { return sequences_; }
  int64_t num_pages() const { return num_pages_; }
  int64_t page_tokens() const { return page_tokens_; }
  int64_t most_pages() const { return table_width_; }  // of a sequence
  int64_t vocabulary() const { return vocabulary_; }
  int num_threads() const { return num_threads_; }
  const WeightStore& weights() const { return weights_; }

 private:
  // The plans of one graph, made when they are first wanted.
  struct Plans {
    struct Sized {
      Session* session = nullptr;
      bool many = false;  // for many sizes
    };
    const Recording::Rows* graphs = nullptr;
    std::string name;
    int64_t most = 0;  // rows
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<Session*> many;
    std::map<int64_t, Sized> known;
  };

  // What a graph is told of tokens that it computes.
  struct Rows {
    int64_t count = 0;
    std::vector<int32_t> positions, starts;
    int32_t prompts_from = 0;  // the first of a prompt
  };

  PagedDecoder(const Recording& recording, int num_threads)
      : recording_(recording), num_threads_(num_threads), weights_(/*named=*/true) {}
  Status Prepare();
  Result<Plans::Sized> At(Plans& plans, int64_t rows);
  // With `hidden` of the rows, where the graph takes that.
  Status RunAt(Plans& plans, Rows& rows, float* hidden, const View& output);

  const Recording& recording_;
  const int num_threads_;
  WeightStore weights_;
  Plans body_, head_;
  int64_t step_tokens_ = 0, sequences_ = 0, num_pages_ = 0, page_tokens_ = 0, table_width_ = 0;
  int64_t hidden_size_ = 0, vocabulary_ = 0;
  std::vector<int32_t> tokens_, slots_, lengths_, tables_;
  Rows all_, scored_;  // tokens of a step, and those of them whose scores are wanted
  std::map<std::string, View> states_;
  std::vector<std::shared_ptr<void>> state_memory_;
  std::vector<float> hidden_, rows_, scores_;
};

}  // namespace thresher
