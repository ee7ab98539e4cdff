#include "thresher/graph/graph_family.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>
#include <variant>

#include "thresher/base/tensor.h"
#include "thresher/graph/operator.h"

namespace thresher {
namespace {

constexpr double kMaxExactInteger = 9007199254740992.0;
constexpr int kMostFactors = 3;  // sizes that are multiplied with each other

// The whole numbers that an attribute consists of; false where it holds none.
bool NumbersOf(const Attr& attr, std::vector<int64_t>& numbers) {
  if (const auto* number = std::get_if<int64_t>(&attr)) {
    numbers = {*number};
  } else if (const auto* list = std::get_if<Dims>(&attr)) {
    numbers = *list;
  } else if (const auto* real = std::get_if<double>(&attr);
             real != nullptr && std::abs(*real) <= kMaxExactInteger && std::trunc(*real) == *real) {
    numbers = {static_cast<int64_t>(*real)};
  } else {
    return false;
  }
  return true;
}

void SetNumber(Attr& attr, size_t element, int64_t value) {
  if (auto* number = std::get_if<int64_t>(&attr)) *number = value;
  if (auto* list = std::get_if<Dims>(&attr)) (*list)[element] = value;
  if (auto* real = std::get_if<double>(&attr)) *real = static_cast<double>(value);
}

// Bits, so that 0.0 and -0.0 differ and a NaN equals itself.
bool SameAttr(const Attr& a, const Attr& b) {
  const auto* x = std::get_if<double>(&a);
  const auto* y = std::get_if<double>(&b);
  return x != nullptr && y != nullptr ? std::bit_cast<uint64_t>(*x) == std::bit_cast<uint64_t>(*y) : a == b;
}

bool SameConstant(const Value& a, const Value& b) {
  if (a.shape != b.shape || a.constant.is_weight != b.constant.is_weight || a.constant.blocks != b.constant.blocks) {
    return false;
  }
  if (a.constant.data == b.constant.data) return true;
  // A weight is known by its address, since it would take long to read.
  return !a.constant.is_weight &&
         std::memcmp(a.constant.data, b.constant.data, static_cast<size_t>(ConstantBytes(a))) == 0;
}

Status Differ(const std::string& what) {
  return Unsupported("the graphs at different sizes differ in more than numbers: " + what);
}

Status CheckSame(const Graph& a, const Graph& b) {
  if (a.values().size() != b.values().size()) return Differ("how many values there are");
  if (a.inputs() != b.inputs() || a.outputs() != b.outputs()) return Differ("inputs or outputs");
  for (size_t i = 0; i < a.values().size(); ++i) {
    const Value& x = a.values()[i];
    const Value& y = b.values()[i];
    if (x.kind != y.kind || x.dtype != y.dtype || x.shape.size() != y.shape.size() || x.name != y.name) {
      return Differ("the type of value " + std::to_string(i) + " " + x.name);
    }
    if (x.kind == Value::Kind::kConstant && !SameConstant(x, y)) return Differ("the constant " + x.name);
  }
  for (size_t i = 0; i < a.nodes().size(); ++i) {
    const Node& x = a.nodes()[i];
    const Node& y = b.nodes()[i];
    if (x.op != y.op || x.inputs != y.inputs || x.outputs != y.outputs || x.attrs.size() != y.attrs.size()) {
      return Differ("node " + std::to_string(i) + ", " + std::string(x.op->name));
    }
  }
  return Status::Ok();
}

}  // namespace

Result<GraphFamily> GraphFamily::Fit(std::vector<std::string> names, int degree, std::span<const Sample> samples) {
  Rules rules;
  const size_t sizes = names.size();
  if (sizes == 0 || sizes > kMaxSizes) {
    return InvalidArgument("expected 1 to " + std::to_string(kMaxSizes) + " sizes, got " + std::to_string(sizes));
  }
  std::vector<Dims> points;
  for (const Sample& sample : samples) {
    if (sample.sizes.size() != sizes) {
      return InvalidArgument("expected " + std::to_string(sizes) + " sizes in a sample, got " +
                             std::to_string(sample.sizes.size()));
    }
    points.push_back(sample.sizes);
  }
  Monomials monomials(sizes, degree, kMostFactors);
  if (samples.size() <= monomials.count()) {
    return InvalidArgument("expected more than " + std::to_string(monomials.count()) + " samples, got " +
                           std::to_string(samples.size()));
  }
  THRESHER_ASSIGN(const PolynomialFitter fitter, PolynomialFitter::Make(monomials, std::move(points)));
  const Graph& first = *samples[0].graph;
  for (const Sample& sample : samples) THRESHER_TRY(CheckSame(first, *sample.graph));
  std::vector<int64_t> values(samples.size());
  for (const ValueId id : first.inputs()) {
    std::vector<Polynomial>& shape = rules.inputs.emplace_back();
    for (size_t d = 0; d < first.value(id).shape.size(); ++d) {
      for (size_t s = 0; s < samples.size(); ++s) values[s] = samples[s].graph->value(id).shape[d];
      std::optional<Polynomial> size = fitter.Fit(values);
      if (!size) return Unsupported("the shape of input " + first.value(id).name + " is no polynomial of the sizes");
      shape.push_back(*std::move(size));
    }
  }
  for (size_t i = 0; i < first.nodes().size(); ++i) {
    const Node& node = first.nodes()[i];
    NodeNumbers& found = rules.nodes.emplace_back();
    for (const ValueId id : node.outputs) {
      for (const Sample& sample : samples) found.varies |= sample.graph->value(id).shape != first.value(id).shape;
    }
    for (const auto& [name, attr] : node.attrs) {
      const auto fail = [&, attr_name = name] {
        return Unsupported(std::string(node.op->name) + ": " + attr_name + " is no polynomial of the sizes");
      };
      std::vector<std::vector<int64_t>> numbers(samples.size());  // [sample][element]
      bool same = true, whole = true;
      for (size_t s = 0; s < samples.size(); ++s) {
        const auto other = samples[s].graph->nodes()[i].attrs.find(name);
        if (other == samples[s].graph->nodes()[i].attrs.end() || other->second.index() != attr.index()) return fail();
        same &= SameAttr(attr, other->second);
        whole &= NumbersOf(other->second, numbers[s]);
      }
      if (same) continue;
      found.varies = true;
      if (!whole) return fail();
      for (size_t e = 0; e < numbers[0].size(); ++e) {
        for (size_t s = 0; s < samples.size(); ++s) {
          if (numbers[s].size() != numbers[0].size()) return fail();
          values[s] = numbers[s][e];
        }
        std::optional<Polynomial> value = fitter.Fit(values);
        if (!value) return fail();
        if (!value->constant()) found.numbers.push_back({name, e, *std::move(value)});
      }
    }
  }
  rules.names = std::move(names);
  rules.degree = degree;
  return GraphFamily(first, std::move(rules), std::move(monomials));
}

Result<GraphFamily> GraphFamily::Make(Graph graph, Rules rules, std::span<const int64_t> largest) {
  const size_t sizes = rules.names.size();
  if (sizes == 0 || sizes > kMaxSizes || largest.size() != sizes || rules.degree < 1 || rules.degree > kMaxDegree) {
    return InvalidArgument("expected 1 to " + std::to_string(kMaxSizes) + " sizes and a degree of 1 to " +
                           std::to_string(kMaxDegree) + ", got " + std::to_string(sizes) + " and " +
                           std::to_string(rules.degree));
  }
  for (size_t v = 0; v < sizes; ++v) {
    if (largest[v] < 1) return InvalidArgument("size " + rules.names[v] + ": expected a largest one of at least 1");
  }
  Monomials monomials(sizes, rules.degree, kMostFactors);
  const auto legal = [&](const Polynomial& polynomial) {
    return std::all_of(polynomial.terms.begin(), polynomial.terms.end(),
                       [&](const Polynomial::Term& term) { return term.monomial < monomials.count(); }) &&
           polynomial.Fits(monomials, largest);
  };
  bool fits = rules.inputs.size() == graph.inputs().size() && rules.nodes.size() == graph.nodes().size();
  for (size_t i = 0; fits && i < rules.inputs.size(); ++i) {
    fits = rules.inputs[i].size() == graph.value(graph.inputs()[i]).shape.size() &&
           std::all_of(rules.inputs[i].begin(), rules.inputs[i].end(), legal);
  }
  for (size_t i = 0; fits && i < rules.nodes.size(); ++i) {
    for (const Number& number : rules.nodes[i].numbers) {
      const auto attr = graph.nodes()[i].attrs.find(number.attr);
      std::vector<int64_t> known;
      fits &= attr != graph.nodes()[i].attrs.end() && NumbersOf(attr->second, known) && number.element < known.size() &&
              legal(number.value);
    }
  }
  if (!fits) return InvalidArgument("expected numbers that follow the sizes of the graph, got others");
  GraphFamily family(std::move(graph), std::move(rules), std::move(monomials));
  for (size_t v = 0; v < sizes; ++v) {
    if (!family.PlaceOf(v)) {
      return InvalidArgument("size " + family.names()[v] + ": expected it as a dimension of an input, got it nowhere");
    }
  }
  return family;
}

GraphFamily::GraphFamily(Graph base, Rules rules, Monomials monomials)
    : base_(std::move(base)), rules_(std::move(rules)), monomials_(std::move(monomials)) {
  for (const Node& node : base_.nodes()) {
    from_constants_.push_back(std::all_of(node.inputs.begin(), node.inputs.end(),
                                          [this](ValueId id) { return id == kNoValue || base_.is_constant(id); }));
  }
}

std::optional<GraphFamily::Place> GraphFamily::PlaceOf(size_t size) const {
  // Two values of the size, the others being 1, tell it from all other polynomials of one term.
  Dims at(names().size(), 1);
  std::vector<int64_t> ones(monomials_.count()), more(monomials_.count());
  monomials_.At(at, ones.data());
  at[size] = 3;
  monomials_.At(at, more.data());
  for (size_t i = 0; i < rules_.inputs.size(); ++i) {
    for (size_t d = 0; d < rules_.inputs[i].size(); ++d) {
      const Polynomial& polynomial = rules_.inputs[i][d];
      if (polynomial.terms.size() == 1 && polynomial.At(ones.data()) == 1 && polynomial.At(more.data()) == 3) {
        return Place{i, d};
      }
    }
  }
  return std::nullopt;
}

std::vector<Dims> GraphFamily::InputsAt(std::span<const int64_t> sizes) const {
  std::vector<int64_t> monomials(monomials_.count());
  monomials_.At(sizes, monomials.data());
  std::vector<Dims> shapes;
  for (const std::vector<Polynomial>& input : rules_.inputs) {
    Dims& shape = shapes.emplace_back();
    for (const Polynomial& size : input) shape.push_back(size.At(monomials.data()));
  }
  return shapes;
}

std::optional<Dims> GraphFamily::SizesOf(std::span<const View> inputs, std::span<const int64_t> largest) const {
  if (inputs.size() != base_.inputs().size()) return std::nullopt;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Value& input = base_.value(base_.inputs()[i]);
    if (inputs[i].dtype != input.dtype || static_cast<size_t>(inputs[i].rank) != input.shape.size())
      return std::nullopt;
  }
  Dims sizes;
  for (size_t v = 0; v < names().size(); ++v) {
    const std::optional<Place> place = PlaceOf(v);
    if (!place) return std::nullopt;
    sizes.push_back(inputs[place->input].shape[place->dim]);
    if (sizes.back() < kLeastSize || sizes.back() > largest[v]) return std::nullopt;
  }
  const std::vector<Dims> shapes = InputsAt(sizes);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!std::equal(shapes[i].begin(), shapes[i].end(), inputs[i].shape)) return std::nullopt;
  }
  return sizes;
}

std::optional<size_t> GraphFamily::SameSource(size_t i) const {
  const Node& node = base_.nodes()[i];
  for (size_t j = 0; j < i; ++j) {
    const Node& other = base_.nodes()[j];
    if (other.op == node.op && other.inputs.empty() && other.attrs == node.attrs &&
        rules_.nodes[j] == rules_.nodes[i]) {
      return j;
    }
  }
  return std::nullopt;
}

Result<Graph> GraphFamily::At(std::span<const int64_t> sizes) const {
  if (sizes.size() != names().size()) {
    return InvalidArgument("expected " + std::to_string(names().size()) + " sizes, got " +
                           std::to_string(sizes.size()));
  }
  std::vector<int64_t> monomials(monomials_.count());
  monomials_.At(sizes, monomials.data());
  Graph graph;
  std::vector<ValueId> map(base_.values().size(), kNoValue);
  std::map<ValueId, ValueId> hidden;  // constants behind a barrier
  std::vector<Dims> shapes = InputsAt(sizes);
  for (size_t i = 0; i < base_.inputs().size(); ++i) {
    const Value& input = base_.value(base_.inputs()[i]);
    Dims& shape = shapes[i];
    int64_t room = kMaxTensorBytes / static_cast<int64_t>(SizeOf(input.dtype));
    for (const int64_t size : shape) {
      if (size < 1 || size > room) {
        return InvalidArgument("input " + input.name + ": expected sizes of at least 1, and at most " +
                               std::to_string(kMaxTensorBytes) + " bytes, got " + ToString(input.dtype, shape));
      }
      room /= size;
    }
    map[static_cast<size_t>(base_.inputs()[i])] =
        graph.AddInput(input.name, input.dtype, std::move(shape), input.kind, input.constant.blocks);
  }
  const auto mapped = [&](ValueId id) {
    if (id == kNoValue) return kNoValue;
    ValueId& to = map[static_cast<size_t>(id)];
    if (to == kNoValue && base_.is_constant(id)) {
      const Value& constant = base_.value(id);
      to = graph.AddConstant(constant.name, constant.dtype, constant.shape, constant.constant);
    }
    return to;
  };
  for (size_t i = 0; i < base_.nodes().size(); ++i) {
    const Node& node = base_.nodes()[i];
    const NodeNumbers& own = rules_.nodes[i];
    Attrs attrs = node.attrs;
    for (const Number& number : own.numbers) {
      SetNumber(attrs[number.attr], number.element, number.value.At(monomials.data()));
    }
    const bool hide = own.varies && from_constants_[i] != 0;
    if (hide && node.inputs.empty()) {
      if (const std::optional<size_t> same = SameSource(i)) {
        for (size_t o = 0; o < node.outputs.size(); ++o) {
          map[static_cast<size_t>(node.outputs[o])] = mapped(base_.nodes()[*same].outputs[o]);
        }
        continue;
      }
    }
    std::vector<ValueId> inputs;
    for (const ValueId id : node.inputs) {
      ValueId input = mapped(id);
      if (hide && id != kNoValue) {
        auto [at, added] = hidden.try_emplace(id, kNoValue);
        if (added) {
          THRESHER_ASSIGN(at->second, graph.Add1("barrier", {input}, {}, node.source, node.module));
        }
        input = at->second;
      }
      inputs.push_back(input);
    }
    // A full of many elements is better known as one element that is repeated.
    const bool full = hide && node.op->name == "full";
    const Dims shape = GetAttr<Dims>(attrs, "shape", {});
    if (full) attrs["shape"] = Dims{};
    THRESHER_ASSIGN(std::vector<ValueId> outputs,
                    graph.Add(std::string(node.op->name), std::move(inputs), attrs, node.source, node.module));
    if (hide && node.inputs.empty()) {
      for (ValueId& id : outputs) {
        THRESHER_ASSIGN(id, graph.Add1("barrier", {id}, {}, node.source, node.module));
        if (full) {
          THRESHER_ASSIGN(id, graph.Add1("expand", {id}, {{"shape", shape}}, node.source, node.module));
        }
      }
    }
    for (size_t o = 0; o < outputs.size(); ++o) map[static_cast<size_t>(node.outputs[o])] = outputs[o];
  }
  std::vector<ValueId> outputs;
  for (const ValueId id : base_.outputs()) outputs.push_back(mapped(id));
  graph.SetOutputs(std::move(outputs));
  return graph;
}

}  // namespace thresher
