// What a plan knows about the params of a step besides their bytes: which of them are sizes of the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <vector>

#include "thresher/kernels/blocking.h"

namespace thresher {

struct ParamsType {
  size_t bytes = 0;
  std::vector<size_t> sizes;     // offsets of int64_t that may follow the sizes of a call
  std::vector<size_t> numbers;   // of double that may
  std::ptrdiff_t blocking = -1;  // of the kernels::Blocking of a product, which follows its number of rows; -1: none
  bool (*same)(const void* a, const void* b) = nullptr;  // whether all else is equal
};

// The type of plain params: a struct with operator==, in which
//   static constexpr auto Sizes() { return std::tuple(&Params::m, ...); }
// lists the members that may depend on the sizes of a call (int64_t, double), and the blocking. All others are the same
// at all sizes.
template <class Params>
const ParamsType& TypeOfParams() {
  static const ParamsType type = [] {
    ParamsType made;
    made.bytes = sizeof(Params);
    if constexpr (requires { Params::Sizes(); }) {
      static const Params params{};
      const auto add = [&made](auto member) {
        const auto offset =
            static_cast<size_t>(reinterpret_cast<uintptr_t>(&(params.*member)) - reinterpret_cast<uintptr_t>(&params));
        using Member = std::remove_cvref_t<decltype(params.*member)>;
        if constexpr (std::is_same_v<Member, kernels::Blocking>) {
          made.blocking = static_cast<std::ptrdiff_t>(offset);
        } else if constexpr (std::is_same_v<Member, double>) {
          made.numbers.push_back(offset);
        } else {
          static_assert(std::is_same_v<Member, int64_t>);
          made.sizes.push_back(offset);
        }
      };
      std::apply([&add](auto... members) { (add(members), ...); }, Params::Sizes());
    }
    made.same = [](const void* a, const void* b) {
      if constexpr (std::is_empty_v<Params>) {
        return true;
      } else {
        Params x = *static_cast<const Params*>(a);
        Params y = *static_cast<const Params*>(b);
        if constexpr (requires { Params::Sizes(); }) {
          std::apply([&](auto... members) { ((x.*members = {}, y.*members = {}), ...); }, Params::Sizes());
        }
        return x == y;
      }
    };
    return made;
  }();
  return type;
}

}  // namespace thresher
