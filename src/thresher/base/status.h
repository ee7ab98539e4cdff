// Errors cross C++ boundaries as values; only the bindings turn them into exceptions.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace thresher {

enum class Code : unsigned char {
  kOk = 0,
  kInvalidArgument,    // the caller passed something wrong
  kUnsupported,        // right, but this engine cannot do it
  kOutOfRange,         // an index in the data lies outside its tensor
  kResourceExhausted,  // memory or another declared limit
  kInternal,           // a bug in the engine
};

// An error message says what was wanted, what was found and, where there is one, the cure.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return Status(); }

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

inline Status InvalidArgument(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }
inline Status Unsupported(std::string message) { return {Code::kUnsupported, std::move(message)}; }
inline Status OutOfRange(std::string message) { return {Code::kOutOfRange, std::move(message)}; }
inline Status ResourceExhausted(std::string message) { return {Code::kResourceExhausted, std::move(message)}; }
inline Status Internal(std::string message) { return {Code::kInternal, std::move(message)}; }

// Either a value or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : state_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return std::holds_alternative<T>(state_); }
  Status status() const { return ok() ? Status::Ok() : std::get<Status>(state_); }
  T& value() & { return std::get<T>(state_); }
  const T& value() const& { return std::get<T>(state_); }
  T&& value() && { return std::get<T>(std::move(state_)); }

 private:
  std::variant<T, Status> state_;
};

#define THRESHER_CONCAT_INNER(a, b) a##b
#define THRESHER_CONCAT(a, b) THRESHER_CONCAT_INNER(a, b)

// Returns from the enclosing function when `expr` (a Status) is an error.
#define THRESHER_TRY(expr)                                                                             \
  do {                                                                                                 \
    if (::thresher::Status thresher_status_ = (expr); !thresher_status_.ok()) return thresher_status_; \
  } while (false)

// Assigns the value of `expr` (a Result) to `lhs`, or returns its Status.
#define THRESHER_ASSIGN(lhs, expr)                                                                                    \
  auto THRESHER_CONCAT(thresher_result_, __LINE__) = (expr);                                                          \
  if (!THRESHER_CONCAT(thresher_result_, __LINE__).ok()) return THRESHER_CONCAT(thresher_result_, __LINE__).status(); \
  lhs = std::move(THRESHER_CONCAT(thresher_result_, __LINE__)).value()

}  // namespace thresher
