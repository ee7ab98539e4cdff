#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "thresher/base/tensor.h"
#include "thresher/base/version.h"
#include "thresher/graph/hash.h"
#include "thresher/graph/parser.h"
#include "thresher/run/model_format.h"
#include "thresher/run/tensor_file.h"

namespace thresher {
namespace {

// A tensor of fewer bytes is kept from the beginning: it is read sooner than memory for it is asked for and given back.
constexpr size_t kLeastOnDemand = size_t{64} << 10;

struct Tensor {
  std::string name;
  DType dtype = DType::kF32;
  std::optional<Encoding> blocks;
  Dims shape;
  Constant constant;
};

// The bytes that a model is read from. Callers have compared places with size().
class Storage {
 public:
  virtual ~Storage() = default;
  virtual size_t size() const = 0;
  // Bytes that stay as long as the storage.
  virtual Result<std::span<const std::byte>> Get(uint64_t offset, size_t bytes) = 0;
  // A constant with the bytes that `digest` is of.
  virtual Result<Constant> GetTensor(const std::string& what, uint64_t offset, size_t bytes, const Digest& digest) = 0;
};

class MemoryStorage final : public Storage {
 public:
  MemoryStorage(std::span<const std::byte> bytes, std::shared_ptr<const void> owner)
      : bytes_(bytes), owner_(std::move(owner)) {}

  size_t size() const override { return bytes_.size(); }
  Result<std::span<const std::byte>> Get(uint64_t offset, size_t bytes) override {
    return bytes_.subspan(offset, bytes);
  }
  Result<Constant> GetTensor(const std::string& what, uint64_t offset, size_t bytes, const Digest& digest) override {
    const std::byte* const data = bytes_.data() + offset;
    THRESHER_TRY(CheckDigest(what, digest, data, bytes));
    return Constant{data, owner_};
  }

 private:
  const std::span<const std::byte> bytes_;
  const std::shared_ptr<const void> owner_;
};

class FileStorage final : public Storage {
 public:
  explicit FileStorage(std::shared_ptr<TensorFile> file) : file_(std::move(file)) {}

  size_t size() const override { return file_->size(); }
  Result<std::span<const std::byte>> Get(uint64_t offset, size_t bytes) override {
    std::byte* const read = read_.emplace_back(new (std::nothrow) std::byte[bytes]).get();
    if (read == nullptr)
      return ResourceExhausted("expected memory for a section of " + std::to_string(bytes) + " bytes");
    THRESHER_TRY(file_->Read(offset, read, bytes));
    return std::span<const std::byte>(read, bytes);
  }
  Result<Constant> GetTensor(const std::string& what, uint64_t offset, size_t bytes, const Digest& digest) override {
    if (bytes >= kLeastOnDemand) {
      THRESHER_ASSIGN(const std::byte* const address, file_->Add(what, offset, bytes, digest));
      Constant constant{address, file_};
      constant.source = file_;
      return constant;
    }
    constexpr std::align_val_t kAlignment{kWeightAlignment};
    const std::shared_ptr<void> data(::operator new(bytes, kAlignment),
                                     [](void* p) { ::operator delete(p, kAlignment); });
    THRESHER_TRY(file_->Read(offset, data.get(), bytes));
    THRESHER_TRY(CheckDigest(what, digest, data.get(), bytes));
    return Constant{data.get(), data};
  }

 private:
  const std::shared_ptr<TensorFile> file_;
  std::vector<std::unique_ptr<std::byte[]>> read_;
};

// Reads what Encoder wrote. Nothing is allocated for more than the bytes that are there.
class Decoder {
 public:
  Decoder(std::span<const std::byte> bytes, std::string what) : bytes_(bytes), what_(std::move(what)) {}

  template <class T>
    requires std::is_arithmetic_v<T>
  Status Read(T* number) {
    if (bytes_.size() < sizeof(T)) return TooShort();
    std::memcpy(number, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return Status::Ok();
  }
  Status Read(std::string_view* text) {
    uint32_t size = 0;
    THRESHER_TRY(Read(&size));
    if (size > bytes_.size()) return TooShort();
    *text = {reinterpret_cast<const char*>(bytes_.data()), size};
    bytes_ = bytes_.subspan(size);
    return Status::Ok();
  }
  Status Read(std::string* text) {
    std::string_view view;
    THRESHER_TRY(Read(&view));
    *text = view;
    return Status::Ok();
  }
  Status Read(Digest* digest) {
    THRESHER_TRY(Read(&digest->hi));
    return Read(&digest->lo);
  }
  // A number of things that take at least `least` bytes each.
  Status ReadCount(size_t least, uint32_t* count) {
    THRESHER_TRY(Read(count));
    if (*count > bytes_.size() / least) {
      return InvalidArgument(what_ + ": expected at most " + std::to_string(bytes_.size() / least) +
                             " entries in what is left of it, got " + std::to_string(*count) + kDamagedFile);
    }
    return Status::Ok();
  }
  Status End() const {
    if (bytes_.empty()) return Status::Ok();
    return InvalidArgument(what_ + ": expected its end, got " + std::to_string(bytes_.size()) + " more bytes" +
                           kDamagedFile);
  }

 private:
  Status TooShort() const { return InvalidArgument(what_ + ": expected more than its section holds" + kDamagedFile); }

  std::span<const std::byte> bytes_;
  std::string what_;
};

class Reader {
 public:
  explicit Reader(Storage& storage) : storage_(storage), size_(storage.size()) {}

  Result<ModelContents> Read() {
    THRESHER_TRY(ReadHeader());
    THRESHER_TRY(ReadTable());
    THRESHER_ASSIGN(const SectionEntry info, Only(SectionKind::kInfo));
    THRESHER_ASSIGN(const SectionEntry tensors, Only(SectionKind::kTensors));
    THRESHER_ASSIGN(const SectionEntry weights, Only(SectionKind::kWeights));
    THRESHER_ASSIGN(const std::span<const std::byte> info_bytes, BytesOf(info));
    THRESHER_TRY(ReadInfo(info_bytes));
    THRESHER_ASSIGN(const std::span<const std::byte> tensor_bytes, BytesOf(tensors));
    THRESHER_TRY(ReadTensors(tensor_bytes, weights));
    for (const SectionEntry& entry : table_) {
      if (entry.kind != SectionKind::kGraph) continue;
      THRESHER_ASSIGN(const std::span<const std::byte> graph_bytes, BytesOf(entry));
      const Status status = ReadGraph(graph_bytes);
      if (!status.ok()) return Status(status.code(), status.message() + WrittenBy());
    }
    THRESHER_TRY(CheckModel(model_));
    return std::move(model_);
  }

 private:
  Status ReadHeader() {
    if (size_ < sizeof(header_)) {
      return InvalidArgument("expected a header of " + std::to_string(sizeof(header_)) + " bytes, got a file of " +
                             std::to_string(size_) + kDamagedFile);
    }
    THRESHER_ASSIGN(const std::span<const std::byte> bytes, storage_.Get(0, sizeof(header_)));
    std::memcpy(&header_, bytes.data(), sizeof(header_));
    if (std::string_view(header_.magic, sizeof(header_.magic)) != kModelMagic) {
      return InvalidArgument("expected a model file, which begins with " + std::string(kModelMagic) +
                             ", got other bytes; name a file that thresher.export wrote");
    }
    header_.engine[sizeof(header_.engine) - 1] = '\0';
    for (const char& c : header_.engine) {
      if (c != '\0' && (c < 0x20 || c > 0x7e))
        return InvalidArgument(std::string("expected a readable header") + kDamagedFile);
    }
    model_.engine = header_.engine;
    if (header_.version != kModelVersion) {
      return Unsupported("expected format version " + std::to_string(kModelVersion) + ", got " +
                         std::to_string(header_.version) + WrittenBy() + "; install that version or a newer one");
    }
    if (header_.file_bytes != size_) {
      return InvalidArgument("expected " + std::to_string(header_.file_bytes) + " bytes, got " + std::to_string(size_) +
                             "; the file is incomplete: copy or export it again");
    }
    return Status::Ok();
  }

  Status ReadTable() {
    const size_t room = (size_ - sizeof(FileHeader)) / sizeof(SectionEntry);
    if (header_.num_sections > kMaxModelSections || header_.num_sections > room) {
      return InvalidArgument("expected at most " + std::to_string(std::min<size_t>(kMaxModelSections, room)) +
                             " sections, got " + std::to_string(header_.num_sections) + kDamagedFile);
    }
    const size_t size = sizeof(FileHeader) + header_.num_sections * sizeof(SectionEntry);
    THRESHER_ASSIGN(const std::span<const std::byte> start_bytes, storage_.Get(0, size));
    std::string start(reinterpret_cast<const char*>(start_bytes.data()), size);
    std::memset(start.data() + offsetof(FileHeader, digest), 0, sizeof(header_.digest));
    THRESHER_TRY(CheckDigest("the header", {header_.digest[0], header_.digest[1]}, start.data(), size));
    table_.resize(header_.num_sections);
    if (!table_.empty()) {
      std::memcpy(table_.data(), start.data() + sizeof(FileHeader), size - sizeof(FileHeader));
    }
    for (const SectionEntry& entry : table_) {
      const auto kind = static_cast<uint32_t>(entry.kind);
      if (kind < static_cast<uint32_t>(SectionKind::kInfo) || kind > static_cast<uint32_t>(SectionKind::kWeights)) {
        return InvalidArgument("expected sections of kinds 1 to 4, got " + std::to_string(kind) + kDamagedFile);
      }
      if (entry.offset < size || entry.offset > size_ || entry.bytes > size_ - entry.offset ||
          entry.offset % kWeightAlignment != 0) {
        return InvalidArgument("expected sections inside the file's " + std::to_string(size_) + " bytes, got " +
                               std::to_string(entry.bytes) + " bytes at " + std::to_string(entry.offset) +
                               kDamagedFile);
      }
      if (entry.kind == SectionKind::kWeights) continue;
      THRESHER_ASSIGN(const std::span<const std::byte> bytes, BytesOf(entry));
      THRESHER_TRY(CheckDigest("section " + std::to_string(&entry - table_.data()), {entry.digest[0], entry.digest[1]},
                               bytes.data(), bytes.size()));
    }
    return Status::Ok();
  }

  Status ReadInfo(std::span<const std::byte> bytes) {
    Decoder decoder(bytes, "info");
    THRESHER_TRY(decoder.Read(&model_.name));
    THRESHER_TRY(decoder.Read(&model_.precision.precision));
    uint32_t count = 0;
    THRESHER_TRY(decoder.ReadCount(sizeof(uint32_t), &count));
    for (uint32_t i = 0; i < count; ++i) THRESHER_TRY(decoder.Read(&model_.precision.exclude.emplace_back()));
    uint32_t has_limit = 0;
    double limit = 0;
    THRESHER_TRY(decoder.Read(&has_limit));
    THRESHER_TRY(decoder.Read(&limit));
    if (has_limit != 0) model_.precision.max_weight_error = limit;
    return decoder.End();
  }

  Status ReadTensors(std::span<const std::byte> bytes, const SectionEntry& weights) {
    Decoder decoder(bytes, "tensors");
    uint32_t count = 0;
    THRESHER_TRY(decoder.ReadCount(4 * sizeof(uint32_t) + 3 * sizeof(uint64_t), &count));
    tensors_.reserve(count);
    for (uint32_t i = 0; i < count; ++i) {
      Tensor tensor;
      uint32_t dtype = 0, rank = 0;
      uint64_t offset = 0;
      Digest digest;
      THRESHER_TRY(decoder.Read(&tensor.name));
      THRESHER_TRY(decoder.Read(&dtype));
      THRESHER_TRY(decoder.Read(&rank));
      const std::string what = "tensor '" + tensor.name + "'";
      const uint32_t blocks = dtype >> 8;
      dtype &= 0xFF;
      if (blocks != 0) tensor.blocks = static_cast<Encoding>(std::min<uint32_t>(blocks, kNumEncodings));
      if (dtype >= kNumDTypes || rank > kMaxRank || blocks >= kNumEncodings) {
        return InvalidArgument(what + ": expected a dtype below " + std::to_string(kNumDTypes) + " and at most " +
                               std::to_string(kMaxRank) + " dimensions, got " + std::to_string(dtype) + " and " +
                               std::to_string(rank) + kDamagedFile);
      }
      tensor.dtype = static_cast<DType>(dtype);
      // No format of blocks has fewer than 4 bits a number.
      uint64_t size = tensor.blocks ? 1 : SizeOf(tensor.dtype);
      const uint64_t most = weights.bytes * (tensor.blocks ? 2 : 1);
      for (uint32_t d = 0; d < rank; ++d) {
        int64_t length = 0;
        THRESHER_TRY(decoder.Read(&length));
        if (length < 1 || size > most / static_cast<uint64_t>(length)) {
          return InvalidArgument(what + ": expected a size that fits into " + std::to_string(weights.bytes) +
                                 " bytes of weights, got dimension " + std::to_string(length) + kDamagedFile);
        }
        size *= static_cast<uint64_t>(length);
        tensor.shape.push_back(length);
      }
      if (tensor.blocks) {
        if (Status fits = CheckBlocks(tensor.dtype, tensor.shape, *tensor.blocks); !fits.ok()) {
          return InvalidArgument(what + ": " + fits.message() + kDamagedFile);
        }
        size = static_cast<uint64_t>(EncodedBytes(*tensor.blocks, static_cast<int64_t>(size)));
      }
      THRESHER_TRY(decoder.Read(&offset));
      THRESHER_TRY(decoder.Read(&digest));
      if (offset > weights.bytes || size > weights.bytes - offset || offset % kWeightAlignment != 0) {
        return InvalidArgument(what + ": expected a place inside " + std::to_string(weights.bytes) +
                               " bytes of weights, got " + std::to_string(size) + " bytes at " +
                               std::to_string(offset) + kDamagedFile);
      }
      THRESHER_ASSIGN(tensor.constant, storage_.GetTensor(what, weights.offset + offset, size, digest));
      tensors_.push_back(std::move(tensor));
    }
    return decoder.End();
  }

  Status ReadGraph(std::span<const std::byte> bytes) {
    const std::string what = "graph " + std::to_string(model_.graphs.size());
    Decoder decoder(bytes, what);
    ModelGraph entry;
    uint32_t count = 0;
    THRESHER_TRY(decoder.ReadCount(sizeof(uint32_t), &count));
    for (uint32_t i = 0; i < count; ++i) THRESHER_TRY(decoder.Read(&entry.output_names.emplace_back()));
    THRESHER_TRY(decoder.ReadCount(sizeof(uint32_t), &count));
    std::vector<uint32_t> numbers(count);
    for (uint32_t& number : numbers) THRESHER_TRY(decoder.Read(&number));
    std::string_view text;
    THRESHER_TRY(decoder.Read(&text));
    size_t used = 0;
    const auto resolve = [&](const ConstantRequest& request) -> Result<Constant> {
      if (used == numbers.size() || numbers[used] >= tensors_.size()) {
        return InvalidArgument("expected a tensor of the file, got none" + std::string(kDamagedFile));
      }
      const Tensor& tensor = tensors_[numbers[used++]];
      if (tensor.dtype != request.dtype || tensor.shape != request.shape || tensor.blocks != request.blocks) {
        return InvalidArgument("expected " + ToString(request.dtype, request.shape) + ", got '" + tensor.name +
                               "' of " + ToString(tensor.dtype, tensor.shape) + kDamagedFile);
      }
      Constant constant = tensor.constant;
      constant.is_weight = request.is_weight;
      constant.blocks = request.blocks;
      if (!request.is_weight && constant.source != nullptr) {
        // Passes look at the engine's own constants at any time.
        THRESHER_ASSIGN(constant.owner, Hold(constant));
        constant.source = nullptr;
      }
      return constant;
    };
    Result<Graph> graph = ParseGraph(text, resolve);
    if (!graph.ok()) return Status(graph.status().code(), what + ": " + graph.status().message());
    entry.graph = std::move(graph).value();
    THRESHER_TRY(ReadRules(decoder, what, entry));
    THRESHER_TRY(decoder.End());
    model_.graphs.push_back(std::move(entry));
    return Status::Ok();
  }

  static Status ReadPolynomial(Decoder& decoder, Polynomial* polynomial) {
    uint32_t count = 0;
    THRESHER_TRY(decoder.ReadCount(sizeof(uint32_t) + sizeof(int64_t), &count));
    polynomial->terms.resize(count);
    for (Polynomial::Term& term : polynomial->terms) {
      THRESHER_TRY(decoder.Read(&term.monomial));
      THRESHER_TRY(decoder.Read(&term.factor));
    }
    return Status::Ok();
  }

  // What of the graph follows the sizes of a call, if anything does.
  static Status ReadRules(Decoder& decoder, const std::string& what, ModelGraph& entry) {
    uint32_t count = 0;
    THRESHER_TRY(decoder.ReadCount(sizeof(uint32_t) + sizeof(int64_t), &count));
    if (count == 0) return Status::Ok();
    GraphFamily::Rules rules;
    for (uint32_t i = 0; i < count; ++i) {
      THRESHER_TRY(decoder.Read(&rules.names.emplace_back()));
      THRESHER_TRY(decoder.Read(&entry.capacity.emplace_back()));
    }
    uint32_t degree = 0;
    THRESHER_TRY(decoder.Read(&degree));
    rules.degree = degree > static_cast<uint32_t>(GraphFamily::kMaxDegree) ? -1 : static_cast<int>(degree);
    for (const ValueId id : entry.graph.inputs()) {
      rules.inputs.emplace_back(entry.graph.value(id).shape.size());
      for (Polynomial& size : rules.inputs.back()) THRESHER_TRY(ReadPolynomial(decoder, &size));
    }
    for (size_t n = 0; n < entry.graph.nodes().size(); ++n) {
      GraphFamily::NodeNumbers& node = rules.nodes.emplace_back();
      uint32_t varies = 0;
      THRESHER_TRY(decoder.Read(&varies));
      node.varies = varies != 0;
      THRESHER_TRY(decoder.ReadCount(3 * sizeof(uint32_t), &count));
      for (uint32_t i = 0; i < count; ++i) {
        GraphFamily::Number& number = node.numbers.emplace_back();
        uint32_t element = 0;
        THRESHER_TRY(decoder.Read(&number.attr));
        THRESHER_TRY(decoder.Read(&element));
        number.element = element;
        THRESHER_TRY(ReadPolynomial(decoder, &number.value));
      }
    }
    Result<GraphFamily> family = GraphFamily::Make(entry.graph, std::move(rules), entry.capacity);
    if (!family.ok()) return InvalidArgument(what + ": " + family.status().message() + kDamagedFile);
    entry.family = std::move(family).value();
    return Status::Ok();
  }

  Result<SectionEntry> Only(SectionKind kind) const {
    const SectionEntry* found = nullptr;
    int count = 0;
    for (const SectionEntry& entry : table_) {
      if (entry.kind != kind) continue;
      found = &entry;
      ++count;
    }
    if (count == 1) return *found;
    return InvalidArgument("expected one section of kind " + std::to_string(static_cast<uint32_t>(kind)) + ", got " +
                           std::to_string(count) + kDamagedFile);
  }

  Result<std::span<const std::byte>> BytesOf(const SectionEntry& entry) {
    return storage_.Get(entry.offset, entry.bytes);
  }

  // Which engines are concerned, where they differ.
  std::string WrittenBy() const {
    if (model_.engine == kVersion) return "";
    return "; thresher " + model_.engine + " wrote the file, this is " + kVersion;
  }

  Storage& storage_;
  const size_t size_;
  FileHeader header_ = {};
  std::vector<SectionEntry> table_;
  std::vector<Tensor> tensors_;
  ModelContents model_;
};

}  // namespace

Result<ModelContents> ReadModel(std::span<const std::byte> bytes, std::shared_ptr<const void> owner) {
  MemoryStorage storage(bytes, std::move(owner));
  return Reader(storage).Read();
}

Result<ModelContents> ReadModelFile(const std::string& path) {
  const auto read = [&]() -> Result<ModelContents> {
    THRESHER_ASSIGN(std::shared_ptr<TensorFile> file, TensorFile::Open(path));
    FileStorage storage(file);
    THRESHER_ASSIGN(ModelContents contents, Reader(storage).Read());
    contents.source = std::move(file);
    return contents;
  };
  Result<ModelContents> model = read();
  if (model.ok()) return model;
  return Status(model.status().code(), "model file " + path + ": " + model.status().message());
}

}  // namespace thresher
