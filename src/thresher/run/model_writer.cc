#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "thresher/base/new_file.h"
#include "thresher/base/version.h"
#include "thresher/graph/hash.h"
#include "thresher/graph/printer.h"
#include "thresher/run/model_format.h"

namespace thresher {
namespace {

uint64_t AlignUp(uint64_t n) { return (n + kWeightAlignment - 1) / kWeightAlignment * kWeightAlignment; }

// Numbers and texts of a section, one after the other; texts are preceded by their length.
class Encoder {
 public:
  template <class T>
    requires std::is_arithmetic_v<T>
  void Add(T number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  void Add(std::string_view text) {
    Add(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
  }
  void Add(const Digest& digest) {
    Add(digest.hi);
    Add(digest.lo);
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Constants that are not in the graphs' text, each content once.
class TensorTable {
 public:
  // The number of the tensor with the contents of `constant`.
  uint32_t Number(const Value& constant) {
    const uint64_t bytes = static_cast<uint64_t>(ConstantBytes(constant));
    const Digest digest = cache_.Of(constant);
    const auto [found, end] = by_digest_.equal_range(digest);
    for (auto it = found; it != end; ++it) {
      const Entry& known = entries_[it->second];
      if (known.value.dtype == constant.dtype && known.value.constant.blocks == constant.constant.blocks &&
          known.value.shape == constant.shape &&
          (bytes == 0 || std::memcmp(known.value.constant.data, constant.constant.data, bytes) == 0)) {
        return it->second;
      }
    }
    const auto number = static_cast<uint32_t>(entries_.size());
    entries_.push_back({constant, digest, end_, bytes});
    by_digest_.emplace(digest, number);
    end_ = AlignUp(end_ + bytes);
    return number;
  }

  std::string Encode() const {
    Encoder encoder;
    encoder.Add(static_cast<uint32_t>(entries_.size()));
    for (const Entry& entry : entries_) {
      encoder.Add(entry.value.name);
      const uint32_t blocks = static_cast<uint32_t>(entry.value.constant.blocks.value_or(Encoding::kF32));
      encoder.Add(static_cast<uint32_t>(entry.value.dtype) | blocks << 8);
      encoder.Add(static_cast<uint32_t>(entry.value.shape.size()));
      for (const int64_t size : entry.value.shape) encoder.Add(size);
      encoder.Add(entry.offset);
      encoder.Add(entry.digest);
    }
    return encoder.Take();
  }

  struct Entry {
    Value value;
    Digest digest;
    uint64_t offset = 0;  // in the section of weights
    uint64_t bytes = 0;
  };
  const std::vector<Entry>& entries() const { return entries_; }
  uint64_t bytes() const { return end_; }

 private:
  DigestCache cache_;
  std::vector<Entry> entries_;
  std::multimap<Digest, uint32_t> by_digest_;
  uint64_t end_ = 0;
};

std::string EncodeInfo(const ModelContents& model) {
  Encoder encoder;
  encoder.Add(model.name);
  encoder.Add(model.precision.precision);
  encoder.Add(static_cast<uint32_t>(model.precision.exclude.size()));
  for (const std::string& pattern : model.precision.exclude) encoder.Add(pattern);
  encoder.Add(static_cast<uint32_t>(model.precision.max_weight_error.has_value()));
  encoder.Add(model.precision.max_weight_error.value_or(0));
  return encoder.Take();
}

void Encode(const Polynomial& polynomial, Encoder& encoder) {
  encoder.Add(static_cast<uint32_t>(polynomial.terms.size()));
  for (const Polynomial::Term& term : polynomial.terms) {
    encoder.Add(term.monomial);
    encoder.Add(term.factor);
  }
}

// What of the graph follows the sizes; nodes are known by their number in the text.
void EncodeRules(const ModelGraph& model, Encoder& encoder) {
  if (!model.family) return encoder.Add(uint32_t{0});
  const GraphFamily::Rules& rules = model.family->rules();
  encoder.Add(static_cast<uint32_t>(rules.names.size()));
  for (size_t i = 0; i < rules.names.size(); ++i) {
    encoder.Add(rules.names[i]);
    encoder.Add(model.capacity[i]);
  }
  encoder.Add(static_cast<uint32_t>(rules.degree));
  for (const std::vector<Polynomial>& shape : rules.inputs) {
    for (const Polynomial& size : shape) Encode(size, encoder);
  }
  for (const GraphFamily::NodeNumbers& node : rules.nodes) {
    encoder.Add(static_cast<uint32_t>(node.varies));
    encoder.Add(static_cast<uint32_t>(node.numbers.size()));
    for (const GraphFamily::Number& number : node.numbers) {
      encoder.Add(number.attr);
      encoder.Add(static_cast<uint32_t>(number.element));
      Encode(number.value, encoder);
    }
  }
}

std::string EncodeGraph(const ModelGraph& model, TensorTable& tensors) {
  Encoder encoder;
  encoder.Add(static_cast<uint32_t>(model.output_names.size()));
  for (const std::string& name : model.output_names) encoder.Add(name);
  std::vector<uint32_t> numbers;  // in the order in which the text names them
  for (const ValueId id : MakeCanonicalOrder(model.graph).constants) {
    const Value& constant = model.graph.value(id);
    if (!constant.constant.is_weight && NumElements(constant.shape) <= kMaxInlineElements) continue;
    numbers.push_back(tensors.Number(constant));
  }
  encoder.Add(static_cast<uint32_t>(numbers.size()));
  for (const uint32_t number : numbers) encoder.Add(number);
  encoder.Add(PrintGraph(model.graph, {.digests = false}));
  EncodeRules(model, encoder);
  return encoder.Take();
}

void PadTo(NewFile& file, uint64_t offset) {
  static constexpr char kZeros[kWeightAlignment] = {};
  while (file.error() == 0 && file.size() < offset) {
    file.Write(kZeros, std::min<uint64_t>(offset - file.size(), sizeof(kZeros)));
  }
}

Status CannotWrite(const std::string& path, int error) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  const std::string found = error == EINVAL ? "no regular file" : std::generic_category().message(error);
  return InvalidArgument("model file " + path + ": expected to write it, got: " + found + "; nothing was written; " +
                         (full ? "make room or name another disk" : "name a file that can be written"));
}

void SetDigest(const Digest& digest, uint64_t words[2]) {
  words[0] = digest.hi;
  words[1] = digest.lo;
}

}  // namespace

Status WriteModelFile(const std::string& path, const ModelContents& model) {
  THRESHER_TRY(CheckModel(model));
  std::vector<std::shared_ptr<const void>> held;
  for (const ModelGraph& entry : model.graphs) {
    for (const Value& value : entry.graph.values()) {
      if (value.kind == Value::Kind::kState) {
        return Unsupported("model file " + path + ": expected graphs without state, got state " + value.name);
      }
      if (value.kind != Value::Kind::kConstant) continue;
      THRESHER_ASSIGN(held.emplace_back(), Hold(value.constant));
    }
  }
  TensorTable tensors;
  std::vector<std::pair<SectionKind, std::string>> sections = {{SectionKind::kInfo, EncodeInfo(model)}};
  for (const ModelGraph& graph : model.graphs) sections.emplace_back(SectionKind::kGraph, EncodeGraph(graph, tensors));
  sections.emplace_back(SectionKind::kTensors, tensors.Encode());
  if (sections.size() >= kMaxModelSections) {
    return InvalidArgument("model file " + path + ": expected at most " + std::to_string(kMaxModelSections - 3) +
                           " combinations of shapes, got " + std::to_string(model.graphs.size()));
  }

  std::vector<SectionEntry> table;
  uint64_t end = sizeof(FileHeader) + (sections.size() + 1) * sizeof(SectionEntry);
  const auto place = [&](SectionKind kind, uint64_t bytes) -> SectionEntry& {
    const uint64_t offset = AlignUp(end);
    end = offset + bytes;
    return table.emplace_back(SectionEntry{kind, 0, offset, bytes, {}});
  };
  for (const auto& [kind, bytes] : sections) {
    SetDigest(HashBytes(bytes.data(), bytes.size()), place(kind, bytes.size()).digest);
  }
  const uint64_t weights = place(SectionKind::kWeights, tensors.bytes()).offset;

  FileHeader header = {};
  std::memcpy(header.magic, kModelMagic.data(), sizeof(header.magic));
  header.version = kModelVersion;
  header.num_sections = static_cast<uint32_t>(table.size());
  header.file_bytes = end;
  const std::string_view engine(kVersion);
  std::memcpy(header.engine, engine.data(), std::min(engine.size(), sizeof(header.engine) - 1));
  std::string start(reinterpret_cast<const char*>(&header), sizeof(header));
  start.append(reinterpret_cast<const char*>(table.data()), table.size() * sizeof(SectionEntry));
  SetDigest(HashBytes(start.data(), start.size()), header.digest);
  std::memcpy(start.data(), &header, sizeof(header));

  NewFile file(path);
  file.Write(start.data(), start.size());
  for (size_t i = 0; i < sections.size(); ++i) {
    PadTo(file, table[i].offset);
    file.Write(sections[i].second.data(), sections[i].second.size());
  }
  for (const TensorTable::Entry& entry : tensors.entries()) {
    PadTo(file, weights + entry.offset);
    file.Write(entry.value.constant.data, entry.bytes);
  }
  PadTo(file, end);
  const int error = file.Commit(/*replace=*/true);
  return error == 0 ? Status::Ok() : CannotWrite(path, error);
}

}  // namespace thresher
