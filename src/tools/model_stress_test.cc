// Gives a language model a load that `thresher llm record` has recorded, without Python; see docs/llm.md.
//
//   model_stress_test [--rate R] [--duration S] [--threads N] [--json] FOLDER
//
// Exit codes: 0 every request was answered as it was recorded, 1 one failed, 2 the load could not begin.
#include <charconv>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "thresher/base/json.h"
#include "thresher/run/load_replay.h"

namespace thresher {
namespace {

constexpr int kFailed = 1;
constexpr int kCannotBegin = 2;
constexpr double kShares[] = {0.5, 0.9, 0.99};

struct Options {
  std::string folder;
  ReplayOptions replay;
  int threads = 0;
  bool json = false;
};

int Usage() {
  std::fprintf(stderr,
               "usage: model_stress_test [--rate R] [--duration S] [--threads N] [--json] FOLDER\n"
               "  FOLDER        what `thresher llm record MODEL FOLDER` wrote\n"
               "  --rate R      requests a second; default: each comes when it came while it was recorded\n"
               "  --duration S  requests come again and again for so many seconds; default: each comes once\n"
               "  --threads N   default: THRESHER_NUM_THREADS, else every usable core\n"
               "  --json        print the results for programs\n");
  return kCannotBegin;
}

bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const auto number = [&](auto* value) {
      if (++i >= argc) return false;
      const char* const end = argv[i] + std::strlen(argv[i]);
      const auto read = std::from_chars(argv[i], end, *value);
      return read.ec == std::errc() && read.ptr == end && *value > 0;
    };
    bool good = true;
    if (word == "--rate") {
      good = number(&options->replay.rate);
    } else if (word == "--duration") {
      good = number(&options->replay.duration_s);
    } else if (word == "--threads") {
      good = number(&options->threads) && options->threads <= 1024;
    } else if (word == "--json") {
      options->json = true;
    } else if (!word.starts_with('-') && options->folder.empty()) {
      options->folder = word;
    } else {
      good = false;
    }
    if (!good) return false;
  }
  return !options->folder.empty();
}

struct Packed {
  int64_t bytes = 0;  // of matrices
  int64_t given = 0;  // of those, in the cache
};

Packed PackedOf(const PagedDecoder& decoder) {
  Packed found;
  for (const WeightStore::Part& part : decoder.weights().parts()) {
    found.bytes += part.packed.bytes;
    if (part.given) found.given += part.packed.bytes;
  }
  return found;
}

void PrintJson(const Recording& recording, const PagedDecoder& decoder, const ReplayReport& report) {
  const Packed packed = PackedOf(decoder);
  const auto times = [](const std::vector<double>& values) {
    std::string text = "{";
    for (const double share : kShares) {
      text += (text.size() > 1 ? ", \"p" : "\"p") + std::to_string(static_cast<int>(share * 100)) +
              "\": " + json::Number(Percentile(values, share) * 1e3);
    }
    return text + "}";
  };
  std::string failures;
  for (const std::string& why : report.failures) failures += (failures.empty() ? "" : ", ") + json::Quote(why);
  std::printf(
      "{\"model\": %s, \"threads\": %d, \"exact\": %s, \"packed_bytes\": %lld, \"packed_bytes_of_the_cache\": %lld, "
      "\"requests\": %lld, \"failed\": %lld, \"failures\": [%s], \"seconds\": %s, \"steps\": %lld, "
      "\"prompt_tokens\": %lld, \"answer_tokens\": %lld, \"first_token_ms\": %s, \"between_tokens_ms\": %s, "
      "\"answer_ms\": %s}\n",
      json::Quote(recording.model).c_str(), decoder.num_threads(), recording.exact ? "true" : "false",
      static_cast<long long>(packed.bytes), static_cast<long long>(packed.given),
      static_cast<long long>(report.requests), static_cast<long long>(report.failed), failures.c_str(),
      json::Number(report.seconds).c_str(), static_cast<long long>(report.steps),
      static_cast<long long>(report.prompt_tokens), static_cast<long long>(report.answer_tokens),
      times(report.first_s).c_str(), times(report.between_s).c_str(), times(report.whole_s).c_str());
}

void Print(const Recording& recording, const PagedDecoder& decoder, const ReplayReport& report) {
  const Packed packed = PackedOf(decoder);
  std::printf("%s, %d threads; packed weights %.0f MB, of which %.0f MB from the cache\n", recording.model.c_str(),
              decoder.num_threads(), static_cast<double>(packed.bytes) / 1e6, static_cast<double>(packed.given) / 1e6);
  std::printf(
      "%lld requests in %.1f s, %lld failed; answers %s\n", static_cast<long long>(report.requests), report.seconds,
      static_cast<long long>(report.failed),
      recording.exact ? "compared token by token" : "not compared: sums in floats depend on what is beside them");
  std::printf("%.2f requests/s, %.0f tokens/s of prompts, %.0f tokens/s of answers, %lld steps\n\n",
              static_cast<double>(report.requests) / report.seconds,
              static_cast<double>(report.prompt_tokens) / report.seconds,
              static_cast<double>(report.answer_tokens) / report.seconds, static_cast<long long>(report.steps));
  std::printf("%-16s %10s %10s %10s\n", "ms", "50 %", "90 %", "99 %");
  const auto row = [](const char* name, const std::vector<double>& values) {
    std::printf("%-16s", name);
    for (const double share : kShares) std::printf(" %10.1f", Percentile(values, share) * 1e3);
    std::printf("\n");
  };
  row("first token", report.first_s);
  row("between tokens", report.between_s);
  row("whole answer", report.whole_s);
}

int Main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, &options)) return Usage();
  const auto cannot_begin = [](const Status& status) {
    std::fprintf(stderr, "model_stress_test: %s\n", status.message().c_str());
    return kCannotBegin;
  };
  const Result<Recording> recording = ReadRecording(options.folder);
  if (!recording.ok()) return cannot_begin(recording.status());
  if (options.replay.duration_s > 0 && options.replay.rate == 0 && recording.value().requests.back().at_s == 0) {
    return cannot_begin(InvalidArgument("expected --rate beside --duration: the recorded requests came at once"));
  }
  const Result<std::unique_ptr<PagedDecoder>> decoder = PagedDecoder::Create(recording.value(), options.threads);
  if (!decoder.ok()) return cannot_begin(decoder.status());
  const ReplayReport report = ReplayLoad(recording.value(), *decoder.value(), options.replay);
  if (options.json) {
    PrintJson(recording.value(), *decoder.value(), report);
  } else {
    Print(recording.value(), *decoder.value(), report);
  }
  for (const std::string& why : report.failures) std::fprintf(stderr, "model_stress_test: %s\n", why.c_str());
  return report.failed == 0 ? 0 : kFailed;
}

}  // namespace
}  // namespace thresher

int main(int argc, char** argv) {
  try {
    return thresher::Main(argc, argv);
  } catch (const std::exception& error) {  // no memory
    std::fprintf(stderr, "model_stress_test: %s\n", error.what());
    return thresher::kCannotBegin;
  }
}
