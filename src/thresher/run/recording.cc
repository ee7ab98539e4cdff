#include "thresher/run/recording.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
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
constexpr size_t kShownLetters = 80;  // of a line, in messages
constexpr size_t kPieceBytes = size_t{4} << 20;
constexpr int64_t kMostTokens = int64_t{1} << 20;  // of a request
constexpr int64_t kMostRows = int64_t{1} << 20;    // of a graph or a step

// An open file that has an end: neither a folder nor a device.
class OpenFile {
 public:
  static Result<OpenFile> Open(const std::string& path) {
    OpenFile file(path, open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe has nobody to wait for
    struct stat found = {};
    if (file.fd_ < 0 || fstat(file.fd_, &found) != 0) return file.Failed();
    if (!S_ISREG(found.st_mode)) return InvalidArgument(path + ": expected a file, got something else" + kAgain);
    file.size_ = static_cast<size_t>(found.st_size);
    return file;
  }
  OpenFile(OpenFile&& other) noexcept
      : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}
  OpenFile& operator=(OpenFile&&) = delete;
  ~OpenFile() {
    if (fd_ >= 0) close(fd_);
  }

  // What is in it, by pieces.
  template <class Take>
  Status Read(const Take& take) const {
    std::vector<char> piece(std::min(size_, kPieceBytes));
    for (size_t at = 0; at < size_;) {
      const ssize_t count = pread(fd_, piece.data(), std::min(piece.size(), size_ - at), static_cast<off_t>(at));
      if (count <= 0) return Failed();
      take(piece.data(), static_cast<size_t>(count));
      at += static_cast<size_t>(count);
    }
    return Status::Ok();
  }

  // The digest of what is read, not looked at through a mapping: what only names weights need not be in memory.
  Status Expect(const Digest& wanted) const {
    Hasher hasher;
    THRESHER_TRY(Read([&hasher](const char* data, size_t size) { hasher.Add(data, size); }));
    const Digest found = hasher.Finish();
    if (found == wanted) return Status::Ok();
    return InvalidArgument(path_ + ": expected contents of digest " + ToHex(wanted) + ", got " + ToHex(found) + kAgain);
  }

  Result<Recording::Bytes> Map() const {
    if (size_ == 0) return Recording::Bytes{};
    void* const mapped = mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd_, 0);
    if (mapped == MAP_FAILED) return Failed();
    madvise(mapped, size_, MADV_HUGEPAGE);  // the system may have none
    const size_t size = size_;
    const std::shared_ptr<const void> owner(mapped, [size](const void* p) { munmap(const_cast<void*>(p), size); });
    return Recording::Bytes{{static_cast<const std::byte*>(mapped), size}, owner};
  }

 private:
  OpenFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  Status Failed() const {
    return InvalidArgument(
        path_ + ": expected a file that can be read, got: " + std::generic_category().message(errno) + kAgain);
  }

  std::string path_;
  int fd_;
  size_t size_ = 0;
};

Result<std::string> TextOf(const OpenFile& file) {
  std::string text;
  THRESHER_TRY(file.Read([&text](const char* data, size_t size) { text.append(data, size); }));
  return text;
}

class Reader {
 public:
  explicit Reader(std::string folder) : folder_(std::move(folder)) {}

  Result<Recording> Read(std::string_view text) {
    const std::string path = folder_ + "/recording";
    bool begun = false, ended = false;
    for (int number = 1; !text.empty(); ++number) {
      const size_t end = text.find('\n');
      const std::string line(text.substr(0, end));
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
      if (number == 1) {
        begun = line == kFirstLine;
        if (!begun) break;
        continue;
      }
      if (ended) return InvalidArgument(path + ": expected nothing behind the line 'end', got more" + kAgain);
      const Status status = ReadLine(line);
      if (!status.ok()) {
        return Status(status.code(), path + ", line " + std::to_string(number) + ": " + status.message());
      }
      ended = line == "end" && end != std::string_view::npos;
    }
    if (!begun) {
      return InvalidArgument(path + ": expected a first line '" + std::string(kFirstLine) +
                             "', got none; name a folder that `thresher llm record` wrote");
    }
    if (!ended) return InvalidArgument(path + ": expected a last line 'end', got none: it was cut short" + kAgain);
    const Status made = MakeGraphs();
    if (!made.ok()) return Status(made.code(), path + ": " + made.message());
    if (made_.step_tokens < 1 || made_.requests.empty()) {
      return InvalidArgument(path + ": expected step_tokens and requests, got none" + kAgain);
    }
    return std::move(made_);
  }

 private:
  struct Sample {
    int64_t rows = 0;
    Digest digest;
    std::string path;
  };

  // A number of a line.
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
      good = Next(words, &made_.step_tokens) && made_.step_tokens > 0 && made_.step_tokens <= kMostRows;
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
      return ReadSample(words);
    } else if (kind == "request") {
      return ReadRequest(words);
    } else if (line == "end") {
      return Status::Ok();
    } else {
      return InvalidArgument("expected a line of another kind, got '" + kind.substr(0, kShownLetters) + "'" + kAgain);
    }
    return good
               ? Status::Ok()
               : InvalidArgument("expected a number that can be, got '" + line.substr(0, kShownLetters) + "'" + kAgain);
  }

  Status ReadFile(const std::string& kind, std::istringstream& words) {
    const std::optional<Digest> digest = kind == "parts" ? Digest{} : NextDigest(words);
    const std::string path = PathOf(Rest(words));
    if (!digest) return InvalidArgument("expected a digest of 32 hexadecimal digits" + std::string(kAgain));
    if (kind == "parts") {
      if (!same_layout_) return Status::Ok();  // another instruction set: weights are packed here
      THRESHER_ASSIGN(const OpenFile file, OpenFile::Open(path));
      THRESHER_ASSIGN(parts_, file.Map());
      return Status::Ok();
    }
    THRESHER_ASSIGN(const OpenFile file, OpenFile::Open(path));
    THRESHER_TRY(file.Expect(*digest));
    THRESHER_ASSIGN(files_.emplace_back(), file.Map());
    if (kind == "source") made_.sources.push_back({files_.back(), *digest});
    return Status::Ok();
  }

  Status ReadSample(std::istringstream& words) {
    std::string part;
    Sample sample;
    if (!(words >> part) || !Next(words, &sample.rows) || sample.rows < 1 || sample.rows > kMostRows) {
      return InvalidArgument("expected a part of the model and a number of rows" + std::string(kAgain));
    }
    const std::optional<Digest> digest = NextDigest(words);
    if (!digest) return InvalidArgument("expected a digest of 32 hexadecimal digits" + std::string(kAgain));
    sample.digest = *digest;
    sample.path = PathOf(Rest(words));
    std::vector<Sample>& all = samples_[part];
    for (const Sample& other : all) {
      if (other.rows == sample.rows) {
        return InvalidArgument("expected each number of rows once, got " + std::to_string(sample.rows) + " again" +
                               kAgain);
      }
    }
    all.push_back(std::move(sample));
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
      for (int64_t i = 0; i < count; ++i) {  // as many as there are: a number alone takes no memory
        int32_t token = 0;
        if (!Next(words, &token)) {
          return InvalidArgument("expected more tokens, got the line's end" + std::string(kAgain));
        }
        tokens->push_back(token);
      }
    }
    if (!Rest(words).empty()) return InvalidArgument("expected no more tokens, got some" + std::string(kAgain));
    made_.requests.push_back(std::move(request));
    return Status::Ok();
  }

  Result<Graph> ReadGraph(const Sample& sample) const {
    const std::string& path = sample.path;
    THRESHER_ASSIGN(const OpenFile file, OpenFile::Open(path));
    THRESHER_TRY(file.Expect(sample.digest));
    THRESHER_ASSIGN(const std::string text, TextOf(file));
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
        THRESHER_ASSIGN(Graph graph, ReadGraph(sample));
        if (sample.rows == 1) {
          one = std::move(graph);
        } else {
          many.emplace_back(sample.rows, std::move(graph));
        }
      }
      if (!one || many.empty()) {
        return InvalidArgument(std::string("expected the graph ") + part + " at one row and at several, got " +
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

  const std::string folder_;
  Recording made_;
  bool same_layout_ = true;
  Recording::Bytes parts_;
  std::vector<Recording::Bytes> files_;                 // in which constants lie
  std::map<std::string, Recording::Bytes> constants_;   // by name
  std::map<std::string, std::vector<Sample>> samples_;  // by part
};

}  // namespace

Result<Recording> ParseRecording(std::string_view text, const std::string& folder) { return Reader(folder).Read(text); }

Result<Recording> ReadRecording(const std::string& folder) {
  const std::string path = folder + "/recording";
  if (access(path.c_str(), F_OK) != 0) return ParseRecording("", folder);
  THRESHER_ASSIGN(const OpenFile file, OpenFile::Open(path));
  THRESHER_ASSIGN(const std::string text, TextOf(file));
  return ParseRecording(text, folder);
}

}  // namespace thresher
