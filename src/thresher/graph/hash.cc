#include "thresher/graph/hash.h"

#include <bit>
#include <cstring>
#include <type_traits>

#include "thresher/graph/operator.h"

namespace thresher {
namespace {

static_assert(std::endian::native == std::endian::little, "digests are defined over little-endian words");

__extension__ using Wide = unsigned __int128;

// Odd constants with about as many ones as zeros; any others would do, but changing them changes every digest.
constexpr uint64_t kKeys[8] = {0x9e3779b97f4a7c15, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9, 0xd6e8feb86659fd93,
                               0xa0761d6478bd642f, 0xe7037ed1a0b428db, 0x8ebc6af09c88c6e3, 0x589965cc75374cc3};

uint64_t Load(const uint8_t* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

uint64_t Fold(uint64_t a, uint64_t b) {
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// The sum keeps the old state and the first word alive where the product is zero.
uint64_t Absorb(uint64_t state, uint64_t first, uint64_t second, uint64_t key) {
  return Fold(state ^ first, second ^ key) + std::rotl(state, 32) + first;
}

uint64_t Avalanche(uint64_t x) {
  x ^= x >> 32;
  x *= kKeys[1];
  x ^= x >> 29;
  x *= kKeys[2];
  return x ^ (x >> 32);
}

// Writes the tokens of a graph into one byte string; every variable-length part is preceded by its length.
class Tokens {
 public:
  template <class T>
    requires std::is_arithmetic_v<T>
  void Add(T number) {
    using Word = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;
    const uint64_t word = std::bit_cast<uint64_t>(static_cast<Word>(number));
    bytes_.append(reinterpret_cast<const char*>(&word), sizeof(word));
  }
  void Add(std::string_view text) {
    Add(text.size());
    bytes_.append(text);
  }
  void Add(const Dims& dims) {
    Add(dims.size());
    for (const int64_t d : dims) Add(d);
  }
  void Add(const Digest& digest) {
    Add(static_cast<int64_t>(digest.hi));
    Add(static_cast<int64_t>(digest.lo));
  }
  void AddType(const Value& value) {
    Add(static_cast<int>(value.dtype));
    Add(value.shape);
  }
  void AddAttr(const Attr& attr) {
    Add(attr.index());
    std::visit([this](const auto& held) { Add(held); }, attr);
  }
  Digest Hash() const { return HashBytes(bytes_.data(), bytes_.size()); }

 private:
  std::string bytes_;
};

}  // namespace

std::string ToHex(const Digest& digest) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text(32, '0');
  for (size_t i = 0; i < 16; ++i) {
    text[15 - i] = kDigits[(digest.hi >> (4 * i)) & 15];
    text[31 - i] = kDigits[(digest.lo >> (4 * i)) & 15];
  }
  return text;
}

std::optional<Digest> ParseDigest(std::string_view text) {
  if (text.size() != 32) return std::nullopt;
  Digest digest;
  for (size_t i = 0; i < 32; ++i) {
    const char c = text[i];
    uint64_t digit;
    if (c >= '0' && c <= '9') {
      digit = static_cast<uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<uint64_t>(c - 'a') + 10;
    } else {
      return std::nullopt;
    }
    uint64_t& half = i < 16 ? digest.hi : digest.lo;
    half = half << 4 | digit;
  }
  return digest;
}

Hasher::Hasher() : lanes_{kKeys[4], kKeys[5], kKeys[6], kKeys[7]} {}

void Hasher::Add(const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  // Not the members: the compiler would store them after each block, for all that `bytes` may point to.
  uint64_t lanes[4] = {lanes_[0], lanes_[1], lanes_[2], lanes_[3]};
  const auto absorb_block = [&lanes](const uint8_t* block) {
    for (size_t i = 0; i < 4; ++i)
      lanes[i] = Absorb(lanes[i], Load(block + 16 * i), Load(block + 16 * i + 8), kKeys[i]);
  };
  size_ += size;
  size_t left = size;
  for (; left >= 64; left -= 64, bytes += 64) absorb_block(bytes);
  if (left > 0) {
    uint8_t last[64] = {};
    std::memcpy(last, bytes, left);
    absorb_block(last);  // the length, absorbed at the end, tells padding from data
  }
  for (size_t i = 0; i < 4; ++i) lanes_[i] = lanes[i];
}

Digest Hasher::Finish() const {
  uint64_t hi = size_ * kKeys[0];
  uint64_t lo = ~size_ * kKeys[3];
  for (size_t i = 0; i < 4; ++i) {
    hi = Absorb(hi, lanes_[i], lanes_[(i + 1) % 4], kKeys[i]);
    lo = Absorb(lo, lanes_[3 - i], lanes_[(5 - i) % 4], kKeys[4 + i]);
  }
  return {Avalanche(hi), Avalanche(lo)};
}

Digest HashBytes(const void* data, size_t size) {
  Hasher hasher;
  hasher.Add(data, size);
  return hasher.Finish();
}

Digest DigestCache::Of(const Value& constant) {
  const auto bytes = static_cast<size_t>(ConstantBytes(constant));
  const auto key = std::make_pair(constant.constant.data, bytes);
  {
    const std::lock_guard lock(mutex_);
    const auto it = entries_.find(key);
    // The same address with another owner is other memory that happens to lie where the old one was.
    const auto& owner = constant.constant.owner;
    if (it != entries_.end() && owner && !it->second.owner.owner_before(owner) &&
        !owner.owner_before(it->second.owner)) {
      return it->second.digest;
    }
  }
  const Result<std::shared_ptr<const void>> held = Hold(constant.constant);
  if (!held.ok()) return {};
  const Digest digest = HashBytes(constant.constant.data, bytes);
  if (constant.constant.owner) {
    const std::lock_guard lock(mutex_);
    entries_[key] = {constant.constant.owner, digest};
  }
  return digest;
}

void DigestCache::Clear() {
  const std::lock_guard lock(mutex_);
  entries_.clear();
}

Digest HashConstant(const Value& constant, DigestCache* cache) {
  if (cache != nullptr) return cache->Of(constant);
  const Result<std::shared_ptr<const void>> held = Hold(constant.constant);
  if (!held.ok()) return {};
  return HashBytes(constant.constant.data, static_cast<size_t>(ConstantBytes(constant)));
}

CanonicalOrder MakeCanonicalOrder(const Graph& graph) {
  CanonicalOrder order;
  order.numbers.assign(graph.values().size(), -1);
  int32_t next = 0;
  for (const ValueId id : graph.inputs()) order.numbers[static_cast<size_t>(id)] = next++;
  const auto number_constant = [&](ValueId id) {
    if (!graph.is_constant(id) || order.numbers[static_cast<size_t>(id)] >= 0) return;
    order.numbers[static_cast<size_t>(id)] = next++;
    order.constants.push_back(id);
  };
  for (const Node& node : graph.nodes()) {
    for (const ValueId id : node.inputs) number_constant(id);
  }
  for (const ValueId id : graph.outputs()) number_constant(id);
  order.used_constants = order.constants.size();
  for (ValueId id = 0; id < static_cast<ValueId>(graph.values().size()); ++id) number_constant(id);
  for (const Node& node : graph.nodes()) {
    for (const ValueId id : node.outputs) order.numbers[static_cast<size_t>(id)] = next++;
  }
  return order;
}

Digest HashGraph(const Graph& graph, DigestCache* cache) {
  const CanonicalOrder order = MakeCanonicalOrder(graph);
  const auto number = [&order](ValueId id) { return id == kNoValue ? -1 : order.numbers[static_cast<size_t>(id)]; };
  Tokens tokens;
  tokens.Add(std::string_view("graph 1"));
  tokens.Add(graph.inputs().size());
  for (const ValueId id : graph.inputs()) {
    tokens.AddType(graph.value(id));
    if (graph.is_state(id)) tokens.Add(std::string_view("state"));
    if (const auto& blocks = graph.value(id).constant.blocks) tokens.Add(Name(*blocks));
  }
  tokens.Add(order.used_constants);
  for (size_t i = 0; i < order.used_constants; ++i) {
    const Value& constant = graph.value(order.constants[i]);
    tokens.AddType(constant);
    tokens.Add(constant.constant.is_weight);
    if (constant.constant.blocks) tokens.Add(Name(*constant.constant.blocks));
    tokens.Add(HashConstant(constant, cache));
  }
  // Unused constants have no say, so results are counted from the used ones on.
  const auto unused = static_cast<int32_t>(order.constants.size() - order.used_constants);
  const auto first_unused = static_cast<int32_t>(graph.inputs().size() + order.used_constants);
  const auto dense = [&](ValueId id) { return number(id) >= first_unused ? number(id) - unused : number(id); };
  tokens.Add(graph.nodes().size());
  for (const Node& node : graph.nodes()) {
    tokens.Add(node.op->name);
    tokens.Add(node.inputs.size());
    for (const ValueId id : node.inputs) tokens.Add(dense(id));
    tokens.Add(node.attrs.size());
    for (const auto& [name, attr] : node.attrs) {
      tokens.Add(std::string_view(name));
      tokens.AddAttr(attr);
    }
    tokens.Add(node.outputs.size());
    for (const ValueId id : node.outputs) tokens.AddType(graph.value(id));
  }
  tokens.Add(graph.outputs().size());
  for (const ValueId id : graph.outputs()) tokens.Add(dense(id));
  return tokens.Hash();
}

}  // namespace thresher
