// The message behind a result of the device API: one a thread, as last_error() gives it.
#pragma once

#include <cstdio>
#include <string>

#include "thresher/device_api.h"

namespace thresher::cuda {

// Long enough for a sentence with a path in it.
inline constexpr size_t kMessageBytes = 1024;

// Never fails, so that running out of memory can be told.
inline char* Message() {
  thread_local char message[kMessageBytes] = "";
  return message;
}

inline thresher_device_result Fail(thresher_device_result result, const char* text) {
  std::snprintf(Message(), kMessageBytes, "%s", text);
  return result;
}

inline thresher_device_result Fail(thresher_device_result result, const std::string& text) {
  return Fail(result, text.c_str());
}

}  // namespace thresher::cuda

#define THRESHER_DEVICE_TRY(expr)                                                                       \
  do {                                                                                                  \
    if (const thresher_device_result thresher_result_ = (expr); thresher_result_ != THRESHER_DEVICE_OK) \
      return thresher_result_;                                                                          \
  } while (false)
