#include "thresher/run/recording.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "thresher/graph/parser.h"
#include "thresher/plan/packed_layout.h"

namespace thresher {
namespace {

constexpr std::string_view kFirstLine = "thresher recording 1";
constexpr const char* kAgain = "; record the load again";
constexpr size_t kAlignment = 64;
constexpr int64_t kMostTokens = int64_t{1} << 20;  // of a request

Result<Recording::Bytes> MapFile(const std::string& path) {
  const auto failed = [&path] {
    return InvalidArgument(path + ": expected a file that can be read, got: " + std::generic_category().message(errno) +
                           kAgain);
  };
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return failed();
  struct stat found = {};
  void* mapped = MAP_FAILED;
  size_t size = 0;
  if (fstat(fd, &found) == 0) {
    size = static_cast<size_t>(found.st_size);
    if (size > 0) mapped = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  }
  const bool empty = S_ISREG(found.st_mode) && size == 0;
  const Status status = mapped == MAP_FAILED && !empty ? failed() : Status::Ok();
  close(fd);
  if (empty) return Recording::Bytes{};
  THRESHER_TRY(status);
  madvise(mapped, size, MADV_HUGEPAGE);  // the system may have none
  const std::shared_ptr<const void> owner(mapped, [size](const void* p) { munmap(const_cast<void*>(p), size); });
  return Recording::Bytes{{static_cast<const std::byte*>(mapped), size}, owner};
}

// The digest of a file that is read, not looked at through a mapping: what only names weights need not be in memory.
Result<Digest> DigestOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> piece(size_t{4} << 20);
  Hasher hasher;
  while (file) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    hasher.Add(piece.data(), static_cast<size_t>(file.gcount()));
  }
  if (!file.eof()) return InvalidArgument(path + ": expected a file that can be read to its end" + kAgain);
  return hasher.Finish();
}

class Reader {
 public:
  explicit Reader(std::string folder) : folder_(std::move(folder)) {}

  Result<Recording> Read() {
    const std::string path = folder_ + "/recording";
    std::ifstream file(path);
    std::string line;
    if (!std::getline(file, line) || line != kFirstLine) {
      return InvalidArgument(path + ": expected a first line '" + std::string(kFirstLine) +
                             "', got none; name a folder that `thresher llm record` wrote");
    }
    for (int number = 2; std::getline(file, line); ++number) {
      const Status status = ReadLine(line);
      if (!status.ok()) {
        return Status(status.code(), path + ", line " + std::to_string(number) + ": " + status.message());
      }
    }
    THRESHER_TRY(MakeGraphs());
    if (made_.step_tokens < 1 || made_.requests.empty()) {
      return InvalidArgument(path + ": expected step_tokens and requests, got none" + kAgain);
    }
    return std::move(made_);
  }

 private:
  // A number of a line; below 0: none.
  template <class T>
  static bool Next(std::istringstream& words, T* number) {
    return static_cast<bool>(words >> *number);
  }

  static std::optional<Digest> NextDigest(std::istringstream& words) {
    std::string word;
    words >> word;
    return ParseDigest(word);
  }

  static std::string Rest(std::istringstream& words) {
    std::string rest;
    std::getline(words >> std::ws, rest);
    return rest;
  }

  std::string PathOf(const std::string& name) const { return name.starts_with('/') ? name : folder_ + "/" + name; }

  Status ReadLine(const std::string& line) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    bool good = true;
    if (kind == "model") {
      made_.model = Rest(words);
    } else if (kind == "precision") {
      made_.precision = Rest(words);
    } else if (kind == "step_tokens") {
      good = Next(words, &made_.step_tokens);
    } else if (kind == "exact") {
      good = Next(words, &made_.exact);
    } else if (kind == "layout") {
      if (Rest(words) != ToHex(PackedLayout())) same_layout_ = false;
    } else if (kind == "source" || kind == "constants" || kind == "parts") {
      return ReadFile(kind, words);
    } else if (kind == "part") {
      return ReadPart(words);
    } else if (kind == "constant") {
      return ReadConstant(words);
    } else if (kind == "graph") {
      Sample sample;
      std::string part;
      good = static_cast<bool>(words >> part) && Next(words, &sample.rows);
      sample.path = PathOf(Rest(words));
      samples_[part].push_back(std::move(sample));
    } else if (kind == "request") {
      return ReadRequest(words);
    } else {
      return InvalidArgument("expected a line of another kind, got '" + kind + "'" + kAgain);
    }
    return good ? Status::Ok() : InvalidArgument("expected a number, got '" + line + "'" + kAgain);
  }

  Status ReadFile(const std::string& kind, std::istringstream& words) {
    const std::optional<Digest> digest = kind == "parts" ? Digest{} : NextDigest(words);
    const std::string path = PathOf(Rest(words));
    if (!digest) return InvalidArgument("expected a digest of 32 hexadecimal digits" + std::string(kAgain));
    if (kind == "parts") {
      if (!same_layout_) return Status::Ok();  // another instruction set: weights are packed here
      THRESHER_ASSIGN(parts_, MapFile(path));
      return Status::Ok();
    }
    THRESHER_ASSIGN(const Digest found, DigestOf(path));
    if (found != *digest) {
      return InvalidArgument(path + ": expected contents of digest " + ToHex(*digest) + ", got " + ToHex(found) +
                             kAgain);
    }
    THRESHER_ASSIGN(files_.emplace_back(), MapFile(path));
    if (kind == "source") made_.sources.push_back({files_.back(), *digest});
    return Status::Ok();
  }

  static Result<Recording::Bytes> Within(const Recording::Bytes& file, size_t offset, size_t bytes) {
    if (offset > file.data.size() || bytes > file.data.size() - offset) {
      return InvalidArgument("expected a place within " + std::to_string(file.data.size()) + " bytes, got " +
                             std::to_string(bytes) + " at " + std::to_string(offset) + kAgain);
    }
    return Recording::Bytes{file.data.subspan(offset, bytes), file.owner};
  }

  Status ReadPart(std::istringstream& words) {
    if (!same_layout_) return Status::Ok();
    const std::optional<Digest> name = NextDigest(words);
    const std::optional<Digest> digest = NextDigest(words);
    size_t offset = 0, bytes = 0;
    if (!name || !digest || !Next(words, &offset) || !Next(words, &bytes) || offset % kAlignment != 0) {
      return InvalidArgument("expected two digests, a multiple of 64 and a size" + std::string(kAgain));
    }
    THRESHER_ASSIGN(const Recording::Bytes part, Within(parts_, offset, bytes));
    const Digest found = HashBytes(part.data.data(), bytes);
    if (found != *digest) {
      return InvalidArgument("packed weights: expected contents of digest " + ToHex(*digest) + ", got " + ToHex(found) +
                             kAgain);
    }
    made_.parts.push_back({*name, part});
    return Status::Ok();
  }

  Status ReadConstant(std::istringstream& words) {
    size_t file = 0, offset = 0, bytes = 0;
    if (!Next(words, &file) || !Next(words, &offset) || !Next(words, &bytes) || file >= files_.size()) {
      return InvalidArgument("expected the number of a file, a place and a size" + std::string(kAgain));
    }
    THRESHER_ASSIGN(constants_[Rest(words)], Within(files_[file], offset, bytes));
    return Status::Ok();
  }

  Status ReadRequest(std::istringstream& words) {
    Recording::Request request;
    int64_t prompt = 0, answer = 0;
    if (!Next(words, &request.at_s) || !Next(words, &prompt) || !Next(words, &answer) || request.at_s < 0 ||
        prompt < 1 || answer < 1 || prompt > kMostTokens || answer > kMostTokens) {
      return InvalidArgument("expected a time, and how many tokens prompt and answer have" + std::string(kAgain));
    }
    for (const auto& [tokens, count] : {std::pair{&request.prompt, prompt}, std::pair{&request.answer, answer}}) {
      tokens->resize(static_cast<size_t>(count));
      for (int32_t& token : *tokens) {
        if (!Next(words, &token))
          return InvalidArgument("expected more tokens, got the line's end" + std::string(kAgain));
      }
    }
    made_.requests.push_back(std::move(request));
    return Status::Ok();
  }

  Result<Graph> ReadGraph(const std::string& path) const {
    std::ifstream file(path, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const auto resolve = [this](const ConstantRequest& wanted) -> Result<Constant> {
      const auto found = constants_.find(wanted.name);
      Value value;
      value.dtype = wanted.dtype;
      value.shape = wanted.shape;
      value.constant.blocks = wanted.blocks;
      if (found == constants_.end() || static_cast<int64_t>(found->second.data.size()) != ConstantBytes(value)) {
        return InvalidArgument("expected " + std::to_string(ConstantBytes(value)) + " bytes in the recording, got " +
                               (found == constants_.end() ? "none" : std::to_string(found->second.data.size())) +
                               kAgain);
      }
      return Constant{found->second.data.data(), found->second.owner};
    };
    Result<Graph> graph = ParseGraph(text, resolve);
    if (!graph.ok()) return Status(graph.status().code(), path + ": " + graph.status().message());
    return graph;
  }

  Status MakeGraphs() {
    for (const char* part : {"body", "head"}) {
      std::optional<Graph> one;
      std::vector<std::pair<int64_t, Graph>> many;
      for (const Sample& sample : samples_[part]) {
        THRESHER_ASSIGN(Graph graph, ReadGraph(sample.path));
        if (sample.rows == 1) {
          one = std::move(graph);
        } else {
          many.emplace_back(sample.rows, std::move(graph));
        }
      }
      if (!one || many.empty()) {
        return InvalidArgument(folder_ + ": expected the graph " + part + " at one row and at several, got " +
                               std::to_string(samples_[part].size()) + " graphs" + kAgain);
      }
      std::vector<GraphFamily::Sample> samples;
      samples.reserve(many.size());
      for (const auto& [rows, graph] : many) samples.push_back({{rows}, &graph});
      THRESHER_ASSIGN(GraphFamily family, GraphFamily::Fit({"rows"}, 1, samples));
      made_.graphs.emplace(part, Recording::Rows{*std::move(one), std::move(family)});
    }
    return Status::Ok();
  }

  struct Sample {
    int64_t rows = 0;
    std::string path;
  };

  const std::string folder_;
  Recording made_;
  bool same_layout_ = true;
  Recording::Bytes parts_;
  std::vector<Recording::Bytes> files_;                 // in which constants lie
  std::map<std::string, Recording::Bytes> constants_;   // by name
  std::map<std::string, std::vector<Sample>> samples_;  // by part
};

}  // namespace

Result<Recording> ReadRecording(const std::string& folder) { return Reader(folder).Read(); }

}  // namespace thresher
