// The text of chains of element-wise operators: what is read prints as a text that reads back as the same.
#include "fuzz/target.h"
#include "thresher/graph/program.h"

namespace thresher {

THRESHER_FUZZ_TARGET(program_text, fuzz::MemoryLimit{}) {
  const Result<Program> program = ParseProgram(bytes);
  if (!program.ok()) {
    THRESHER_FUZZ_REQUIRE(program.status().code() != Code::kInternal, program.status().message());
    return;
  }
  const std::string text = PrintProgram(program.value());
  const Result<Program> again = ParseProgram(text);
  THRESHER_FUZZ_REQUIRE(again.ok(), again.status().message() + " in " + text);
  THRESHER_FUZZ_REQUIRE(PrintProgram(again.value()) == text, PrintProgram(again.value()) + " from " + text);
}

}  // namespace thresher
