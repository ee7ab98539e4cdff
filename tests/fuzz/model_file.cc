// Model files: as they come, and with the digests made right, so that what these protect is read, too.
#include <cstdlib>
#include <cstring>
#include <memory>

#include "fuzz/target.h"
#include "thresher/graph/hash.h"
#include "thresher/graph/printer.h"
#include "thresher/run/model_format.h"

namespace thresher {
namespace {

void SetDigest(const Digest& digest, char* place) {
  std::memcpy(place, &digest.hi, sizeof(digest.hi));
  std::memcpy(place + sizeof(digest.hi), &digest.lo, sizeof(digest.lo));
}

// A position in bytes that may end anywhere.
class Cursor {
 public:
  Cursor(char* begin, size_t size) : at_(begin), left_(size) {}

  template <class T>
  bool Read(T* value) {
    if (left_ < sizeof(T)) return false;
    std::memcpy(value, at_, sizeof(T));
    return Skip(sizeof(T));
  }
  bool Skip(size_t size) {
    if (left_ < size) return false;
    at_ += size;
    left_ -= size;
    return true;
  }
  char* at() const { return at_; }

 private:
  char* at_;
  size_t left_;
};

void SignTensors(char* section, size_t size, std::string_view weights) {
  Cursor cursor(section, size);
  uint32_t count = 0;
  if (!cursor.Read(&count)) return;
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t name = 0, dtype = 0, rank = 0;
    if (!cursor.Read(&name) || !cursor.Skip(name) || !cursor.Read(&dtype) || !cursor.Read(&rank)) return;
    if (dtype >= kNumDTypes || rank > kMaxRank) return;
    uint64_t bytes = SizeOf(static_cast<DType>(dtype));
    for (uint32_t d = 0; d < rank; ++d) {
      int64_t length = 0;
      if (!cursor.Read(&length) || length < 1) return;
      if (bytes > weights.size() / static_cast<uint64_t>(length)) return;
      bytes *= static_cast<uint64_t>(length);
    }
    uint64_t offset = 0;
    if (!cursor.Read(&offset) || offset > weights.size() || bytes > weights.size() - offset) return;
    char* const digest = cursor.at();
    if (!cursor.Skip(2 * sizeof(uint64_t))) return;
    SetDigest(HashBytes(weights.data() + offset, bytes), digest);
  }
}

std::string Signed(std::string bytes) {
  FileHeader header;
  if (bytes.size() < sizeof(header)) return bytes;
  std::memcpy(bytes.data(), kModelMagic.data(), kModelMagic.size());
  std::memcpy(&header, bytes.data(), sizeof(header));
  header.version = kModelVersion;
  header.file_bytes = bytes.size();
  std::memcpy(bytes.data(), &header, sizeof(header));
  const size_t room = (bytes.size() - sizeof(header)) / sizeof(SectionEntry);
  if (header.num_sections > room) return bytes;
  const size_t start = sizeof(header) + header.num_sections * sizeof(SectionEntry);
  std::vector<SectionEntry> table(header.num_sections);
  if (!table.empty()) std::memcpy(table.data(), bytes.data() + sizeof(header), start - sizeof(header));
  const auto inside = [&](const SectionEntry& entry) {
    return entry.offset >= start && entry.offset <= bytes.size() && entry.bytes <= bytes.size() - entry.offset;
  };
  std::string_view weights;
  for (const SectionEntry& entry : table) {
    if (entry.kind == SectionKind::kWeights && inside(entry)) weights = {bytes.data() + entry.offset, entry.bytes};
  }
  for (size_t i = 0; i < table.size(); ++i) {
    const SectionEntry& entry = table[i];
    if (entry.kind == SectionKind::kWeights || !inside(entry)) continue;
    if (entry.kind == SectionKind::kTensors) SignTensors(bytes.data() + entry.offset, entry.bytes, weights);
    char* const row = bytes.data() + sizeof(header) + i * sizeof(SectionEntry);
    SetDigest(HashBytes(bytes.data() + entry.offset, entry.bytes), row + offsetof(SectionEntry, digest));
  }
  std::memset(bytes.data() + offsetof(FileHeader, digest), 0, sizeof(header.digest));
  SetDigest(HashBytes(bytes.data(), start), bytes.data() + offsetof(FileHeader, digest));
  return bytes;
}

void ReadOne(std::string_view bytes) {
  void* place = nullptr;
  // Of exactly this size, unlike what aligned_alloc gives.
  if (posix_memalign(&place, kWeightAlignment, bytes.empty() ? 1 : bytes.size()) != 0) std::abort();
  const std::shared_ptr<void> copy(place, std::free);
  if (!bytes.empty()) std::memcpy(copy.get(), bytes.data(), bytes.size());
  const Result<ModelContents> model = ReadModel({static_cast<const std::byte*>(copy.get()), bytes.size()}, copy);
  if (!model.ok()) {
    THRESHER_FUZZ_REQUIRE(model.status().code() != Code::kInternal, model.status().message());
    return;
  }
  const Status checked = CheckModel(model.value());
  THRESHER_FUZZ_REQUIRE(checked.ok(), checked.message());
  // Reads every constant to its end.
  for (const ModelGraph& entry : model.value().graphs) {
    THRESHER_FUZZ_REQUIRE(!PrintGraph(entry.graph).empty(), "a graph without text");
    if (!entry.family) continue;
    for (const Dims& sizes : {entry.capacity, Dims(entry.capacity.size(), 1)}) {
      const Result<Graph> graph = entry.family->At(sizes);
      if (graph.ok()) {
        THRESHER_FUZZ_REQUIRE(graph.value().inputs().size() == entry.graph.inputs().size(), "another graph");
      } else {
        THRESHER_FUZZ_REQUIRE(graph.status().code() != Code::kInternal, graph.status().message());
      }
    }
  }
}

}  // namespace

THRESHER_FUZZ_TARGET(model_file, fuzz::MemoryLimit{}) {
  ReadOne(bytes);
  ReadOne(Signed(std::string(bytes)));
}

}  // namespace thresher
