// Whole numbers that depend on a few sizes, as polynomials in them.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "thresher/base/status.h"
#include "thresher/base/view.h"

namespace thresher {

inline constexpr size_t kMaxSizes = 3;

// The products of powers of the sizes that polynomials are made of; number 0 is 1.
class Monomials {
 public:
  Monomials() = default;
  // No size has an exponent above `degree`, and no product a sum of them above `total`.
  Monomials(size_t sizes, int degree, int total);

  size_t sizes() const { return sizes_; }
  size_t count() const { return exponents_.size(); }
  // values[i] = monomial i; `values` has room for count().
  template <class T>
  void At(std::span<const int64_t> sizes, T* values) const {
    for (size_t i = 0; i < exponents_.size(); ++i) {
      T value = 1;
      for (size_t v = 0; v < sizes_; ++v) {
        for (int e = 0; e < exponents_[i][v]; ++e) value *= static_cast<T>(sizes[v]);
      }
      values[i] = value;
    }
  }

 private:
  size_t sizes_ = 0;
  std::vector<std::array<uint8_t, kMaxSizes>> exponents_;
};

struct Polynomial {
  struct Term {
    uint32_t monomial = 0;
    int64_t factor = 0;
    friend auto operator<=>(const Term&, const Term&) = default;
  };
  std::vector<Term> terms;

  int64_t At(const int64_t* monomials) const {
    int64_t sum = 0;
    for (const Term& term : terms) sum += term.factor * monomials[term.monomial];
    return sum;
  }
  bool constant() const { return terms.empty() || (terms.size() == 1 && terms[0].monomial == 0); }
  // Whether no sum on the way to the value overflows, at these sizes and all smaller ones.
  bool Fits(const Monomials& monomials, std::span<const int64_t> sizes) const;

  friend auto operator<=>(const Polynomial&, const Polynomial&) = default;
};

// Finds polynomials by their values at some samples of the sizes.
class PolynomialFitter {
 public:
  // Error: the samples do not determine a polynomial of these monomials.
  static Result<PolynomialFitter> Make(Monomials monomials, std::vector<Dims> samples);

  // The polynomial with whole factors that has exactly these values, one a sample; nullopt where there is none.
  std::optional<Polynomial> Fit(std::span<const int64_t> values) const;

  const Monomials& monomials() const { return monomials_; }

 private:
  Monomials monomials_;
  std::vector<Dims> samples_;
  std::vector<size_t> chosen_;        // the samples that determine the factors; the others only check them
  std::vector<long double> inverse_;  // factors = inverse * values at the chosen samples
};

}  // namespace thresher
