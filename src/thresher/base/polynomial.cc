#include "thresher/base/polynomial.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

namespace thresher {
namespace {

using Wide = __int128;

constexpr long double kLeastPivot = 1e-9L;  // of a matrix whose entries are at most 1
constexpr Wide kMost = Wide{1} << 61;

bool Equals(const Polynomial& polynomial, const Monomials& monomials, const Dims& sizes, int64_t value) {
  std::vector<Wide> values(monomials.count());
  monomials.At(sizes, values.data());
  Wide sum = 0;
  for (const Polynomial::Term& term : polynomial.terms) sum += Wide{term.factor} * values[term.monomial];
  return sum == value;
}

}  // namespace

Monomials::Monomials(size_t sizes, int degree, int total) : sizes_(sizes) {
  std::array<uint8_t, kMaxSizes> at{};
  while (true) {
    if (std::accumulate(at.begin(), at.end(), 0) <= total) exponents_.push_back(at);
    size_t v = 0;
    while (v < sizes && at[v] == degree) at[v++] = 0;
    if (v == sizes) break;
    ++at[v];
  }
}

bool Polynomial::Fits(const Monomials& monomials, std::span<const int64_t> sizes) const {
  std::vector<long double> values(monomials.count());
  monomials.At(sizes, values.data());
  long double sum = 0;
  for (const Term& term : terms) sum += std::abs(static_cast<long double>(term.factor)) * values[term.monomial];
  return std::all_of(values.begin(), values.end(), [](long double v) { return v < static_cast<long double>(kMost); }) &&
         sum < static_cast<long double>(kMost);
}

Result<PolynomialFitter> PolynomialFitter::Make(Monomials monomials, std::vector<Dims> samples) {
  const size_t n = monomials.count();
  Dims scale(monomials.sizes(), 1);
  for (const Dims& sizes : samples) {
    for (size_t v = 0; v < scale.size(); ++v) scale[v] = std::max(scale[v], sizes[v]);
  }
  std::vector<long double> unit(n);
  monomials.At(scale, unit.data());
  // Each monomial relative to its largest value, so that no column drowns another.
  std::vector<std::vector<long double>> rows;
  for (const Dims& sizes : samples) {
    std::vector<long double> row(n);
    monomials.At(sizes, row.data());
    for (size_t i = 0; i < n; ++i) row[i] /= unit[i];
    rows.push_back(std::move(row));
  }
  PolynomialFitter fitter;
  // Elimination with the best remaining sample as pivot says which samples to trust.
  std::vector<std::vector<long double>> left = rows;
  for (size_t column = 0; column < n; ++column) {
    size_t best = samples.size();
    for (size_t s = 0; s < samples.size(); ++s) {
      if (std::find(fitter.chosen_.begin(), fitter.chosen_.end(), s) != fitter.chosen_.end()) continue;
      if (best == samples.size() || std::abs(left[s][column]) > std::abs(left[best][column])) best = s;
    }
    if (best == samples.size() || std::abs(left[best][column]) < kLeastPivot) {
      return InvalidArgument("expected samples that tell " + std::to_string(n) + " products of sizes apart, got " +
                             std::to_string(samples.size()) + " that do not");
    }
    fitter.chosen_.push_back(best);
    for (size_t s = 0; s < samples.size(); ++s) {
      if (std::find(fitter.chosen_.begin(), fitter.chosen_.end(), s) != fitter.chosen_.end()) continue;
      const long double factor = left[s][column] / left[best][column];
      for (size_t i = column; i < n; ++i) left[s][i] -= factor * left[best][i];
    }
  }
  // Gauss-Jordan on the chosen samples.
  std::vector<std::vector<long double>> m(n, std::vector<long double>(2 * n, 0));
  for (size_t r = 0; r < n; ++r) {
    std::copy(rows[fitter.chosen_[r]].begin(), rows[fitter.chosen_[r]].end(), m[r].begin());
    m[r][n + r] = 1;
  }
  for (size_t column = 0; column < n; ++column) {
    size_t pivot = column;
    for (size_t r = column; r < n; ++r) {
      if (std::abs(m[r][column]) > std::abs(m[pivot][column])) pivot = r;
    }
    std::swap(m[column], m[pivot]);
    const long double head = m[column][column];
    for (long double& entry : m[column]) entry /= head;
    for (size_t r = 0; r < n; ++r) {
      if (r == column || m[r][column] == 0) continue;
      const long double factor = m[r][column];
      for (size_t i = 0; i < 2 * n; ++i) m[r][i] -= factor * m[column][i];
    }
  }
  fitter.inverse_.resize(n * n);
  for (size_t r = 0; r < n; ++r) {
    for (size_t i = 0; i < n; ++i) fitter.inverse_[r * n + i] = m[r][n + i] / unit[r];
  }
  fitter.monomials_ = std::move(monomials);
  fitter.samples_ = std::move(samples);
  return fitter;
}

std::optional<Polynomial> PolynomialFitter::Fit(std::span<const int64_t> values) const {
  Polynomial polynomial;
  if (std::all_of(values.begin(), values.end(), [&](int64_t v) { return v == values[0]; })) {
    if (values[0] != 0) polynomial.terms.push_back({0, values[0]});
    return polynomial;
  }
  const size_t n = monomials_.count();
  for (size_t r = 0; r < n; ++r) {
    long double factor = 0;
    for (size_t i = 0; i < n; ++i) factor += inverse_[r * n + i] * static_cast<long double>(values[chosen_[i]]);
    if (!(std::abs(factor) < static_cast<long double>(kMost))) return std::nullopt;
    const auto whole = static_cast<int64_t>(std::llround(factor));
    if (whole != 0) polynomial.terms.push_back({static_cast<uint32_t>(r), whole});
  }
  // The factors were computed with rounding; this is exact.
  for (size_t s = 0; s < samples_.size(); ++s) {
    if (!Equals(polynomial, monomials_, samples_[s], values[s])) return std::nullopt;
  }
  return polynomial;
}

}  // namespace thresher
