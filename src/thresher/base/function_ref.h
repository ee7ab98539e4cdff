// A reference to something callable: what std::function is, without owning and without allocating.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace thresher {

template <class Signature>
class FunctionRef;

// The callable must outlive the reference; pass it as an argument, do not store it.
template <class R, class... Args>
class FunctionRef<R(Args...)> {
 public:
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef> && std::is_invocable_r_v<R, F&, Args...>)
  FunctionRef(F&& callable)  // NOLINT(google-explicit-constructor): a lambda is passed where this is wanted
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(callable)))),
        call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(std::forward<Args>(args)...);
        }) {}

  R operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

}  // namespace thresher
