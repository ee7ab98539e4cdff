// Operators of packages outside this repository (operator_package.h).
#pragma once

#include <string>
#include <vector>

#include "thresher/base/status.h"
#include "thresher/graph/operator.h"
#include "thresher/operator_package.h"

namespace thresher {

// The rows of a package, which stays where it is. InvalidArgument where one cannot be used; the text says which, and
// why.
Result<std::vector<OpDef>> OutsideRows(const operators::Package& package);

// What a library of operators holds.
struct OperatorLibrary {
  std::string name;
  std::string version;
  std::vector<std::string> operators;
};

// Opens a library, whose operators every graph of the process has from then on; it is never closed. One that is open
// already is described again. InvalidArgument where it is none, Unsupported where it is of another release.
Result<OperatorLibrary> LoadOperators(const std::string& path);

}  // namespace thresher
