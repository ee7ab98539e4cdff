// The version of the engine, which stands in pyproject.toml.
#pragma once

namespace thresher {

extern const char* const kVersion;

}  // namespace thresher
