#include "thresher/run/load_replay.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <memory>
#include <span>
#include <thread>
#include <utility>

namespace thresher {
namespace {

constexpr size_t kShownFailures = 5;

class Replay {
 public:
  Replay(const Recording& recording, PagedDecoder& decoder, const ReplayOptions& options)
      : recording_(recording), decoder_(decoder), options_(options) {
    for (int64_t page = decoder.num_pages(); page-- > 0;) free_.push_back(static_cast<int32_t>(page));
  }

  ReplayReport Run() {
    begin_ = Clock::now();
    while (true) {
      const double now = Now();
      while (Comes(next_) && ArrivalOf(next_) <= now) waiting_.push_back(next_++);
      Admit();
      if (running_.empty()) {
        if (!Comes(next_)) break;
        std::this_thread::sleep_for(std::chrono::duration<double>(ArrivalOf(next_) - now));
        continue;
      }
      Step();
    }
    report_.seconds = Now();
    for (std::vector<double>* each : {&report_.first_s, &report_.between_s, &report_.whole_s}) {
      std::sort(each->begin(), each->end());
    }
    return std::move(report_);
  }

 private:
  using Clock = std::chrono::steady_clock;

  // A request that runs.
  struct Answer {
    int64_t number = 0;
    const Recording::Request* request = nullptr;
    std::vector<int32_t> pages;
    std::vector<int32_t> tokens;  // of the prompt, and of the answer so far
    int64_t computed = 0;
    double last_s = 0;  // when the last token came
    bool over = false;
    int64_t left() const { return static_cast<int64_t>(tokens.size()) - computed; }
    bool answering() const { return tokens.size() > request->prompt.size(); }
  };

  double Now() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  const Recording::Request& RequestAt(int64_t number) const {
    return recording_.requests[static_cast<size_t>(number) % recording_.requests.size()];
  }

  double ArrivalOf(int64_t number) const {
    if (options_.rate > 0) return static_cast<double>(number) / options_.rate;
    // A round begins when the last request of the one before came and the mean time between two has passed.
    const auto count = static_cast<int64_t>(recording_.requests.size());
    const double last = recording_.requests.back().at_s;
    const double round = count > 1 ? last * static_cast<double>(count) / static_cast<double>(count - 1) : last;
    const int64_t rounds = number / count;
    return static_cast<double>(rounds) * round + RequestAt(number).at_s;
  }

  // Whether there is a request of this number.
  bool Comes(int64_t number) const {
    if (options_.duration_s > 0) return ArrivalOf(number) < options_.duration_s;
    return number < static_cast<int64_t>(recording_.requests.size());
  }

  void Admit() {
    while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < decoder_.sequences()) {
      const int64_t number = waiting_.front();
      const Recording::Request& request = RequestAt(number);
      const auto tokens = static_cast<int64_t>(request.prompt.size() + request.answer.size());
      const int64_t wanted = (tokens + decoder_.page_tokens() - 1) / decoder_.page_tokens();
      const int64_t most = std::min(decoder_.most_pages(), decoder_.num_pages());
      if (wanted > most || !InVocabulary(request.prompt)) {
        waiting_.pop_front();
        ++report_.requests;
        Fail(number, wanted > most ? "expected at most " + std::to_string(most * decoder_.page_tokens()) +
                                         " tokens, got " + std::to_string(tokens)
                                   : "expected tokens below " + std::to_string(decoder_.vocabulary()));
        continue;
      }
      if (wanted > static_cast<int64_t>(free_.size())) return;
      waiting_.pop_front();
      ++report_.requests;
      auto answer = std::make_unique<Answer>();
      answer->number = number;
      answer->request = &request;
      answer->tokens = request.prompt;
      answer->tokens.reserve(static_cast<size_t>(tokens));
      answer->pages.assign(free_.end() - wanted, free_.end());
      free_.resize(free_.size() - static_cast<size_t>(wanted));
      running_.push_back(std::move(answer));
    }
  }

  bool InVocabulary(std::span<const int32_t> tokens) const {
    return std::all_of(tokens.begin(), tokens.end(),
                       [this](int32_t token) { return token >= 0 && token < decoder_.vocabulary(); });
  }

  void Step() {
    work_.clear();
    std::vector<Answer*> parts;
    int64_t room = decoder_.step_tokens();
    const auto add = [&](Answer& answer, int64_t count) {
      const std::span<const int32_t> tokens(answer.tokens);
      const auto first = static_cast<size_t>(answer.computed);
      const bool scored = count == answer.left();
      work_.push_back({tokens.subspan(first, static_cast<size_t>(count)), answer.computed, answer.pages, scored,
                       answer.answering()});
      parts.push_back(&answer);
      room -= count;
    };
    for (const bool answering : {true, false}) {
      for (const std::unique_ptr<Answer>& answer : running_) {
        if (answer->answering() != answering || room == 0) continue;
        add(*answer, std::min(answer->left(), room));
      }
    }
    const Result<std::span<const float>> scores = decoder_.Run(work_);
    ++report_.steps;
    const double now = Now();
    size_t row = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      Answer& answer = *parts[i];
      if (!scores.ok()) {
        answer.over = true;
        Fail(answer.number, scores.status().message());
        continue;
      }
      const auto count = static_cast<int64_t>(work_[i].tokens.size());
      answer.computed += count;
      if (!answer.answering()) report_.prompt_tokens += count;
      if (!work_[i].scored) continue;
      const auto vocabulary = static_cast<size_t>(decoder_.vocabulary());
      Take(answer, scores.value().subspan(row++ * vocabulary, vocabulary), now);
    }
    std::erase_if(running_, [this](const std::unique_ptr<Answer>& answer) {
      if (answer->over) free_.insert(free_.end(), answer->pages.begin(), answer->pages.end());
      return answer->over;
    });
  }

  // The next token of an answer: the most likely one, the first of equals.
  void Take(Answer& answer, std::span<const float> scores, double now) {
    const auto best = std::max_element(scores.begin(), scores.end());
    const auto token = static_cast<int32_t>(best - scores.begin());
    const std::vector<int32_t>& wanted = answer.request->answer;
    const size_t place = answer.tokens.size() - answer.request->prompt.size();
    if (std::any_of(scores.begin(), scores.end(), [](float score) { return std::isnan(score); })) {
      answer.over = true;
      return Fail(answer.number, "expected scores that are numbers behind token " + std::to_string(place));
    }
    if (recording_.exact && token != wanted[place]) {
      answer.over = true;
      return Fail(answer.number, "expected " + std::to_string(wanted[place]) + " as token " + std::to_string(place) +
                                     " of the answer, got " + std::to_string(token));
    }
    const double came = ArrivalOf(answer.number);
    ++report_.answer_tokens;
    if (place == 0) {
      report_.first_s.push_back(now - came);
    } else {
      report_.between_s.push_back(now - answer.last_s);
    }
    answer.last_s = now;
    answer.tokens.push_back(token);
    if (place + 1 < wanted.size()) return;
    answer.over = true;
    report_.whole_s.push_back(now - came);
  }

  void Fail(int64_t number, const std::string& why) {
    ++report_.failed;
    if (report_.failures.size() < kShownFailures) {
      report_.failures.push_back("request " + std::to_string(number) + ": " + why);
    }
  }

  const Recording& recording_;
  PagedDecoder& decoder_;
  const ReplayOptions options_;
  ReplayReport report_;
  Clock::time_point begin_;
  int64_t next_ = 0;  // request that has not come yet
  std::deque<int64_t> waiting_;
  std::vector<std::unique_ptr<Answer>> running_;  // in the order of their arrival
  std::vector<int32_t> free_;                     // pages
  std::vector<PagedDecoder::Work> work_;
};

}  // namespace

ReplayReport ReplayLoad(const Recording& recording, PagedDecoder& decoder, const ReplayOptions& options) {
  return Replay(recording, decoder, options).Run();
}

double Percentile(const std::vector<double>& values, double share) {
  if (values.empty()) return 0;
  const double place = std::ceil(share * static_cast<double>(values.size()));
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<size_t>(std::clamp(place - 1, 0.0, last))];
}

}  // namespace thresher
