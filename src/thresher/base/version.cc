#include "thresher/base/version.h"

namespace thresher {

const char* const kVersion = THRESHER_VERSION;

}  // namespace thresher
